"""One target under load, live or simulated: what both kinds of session share."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.configuration import Configuration
from analyzer.domain.load_test import (
    LoadTest,
    LoadTestKind,
    RequestLog,
    ResourceUse,
)
from analyzer.domain.workload import draw_run
from analyzer.load.generator import AbortRule
from analyzer.load.growth import exceeds_capacity
from analyzer.measure.plan import REQUESTS_MIN, STREAM_EDGE, STREAM_MEASURE, LoadPlan

# More requests of one load test do not fit into memory.
_REQUESTS_MAX = 2_000_000
# A run is hopeless with this many times the misses that its requests may have; one of a claim with
# so large a share of all its requests besides, which no burst of a well-chosen rate reaches.
_HOPELESS_FACTOR = 3.0
_HOPELESS_CLAIM_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """What one load test sends.

    Args:
        kind: Why it is run, as of :class:`LoadTest`.
        rate_rps: The rate that is offered, requests per second.
        lead_in_s: Seconds before the requests that count.
        arrival_s: Intended send times, seconds from the start, float64 [n], ascending.
        batch_size: Inferences of each request, int64 [n], or [1] if all are equal.
        rng: Where the arrivals came from; what it gives next is the run's own.
        abort: When the run is given up; None for never.
        claim: Whether every request after the lead-in counts, so that no warm-up is looked for.
    """

    kind: LoadTestKind
    rate_rps: float
    lead_in_s: float
    arrival_s: NDArray[np.float64]
    batch_size: NDArray[np.int64]
    rng: np.random.Generator
    abort: AbortRule | None
    claim: bool = False

    @property
    def seconds(self) -> float:
        """When the last request is sent, from the start."""
        return float(self.arrival_s[-1])


class Session(ABC):
    """Runs load tests against one target, one at a time, and keeps all of them.

    Strategies see a session only: the same ones measure live targets and simulated servers.

    Args:
        plan: How the target is loaded.
        first: Position of the first run on its stream of arrivals: those before are spent.
        seconds_max: How long it may last, start and pauses included.

    Attributes:
        served: What is loaded, if that is known: runs are held against what it executes at most.
        tests: What was measured, in order, and ``logs`` of it.
        seconds: Under load so far.
    """

    def __init__(self, plan: LoadPlan, *, first: int = 0, seconds_max: float = math.inf) -> None:
        self._plan = plan
        self._position = first
        self._seconds_max = seconds_max
        self._repeats: Counter[float] = Counter()
        self.served: Configuration | None = None
        self.tests: list[LoadTest] = []
        self.logs: list[RequestLog] = []
        self.seconds = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing to end; a live session ends what watches the machine."""
        return

    @property
    @abstractmethod
    def notes(self) -> tuple[str, ...]:
        """Sentences that qualify everything measured here."""

    @property
    @abstractmethod
    def left_s(self) -> float:
        """Seconds until the session must end."""

    def sending_s(self, load: LoadPlan) -> float:
        """Seconds in which requests may be sent: the last replies come a latency budget later."""
        return self.left_s - load.sla.latency_budget_ms / 1e3

    @abstractmethod
    def warm_up(self, *, concurrency: int, seconds: float = 0.3) -> float:
        """A short closed loop, whose latencies are not kept; returns replies per second.

        Raises:
            TargetCrashError: Not one request was answered.
        """

    def run(
        self,
        rate_rps: float,
        seconds: float,
        *,
        kind: LoadTestKind,
        stream: int,
        abort: bool = True,
        claim: bool = False,
        lead_in_s: float = 0.0,
    ) -> LoadTest:
        """Offers ``rate_rps`` for ``seconds`` (at least 20 requests) and keeps what came of it.

        Args:
            stream: Which arrivals: first runs at a rate of the edge's stream share theirs, so that
                configurations are compared on the same ones; of any other stream each run has
                fresh ones. A trace begins anywhere, but for a measurement by hand, which begins
                with its first row.
            abort: Whether a hopeless run may end early.
            claim: Whether a claim counts it: then only a run that at least a quarter of its
                requests are late in, whatever the rest would do, is hopeless.
            lead_in_s: Seconds before, in which queues fill: stored as warm-up and not counted.
        """
        plan = self._plan
        rng = np.random.default_rng([plan.seed, stream, self._next_position(rate_rps, stream)])
        arrival_s, batch_size = draw_run(
            plan.arrivals,
            rate_rps=rate_rps,
            lead_in_s=lead_in_s,
            seconds=seconds,
            request_batch_size=plan.request_batch_size,
            counts=(REQUESTS_MIN, _REQUESTS_MAX),
            from_start=stream == STREAM_MEASURE,
            rng=rng,
        )
        schedule = Schedule(
            kind=kind,
            rate_rps=rate_rps,
            lead_in_s=lead_in_s,
            arrival_s=arrival_s,
            batch_size=batch_size,
            rng=rng,
            abort=self._abort_rule(arrival_s, lead_in_s, claim=claim) if abort else None,
            claim=claim,
        )
        return self._keep(*self._offer(schedule))

    def _abort_rule(
        self, arrival_s: NDArray[np.float64], lead_in_s: float, *, claim: bool
    ) -> AbortRule:
        """When a run of these requests, its lead-in's included, is given up.

        Where so many times what may be late is nearly all, once half of the others is late besides.
        """
        allowed = self._plan.sla.miss_rate_max
        most = (1.0 + allowed) / 2.0
        if not claim:
            factor = min(_HOPELESS_FACTOR, most / allowed)
            return AbortRule.hopeless(len(arrival_s), allowed, factor=factor)
        share = min(max(_HOPELESS_CLAIM_SHARE, _HOPELESS_FACTOR * allowed), most)
        counted = int(np.count_nonzero(arrival_s >= lead_in_s))
        rule = AbortRule.hopeless(counted, share, factor=1.0)
        return replace(rule, skip_s=lead_in_s)

    def skip_arrivals(self, tests: Iterable[LoadTest]) -> None:
        """Lets later runs at the rates of ``tests``, made elsewhere, draw other arrivals."""
        self._repeats.update(test.offered_rps for test in tests if test.offered_rps is not None)

    def peak(self) -> ResourceUse:
        """Peaks and means over all load tests so far."""
        return combine([test.resources for test in self.tests])

    @abstractmethod
    def _offer(self, schedule: Schedule) -> tuple[LoadTest, RequestLog, float]:
        """Sends the requests of one load test.

        Returns:
            The test, its log with the warm-up set apart, and the seconds under load.
        """

    def _keep(self, test: LoadTest, log: RequestLog, seconds: float) -> LoadTest:
        """Adds a load test to what was measured here, and returns it."""
        if self.served is not None and not test.growing:
            plan = self._plan
            budget_s, inferences = plan.sla.latency_budget_ms / 1e3, plan.batch_sizes().mean()
            growing = exceeds_capacity(
                test, self.served, inferences=float(inferences), budget_s=budget_s
            )
            test = replace(test, growing=growing)
        self.seconds += seconds
        self.tests.append(test)
        self.logs.append(log)
        return test

    def _next_position(self, rate_rps: float, stream: int) -> int:
        """Where on its stream of arrivals the next run stands."""
        if stream == STREAM_EDGE:
            self._repeats[rate_rps] += 1
            return self._repeats[rate_rps] - 1
        self._position += 1
        return self._position - 1


