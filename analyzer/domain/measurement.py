"""What was measured of a configuration: its edge, what is certified of it, and failures."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from analyzer.domain.configuration import Configuration
from analyzer.domain.load_test import Conditions, LoadTest, ResourceUse

CertificateVerdict = Literal["PASS", "FAIL", "UNDECIDED"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """How well a variant answers, against labels or against the fp32 reference.

    Args:
        metric: ``label_accuracy``, ``top1_agreement``, ``cosine`` or ``relative_error``.
        value: The metric of this variant, 0 to 1.
        drop: Reference minus variant (absolute); 0 for the reference itself.
        interval: Confidence interval of ``drop``.
        samples: Rows that scored (none of them calibrated).
        synthetic: The inputs were made up, so that only the numerical error means anything.
    """

    metric: str
    value: float | None = None
    drop: float | None = None
    interval: tuple[float, float] | None = None
    samples: int = 0
    synthetic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HigherRuns:
    """What runs at a higher rate came to that a claim counts as well.

    Where lateness grows with the rate, at least as large a share of the requests is late there.

    Args:
        rate_rps: The higher rate.
        requests, over_budget: Counted there.
        inflation: Their variance inflation.
    """

    rate_rps: float
    requests: int
    over_budget: int
    inflation: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What may be claimed of a rate, and on how much evidence.

    Args:
        verdict: PASS, FAIL or UNDECIDED, never more certain than the data.
        requests: Requests counted, those of ``higher`` included.
        over_budget: Of these, over budget.
        effective_requests: ``requests`` over the variance inflation of correlated requests, those
            of each rate over their own.
        confidence: Confidence of the verdict.
        mlperf: The verdict of MLPerf's early-stopping rule, which takes requests for independent.
        inflation: The variance inflation used at the rate itself, and where it comes from.
        inflation_source: ``batch_means``, ``twin``, ``lower_threshold``, ``earlier`` (that of
            earlier runs at the rate, whatever it came from) or ``none``.
        requests_missing: Requests still needed for a decision; None if decided or unknown.
        conditions: What the machine was like during the runs; None where nobody watched.
        void_reasons: Why runs of it prove nothing, a sentence each (the GPU throttled).
        higher: What it counts of runs at higher rates.
    """

    verdict: CertificateVerdict
    requests: int
    over_budget: int
    effective_requests: float
    confidence: float
    mlperf: CertificateVerdict
    inflation: float | None = None
    inflation_source: str = "none"
    requests_missing: int | None = None
    conditions: Conditions | None = None
    void_reasons: tuple[str, ...] = ()
    higher: tuple[HigherRuns, ...] = ()

    def is_late(self, miss_rate_max: float) -> bool:
        """Whether more requests are late than may be: what it misses is missing to a FAIL."""
        return self.over_budget > miss_rate_max * self.requests

    @property
    def own_requests(self) -> int:
        """Requests counted at the rate itself."""
        return self.requests - sum(of.requests for of in self.higher)

    @property
    def own_over_budget(self) -> int:
        """Of the rate's own requests, those over budget."""
        return self.over_budget - sum(of.over_budget for of in self.higher)


