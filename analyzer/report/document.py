"""The result of a search as one JSON document (schema 1); see docs/metrics.md for each number.

What was not measured is null, never 0 and never a guess; predicted and measured numbers never share
a key.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any

from analyzer.domain.conditions import ConditionsSummary, summary_of
from analyzer.domain.gain import Gain, common_basis, rate_of
from analyzer.domain.load_test import (
    Breakdown,
    LatencySummary,
    LoadTest,
    ResourceUse,
)
from analyzer.domain.measurement import (
    Accuracy,
    Certificate,
    Edge,
    Failure,
    Measurement,
    Prediction,
)
from analyzer.domain.model import ModelInfo, TensorSpec
from analyzer.domain.study import Claim, Explanation, StudyResult
from analyzer.report.advice import next_budget_s, next_command
from analyzer.report.conditions_text import watched
from analyzer.report.entries import Entry, StudyReport, TypeEntry, study_entry
from analyzer.report.search_facts import provenance
from analyzer.report.summary import notes_of, statement

# Raised when a key of --json changes its meaning or goes.
SCHEMA = 1
CURRENCY = "USD"

# A document lists this many failures at most; `search.failed` counts them all.
FAILURES_MAX = 200


def build_document(report: StudyReport) -> dict[str, Any]:
    """The whole result of a search, JSON-ready: every key of the contract is present."""
    result = report.result

    def entry(item: Entry | None) -> dict[str, Any] | None:
        return entry_document(item) if item is not None else None

    document = {
        "schema": SCHEMA,
        "study": result.name,
        "verdict": result.verdict,
        "status": result.status,
        "model": _model(result.model),
        "sla": _sla(result),
        "recommendation": entry(report.recommendation),
        "baseline": entry(report.baseline),
        **_speedup(report.gain),
        "pareto": [entry(item) for item in report.front],
        "closest": _closest(report),
        "search": _search(result)
        | {"server": result.server, "conditions": _conditions(watched(result))},
        "instance_types": [_instance_type(one) for one in report.types],
        "explanation": _explanation(result.explanation),
        "failures": [_failure(failure) for failure in report.failures[:FAILURES_MAX]],
        "verifications": [
            {
                "claim": claim_document(item.claim),
                "measured": entry(measured),
                "verdict": item.verdict,
                "server": item.server,
                "at": item.at,
            }
            for item, measured in report.verifications
        ],
        "warnings": list(notes_of(result)),
        "provenance": provenance(result),
    }
    return _strict_table(document)


def entry_document(entry: Entry) -> dict[str, Any]:
    """The contract's ENTRY."""
    measurement = entry.measurement
    return _strict_table(
        {
            "config_id": entry.configuration.config_id,
            "config": entry.configuration.to_dict(),
            "capacity_rps": measurement.capacity_rps,
            "edge_rps": measurement.edge.rate_rps,
            "edge_interval_rps": edge_interval(measurement.edge),
            "measured_at_rps": entry.measured_at_rps,
            **_load_test_values(entry.test, entry.resources),
            "accuracy": _accuracy(entry.accuracy),
            "certificate": _certificate(measurement.certificate),
            "fleet": _fleet(entry),
            "hardware": measurement.hardware or None,
            "instance_type": entry.pricing.instance_type,
            "predicted": asdict(measurement.predicted),
        }
    )


def evidence_document(result: StudyResult, measurement: Measurement) -> dict[str, Any]:
    """What an exported configuration rests on, for the repository's manifest."""
    entry = study_entry(
        measurement, result, fleet_basis=common_basis(result.sla, measurement, None)
    )
    engine = result.engine_of(measurement.configuration)
    return {
        "study": result.name,
        "statement": statement(measurement, result),
        "sla": _strict(_sla(result)),
        "entry": entry_document(entry),
        "provenance": result.provenance,
        "model": {
            "sha256": result.model.sha256,
            "batchable": result.model.batchable,
            "inputs": [asdict(tensor) for tensor in result.model.inputs],
            "outputs": [asdict(tensor) for tensor in result.model.outputs],
        },
        "engine": asdict(engine) if engine is not None else None,
    }


def build_load_test_entry(
    test: LoadTest, *, certificate: Certificate | None = None, hardware: str = ""
) -> dict[str, Any]:
    """What ``analyze measure --json`` prints: ENTRY without the configuration, and the load test.

    One load test estimates no edge and certifies nothing by itself: those keys are null.
    """
    values = {
        "schema": SCHEMA,
        "capacity_rps": None,
        "edge_rps": None,
        "edge_interval_rps": None,
        "measured_at_rps": test.offered_rps,
        **_load_test_values(test, test.resources),
        "accuracy": None,
        "certificate": _certificate(certificate),
        "fleet": None,
        "hardware": hardware or None,
        "instance_type": None,
        "predicted": asdict(Prediction()),
        "requests": test.requests,
        "over_budget": test.over_budget,
        "offered_rps": test.offered_rps,
        "achieved_rps": test.achieved_rps,
        "concurrency": test.concurrency,
        "send_lag_ms_p99": test.send_lag_ms_p99,
        "validity": {"valid": test.validity.valid, "reasons": list(test.validity.reasons)},
    }
    return _strict_table(values)


