"""A job's result document as a page shows it: the answer first.

The document was printed by a command that read a model of a user's, so it is read as any other
input: what is not of its type is an unreadable result, never an error of the page.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from analyzer.domain.configuration import Configuration
from analyzer.report.gain_text import bounded_ratio
from analyzer.report.wording import (
    NOT_MEASURED,
    configuration_sentence,
    dollars,
    interval,
    milliseconds,
    number,
    percent,
    percentile_name,
    rate,
    size,
    times,
)

#: Bytes of a result that a page reads; larger ones are for downloading.
RESULT_MAX = 16 << 20

#: What the classes of the domain raise where a document gives them values that are none.
UNREADABLE = (AssertionError, AttributeError, KeyError, TypeError, ValueError)

Interval = tuple[float | None, float | None]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


class Latency(_Part):
    """Milliseconds."""

    sla: float | None = None


class Certificate(_Part):
    """Of one rate."""

    requests: int | None = None
    over_budget: int | None = None


class Accuracy(_Part):
    """Against the original model."""

    value: float | None = None
    drop: float | None = None


class Fleet(_Part):
    """What carries the target rate."""

    machines: int | None = None
    cost_per_hour: float | None = None
    cost_per_million_inferences: float | None = None


class Entry(_Part):
    """The contract's ENTRY, as far as a page shows it."""

    config_id: str = ""
    config: dict[str, Any] = Field(default_factory=dict)
    capacity_rps: float | None = None
    edge_rps: float | None = None
    edge_interval_rps: Interval | None = None
    measured_at_rps: float | None = None
    latency_ms: Latency = Latency()
    memory_bytes_peak: float | None = None
    accuracy: Accuracy | None = None
    certificate: Certificate | None = None
    fleet: Fleet | None = None

    @property
    def configuration(self) -> Configuration | None:
        """The configuration; None where the document's is none."""
        try:
            return Configuration.from_dict(self.config)
        except UNREADABLE:
            return None

    @property
    def sentence(self) -> str:
        """The configuration in words; its id where it cannot be read."""
        configuration = self.configuration
        try:
            return configuration_sentence(configuration) if configuration else self.config_id
        except UNREADABLE:
            return self.config_id

    @property
    def edge_at_least_rps(self) -> float | None:
        """The edge, or the lower end where it was not bracketed."""
        return self.edge_rps or (self.edge_interval_rps or (None, None))[0]

    @property
    def edge_text(self) -> str:
        """``757 /s (723 to 981)``."""
        bounds = interval(self.edge_interval_rps)
        if self.edge_rps is None:
            return f"{bounds} /s" if bounds else NOT_MEASURED
        return f"{rate(self.edge_rps)} ({bounds})" if bounds else rate(self.edge_rps)


class Trial(_Part):
    """What was measured of one configuration, or why it failed."""

    number: int
    config_id: str
    variant: str
    state: str
    role: str = ""
    reason: str | None = None
    message: str | None = None
    edge_rps: float | None = None
    capacity_rps: float | None = None
    certificate: str | None = None
    latency_ms_sla: float | None = None
    memory_bytes_peak: float | None = None


class Sla(_Part):
    """The promise."""

    latency_budget_ms: float | None = None
    percentile: float = 99.0
    target_rate_rps: float | None = None


class Tensor(_Part):
    """An input or an output."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class Model(_Part):
    """The model as it was inspected."""

    name: str = ""
    sha256: str = ""
    batchable: bool = False
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()


class Closest(_Part):
    """What came closest."""

    entry: Entry
    command: str | None = None


class Search(_Part):
    """What the search did."""

    evaluated_live: int | None = None
    wall_seconds: float | None = None


class Result(_Part):
    """The contract's document of ``search --json`` or ``verify --json``."""

    verdict: str
    model: Model = Model()
    sla: Sla = Sla()
    recommendation: Entry | None = None
    baseline: Entry | None = None
    speedup: float | None = None
    speedup_basis: str | None = None
    speedup_interval: Interval | None = None
    pareto: tuple[Entry, ...] = ()
    closest: Closest | None = None
    search: Search = Search()
    warnings: tuple[str, ...] = ()
    provenance: dict[str, Any] = Field(default_factory=dict)

    @property
    def shown(self) -> Entry | None:
        """The entry that the answer is about."""
        if self.recommendation is not None:
            return self.recommendation
        return self.closest.entry if self.closest else None

    @property
    def entries(self) -> list[Entry]:
        """Every configuration that the document describes."""
        closest = self.closest.entry if self.closest is not None else None
        named = (self.recommendation, self.baseline, closest)
        return [*(entry for entry in named if entry is not None), *self.pareto]


