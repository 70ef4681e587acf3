"""Finds the edge: which rate to try next, and what the tried rates say.

Pure: it is told what each rate did and answers with the next one, so that it can be tested on
simulated servers. The search starts from a rate near the expected edge (the twin's, or a share of
the saturation throughput), moves by growing steps, downwards by halves, until it has a rate that
keeps the SLA below one that does not, and then halves the gap on a logarithmic scale. A rate whose
run was invalid was likely an overload: it is no side of the gap, but the search looks below it. A
side counts with 300 requests behind it, or once it clearly broke the SLA. A queue delay can make
the feasible rates a band; the edge is the upper end of the band that the search has found.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import isotonic_regression

from analyzer.domain.load_test import InvalidityKind, LoadTest
from analyzer.domain.measurement import Edge
from analyzer.domain.speeds import BROKEN_SHARE, EVIDENCE_MIN, SHARE_POWER
from analyzer.measure.witness import met_slower

# Share by which the true edge may lie outside the last two rates because runs are short.
_NOISE = 0.03
# So many times the misses that the requests behind a side may have are a failure at once; but no
# fewer than three, where one or two are more than that (p99.9): they may be one burst.
_CLEAR_FACTOR = 3.0
_CLEAR_MIN = 3
# Share of the requests that may be sent late where the others are to say something: more of them
# come in bursts, which make others late.
_SENT_LATE_MAX = 0.1
# Factor downwards while no rate was kept.
_HALF = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RateOutcome:
    """What one rate did.

    Args:
        rate_rps: The offered rate.
        requests, over_budget: Counted requests, and those over budget.
        latency_ms: Latency at the SLA's percentile; None if it falls among failures or the run was
            ended early.
        aborted: The run was ended early as hopeless.
        growing: A longer run would have broken the budget (``LoadTest.growing``).
    """

    rate_rps: float
    requests: int
    over_budget: int
    latency_ms: float | None
    aborted: bool = False
    growing: bool = False

    @classmethod
    def of(cls, test: LoadTest) -> RateOutcome:
        """What an open-loop run did."""
        assert test.offered_rps is not None
        return cls(
            rate_rps=test.offered_rps,
            requests=test.requests,
            over_budget=test.over_budget or 0,
            latency_ms=test.latency_ms.sla,
            aborted=test.aborted,
            growing=test.growing,
        )

    def keeps(self, miss_rate_max: float) -> bool:
        """Whether the rate kept the SLA, as far as its run shows."""
        kept = self.over_budget <= miss_rate_max * self.requests
        return kept and not self.aborted and not self.growing and self.requests > 0


# Why a run is invalid although its rate was offered and its latencies were not too short.
_HARMLESS: frozenset[InvalidityKind] = frozenset({"lag", "throttled"})


def telling(tests: Iterable[LoadTest], miss_rate_max: float) -> list[RateOutcome]:
    """What those of ``tests`` did that say something about their rate.

    The generator's lag is inside the latency already, and a throttled device is no faster for it:
    such a run that keeps the SLA keeps it. One that broke it only since the server stood still
    would have done so at any rate.
    """
    outcomes = [
        (test, RateOutcome.of(test))
        for test in tests
        if test.offered_rps and test.over_budget is not None
    ]
    return [
        outcome
        for test, outcome in outcomes
        if (test.validity.valid and not only_stalled(test, miss_rate_max))
        or (outcome.keeps(miss_rate_max) and _HARMLESS.issuperset(test.validity.kinds))
    ]


def broken_despite_lag(test: LoadTest, miss_rate_max: float) -> RateOutcome | None:
    """What a run says that is invalid since the generator sent a few requests late.

    None where it may be for that reason alone that the SLA was broken. A machine makes some
    requests late at any rate, and of the few at a low one a single one is the 99th percentile: to
    take such runs for overloads leads through rate after rate.
    """
    late = test.sent_late
    if late is None or test.over_budget is None or set(test.validity.kinds) != {"lag"}:
        return None
    requests = test.requests - late
    over = test.over_budget - late - test.stalled_over
    few = over < _CLEAR_MIN and _CLEAR_FACTOR * miss_rate_max * EVIDENCE_MIN < _CLEAR_MIN
    if few or over <= _CLEAR_FACTOR * miss_rate_max * requests:
        return None
    if late > _SENT_LATE_MAX * test.requests:
        return None
    return replace(RateOutcome.of(test), requests=requests, over_budget=over, latency_ms=None)


def only_stalled(test: LoadTest, miss_rate_max: float) -> bool:
    """Whether a run broke the SLA, and would have kept it had the server not stood still."""
    over, stalled = test.over_budget or 0, test.stalled_over
    broke = over > miss_rate_max * test.requests
    return broke and over - stalled <= miss_rate_max * (test.requests - stalled)


# Two rates are far apart that a halving or a wide step up leaves around an edge.
_WIDE = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeGoal:
    """What is searched.

    Args:
        budget_ms: The latency budget.
        miss_rate_max: The allowed fraction of requests over budget.
        start_rps: First rate tried.
        step: First factor upwards.
        step_down: First factor downwards, before halves; small where the start can be trusted.
        precision: The search ends when the two rates around the edge are this close (a ratio).
        floor_rps: No lower rate is tried: a run of the length that is allowed would be too small.
    """

    budget_ms: float
    miss_rate_max: float
    start_rps: float
    step: float = 1.25
    step_down: float = _HALF
    precision: float = 1.05
    floor_rps: float = 1.0


class EdgeSearch:
    """The state of one search for an edge.

    Args:
        known: What rates did before.
        goes_on: Whether the search goes on from there, instead of at its first rate.
    """

    def __init__(
        self, goal: EdgeGoal, known: Sequence[RateOutcome] = (), *, goes_on: bool = False
    ) -> None:
        self._goal = goal
        self._outcomes: dict[float, RateOutcome] = {}
        for outcome in known:
            self.record(outcome)
        self._begun = goes_on and bool(known)
        self._step = goal.step
        self._step_down = goal.step_down
        self._ease = 1.0
        self._overload_rps = math.inf

    def keeps(self, outcome: RateOutcome) -> bool:
        """As :meth:`RateOutcome.keeps`, of this search's SLA."""
        return outcome.keeps(self._goal.miss_rate_max)

    @property
    def tried(self) -> bool:
        """Whether any rate was."""
        return bool(self._outcomes)

    @property
    def kept_rps(self) -> float | None:
        """The highest rate that was kept; None while none was."""
        low, _ = self._around()
        return low.rate_rps if low is not None else None

    @property
    def worth_longer(self) -> bool:
        """Whether one more rate is worth more time: in a wide gap, or above the rates kept.

        Above them where a rate that breaks the SLA is all that the edge lacks.
        """
        low, high = self._around()
        if low is not None and high is not None:
            return high.rate_rps >= _WIDE * low.rate_rps
        return high is None and any(self._counts(found) for found in self._kept())

    def record(self, outcome: RateOutcome) -> None:
        """Takes in what a rate did; runs at one rate count together."""
        self._begun = True
        self._ease = 1.0
        known = self._outcomes.get(outcome.rate_rps)
        if known is not None:
            outcome = replace(
                outcome,
                requests=known.requests + outcome.requests,
                over_budget=known.over_budget + outcome.over_budget,
                aborted=known.aborted or outcome.aborted,
                growing=known.growing or outcome.growing,
            )
        self._outcomes[outcome.rate_rps] = outcome

    def forget_above(self, doubtful: Collection[float]) -> bool:
        """Forgets those of ``doubtful`` that broke the SLA above the highest rate that was kept.

        Returns:
            Whether the lowest rate above it was one, so that the search may go on.
        """
        low, high = self._around()
        if low is None or high is None or high.rate_rps not in doubtful:
            return False
        for rate in doubtful:
            if rate > low.rate_rps:
                self._outcomes.pop(rate, None)
        return True

    def record_overload(self, rate_rps: float, ease: float) -> None:
        """Notes that the run at a rate was invalid.

        Args:
            ease: Factor to the next rate, while no rate was kept.
        """
        self._overload_rps = min(self._overload_rps, rate_rps)
        self._ease *= ease

    def _counts(self, outcome: RateOutcome) -> bool:
        """Whether enough requests are behind what a rate did.

        What higher rates keep a lower one keeps as well, but for the band of a queue delay, of
        which only the upper end is told: their requests are behind it, too.
        """
        if self.keeps(outcome):
            above = (f.requests for f in self._kept() if f.rate_rps >= outcome.rate_rps)
            return sum(above) >= EVIDENCE_MIN
        clear = max(_CLEAR_FACTOR * self._goal.miss_rate_max * EVIDENCE_MIN, _CLEAR_MIN)
        return outcome.over_budget >= clear or outcome.requests >= EVIDENCE_MIN

    def next_rate_rps(self) -> float | None:
        """The rate to try next; None when the edge is known well enough, or there is none."""
        goal = self._goal
        low, high = self._around()
        if self._begun and low is not None and high is not None:
            if high.rate_rps / low.rate_rps <= goal.precision:
                weak = (side.rate_rps for side in (low, high) if not self._counts(side))
                return next(weak, None)
            rate = math.sqrt(low.rate_rps * high.rate_rps)
        else:
            rate = max(goal.floor_rps, self._step_from(low, high))
            if self._begun and any(abs(rate / tried - 1.0) < 1e-3 for tried in self._outcomes):
                return None
        if low is not None and rate >= self._overload_rps:
            rate = math.sqrt(low.rate_rps * self._overload_rps)
            return rate if rate / low.rate_rps > goal.precision else None
        return rate

    def _step_from(self, low: RateOutcome | None, high: RateOutcome | None) -> float:
        """The rate to try while a side of the gap is missing, or at the start."""
        ease = self._ease if low is None else 1.0
        if not self._begun:
            return ease * self._goal.start_rps
        if low is not None:
            rate = low.rate_rps * self._step
            self._step = min(self._step**1.6, 3.0)
            return rate
        assert high is not None
        rate = ease * high.rate_rps / self._step_down
        self._step_down = _HALF
        return rate

    def _kept(self) -> list[RateOutcome]:
        return [outcome for outcome in self._outcomes.values() if self.keeps(outcome)]

    def _around(self) -> tuple[RateOutcome | None, RateOutcome | None]:
        """The highest rate that keeps the SLA, and the lowest above it that does not."""
        low = max(self._kept(), key=lambda outcome: outcome.rate_rps, default=None)
        return low, min(self._broken(low), key=lambda outcome: outcome.rate_rps, default=None)

    def _broken(self, low: RateOutcome | None) -> list[RateOutcome]:
        return [
            outcome
            for outcome in self._outcomes.values()
            if not self.keeps(outcome) and (low is None or outcome.rate_rps > low.rate_rps)
        ]

    def edge(self) -> Edge:
        """The estimate so far; its rate is None where a side of the bracket is open.

        Between the two rates around it the edge is where the percentile, interpolated in
        logarithms, crosses the budget; where the higher run has no percentile, their geometric
        mean. The lower end is the highest rate that was kept, however few requests it rests on;
        the estimate rests on the highest one with enough. The upper end is the lowest that clearly
        broke. Without either of these two it is open, and what clearly broke is told beside it;
        where no rate was kept, that is the upper end.
        """
        low, high = self._around()
        clear = [found.rate_rps for found in self._broken(low) if self._counts(found)]
        broken_rps = min(clear) * (1 + _NOISE) if clear else None
        if low is None:
            return Edge(rate_rps=None, interval_rps=(0.0 if self._outcomes else None, broken_rps))
        least_rps = low.rate_rps * (1 - _NOISE)
        counted = [found for found in self._kept() if self._counts(found)]
        if high is None or broken_rps is None or not counted:
            return Edge(rate_rps=None, interval_rps=(least_rps, None), broken_rps=broken_rps)
        low = max(counted, key=lambda found: found.rate_rps)
        rate = math.sqrt(low.rate_rps * high.rate_rps)
        budget = self._goal.budget_ms
        if low.latency_ms and high.latency_ms and low.latency_ms < budget < high.latency_ms:
            share = math.log(budget / low.latency_ms) / math.log(high.latency_ms / low.latency_ms)
            rate = low.rate_rps * (high.rate_rps / low.rate_rps) ** share
        return Edge(rate_rps=max(rate, least_rps), interval_rps=(least_rps, broken_rps))