def render_json(document: dict[str, Any]) -> str:
    """The document as strict JSON (no NaN, no Infinity), indented, with a final newline."""
    return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _load_test_values(test: LoadTest | None, use: ResourceUse) -> dict[str, Any]:
    """Everything from ``throughput_ips`` to ``gpu_throttled``; null what was not measured."""
    return {
        "throughput_ips": test.throughput_ips if test is not None else None,
        "latency_ms": asdict(test.latency_ms if test is not None else LatencySummary()),
        "breakdown_ms": asdict(test.breakdown_ms if test is not None else Breakdown()),
        "errors": test.errors if test is not None else None,
        "memory_bytes_peak": use.memory_bytes_peak,
        "gpu_memory_bytes_peak": use.gpu_memory_bytes_peak,
        "gpu_memory_source": use.gpu_memory_source,
        "gpu_utilization": use.gpu_utilization,
        "power_watts": use.power_watts,
        "energy_joules_per_inference": use.energy_joules_per_inference,
        "gpu_clock_mhz": use.gpu_clock_mhz,
        "gpu_clock_limits": list(use.gpu_clock_limits),
        "gpu_throttled": use.gpu_throttled,
    }


def _model(model: ModelInfo) -> dict[str, Any]:
    def tensor(spec: TensorSpec) -> dict[str, Any]:
        return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.graph_shape)}

    return {
        "name": model.name,
        "sha256": model.sha256,
        "batchable": model.batchable,
        "inputs": [tensor(spec) for spec in model.inputs],
        "outputs": [tensor(spec) for spec in model.outputs],
    }


def _whole(value: float) -> float | int:
    """An integer where it is one: what is stored is read back as a float."""
    return int(value) if float(value).is_integer() else value


def _sla(result: StudyResult) -> dict[str, Any]:
    """The SLA of a study and the load and prices under which it is judged."""
    return {
        **asdict(result.sla),
        "arrivals": result.arrivals,
        "request_batch_size": _whole(result.request_batch_size),
        "instance_type": result.pricing.instance_type,
        "price_per_hour": result.pricing.price_per_hour,
        "devices_per_machine": result.pricing.devices_per_machine,
    }


def _instance_type(one: TypeEntry) -> dict[str, Any]:
    """What one of several instance types came to."""
    return {
        "instance_type": one.result.name,
        "recommended": one.recommended,
        "verdict": one.result.verdict,
        "hardware": one.result.hardware or None,
        "workers": one.result.workers,
        "reason": one.result.reason or None,
        "entry": entry_document(one.entry) if one.entry is not None else None,
    }


def _interval(interval: tuple[float | None, float | None] | None) -> list[float | None] | None:
    if interval is None or interval == (None, None):
        return None
    return list(interval)


def edge_interval(edge: Edge) -> list[float | None] | None:
    """The interval as a document has it: an open end, as below where no rate was kept, is None."""
    ends = [end if end and math.isfinite(end) else None for end in edge.interval_rps]
    return ends if any(ends) else None


def _speedup(gain: Gain | None) -> dict[str, Any]:
    return {
        "speedup": gain.ratio if gain is not None else None,
        "speedup_basis": gain.basis if gain is not None else None,
        "speedup_interval": _interval(gain.interval) if gain is not None else None,
    }


def _accuracy(accuracy: Accuracy | None) -> dict[str, Any] | None:
    if accuracy is None or accuracy.value is None:
        return None
    return {
        "metric": accuracy.metric,
        "value": accuracy.value,
        "drop": accuracy.drop,
        "interval": _interval(accuracy.interval),
        "samples": accuracy.samples,
    }


def _certificate(certificate: Certificate | None) -> dict[str, Any] | None:
    if certificate is None:
        return None
    conditions = _conditions(summary_of([certificate.conditions]))
    return asdict(certificate) | {"conditions": conditions}


def _conditions(summary: ConditionsSummary | None) -> dict[str, Any] | None:
    return asdict(summary) if summary is not None else None


def _fleet(entry: Entry) -> dict[str, Any] | None:
    if entry.fleet is None:
        return None
    priced = entry.pricing.price_per_hour is not None
    return asdict(entry.fleet) | {
        "basis": entry.fleet_basis,
        "rate_rps": rate_of(entry.measurement, entry.fleet_basis),
        "currency": CURRENCY if priced else None,
        "price_source": entry.pricing.source if priced else None,
    }


def _closest(report: StudyReport) -> dict[str, Any] | None:
    closest = report.closest
    if closest is None:
        return None
    return {
        "entry": entry_document(closest.entry),
        "misses": [asdict(miss) for miss in closest.misses],
        **_speedup(report.closest_gain),
        "command": next_command(report),
    }


def _search(result: StudyResult) -> dict[str, Any]:
    search = result.search
    budget_s, known = next_budget_s(result)
    return asdict(search) | {
        "space": search.space or None,
        "accepted": result.accepted,
        "budget_needed_s": budget_s if known else None,
    }


def _failure(failure: Failure) -> dict[str, Any]:
    return {
        "config_id": failure.configuration.config_id,
        "config": failure.configuration.to_dict(),
        "stage": failure.stage,
        "reason": failure.reason,
        "message": failure.message,
        "hint": failure.hint,
    }


def claim_document(claim: Claim) -> dict[str, Any]:
    """``claim`` of ``verify --json`` and of a document's verifications."""
    return {
        "source": claim.source,
        "model": claim.model,
        "config_id": claim.configuration.config_id,
        "config": claim.configuration.to_dict(),
        "rate_rps": claim.rate_rps,
        "latency_budget_ms": claim.sla.latency_budget_ms,
        "percentile": claim.sla.percentile,
        "confidence": claim.sla.confidence,
        "arrivals": claim.arrivals,
        "request_batch_size": _whole(claim.request_batch_size),
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


def _strict_table(values: dict[str, Any]) -> dict[str, Any]:
    return {key: _strict(item) for key, item in values.items()}


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
