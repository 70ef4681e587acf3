"""Prometheus metrics with Triton's names and labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import psutil
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from analyzer.engine.counters import ModelStatistics
from analyzer.engine.loaded_model import LoadedModel
from analyzer.server.repository import Repository

_Value = Callable[[LoadedModel, ModelStatistics], float]


def _us(name: str) -> _Value:
    """A duration of the engine's counters, whole microseconds as Triton's."""
    return lambda model, details: getattr(details.server, name) // 1000


# Help text and value of what each version of a model has, as in Triton's metrics.cc.
_COUNTERS: dict[str, tuple[str, _Value]] = {
    "nv_inference_request_success": (
        "Number of successful inference requests, all batch sizes",
        lambda model, details: details.server.success_count + model.cache_hits.count,
    ),
    "nv_inference_count": (
        "Number of inferences performed (does not include cached requests)",
        lambda model, details: details.server.inference_count,
    ),
    "nv_inference_exec_count": (
        "Number of model executions performed (does not include cached requests)",
        lambda model, details: details.server.execution_count,
    ),
    "nv_inference_request_duration_us": (
        "Cumulative inference request duration in microseconds (includes cached requests)",
        lambda model, details: (details.server.success_ns + model.cache_hits.total_ns) // 1000,
    ),
    "nv_inference_queue_duration_us": (
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        _us("queue_ns"),
    ),
    "nv_inference_compute_input_duration_us": (
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        _us("compute_input_ns"),
    ),
    "nv_inference_compute_infer_duration_us": (
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        _us("compute_infer_ns"),
    ),
    "nv_inference_compute_output_duration_us": (
        (
            "Cumulative inference compute output duration in microseconds (does not include "
            "cached requests)"
        ),
        _us("compute_output_ns"),
    ),
}
_GAUGES: dict[str, tuple[str, _Value]] = {
    "nv_inference_pending_request_count": (
        "Instantaneous number of pending requests awaiting execution per-model.",
        lambda model, details: details.waiting_count,
    ),
    "nv_model_load_duration_secs": (
        "Model load time in seconds",
        lambda model, details: model.load_seconds,
    ),
}
_CACHE_COUNTERS: dict[str, tuple[str, _Value]] = {
    "nv_cache_num_hits_per_model": (
        "Number of cache hits per model",
        lambda model, details: model.cache_hits.count,
    ),
    "nv_cache_num_misses_per_model": (
        "Number of cache misses per model",
        lambda model, details: model.cache_misses.count,
    ),
    "nv_cache_hit_duration_per_model": (
        "Total cache hit duration per model, in microseconds",
        lambda model, details: model.cache_hits.total_ns // 1000,
    ),
    "nv_cache_miss_duration_per_model": (
        "Total cache miss (insert+lookup) duration per model, in microseconds",
        lambda model, details: model.cache_misses.total_ns // 1000,
    ),
}
# The library ends the names of counters in "_total" where it writes their help and type; Triton's
# have no such end. Samples keep the names that we give.
_COUNTER_HEAD = re.compile(rb"^(# (?:HELP|TYPE) nv_\w+)_total ", re.MULTILINE)

_NO_LABEL = re.compile(r"[^a-zA-Z0-9_]")


class TritonMetrics(Collector):
    """What Triton exposes of a repository's models and of the machine.

    Args:
        caching: Whether the server has a response cache.
    """

    def __init__(self, repository: Repository, *, caching: bool) -> None:
        self._repository = repository
        self._counters = _COUNTERS | (_CACHE_COUNTERS if caching else {})

    def collect(self) -> Iterator[Metric]:
        """Every family with its samples."""
        models = [(model, model.details(), _labels(model)) for model in self._repository.models()]
        for kind, table in (("counter", self._counters), ("gauge", _GAUGES)):
            for name, (text, value) in table.items():
                family = Metric(name, text, kind)
                for model, details, labels in models:
                    family.add_sample(name, labels, value(model, details))
                yield family
        name = "nv_inference_request_failure"
        family = Metric(name, "Number of failed inference requests, all batch sizes", "counter")
        for model, details, labels in models:
            for reason, count in _failures(model, details).items():
                family.add_sample(name, labels | {"reason": reason}, count)
        yield family
        for name, (text, now) in _machine().items():
            family = Metric(name, text, "gauge")
            family.add_sample(name, {}, now)
            yield family

    def text(self) -> bytes:
        """All metrics in the text exposition format."""
        return _COUNTER_HEAD.sub(rb"\1 ", generate_latest(self))


def _labels(model: LoadedModel) -> dict[str, str]:
    """Name and version, and the tags of the configuration, which begin with ``_``."""
    tags = {f"_{_NO_LABEL.sub('_', key)}": value for key, value in model.config.metric_tags.items()}
    return tags | {"model": model.name, "version": model.version_text}


def _machine() -> dict[str, tuple[str, float]]:
    memory = psutil.virtual_memory()
    used = memory.total - memory.available
    return {
        "nv_cpu_utilization": ("CPU utilization rate [0.0 - 1.0]", psutil.cpu_percent() / 100),
        "nv_cpu_memory_total_bytes": ("CPU total memory (RAM), in bytes", memory.total),
        "nv_cpu_memory_used_bytes": ("CPU used memory (RAM), in bytes", used),
    }


def _failures(model: LoadedModel, details: ModelStatistics) -> dict[str, int]:
    not_run = details.rejected_count + details.cancelled_count
    return {
        "REJECTED": details.rejected_count + model.rejected_count,
        "CANCELED": details.cancelled_count,
        "BACKEND": max(details.server.fail_count - not_run, 0),
        "OTHER": 0,
    }


class MetricsApp:
    """``GET /metrics`` as an ASGI application."""

    def __init__(self, metrics: TritonMetrics) -> None:
        self._metrics = metrics

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            return
        status, body = 404, b""
        if scope["path"] == "/metrics":
            status = 200 if scope["method"] == "GET" else 405
        if status == 200:
            body = self._metrics.text()
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
