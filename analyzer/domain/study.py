"""What a study ends with: the result that is stored, and from which every report is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from analyzer.domain.configuration import Configuration
from analyzer.domain.load_test import Conditions
from analyzer.domain.measurement import (
    CertificateVerdict,
    Failure,
    Measurement,
)
from analyzer.domain.model import ModelInfo
from analyzer.domain.sla import Sla

Verdict = Literal["found", "estimated", "infeasible", "undecided"]

StudyStatus = Literal["running", "interrupted", "failed", "finished"]
"""How far a study is; ``running`` also where its search was killed."""

Acceptance = Literal["certified", "estimated"]
"""What may be recommended: a certified rate alone, or, where none was reached, an estimate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pricing:
    """What a machine costs, where that is known.

    Args:
        instance_type: The cloud's name of the machine; None if only a price was given.
        price_per_hour: US dollars; None if unknown, and every cost is then None.
        devices_per_machine: GPUs (or whole CPUs) of a machine that serve replicas.
        source: Where the price comes from: ``--price``, or the catalogue's entry and date.
        device: What the catalogue calls the machine's device (``NVIDIA T4``); empty if unknown.
    """

    instance_type: str | None = None
    price_per_hour: float | None = None
    devices_per_machine: int = 1
    source: str | None = None
    device: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of the way from fp32, one instance and no batching to the winner.

    Args:
        setting: The setting changed, as a short phrase (``dynamic_batching: on``).
        config_id: The configuration after the step.
        edge_rps: Its edge; None if it never keeps the SLA or is unknown.
        measured: Whether ``edge_rps`` was measured; otherwise the twin predicted it.
    """

    setting: str
    config_id: str
    edge_rps: float | None = None
    measured: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What the twin expects of one changed setting, marked as predicted everywhere."""

    setting: str
    from_value: str
    to_value: str
    predicted_edge_rps: float | None = None
    change_fraction: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why the winner wins, from the twin (predicted) and from what was measured.

    Args:
        limited_by: ``queue``, ``compute`` or ``threads``, as a sentence; empty if unknown.
        trusted: Whether the twin could be trusted in this study, and ``trust_reason`` why (not).
        contributions: From the simplest configuration to the winner, in order.
        importance: Share of the variance of the edge that each parameter explains, 0 to 1.
    """

    limited_by: str = ""
    trusted: bool | None = None
    trust_reason: str = ""
    error_median: float | None = None
    contributions: tuple[Step, ...] = ()
    what_if: tuple[WhatIf, ...] = ()
    importance: tuple[tuple[str, float], ...] = ()

    def scaled(self, factor: float, measured: Mapping[str, float]) -> Explanation:
        """The same with every predicted edge ``factor`` times as high.

        Args:
            measured: The factors of measured configurations, by id.
        """

        def of(step: Step) -> float:
            return measured.get(step.config_id, factor) if step.measured else factor

        return replace(
            self,
            contributions=tuple(
                replace(step, edge_rps=step.edge_rps and step.edge_rps * of(step))
                for step in self.contributions
            ),
            what_if=tuple(
                replace(
                    item,
                    predicted_edge_rps=item.predicted_edge_rps and factor * item.predicted_edge_rps,
                )
                for item in self.what_if
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSummary:
    """How the search went; the contract's ``search``.

    Args:
        evaluated_twin: Of the space, those that the twin predicts; None if unknown (a study that
            did not end).
        wall_seconds: None if unknown, as ``evaluated_twin``.
        budget_s: Wall time that the command was given; None in studies of before.
        budget_needed_s: The budget that would prove the best candidate, where it was not proven.
    """

    sampler: str
    space: str = ""
    space_size: int | None = None
    evaluated_live: int = 0
    evaluated_twin: int | None = 0
    failed: int = 0
    load_test_seconds: float = 0.0
    wall_seconds: float | None = 0.0
    bound: str | None = None
    budget_s: float | None = None
    budget_needed_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceTypeResult:
    """What the search on one instance type came to, in a study that compares several.

    Args:
        pricing: The type's name and price.
        verdict: Of its search; None where that failed, and ``reason`` says why.
        recommended_id: ``config_id`` of what is best on this type; None without one.
        baseline_id: ``config_id`` of the baseline there; None where its search failed.
        hardware: A short name of such a machine, for people.
        workers: Load tests that ran there at the same time.
    """

    pricing: Pricing
    verdict: Verdict | None = None
    recommended_id: str | None = None
    baseline_id: str | None = None
    hardware: str = ""
    workers: int = 0
    reason: str = ""

    @property
    def name(self) -> str:
        """The cloud's name of the machine."""
        return self.pricing.instance_type or ""


ClaimVerdict = Literal["holds", "refuted", "undecided"]

