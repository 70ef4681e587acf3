"""The result of a search as one JSON document (schema 1); see docs/metrics.md for each number.

What was not measured is null, never 0 and never a guess; predicted and measured numbers never share
a key.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from analyzer.domain.answer import (
    Miss,
    closest_miss,
    find,
    measured,
    pareto_front,
    representative_test,
    speedup,
)
from analyzer.domain.configuration import Configuration
from analyzer.domain.cost import fleet_for
from analyzer.domain.measurement import (
    Accuracy,
    Certificate,
    Edge,
    Failure,
    LoadTest,
    Measurement,
    Prediction,
    ResourceUse,
)
from analyzer.domain.model import ModelInfo, TensorSpec
from analyzer.domain.sla import Sla
from analyzer.domain.study import Explanation, Pricing, StudyResult, Verification

SCHEMA = 1
CURRENCY = "USD"

# A document lists this many failures at most; `search.failed` counts them all.
FAILURES_MAX = 200


def build_document(facts: StudyResult) -> dict[str, Any]:
    """The whole result of a search, JSON-ready: every key of the contract is present.

    Args:
        facts: The study; its outcomes may be many (100,000 are fine).
    """
    measurements = measured(facts.outcomes)
    failures = [outcome for outcome in facts.outcomes if isinstance(outcome, Failure)]
    recommendation = find(measurements, facts.recommended_id)
    baseline = find(measurements, facts.baseline_id)

    def entry(measurement: Measurement) -> dict[str, Any]:
        return build_entry(
            measurement,
            sla=facts.sla,
            pricing=facts.pricing,
            request_batch_size=facts.request_batch_size,
        )

    front = pareto_front(
        measurements,
        facts.sla,
        pricing=facts.pricing,
        request_batch_size=facts.request_batch_size,
    )
    closest = closest_miss(measurements, facts.sla) if recommendation is None else None
    document = {
        "schema": SCHEMA,
        "study": facts.name,
        "verdict": facts.verdict,
        "model": _model(facts.model),
        "sla": _sla(facts),
        "recommendation": entry(recommendation) if recommendation is not None else None,
        "baseline": entry(baseline)
        if baseline is not None
        else _unmeasured_baseline(facts, failures),
        "speedup": speedup(
            facts.sla,
            recommendation,
            baseline,
            devices_per_machine=facts.pricing.devices_per_machine,
        ),
        "pareto": [entry(measurement) for measurement in front],
        "closest": {"entry": entry(closest[0]), "misses": [_miss(miss) for miss in closest[1]]}
        if closest is not None
        else None,
        "search": {
            "sampler": facts.search.sampler,
            "space": facts.search.space or None,
            "space_size": facts.search.space_size,
            "evaluated_live": facts.search.evaluated_live,
            "evaluated_twin": facts.search.evaluated_twin,
            "failed": facts.search.failed,
            "load_test_seconds": facts.search.load_test_seconds,
            "wall_seconds": facts.search.wall_seconds,
            "bound": facts.search.bound,
            "server": facts.server,
        },
        "explanation": _explanation(facts.explanation),
        "failures": [_failure(failure) for failure in failures[:FAILURES_MAX]],
        "verifications": [_verification(item, facts) for item in facts.verifications],
        "warnings": list(facts.warnings),
        "provenance": {
            key: facts.provenance.get(key)
            for key in ("analyzer", "hardware", "libraries", "seeds", "started_at")
        }
        | facts.provenance,
    }
    strict: dict[str, Any] = _strict(document)
    return strict


def build_entry(
    measurement: Measurement, *, sla: Sla, pricing: Pricing, request_batch_size: int = 1
) -> dict[str, Any]:
    """The contract's ENTRY of one measured configuration.

    ``measured_at_rps`` is the rate of the certificate (or the target rate); for a configuration
    without one, the highest rate that was measured to keep the budget, or the one closest to it.
    """
    test = representative_test(measurement, sla)
    values = {
        "config_id": measurement.configuration.config_id,
        "config": measurement.configuration.to_dict(),
        "capacity_rps": measurement.capacity_rps,
        "edge_rps": measurement.edge.rate_rps,
        "edge_interval_rps": _interval(measurement.edge.interval_rps),
        "measured_at_rps": test.offered_rps if test is not None else None,
        **_load_test_values(test),
        "accuracy": _accuracy(measurement.accuracy),
        "certificate": _certificate(measurement.certificate),
        "fleet": _fleet(measurement.capacity_rps, sla, pricing, request_batch_size),
        "hardware": measurement.hardware or None,
        "instance_type": pricing.instance_type,
        "predicted": _predicted(measurement.predicted),
    }
    if values["memory_bytes_peak"] is None:
        values["memory_bytes_peak"] = measurement.resources.memory_bytes_peak
    if values["gpu_memory_bytes_peak"] is None:
        values["gpu_memory_bytes_peak"] = measurement.resources.gpu_memory_bytes_peak
        values["gpu_memory_source"] = measurement.resources.gpu_memory_source
    strict: dict[str, Any] = _strict(values)
    return strict


def build_load_test_entry(
    test: LoadTest,
    *,
    certificate: Certificate | None = None,
    pricing: Pricing | None = None,
    hardware: str = "",
) -> dict[str, Any]:
    """What ``analyze measure --json`` prints: ENTRY without the configuration, and the load test.

    One load test estimates no edge and certifies nothing by itself: those keys are null.
    """
    pricing = pricing or Pricing()
    values = {
        "schema": SCHEMA,
        "capacity_rps": None,
        "edge_rps": None,
        "edge_interval_rps": None,
        "measured_at_rps": test.offered_rps,
        **_load_test_values(test),
        "accuracy": None,
        "certificate": _certificate(certificate),
        "fleet": None,
        "hardware": hardware or None,
        "instance_type": pricing.instance_type,
        "predicted": _predicted(Prediction()),
        "requests": test.requests,
        "offered_rps": test.offered_rps,
        "achieved_rps": test.achieved_rps,
        "concurrency": test.concurrency,
        "send_lag_ms_p99": test.send_lag_ms_p99,
        "validity": {"valid": test.validity.valid, "reasons": list(test.validity.reasons)},
    }
    strict: dict[str, Any] = _strict(values)
    return strict


def render_json(document: dict[str, Any]) -> str:
    """The document as strict JSON (no NaN, no Infinity), indented, with a final newline."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _load_test_values(test: LoadTest | None) -> dict[str, Any]:
    """Everything from ``throughput_ips`` to ``power_watts``, null without a load test."""
    latency = test.latency_ms if test is not None else None
    breakdown = test.breakdown_ms if test is not None else None
    use = test.resources if test is not None else ResourceUse()
    return {
        "throughput_ips": test.throughput_ips if test is not None else None,
        "latency_ms": {
            key: getattr(latency, key, None) for key in ("mean", "p50", "p90", "p95", "p99", "sla")
        },
        "breakdown_ms": {
            key: getattr(breakdown, key, None)
            for key in ("queue", "compute_input", "compute_infer", "compute_output", "overhead")
        },
        "errors": test.errors if test is not None else None,
        "memory_bytes_peak": use.memory_bytes_peak,
        "gpu_memory_bytes_peak": use.gpu_memory_bytes_peak,
        "gpu_memory_source": use.gpu_memory_source,
        "gpu_utilization": use.gpu_utilization,
        "power_watts": use.power_watts,
    }


