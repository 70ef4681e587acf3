"""What the store hands out besides the domain's own objects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from analyzer.domain.load_test import Conditions
from analyzer.domain.measurement import Failure, Measurement
from analyzer.domain.model import ModelInfo
from analyzer.domain.sla import Sla
from analyzer.domain.study import (
    Acceptance,
    Explanation,
    InstanceTypeResult,
    MeasuredEngine,
    Pricing,
    SearchSummary,
    StudyStatus,
    Verdict,
)

PRICING_KEY = "pricing"
"""Of a study's options: the :class:`Pricing` that it has until it ends with a result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecord:
    """One search as it was started.

    Args:
        name: Unique in the database; empty to let the store number the model's studies.
        options: The options of the command, JSON-ready, from which it is resumed.
        seed: Root of every random number; None only before it is drawn.
        started_at: ISO 8601, UTC; empty to let the store stamp it.
        verdict: None until the study is finished.
        provenance: Hardware, versions, seeds; JSON-ready.
    """

    name: str = ""
    model: ModelInfo
    sla: Sla
    options: dict[str, Any] = field(default_factory=dict)
    seed: int | None = None
    started_at: str = ""
    status: StudyStatus = "running"
    verdict: Verdict | None = None
    provenance: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResult:
    """The fields of a :class:`StudyResult` that neither the study's row nor its outcomes hold.

    Args:
        told: Its outcomes: ids, and whether it is a measurement. What a study measured elsewhere
            before is stored, and counts no more. None where all count.
    """

    arrivals: str
    request_batch_size: float
    server: str
    recommended_id: str | None = None
    baseline_id: str
    pricing: Pricing
    search: SearchSummary
    explanation: Explanation
    warnings: tuple[str, ...] = ()
    accepted: Acceptance = "certified"
    recommendable: tuple[str, ...] | None = None
    engines: tuple[MeasuredEngine, ...] = ()
    conditions: Conditions | None = None
    speed_factors: tuple[tuple[str, float], ...] = ()
    unmet_rates: tuple[tuple[str, float], ...] = ()
    taken_back: tuple[str, ...] = ()
    instance_types: tuple[InstanceTypeResult, ...] = ()
    told: tuple[tuple[str, bool], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySummary:
    """One line of a list of studies; ``trials`` counts Optuna's trials that have an outcome."""

    name: str
    model: str
    verdict: Verdict | None
    trials: int
    started_at: str
    status: StudyStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOutcome:
    """A measurement or failure with the trial it belongs to.

    Args:
        number: Position in the study, ascending in the order of storing.
        role: ``trial``, ``baseline``, ``recommendation``, ``variant`` (it could not be built).
        params: What Optuna's trial proposed, JSON-ready.
        created_at: ISO 8601, UTC.
    """

    number: int
    trial_number: int
    role: str
    params: dict[str, Any]
    outcome: Measurement | Failure
    created_at: str


class TrialRow(NamedTuple):
    """The figures of one outcome that people list, without its objects; None is "not measured".

    ``state`` is ``measured`` or ``failed``; ``reason`` and ``message`` belong to a failure;
    everything from ``throughput_ips`` to ``cpu_utilization`` is the headline's (the load test at
    ``measured_at_rps``) where there is one.
    """

    number: int
    trial_number: int
    role: str
    state: str
    config_id: str
    variant: str
    reason: str | None
    message: str | None
    edge_rps: float | None
    capacity_rps: float | None
    certificate: str | None
    measured_at_rps: float | None
    throughput_ips: float | None
    latency_ms_p50: float | None
    latency_ms_p99: float | None
    latency_ms_sla: float | None
    memory_bytes_peak: int | None
    gpu_memory_bytes_peak: int | None
    gpu_utilization: float | None
    power_watts: float | None
    cpu_utilization: float | None
    accuracy_drop: float | None
    cost_per_hour: float | None
    load_test_seconds: float | None
    created_at: str

    def document(self) -> dict[str, Any]:
        """The fields as users see them: ``number`` of the trial, ``position`` of the row."""
        values = self._asdict()
        return {"number": values.pop("trial_number"), "position": values.pop("number"), **values}
