"""What the twin expects of late requests by rate: how many, how correlated, how long it matters."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache

import numpy as np

from analyzer.domain.load_test import SLOWNESS_BIN_S
from analyzer.domain.measurement import HigherRuns, RateEvidence
from analyzer.domain.sla import Sla
from analyzer.measure.plan import CertifyPlan, LoadPlan
from analyzer.measure.session import Session
from analyzer.measure.witness import SlowEdge, free_share, in_proportion
from analyzer.stats.batchmeans import MISSES_MIN, variance_inflation
from analyzer.stats.certificate import OVERLOAD_SHARE, claim_confidence, expected_requests
from analyzer.twin.pace import path_of, slowness
from analyzer.twin.server_model import ServerModel
from analyzer.twin.speed import SpeedPath

# Without a twin: the share of the allowed miss rate that a first plan supposes, and the inflation,
# as that of docs/statistics.md, section 3: 6, 13, 25 and 61 at 0.5, 0.7, 0.8 and 0.9 of saturation.
# The runs correct both.
_MISS_GUESS_SHARE = 0.2
_INFLATION_IDLE, _INFLATION_POWER = 2.3, 1.42
_LOAD_MAX = 0.97
#: Of an edge: the load that is supposed where neither is known.
SUPPOSED_LOAD = 0.65
# However light the load, a machine has slow moments that no twin of the queue knows.
_INFLATION_FLOOR = 1.5
# The lead-in of a certificate's run without a twin, in latency budgets.
_LEAD_IN_BUDGETS = 5.0
# Simulated requests behind one inflation and one miss rate: fractions of a second. At a high load
# overloads are so rare that 400,000 requests see few: an inflation of 86 at 0.9 of saturation comes
# out between 46 and 300.
_INFLATION_REQUESTS = 400_000
_INFLATION_REQUESTS_HIGH = 1_600_000
_HIGH_LOAD = 0.8
_MISS_RATE_REQUESTS = 50_000
# The edge at a slower speed: simulated anew where the slow-down differs by so much, or what may be
# late by this factor, and no lower than this share of what is in proportion to the speed, should
# the twin be wrong.
_SLOW_STEP = 0.05
_LATE_STEP = 1.2
_SLOW_SHARE_MIN = 0.5
# The speeds that were met count anew when the runs are so many times as long: each time costs some
# tenths of a second.
_REFRESH_FACTOR = 1.3
# And when others leave less than this of what they left.
_FREE_FACTOR = 0.95
#: How the logarithm of what runs need beyond the twin's inflation falls with the rate: of six walks
#: on live servers that went down from a high inflation the power was 0.1 to 3.5, 1.6 in the median.
EXCESS_POWER = 1.6


class Correlation:
    """What the twin expects of late requests by rate, at the speeds that were met so far."""

    def __init__(self, session: Session, plan: CertifyPlan, load: LoadPlan) -> None:
        self._session = session
        self._plan = plan
        self._load = load
        self._first = len(session.tests)
        self._seconds, self._free = -math.inf, 1.0
        self._refreshed()

    def inflation(self, rate_rps: float, *, met: bool = True, walk: bool = False) -> float | None:
        """As :func:`inflation_at`, and what runs at higher rates showed beyond it.

        Args:
            met: Whether the runs that are judged met the machine's slow states
                (``slow_states.met_slow_states``). Where not, what those do is only supposed, and
                how long they last counts unless they leave the promise far from broken.
            walk: Whether this walk's runs at higher rates count, too, not those of earlier ones
                alone.
        """
        self._refreshed()
        expected = self._inflation if met else self._supposed
        higher = [*self._earlier_runs(rate_rps), *(self._own_runs(rate_rps) if walk else ())]
        return carried_down(expected, rate_rps, higher, self._load.sla.miss_rate_max)

    def miss_rate(self, rate_rps: float) -> float | None:
        """As :func:`miss_rate_at`."""
        self._refreshed()
        return self._miss_rate(rate_rps)

    def _earlier_runs(self, rate_rps: float) -> list[HigherRuns]:
        """What earlier walks' runs came to, but for those of the claim that ``rate_rps`` is."""
        return [
            replace(known.for_lower(), inflation=known.seen)
            for known in self._plan.earlier
            if known.seen is not None and not (known.claim and known.rate_rps == rate_rps)
        ]

    def _own_runs(self, above_rps: float) -> list[HigherRuns]:
        """What this walk's runs above a rate came to, where anything can be told of them."""
        session, budget_s = self._session, self._load.sla.latency_budget_ms / 1e3
        runs = zip(session.tests[self._first :], session.logs[self._first :], strict=True)
        late = defaultdict(list)
        for test, log in runs:
            rate = test.offered_rps or 0.0
            if rate > above_rps and test.validity.excused and not test.growing:
                late[rate].append(log.latency_s[log.warmup :] > budget_s)
        found = {rate: variance_inflation(blocks) for rate, blocks in late.items()}
        return [
            HigherRuns(
                rate_rps=rate,
                requests=sum(len(block) for block in late[rate]),
                over_budget=sum(int(np.count_nonzero(block)) for block in late[rate]),
                inflation=of.point,
            )
            for rate, of in found.items()
            if of is not None
        ]

    def _refreshed(self) -> None:
        """Takes in the speeds of further runs, as soon as they are a part of what was known.

        And what others took of the cores, as soon as it is more.
        """
        bins = sum(len(trace) for trace in self._plan.slowness)
        bins += sum(len(test.slowness) for test in self._session.tests)
        met_s = SLOWNESS_BIN_S * bins
        tests = [*self._plan.tests, *self._session.tests]
        free = free_share(tests, self._load.sla.miss_rate_max)
        if met_s <= _REFRESH_FACTOR * self._seconds and free > _FREE_FACTOR * self._free:
            return
        self._seconds, self._free = met_s, free
        model = self._plan.twin
        if model is not None:
            before, own = self._plan.tests, []
            if self._plan.tells_speed:
                own = slowness([*before, *self._session.tests])[len(before) :]
            met = path_of((*self._plan.slowness, *own))
            # Too few seconds say nothing against what the twin knew before.
            model = replace(model, path=met or model.path)
        self._inflation = cache(inflation_at(model, self._load, free_share=free))
        self._supposed = cache(
            inflation_at(model, self._load, free_share=free, kept_share=OVERLOAD_SHARE)
        )
        self._miss_rate = cache(miss_rate_at(model, self._load))