def raised_edge(edge: Edge, least_rps: float) -> Edge:
    """``edge`` with a lower end of at least ``least_rps``."""
    low, high = edge.interval_rps
    if least_rps <= (low or 0.0):
        return edge
    return replace(
        edge,
        rate_rps=max(edge.rate_rps, least_rps) if edge.rate_rps is not None else None,
        interval_rps=(least_rps, max(high, least_rps) if high is not None else None),
    )


def revised_edge(edge: Edge, tests: Sequence[LoadTest], *, miss_rate_max: float) -> Edge:
    """``edge`` in the light of the certificate's runs, which are longer and come later.

    Runs of a second may all fall between a machine's slow moments. More requests are late at higher
    rates, so that rates which contradict each other count together (isotonic regression of the
    share over budget, weighted by requests); a share counts as twice the allowed one at most, so
    that one stall weighs no more than as many requests on time. Where that breaks the SLA below the
    edge, the edge lies halfway (in logarithms) to the rate below, but no lower than where a share
    that falls with the square of the rate would be the allowed one. The upper end of the interval
    stays, since both were seen; where it is open and no rate is kept, it is the lowest that enough
    requests show to break the SLA. Where the machine was slower in the runs that broke it, the
    lower end that the edge had before is kept too: at the speed of its own runs it stands.

    Args:
        edge: From the search for the edge.
        tests: Every load test of the configuration.
        miss_rate_max: The allowed fraction of requests over budget.
    """
    edge_rps = edge.at_least_rps
    if edge_rps is None:
        return edge
    counts: dict[float, list[int]] = defaultdict(lambda: [0, 0])
    for outcome in telling(tests, miss_rate_max):
        counts[outcome.rate_rps][0] += outcome.requests
        counts[outcome.rate_rps][1] += outcome.requests if outcome.growing else outcome.over_budget
    rates = sorted(rate for rate, (requests, _) in counts.items() if requests)
    if not rates:
        return edge
    requests = np.array([counts[rate][0] for rate in rates], dtype=np.float64)
    late = np.array([counts[rate][1] for rate in rates], dtype=np.float64)
    shares = np.minimum(late / requests, BROKEN_SHARE * miss_rate_max)
    expected = isotonic_regression(shares, weights=requests).x
    first = int(np.searchsorted(expected, miss_rate_max * (1.0 + 1e-9), side="right"))
    before_rps = _before(edge, tests, miss_rate_max)
    if first == len(rates) or rates[first] >= edge_rps:
        return replace(edge, before_rps=before_rps) if edge.before_rps else edge
    if first == 0:
        broke = (
            rate * (1 + _NOISE)
            for rate, (count, over) in sorted(counts.items())
            if count >= EVIDENCE_MIN and over > miss_rate_max * count
        )
        upper = edge.interval_rps[1] or next(broke, None)
        return replace(edge, rate_rps=None, interval_rps=(0.0, upper), before_rps=None)
    low, broken = rates[first - 1], rates[first]
    allowed_rps = broken * (miss_rate_max / float(expected[first])) ** (1.0 / SHARE_POWER)
    return replace(
        edge,
        rate_rps=max(math.sqrt(low * broken), allowed_rps),
        interval_rps=(low * (1 - _NOISE), edge.interval_rps[1]),
        before_rps=before_rps,
    )


def _before(edge: Edge, tests: Sequence[LoadTest], miss_rate_max: float) -> float | None:
    """The lower end at the speed of the edge's own runs; None unless only slower ones broke it."""
    least_rps = edge.own_speed_rps or 0.0
    breaking = [
        test
        for test in tests
        if telling([test], miss_rate_max)
        and test.offered_rps < least_rps
        and (test.over_budget or 0) > miss_rate_max * test.requests
    ]
    return least_rps if met_slower(edge, breaking, tests) else None