CLAIM_VERDICTS: dict[CertificateVerdict, ClaimVerdict] = {
    "PASS": "holds",
    "FAIL": "refuted",
    "UNDECIDED": "undecided",
}
"""What the certificate of a new measurement says of the claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A rate at which a configuration is said to keep an SLA.

    Args:
        source: Where the claim comes from, for people: ``study digits-1``.
        model: The model's name.
        rate_rps: The certified rate, requests per second.
        arrivals: The arrival process by its name (``poisson``, ``gamma:2``).
    """

    source: str
    model: str
    configuration: Configuration
    sla: Sla
    rate_rps: float
    arrivals: str
    request_batch_size: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """A claim measured again, on ``server``, ``at`` an instant (ISO 8601, UTC)."""

    claim: Claim
    verdict: ClaimVerdict
    measured: Measurement
    server: str
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredEngine:
    """The one TensorRT engine of a variant that a study measures, and exports.

    Args:
        label: The variant's name, as ``fp16 tensorrt``.
        entry: Name of its entry in the cache of variants.
        sha256: Hash of its file, 64 hex digits.
        tensorrt, gpu, compute_capability: What it belongs to: a version of TensorRT and a model of
            GPU.
        instance_type: As in :class:`Configuration`: each type has an engine of its own.
    """

    label: str
    entry: str
    sha256: str
    tensorrt: str
    gpu: str
    compute_capability: str
    instance_type: str | None = None

    def __str__(self) -> str:
        """For people: what the engine runs on."""
        text = f"TensorRT {self.tensorrt}, {self.gpu}"
        capability = self.compute_capability
        return f"{text} (compute capability {capability})" if capability else text


def identity(study: str, provenance: Mapping[str, Any]) -> str:
    """What no other study has: its name, which another database may have too, and its beginning."""
    return f"{study} {provenance.get('started_at', '')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyResult:
    """Everything a study ended with.

    Args:
        verdict: ``found``: certified; ``estimated``: recommended without a proof, which
            ``accepted`` allowed.
        outcomes: Every measured or failed configuration, in the order of the trials; the
            baseline and the recommendation (with its certificate) are among them.
        request_batch_size: Inferences per request, the mean of a trace whose requests differ.
        recommended_id: ``config_id`` of the recommendation; None without one.
        recommendable: ``config_id`` of those outcomes that may be recommended; None if unknown
            (studies of before).
        baseline_id: ``config_id`` of the baseline.
        provenance: ``analyzer``, ``hardware``, ``libraries``, ``seeds``, ``started_at``.
        warnings: Sentences that qualify the result (fallbacks taken, data that was not there).
        engines: The TensorRT engines that were measured, one of each variant.
        conditions: What the machine was like over every walk of the study: its stalls from the
            first probe to the end of measuring, its speeds in load tests; None where nobody
            watched.
        speed_factors: Of each measured configuration by its id: the edge in ``outcomes`` over the
            one that short runs found, as :func:`~analyzer.domain.speeds.edge_over_speeds`.
        unmet_rates: ``config_id`` and rate (requests per second) of what certificates' runs tell of
            usual speeds alone, since they did not meet the machine's slow states: no edge in
            ``outcomes`` rests on it.
        taken_back: ``config_id`` of what has a certificate that passed and is not upheld, since the
            machine was worse later, or more confidence is asked for: in ``outcomes`` nothing is
            certified of it.
        instance_types: What each came to, in the order of the command, where several were
            compared; ``pricing`` is then that of the recommended one.
        status: Whether the last search came to its end. Where it did not, verdict and
            recommendation are those of the search before, if that recommends anything.
    """

    name: str
    verdict: Verdict
    model: ModelInfo
    sla: Sla
    arrivals: str
    request_batch_size: float
    server: str
    outcomes: tuple[Measurement | Failure, ...]
    recommended_id: str | None = None
    baseline_id: str
    pricing: Pricing
    search: SearchSummary
    explanation: Explanation
    provenance: dict[str, Any]
    verifications: tuple[Verification, ...] = ()
    warnings: tuple[str, ...] = field(default=())
    accepted: Acceptance = "certified"
    recommendable: tuple[str, ...] | None = None
    engines: tuple[MeasuredEngine, ...] = ()
    conditions: Conditions | None = None
    speed_factors: tuple[tuple[str, float], ...] = ()
    unmet_rates: tuple[tuple[str, float], ...] = ()
    taken_back: tuple[str, ...] = ()
    instance_types: tuple[InstanceTypeResult, ...] = ()
    status: StudyStatus = "finished"

    @property
    def unfinished(self) -> bool:
        """Whether the last search did not end, and none before it recommends anything."""
        return self.status != "finished" and self.recommended_id is None

    def pricing_of(self, configuration: Configuration) -> Pricing:
        """The price of the machine that ``configuration`` is for."""
        found = (one.pricing for one in self.instance_types)
        own = (each for each in found if each.instance_type == configuration.instance_type)
        return next(own, self.pricing)

    def baseline_of(self, configuration: Configuration) -> str:
        """``config_id`` of the baseline on the same machine as ``configuration``."""
        found = (one for one in self.instance_types if one.name == configuration.instance_type)
        return next((one.baseline_id for one in found if one.baseline_id), self.baseline_id)

    def engine_of(self, configuration: Configuration) -> MeasuredEngine | None:
        """The engine that ``configuration`` was measured with; None if it serves a graph."""
        wanted = (configuration.variant.label, configuration.instance_type)
        found = (one for one in self.engines if (one.label, one.instance_type) == wanted)
        return next(found, None)