def _model(model: ModelInfo) -> dict[str, Any]:
    def tensor(spec: TensorSpec) -> dict[str, Any]:
        return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}

    return {
        "name": model.name,
        "sha256": model.sha256,
        "batchable": model.batchable,
        "inputs": [tensor(spec) for spec in model.inputs],
        "outputs": [tensor(spec) for spec in model.outputs],
    }


def _sla(facts: StudyResult) -> dict[str, Any]:
    return {
        **asdict(facts.sla),
        "arrivals": facts.arrivals,
        "request_batch_size": facts.request_batch_size,
        "instance_type": facts.pricing.instance_type,
        "price_per_hour": facts.pricing.price_per_hour,
        "devices_per_machine": facts.pricing.devices_per_machine,
    }


def _interval(interval: tuple[float | None, float | None] | None) -> list[float | None] | None:
    if interval is None or interval == (None, None):
        return None
    return list(interval)


def _accuracy(accuracy: Accuracy | None) -> dict[str, Any] | None:
    """Null without real data: agreement on made-up inputs says nothing about accuracy."""
    if accuracy is None or accuracy.synthetic:
        return None
    return {
        "metric": accuracy.metric,
        "value": accuracy.value,
        "drop": accuracy.drop,
        "interval": _interval(accuracy.interval),
        "samples": accuracy.samples,
    }


