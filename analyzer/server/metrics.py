"""Prometheus metrics with Triton's names and labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import psutil

from analyzer.engine.counters import ModelStatistics
from analyzer.engine.loaded_model import LoadedModel
from analyzer.server.repository import Repository

_Value = Callable[[LoadedModel, ModelStatistics], float]


@dataclass(frozen=True, slots=True)
class _Metric:
    name: str
    kind: str
    help: str
    value: _Value


def _us(name: str) -> _Value:
    return lambda model, details: getattr(details.server, name) // 1000


_METRICS = (
    _Metric(
        "nv_inference_request_success",
        "counter",
        "Number of successful inference requests, all batch sizes",
        lambda model, details: details.server.success_count + model.cache_hits.count,
    ),
    _Metric(
        "nv_inference_count",
        "counter",
        "Number of inferences performed (does not include cached requests)",
        lambda model, details: details.server.inference_count,
    ),
    _Metric(
        "nv_inference_exec_count",
        "counter",
        "Number of model executions performed (does not include cached requests)",
        lambda model, details: details.server.execution_count,
    ),
    _Metric(
        "nv_inference_request_duration_us",
        "counter",
        "Cumulative inference request duration in microseconds (includes cached requests)",
        lambda model, details: (details.server.success_ns + model.cache_hits.total_ns) // 1000,
    ),
    _Metric(
        "nv_inference_queue_duration_us",
        "counter",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        _us("queue_ns"),
    ),
    _Metric(
        "nv_inference_compute_input_duration_us",
        "counter",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        _us("compute_input_ns"),
    ),
    _Metric(
        "nv_inference_compute_infer_duration_us",
        "counter",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        _us("compute_infer_ns"),
    ),
    _Metric(
        "nv_inference_compute_output_duration_us",
        "counter",
        "Cumulative inference compute output duration in microseconds (does not include cached "
        "requests)",
        _us("compute_output_ns"),
    ),
    _Metric(
        "nv_inference_pending_request_count",
        "gauge",
        "Instantaneous number of pending requests awaiting execution per-model.",
        lambda model, details: details.waiting_count,
    ),
    _Metric(
        "nv_model_load_duration_secs",
        "gauge",
        "Model load time in seconds",
        lambda model, details: model.load_seconds,
    ),
)
_CACHE_METRICS = (
    _Metric(
        "nv_cache_num_hits_per_model",
        "counter",
        "Number of cache hits per model",
        lambda model, details: model.cache_hits.count,
    ),
    _Metric(
        "nv_cache_num_misses_per_model",
        "counter",
        "Number of cache misses per model",
        lambda model, details: model.cache_misses.count,
    ),
    _Metric(
        "nv_cache_hit_duration_per_model",
        "counter",
        "Total cache hit duration per model, in microseconds",
        lambda model, details: model.cache_hits.total_ns // 1000,
    ),
    _Metric(
        "nv_cache_miss_duration_per_model",
        "counter",
        "Total cache miss (insert+lookup) duration per model, in microseconds",
        lambda model, details: model.cache_misses.total_ns // 1000,
    ),
)


def metrics_text(repository: Repository, *, caching: bool) -> str:
    """All metrics in the text exposition format."""
    models = [(model, model.details()) for model in repository.models()]
    lines: list[str] = []
    for metric in _METRICS + (_CACHE_METRICS if caching else ()):
        lines += _head(metric.name, metric.kind, metric.help)
        for model, details in models:
            lines.append(f"{metric.name}{_labels(model)} {_number(metric.value(model, details))}")
    name = "nv_inference_request_failure"
    lines += _head(name, "counter", "Number of failed inference requests, all batch sizes")
    for model, details in models:
        for reason, count in _failures(model, details):
            lines.append(f"{name}{_labels(model, reason=reason)} {count}")
    for name, help_text, value in _machine():
        lines += _head(name, "gauge", help_text)
        lines.append(f"{name} {_number(value)}")
    return "\n".join(lines) + "\n"


def _failures(model: LoadedModel, details: ModelStatistics) -> Iterator[tuple[str, int]]:
    yield "REJECTED", details.rejected_count + model.rejected_count
    yield "CANCELED", details.cancelled_count
    yield "BACKEND", max(details.server.fail_count - details.rejected_count, 0)
    yield "OTHER", 0


def _machine() -> Iterator[tuple[str, str, float]]:
    memory = psutil.virtual_memory()
    yield "nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", psutil.cpu_percent() / 100
    yield "nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", memory.total
    yield (
        "nv_cpu_memory_used_bytes",
        "CPU used memory (RAM), in bytes",
        memory.total - memory.available,
    )


def _head(name: str, kind: str, help_text: str) -> list[str]:
    return [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]


def _labels(model: LoadedModel, **more: str) -> str:
    labels = {"model": model.name, **more, "version": model.version_text}
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


class MetricsApp:
    """``GET /metrics`` as an ASGI application."""

    def __init__(self, repository: Repository, *, caching: bool) -> None:
        self._repository = repository
        self._caching = caching

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            return
        status, body = 404, b""
        if scope["path"] == "/metrics":
            status = 200 if scope["method"] == "GET" else 405
        if status == 200:
            body = metrics_text(self._repository, caching=self._caching).encode()
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