def combine(uses: list[ResourceUse]) -> ResourceUse:
    """The peaks of memory and the means of everything else; None where nothing was measured."""

    def values(name: str) -> list[float]:
        return [value for use in uses if (value := getattr(use, name)) is not None]

    def peak(name: str) -> int | None:
        found = values(name)
        return int(max(found)) if found else None

    def mean(name: str) -> float | None:
        found = values(name)
        return float(np.mean(found)) if found else None

    sources = [use.gpu_memory_source for use in uses if use.gpu_memory_source is not None]
    return ResourceUse(
        memory_bytes_peak=peak("memory_bytes_peak"),
        gpu_memory_bytes_peak=peak("gpu_memory_bytes_peak"),
        gpu_memory_source=sources[-1] if sources else None,
        gpu_utilization=mean("gpu_utilization"),
        power_watts=mean("power_watts"),
        energy_joules=sum(values("energy_joules")) or None,
        energy_joules_per_inference=mean("energy_joules_per_inference"),
        gpu_clock_mhz=mean("gpu_clock_mhz"),
        gpu_clock_limits=tuple(
            dict.fromkeys(name for use in uses for name in use.gpu_clock_limits)
        ),
        gpu_throttled=mean("gpu_throttled"),
        cpu_utilization=mean("cpu_utilization"),
        other_utilization=mean("other_utilization"),
    )