@dataclass(frozen=True, slots=True, kw_only=True)
class RateEvidence:
    """What all runs of one configuration at one rate came to, over every walk and resume.

    Args:
        rate_rps: The rate.
        requests, over_budget: Counted in all of its runs.
        inflation: The variance inflation of these requests; None where none could be found.
        claim: The rate's number among the claims of its family, from 1; 0 once it was given up, or
            its runs count for a lower rate's claim, which has its number now: it is no claim then.
        blocks: Runs that were made; the next ones draw later arrivals.
        conditions: What the machine was like in all of these runs, those of ``higher`` included;
            None where unknown.
        higher: Runs at higher rates that the rate's claim began with.
        lagged: Of its requests and of those over budget, what runs counted that broke the SLA and
            that the generator's lag made invalid: they speak against a PASS, and not for a FAIL.
        given_up: Claims of the rate that were given up: each keeps its part of the error.
        seen: The largest inflation that its own runs showed where they showed more than the twin
            expects; None where they did not.
    """

    rate_rps: float
    requests: int
    over_budget: int
    inflation: float | None
    claim: int
    blocks: int
    conditions: Conditions | None = None
    higher: tuple[HigherRuns, ...] = ()
    lagged: tuple[int, int] = (0, 0)
    given_up: int = 0
    seen: float | None = None

    @property
    def seconds(self) -> float:
        """How long its runs lasted, those of ``higher`` included."""
        higher_s = sum(of.requests / of.rate_rps for of in self.higher)
        return self.requests / self.rate_rps + higher_s

    def for_lower(self) -> HigherRuns:
        """What lower rates may count of it; it has an inflation."""
        assert self.inflation is not None
        return HigherRuns(
            rate_rps=self.rate_rps,
            requests=self.requests,
            over_budget=self.over_budget,
            inflation=self.inflation,
        )

    def below(self, rate_rps: float) -> RateEvidence:
        """The claim of a lower rate that goes on with this one's runs, and with its number."""
        assert rate_rps < self.rate_rps
        return RateEvidence(
            rate_rps=rate_rps,
            requests=0,
            over_budget=0,
            inflation=None,
            claim=self.claim,
            blocks=0,
            conditions=self.conditions,
            higher=(*self.higher, self.for_lower()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """The highest rate that keeps the SLA, estimated: requests per second and an interval.

    Args:
        rate_rps: The estimate; None where the edge is not bracketed.
        interval_rps: From a rate that was kept to one that was not; None for an open end.
        work_us: The machine's usual speed meanwhile, as in :class:`Conditions`; None where unknown.
        slow_us: The slowest that it was for long in the very run that kept a rate; None likewise.
        before_rps: The lower end at these speeds, where only runs of a slower machine lowered it
            since; None where nothing did.
        broken_rps: The lowest rate above those kept that clearly broke the SLA, where the upper end
            is open since too few requests are behind the lower one; None where there is none.
        long_share: What long runs are expected to keep of the lower end, where the upper one is
            open, at most 1. A search compares what runs kept; an answer tells this share of it
            (:func:`~analyzer.domain.speeds.edge_over_speeds`).
    """

    rate_rps: float | None = None
    interval_rps: tuple[float | None, float | None]
    work_us: float | None = None
    slow_us: float | None = None
    before_rps: float | None = None
    broken_rps: float | None = None
    long_share: float = 1.0

    @property
    def at_least_rps(self) -> float | None:
        """The estimate, else the lower end of the interval; None where no rate was kept."""
        return self.rate_rps or self.interval_rps[0] or None

    @property
    def own_speed_rps(self) -> float | None:
        """The lower end at the speeds of the edge's own runs; None where no rate was kept."""
        return max(self.before_rps or 0.0, self.interval_rps[0] or 0.0) or self.rate_rps

    @property
    def bounds_rps(self) -> tuple[float | None, float | None]:
        """What it lies between, as far as any run tells: of an open end, what clearly broke."""
        low, high = self.interval_rps
        if high is None and (self.broken_rps or 0.0) > (low or 0.0):
            high = self.broken_rps
        return low or None, high

    @property
    def likely_rps(self) -> float | None:
        """The estimate, else the middle (in logarithms) of its bounds, else the known one."""
        low, high = self.bounds_rps
        middle = math.sqrt(low * high) if low and high else None
        return self.rate_rps or middle or low or high

    def within(self, rate_rps: float) -> float:
        """``rate_rps``, or the end of the interval that it lies beyond."""
        low, high = self.interval_rps
        return max(min(rate_rps, high or rate_rps), low or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the twin says of a configuration, and how far off it was where both are known.

    Args:
        error: Predicted over measured edge - 1.
        model_error: What it would be at the study's usual speed of the machine, and ``drift``
            how much slower the machine was than that; None where nobody watched
            (:mod:`analyzer.domain.twin_error`).
    """

    edge_rps: float | None = None
    latency_ms_p99: float | None = None
    error: float | None = None
    model_error: float | None = None
    drift: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """All that was measured of one configuration on a live target.

    Args:
        configuration: The canonical configuration.
        edge: Estimated from ``load_tests``.
        capacity_rps: The certified rate; None if none was certified.
        certificate: Of ``capacity_rps`` (or of the rate tried last); None if none was.
        headline: The load test at the certified rate, or at the target rate for the objectives
            latency and memory; None if there is none.
        load_tests: Every load test in order, the invalid ones included.
        load_test_seconds: Time under load, warm-up included.
        resources: Peaks and means over all load tests.
        notes: What qualifies the measurement, a sentence each.
        evidence: What certificates rest on, by rate in ascending order.
        start_s: Seconds from the task's begin to its first load test, server and witness started;
            None if unknown.
        watched: What the machine was like from the study's outcome before to this one, load tests
            included; None where nobody watched.
    """

    configuration: Configuration
    edge: Edge
    capacity_rps: float | None = None
    certificate: Certificate | None = None
    headline: LoadTest | None = None
    load_tests: tuple[LoadTest, ...] = ()
    load_test_seconds: float = 0.0
    resources: ResourceUse = ResourceUse()
    accuracy: Accuracy | None = None
    predicted: Prediction = Prediction()
    hardware: str = ""
    notes: tuple[str, ...] = field(default=())
    evidence: tuple[RateEvidence, ...] = ()
    start_s: float | None = None
    watched: Conditions | None = None

    @property
    def real_accuracy(self) -> Accuracy | None:
        """None without real data: agreement on made-up inputs says nothing about accuracy."""
        return None if self.accuracy is None or self.accuracy.synthetic else self.accuracy


#: The reason of what there was no time for.
OUT_OF_TIME = "budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A configuration that could not be measured, and why.

    Args:
        stage: ``build``, ``start``, ``load``, ``worker``, ``search`` (its turn never came).
        reason: A short class for tables: ``build``, ``out_of_memory``, ``timeout``, ``crash``,
            ``start``, ``worker_lost``, ``invalid``, ``accuracy``, ``budget`` (no time).
        message: The sentence for people.
        watched: As in :class:`Measurement`.
    """

    configuration: Configuration
    stage: str
    reason: str
    message: str
    hint: str = ""
    load_test_seconds: float = 0.0
    watched: Conditions | None = None

    @property
    def leaves_out(self) -> bool:
        """Whether it tells why a whole variant is left out; its configuration stands for that."""
        return self.stage == "build"

    @property
    def is_fault(self) -> bool:
        """Whether a measurement went wrong: no variant that is left out, and no lack of time."""
        return not self.leaves_out and self.reason != OUT_OF_TIME


def without_claims(
    outcomes: Iterable[Measurement | Failure], config_ids: Collection[str]
) -> tuple[Measurement | Failure, ...]:
    """``outcomes`` with no certified rate for ``config_ids``, whose claims are not upheld.

    Their certificates stay as what they are: runs at a time when the machine was better.
    """
    return tuple(
        replace(known, capacity_rps=None)
        if isinstance(known, Measurement) and known.configuration.config_id in config_ids
        else known
        for known in outcomes
    )


def load_tested(outcomes: Iterable[Measurement | Failure]) -> int:
    """How many of ``outcomes`` are measurements with a load test.

    One whose time ended before its first load test tells of no rate.
    """
    return sum(isinstance(known, Measurement) and bool(known.load_tests) for known in outcomes)