def carried_down(
    expected: Callable[[float], float | None],
    rate_rps: float,
    runs: Iterable[HigherRuns],
    miss_rate_max: float,
) -> float | None:
    """The ``expected`` inflation at a rate, held against what runs at higher ones showed.

    A spell in which a server could not carry a higher rate is often one in which it could not carry
    a slightly lower one, and runs of some seconds rarely meet one. So what their inflation exceeds
    the expected one by counts below as well, the less the lower the rate (``EXCESS_POWER``).

    Args:
        expected: By rate; None where nothing is, and nothing is told then.
        runs: At this rate and above. Those that kept the SLA and had ten late requests count:
            overloads of a rate that is not carried are not those of one that is.
        miss_rate_max: The fraction of requests that may be late.
    """
    found = expected(rate_rps)
    if found is None:
        return None
    highest = found
    for of in runs:
        kept = MISSES_MIN <= of.over_budget <= miss_rate_max * of.requests
        if of.rate_rps < rate_rps or not kept or of.inflation <= highest:
            continue
        there = expected(of.rate_rps) or 1.0
        excess = max(of.inflation / there, 1.0) ** ((rate_rps / of.rate_rps) ** EXCESS_POWER)
        highest = max(highest, min(found * excess, of.inflation))
    return highest


def guessed_inflation(load: float) -> float:
    """What is supposed at ``load`` of saturation, or of an edge, which is below it: without a twin.

    Args:
        load: From 0; a plan for more than 0.97 is that for 0.97.
    """
    return float(_INFLATION_IDLE / (1.0 - min(load, _LOAD_MAX)) ** _INFLATION_POWER)