def _certificate(certificate: Certificate | None) -> dict[str, Any] | None:
    return asdict(certificate) if certificate is not None else None


def _fleet(
    capacity_rps: float | None, sla: Sla, pricing: Pricing, request_batch_size: int
) -> dict[str, Any] | None:
    fleet = fleet_for(
        capacity_rps=capacity_rps,
        target_rate_rps=sla.target_rate_rps,
        price_per_hour=pricing.price_per_hour,
        devices_per_machine=pricing.devices_per_machine,
        request_batch_size=request_batch_size,
    )
    if fleet is None:
        return None
    priced = pricing.price_per_hour is not None
    return asdict(fleet) | {
        "currency": CURRENCY if priced else None,
        "price_source": pricing.source if priced else None,
    }


def _predicted(prediction: Prediction) -> dict[str, Any]:
    return asdict(prediction)


def _miss(miss: Miss) -> dict[str, Any]:
    return asdict(miss)


def _unmeasured_baseline(facts: StudyResult, failures: list[Failure]) -> dict[str, Any] | None:
    """The baseline's entry, with nothing measured, where it failed; null if it never ran."""
    for failure in failures:
        if failure.configuration.config_id == facts.baseline_id:
            return _empty_entry(failure.configuration, facts)
    return None


def _empty_entry(configuration: Configuration, facts: StudyResult) -> dict[str, Any]:
    nothing = Measurement(
        configuration=configuration, edge=Edge(rate_rps=None, interval_rps=(None, None))
    )
    return build_entry(nothing, sla=facts.sla, pricing=facts.pricing)


def _failure(failure: Failure) -> dict[str, Any]:
    return {
        "config_id": failure.configuration.config_id,
        "config": failure.configuration.to_dict(),
        "stage": failure.stage,
        "reason": failure.reason,
        "message": failure.message,
        "hint": failure.hint,
    }


def _verification(item: Verification, facts: StudyResult) -> dict[str, Any]:
    return {
        "claim": item.claim,
        "measured": build_entry(
            item.measured,
            sla=facts.sla,
            pricing=facts.pricing,
            request_batch_size=facts.request_batch_size,
        ),
        "verdict": item.verdict,
        "server": item.server,
        "at": item.at,
    }


def _explanation(explanation: Explanation) -> dict[str, Any]:
    """Why the winner wins; what the twin says stands under ``predicted_…`` keys alone."""
    return {
        "limited_by": explanation.limited_by or None,
        "twin_trusted": explanation.trusted,
        "twin_trust_reason": explanation.trust_reason or None,
        "twin_error_median": explanation.error_median,
        "contributions": [
            {
                "setting": step.setting,
                "config_id": step.config_id,
                "edge_rps": step.edge_rps if step.measured else None,
                "predicted_edge_rps": None if step.measured else step.edge_rps,
            }
            for step in explanation.contributions
        ],
        "what_if": [
            {
                "setting": item.setting,
                "from_value": item.from_value,
                "to_value": item.to_value,
                "predicted_edge_rps": item.predicted_edge_rps,
                "predicted_change_fraction": item.change_fraction,
            }
            for item in explanation.what_if
        ],
        "importance": dict(explanation.importance),
    }


def _strict(value: Any) -> Any:
    """``value`` in JSON's own types: infinities and NaN are null, NumPy's scalars are plain."""
    if isinstance(value, dict):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    if hasattr(value, "item") and not isinstance(value, (str, bytes)):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
