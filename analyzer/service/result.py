"""The document that a job's command has printed.

It read a model of a user's, so its document is read as any other input: what is not of its type is
an unreadable result, never an error of the service.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import Edge
from analyzer.report.gain_text import edge_text
from analyzer.report.wording import GIVEN, configuration_sentence, milliseconds, number, rate

#: Bytes of a result that a page reads; larger ones are for downloading.
RESULT_MAX = 16 << 20

#: What the classes of the domain raise where a document gives them values that are none.
UNREADABLE = (AssertionError, AttributeError, KeyError, TypeError, ValueError)

Interval = tuple[float | None, float | None]
# More than ever are; a float holds every one.
Count = Annotated[int, Field(ge=0, le=1 << 53)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


class Latency(_Part):
    """Milliseconds."""

    sla: float | None = None


class Certificate(_Part):
    """Of one rate."""

    requests: Count | None = None
    over_budget: Count | None = None
    effective_requests: float | None = None
    requests_missing: Count | None = None
    void_reasons: tuple[str, ...] = ()


class Accuracy(_Part):
    """Against the original model."""

    value: float | None = None
    drop: float | None = None


class Fleet(_Part):
    """What carries the target rate: devices that each carry ``rate_rps``, which ``basis`` tells."""

    machines: int | None = None
    cost_per_hour: float | None = None
    cost_per_million_inferences: float | None = None
    basis: str | None = None
    rate_rps: float | None = None


class MemoryUse(_Part):
    """What needs memory."""

    memory_bytes_peak: float | None = None
    gpu_memory_bytes_peak: float | None = None

    @property
    def memory_bytes(self) -> float | None:
        """What ``max_memory`` limits: GPU memory where it is told, which it is on GPUs alone."""
        on_gpu = self.gpu_memory_bytes_peak is not None
        return self.gpu_memory_bytes_peak if on_gpu else self.memory_bytes_peak


class Edged(_Part):
    """What has an edge; its interval has an open end where the edge was not bracketed."""

    edge_rps: float | None = None
    edge_interval_rps: Interval | None = None

    @property
    def edge(self) -> Edge:
        """The edge; its interval is open on both sides where nothing is known of it."""
        return Edge(rate_rps=self.edge_rps, interval_rps=self.edge_interval_rps or (None, None))

    @property
    def edge_text(self) -> str:
        """``757 /s (723 to 981)``, ``at least 120 /s``; a dash where it is not known."""
        return edge_text(self.edge)


class Entry(Edged, MemoryUse):
    """The contract's ENTRY, as far as a page shows it."""

    config_id: str = ""
    config: dict[str, Any] = Field(default_factory=dict)
    capacity_rps: float | None = None
    measured_at_rps: float | None = None
    latency_ms: Latency = Latency()
    accuracy: Accuracy | None = None
    certificate: Certificate | None = None
    fleet: Fleet | None = None

    @property
    def configuration(self) -> Configuration | None:
        """The configuration; None where the document's is none (of nothing it is the default)."""
        try:
            return Configuration.from_dict(self.config) if self.config else None
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


class Trial(Edged, MemoryUse):
    """What was measured of one configuration, or why it failed."""

    number: int
    config_id: str
    variant: str
    state: str
    role: str = ""
    reason: str | None = None
    message: str | None = None
    capacity_rps: float | None = None
    certificate: str | None = None
    latency_ms_sla: float | None = None

    @property
    def outcome(self) -> str:
        """What a trial that did not fail came to: its certificate's verdict, or what there is."""
        known = (self.edge.at_least_rps, self.latency_ms_sla, self.memory_bytes)
        if self.certificate or self.state != "measured":
            return self.certificate or self.state
        return "no load test ended" if known == (None, None, None) else "measured"


class Sla(_Part):
    """The promise, and the price of a machine."""

    latency_budget_ms: float | None = None
    percentile: float = 99.0
    target_rate_rps: float | None = None
    price_per_hour: float | None = None

    @property
    def budget(self) -> str:
        """The latency budget as it was given: ``33.25 ms``."""
        return milliseconds(self.latency_budget_ms, GIVEN)

    @property
    def requirement(self) -> str:
        """The latency limit in words: ``99 % of requests within 33.25 ms``."""
        return f"{number(self.percentile, 9)} % of requests within {self.budget}"

    @property
    def target(self) -> str:
        """The target rate as it was given: ``500 /s``."""
        return rate(self.target_rate_rps, GIVEN)


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


class Gained(_Part):
    """What has a gain over the baseline."""

    speedup: float | None = None
    speedup_basis: str | None = None
    speedup_interval: Interval | None = None


class Closest(Gained):
    """What came closest."""

    entry: Entry
    command: str | None = None


class Failure(_Part):
    """What was tried of a configuration in vain."""

    config_id: str = ""
    message: str = ""


class Search(_Part):
    """What the search did."""

    evaluated_live: int | None = None
    wall_seconds: float | None = None


class Claim(_Part):
    """What ``verify`` measured again."""

    rate_rps: float | None = None
    latency_budget_ms: float | None = None
    percentile: float = 99.0


class Result(Gained):
    """The contract's document of ``search --json`` or ``verify --json``."""

    verdict: str
    model: Model = Model()
    sla: Sla = Sla()
    recommendation: Entry | None = None
    baseline: Entry | None = None
    pareto: tuple[Entry, ...] = ()
    closest: Closest | None = None
    failures: tuple[Failure, ...] = ()
    search: Search = Search()
    claim: Claim | None = None
    measured: Entry | None = None
    conditions_differ: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    provenance: dict[str, Any] = Field(default_factory=dict)

    @property
    def promise(self) -> Sla:
        """The SLA that was searched for, or that was claimed."""
        if self.claim is None:
            return self.sla
        return Sla(latency_budget_ms=self.claim.latency_budget_ms, percentile=self.claim.percentile)

    @property
    def shown(self) -> Entry | None:
        """The entry that the answer is about."""
        if self.recommendation is not None:
            return self.recommendation
        return self.closest.entry if self.closest else self.measured

    @property
    def certificate(self) -> Certificate | None:
        """That of the claim that was measured."""
        return self.measured.certificate if self.measured is not None else None

    @property
    def gained(self) -> Gained:
        """What holds the gain of :attr:`shown`."""
        return self.closest if self.recommendation is None and self.closest else self

    @property
    def entries(self) -> list[Entry]:
        """Every configuration that a search's document describes."""
        closest = self.closest.entry if self.closest is not None else None
        named = (self.recommendation, self.baseline, closest)
        return [*(entry for entry in named if entry is not None), *self.pareto]


def read_result(data: bytes) -> Result | None:
    """The document; None where it is none."""
    try:
        return Result.model_validate_json(data)
    except ValidationError:
        return None