def requests_needed(
    sla: Sla,
    *,
    inflation: float,
    miss_rate: float | None,
    claim: int,
    known: RateEvidence | None = None,
) -> int | None:
    """Further requests that a PASS is expected to take; None where a FAIL is expected.

    Args:
        inflation, miss_rate: What the twin expects; a guess and None without one.
        claim: As in :func:`~analyzer.stats.certificate.claim_confidence`.
        known: What runs at the rate came to so far.
    """
    if miss_rate is not None and miss_rate >= sla.miss_rate_max:
        return None
    met = (known.inflation if known is not None else None) or _INFLATION_FLOOR
    return expected_requests(
        miss_rate=_MISS_GUESS_SHARE * sla.miss_rate_max if miss_rate is None else miss_rate,
        inflation=max(inflation, met),
        percentile=sla.percentile,
        confidence=claim_confidence(sla.confidence, claim),
        requests=known.requests if known is not None else 0,
        over_budget=known.over_budget if known is not None else 0,
        higher=known.higher if known is not None else (),
    )


def relaxation_s(model: ServerModel | None, load: LoadPlan, rate_rps: float) -> float:
    """How long a queue that starts empty takes to forget it, seconds.

    In heavy traffic the relaxation time is about the service time over (1 - sqrt(load))². Source:
    Abate and Whitt 1987, "Transient behavior of the M/M/1 queue". Without a model it is guessed
    from the latency budget, which longer queues would not keep.
    """
    if model is None:
        return _LEAD_IN_BUDGETS * load.sla.latency_budget_ms / 1e3
    share = min(rate_rps / model.saturation_rps(load.batch_sizes()), 0.999)
    execution_s = model.execution_s(rate_rps, load.batch_size_typical)
    return execution_s / (1.0 - math.sqrt(share)) ** 2


def inflation_at(
    model: ServerModel | None,
    load: LoadPlan,
    *,
    free_share: float = 1.0,
    kept_share: float = 1.0,
) -> Callable[[float], float | None]:
    """The simulated variance inflation by live rate; None without a model.

    Args:
        free_share, kept_share: As in :meth:`~analyzer.twin.server_model.ServerModel.inflation`.
    """
    if model is None:
        return lambda rate_rps: None
    saturation_rps = model.saturation_rps(load.batch_sizes())
    arrivals = cache(load.unit_arrivals)

    def inflation(rate_rps: float) -> float:
        high = rate_rps > _HIGH_LOAD * saturation_rps
        return model.inflation(
            arrivals(_INFLATION_REQUESTS_HIGH if high else _INFLATION_REQUESTS),
            rate_rps,
            budget_ms=load.sla.latency_budget_ms,
            percentile=load.sla.percentile,
            free_share=free_share,
            kept_share=kept_share,
        )

    return inflation


def slow_edge_at(model: ServerModel | None, load: LoadPlan) -> SlowEdge:
    """The simulated share of the edge at a slower speed; in proportion to it without a model.

    With the SLA's share of late requests it is less than in proportion: executions take longer, and
    the latency budget stays.
    """
    if model is None:
        return in_proportion
    sla, arrivals = load.sla, cache(lambda: load.unit_arrivals(_MISS_RATE_REQUESTS))

    @cache
    def edge_rps(slowdown: float, late: float) -> float:
        slower, percentile = SpeedPath.constant(1.0 / slowdown), 100.0 * (1.0 - late)
        at_speed, budget_ms = replace(model, path=slower), sla.latency_budget_ms
        return at_speed.edge(arrivals(), budget_ms=budget_ms, percentile=percentile) or 0.0

    def share(slowdown: float, late: float) -> float:
        proportion, usual_rps = in_proportion(slowdown, late), edge_rps(1.0, sla.miss_rate_max)
        if slowdown <= 1.0 or not usual_rps:
            return proportion
        stepped = math.ceil(slowdown / _SLOW_STEP) * _SLOW_STEP
        steps = math.floor(math.log(late / sla.miss_rate_max, _LATE_STEP) + 1e-9)
        slow_rps = edge_rps(stepped, sla.miss_rate_max * _LATE_STEP**steps)
        most = proportion if steps == 0 else 1.0
        return min(max(slow_rps / usual_rps, _SLOW_SHARE_MIN * proportion), most)

    return share


def miss_rate_at(model: ServerModel | None, load: LoadPlan) -> Callable[[float], float | None]:
    """The simulated fraction of requests over budget by live rate; None without a model."""
    if model is None:
        return lambda rate_rps: None
    arrivals = load.unit_arrivals(_MISS_RATE_REQUESTS, seed=load.seed)
    return lambda rate_rps: model.miss_rate(
        arrivals, rate_rps, budget_ms=load.sla.latency_budget_ms
    )
