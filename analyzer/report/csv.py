"""Every outcome of a study as CSV: a row each, units in the names of the columns."""

from __future__ import annotations

import csv
import io
from typing import Any

from analyzer.domain.answer import representative_test
from analyzer.domain.load_test import STAGES
from analyzer.domain.measurement import Failure, Measurement
from analyzer.domain.sla import Sla
from analyzer.domain.study import StudyResult

_CONFIG = (
    "precision",
    "quantization",
    "backend",
    "device",
    "max_batch_size",
    "dynamic_batching",
    "preferred_batch_size",
    "max_queue_delay_us",
    "instance_count",
    "intra_op_threads",
    "accelerator",
    "graph_level",
    "execution_mode",
    "inter_op_threads",
    "cuda_graphs",
    "pinned_memory",
    "cudnn_search",
    "instance_type",
)
_LATENCY = ("mean", "p50", "p90", "p95", "p99", "sla")
_USE = (
    "memory_bytes_peak",
    "gpu_memory_bytes_peak",
    "gpu_memory_source",
    "gpu_utilization",
    "power_watts",
    "energy_joules_per_inference",
    "gpu_clock_mhz",
    "gpu_throttled",
    "cpu_utilization",
)

COLUMNS = (
    "number",
    "config_id",
    "role",
    "state",
    *_CONFIG,
    "edge_rps",
    "edge_low_rps",
    "edge_high_rps",
    "capacity_rps",
    "measured_at_rps",
    "throughput_ips",
    *(f"latency_ms_{name}" for name in _LATENCY),
    *(f"{name}_ms_mean" for name in STAGES),
    "errors",
    *_USE,
    "accuracy_metric",
    "accuracy",
    "accuracy_drop",
    "certificate",
    "requests",
    "over_budget",
    "effective_requests",
    "mlperf",
    "predicted_edge_rps",
    "predicted_latency_ms_p99",
    "load_test_seconds",
    "failure_stage",
    "failure_reason",
    "failure_message",
)


def render_csv(result: StudyResult) -> str:
    """A header and a row per outcome in the order of the trials; empty where not measured."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for number, outcome in enumerate(result.outcomes):
        configuration = outcome.configuration
        config_id = configuration.config_id
        preferred = configuration.preferred_batch_size
        row: dict[str, Any] = {name: getattr(configuration, name) for name in _CONFIG}
        row |= {
            "number": number,
            "config_id": config_id,
            "role": {result.baseline_id: "baseline", result.recommended_id: "recommended"}.get(
                config_id, ""
            ),
            "preferred_batch_size": " ".join(map(str, preferred)) if preferred else "",
            "dynamic_batching": str(configuration.dynamic_batching).lower(),
            "load_test_seconds": outcome.load_test_seconds,
        }
        if isinstance(outcome, Failure):
            row |= _failure_cells(outcome)
        else:
            row |= _measurement_cells(outcome, result.sla)
        # Not a DictWriter: its check of every row costs more than the row.
        writer.writerow([row.get(name) for name in COLUMNS])
    return text.getvalue()


def _failure_cells(failure: Failure) -> dict[str, Any]:
    return {
        "state": "failed",
        "failure_stage": failure.stage,
        "failure_reason": failure.reason,
        "failure_message": failure.message,
    }


def _measurement_cells(measurement: Measurement, sla: Sla) -> dict[str, Any]:
    low, high = measurement.edge.interval_rps
    cells: dict[str, Any] = {
        "state": "measured",
        "edge_rps": measurement.edge.rate_rps,
        "edge_low_rps": low or None,
        "edge_high_rps": high,
        "capacity_rps": measurement.capacity_rps,
        "predicted_edge_rps": measurement.predicted.edge_rps,
        "predicted_latency_ms_p99": measurement.predicted.latency_ms_p99,
    }
    test = representative_test(measurement, sla)
    use = measurement.resources
    if test is not None:
        cells |= {
            "measured_at_rps": test.offered_rps,
            "throughput_ips": test.throughput_ips,
            "errors": test.errors,
        }
        cells |= {f"latency_ms_{name}": getattr(test.latency_ms, name) for name in _LATENCY}
        cells |= {f"{name}_ms_mean": getattr(test.breakdown_ms, name) for name in STAGES}
    for name in _USE:
        own = getattr(test.resources, name) if test is not None else None
        cells[name] = own if own is not None else getattr(use, name)
    accuracy = measurement.real_accuracy
    if accuracy is not None and accuracy.value is not None:
        cells |= {
            "accuracy_metric": accuracy.metric,
            "accuracy": accuracy.value,
            "accuracy_drop": accuracy.drop,
        }
    certificate = measurement.certificate
    if certificate is not None:
        cells |= {
            "certificate": certificate.verdict,
            "requests": certificate.requests,
            "over_budget": certificate.over_budget,
            "effective_requests": certificate.effective_requests,
            "mlperf": certificate.mlperf,
        }
    return cells