def read_result(data: bytes) -> Result | None:
    """The document; None where it is none."""
    try:
        return Result.model_validate_json(data)
    except ValidationError:
        return None


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the answer, what it is, and what it rests on."""

    label: str
    value: str
    note: str


def figures(result: Result) -> list[Figure]:
    """The numbers of the answer: verdict's rate, latency, gain, cost."""
    entry, sla = result.shown, result.sla
    if entry is None:
        return []
    return [make(result, entry, sla) for make in _FIGURES]


def _rate(_: Result, entry: Entry, __: Sla) -> Figure:
    if entry.capacity_rps is None:
        return Figure("Estimated edge, not proven", entry.edge_text, "no rate was certified")
    certificate = entry.certificate
    rests = ""
    if certificate is not None and certificate.requests is not None:
        rests = f"; {certificate.over_budget or 0:,} of {certificate.requests:,} over budget"
    return Figure("Certified rate", rate(entry.capacity_rps), f"edge {entry.edge_text}{rests}")


def _latency(_: Result, entry: Entry, sla: Sla) -> Figure:
    return Figure(
        f"Latency, {percentile_name(sla.percentile)}",
        milliseconds(entry.latency_ms.sla),
        f"at {rate(entry.measured_at_rps)}; the budget is {milliseconds(sla.latency_budget_ms)}",
    )


def _gain(result: Result, _: Entry, __: Sla) -> Figure:
    low, high = result.speedup_interval or (None, None)
    parts = [f"by {result.speedup_basis} rates"] if result.speedup_basis == "certified" else []
    parts += ["by estimated edges"] if result.speedup_basis == "edges" else []
    closed = low is not None and high is not None
    parts += [f"between {times(low)} and {times(high)}"] if closed else []
    edge = result.baseline.edge_text if result.baseline is not None else NOT_MEASURED
    parts.append("its edge is not known" if edge == NOT_MEASURED else f"its edge {edge}")
    ratio = bounded_ratio(result.speedup, result.speedup_interval)
    return Figure("Against Triton's default", ratio, ", ".join(parts))


def _cost(_: Result, entry: Entry, sla: Sla) -> Figure:
    fleet = entry.fleet
    if fleet is not None and fleet.cost_per_hour is not None:
        return Figure(
            "Cost",
            f"{dollars(fleet.cost_per_hour)}/h",
            f"{number(fleet.machines)} machines for {rate(sla.target_rate_rps)}, "
            f"{dollars(fleet.cost_per_million_inferences)} a million inferences",
        )
    if fleet is not None and fleet.cost_per_million_inferences is not None:
        return Figure(
            "Cost of a million",
            dollars(fleet.cost_per_million_inferences),
            "inferences, every device at its capacity",
        )
    if fleet is not None and fleet.machines is not None:
        return Figure(
            "Machines", number(fleet.machines), f"for {rate(sla.target_rate_rps)}; no price given"
        )
    return Figure("Cost", NOT_MEASURED, "give a price (and a target rate) to learn it")


_FIGURES: tuple[Callable[[Result, Entry, Sla], Figure], ...] = (_rate, _latency, _gain, _cost)


def comparison_rows(result: Result) -> list[tuple[str, str]]:
    """What jobs are compared by, under its name."""
    entry = result.shown or Entry()
    accuracy, fleet = entry.accuracy or Accuracy(), entry.fleet or Fleet()
    seconds = result.search.wall_seconds
    return [
        ("certified rate", rate(entry.capacity_rps)),
        ("edge", entry.edge_text),
        ("latency", milliseconds(entry.latency_ms.sla)),
        ("at", rate(entry.measured_at_rps)),
        ("against Triton's default", bounded_ratio(result.speedup, result.speedup_interval)),
        ("memory", size(entry.memory_bytes_peak)),
        ("accuracy", percent(accuracy.value)),
        ("accuracy lost", percent(accuracy.drop)),
        ("cost per hour", dollars(fleet.cost_per_hour)),
        ("cost of a million inferences", dollars(fleet.cost_per_million_inferences)),
        ("configuration", entry.sentence or NOT_MEASURED),
        ("measured configurations", number(result.search.evaluated_live)),
        ("time", NOT_MEASURED if seconds is None else f"{number(seconds)} s"),
    ]
