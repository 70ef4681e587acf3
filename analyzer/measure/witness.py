"""What the machine's witness says of a claim: stalls, slow states, and others' share.

A certificate speaks of the states that it met. A study watches longer than any of its certificates:
what it saw elsewhere may cap the rates that are tried at all, say how bold the first one may be, or
take a PASS back (``slow_states``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil, inf

import numpy as np

from analyzer.domain.load_test import Conditions, LoadTest
from analyzer.domain.measurement import Edge
from analyzer.domain.sla import Sla
from analyzer.twin.pace import (
    CONSTANT_FACTOR,
    SLOW_FACTOR,
    WatchedSecond,
    executions_slowdown,
    slowness,
    watched_seconds,
    witness_us,
)

# Fewer slow seconds are no state of the machine; with less than 100 of them one is more than 1 %.
_SECONDS_OF_A_STATE = 2
# The speed was steady where nine tenths of the seconds lie this close.
STEADY_FACTOR = 1.1
# And executions where nine tenths of a run's moments are no slower than so many times the median:
# 1.08 to 1.17 in six demos on a quiet machine whose speed wandered (1.23 in a seventh), 1.21 to
# 1.42 in six beside a process that kept one of two cores busy half of the time. A run that is slow
# for most of its time has a median that is slow: that is so many times the fastest tenth at most,
# too (1.01 to 1.05 in eight searches on a quiet machine).
_EXECUTED_FACTOR = 1.2
# Shorter runs do not tell how busy others kept the cores: the kernel counts in hundredths of a
# second. Nor does less than this: the services of an idle machine take some hundredths of it.
_TELLING_S = 0.5
_TELLING_SHARE = 0.9
#: Of an edge, the highest rate of a first proof: where its runs met the machine as slow as it was
#: ever seen (0.5 and 0.65 were tried, bench/shares.py), and the least. Runs of a second find the
#: edge of a machine's fast state, and 0.55 to 0.7 of it were met for seconds (docs/twin.md).
STEADY_SHARE = 0.65
SAFE_SHARE = 0.5
#: Of an edge, and of what a slow state carries by it: short runs know it to some ten per cent, and
#: what is above needs runs that met that state (0.85 and 1 were tried, bench/study_coverage.py).
SURE_SHARE = 0.9
#: Of a study's seconds by speed: the one that stands for the machine's usual one.
USUAL_QUANTILE = 0.05

SlowEdge = Callable[[float, float], float]
"""The share of its edge that a server keeps on a machine that is so many times slower, where this
share of requests may be late then."""


def in_proportion(slowdown: float, late: float) -> float:
    """In proportion to the speed: what is supposed without a model, however many may be late.

    With the SLA's share of late requests that is the most that a server may keep, since its latency
    budget does not grow with the slowness.
    """
    return 1.0 / slowdown


def slow_work_us(conditions: Conditions, miss_rate_max: float) -> float | None:
    """The work's time that at most ``miss_rate_max`` of the seconds exceed; None where unknown.

    One second is no state: the start of a server slows the canary as well.
    """
    ordered = sorted(conditions.work_us, reverse=True)
    rank = max(ceil(miss_rate_max * len(ordered)), _SECONDS_OF_A_STATE)
    return ordered[min(rank, len(ordered)) - 1] if ordered else None


def share_above(watched: Conditions | None, work_us: float) -> float:
    """The share of the seconds in which the work took longer; 0 where nobody watched."""
    if watched is None or not watched.work_us:
        return 0.0
    return float(np.mean(np.array(watched.work_us) > work_us))


def lasting_work_us(conditions: Conditions, budget_s: float) -> float | None:
    """The slowest work time that lasted long enough to show an overload; None where unknown.

    At ``SLOW_FACTOR`` times the work an overload adds a quarter of a second to the queue in each
    second. So a rate that was kept meanwhile is one that this speed carries. No less than the
    median.

    Args:
        budget_s: Latency budget, seconds.
    """
    work_us = conditions.work_us
    if not work_us:
        return None
    # The first and the last of slow seconds may be slow in part.
    seconds = 1 + max(1, ceil(budget_s / (SLOW_FACTOR - 1.0)))
    lasting = (min(work_us[at : at + seconds]) for at in range(len(work_us) - seconds + 1))
    return max(float(np.median(work_us)), *lasting, 0.0)


def steady(tests: Sequence[LoadTest]) -> bool:
    """Whether the machine's speed is known to have stayed the same over ``tests``.

    By the witness and by the executions: others that keep these waiting for a core are nothing that
    the witness sees, which comes first on its own.
    """
    found = Conditions.pooled(test.conditions for test in tests)
    if found is None or any(test.conditions is None for test in tests) or not found.work_us:
        return False
    low, high = np.quantile(found.work_us, (USUAL_QUANTILE, 1.0 - USUAL_QUANTILE))
    if high > STEADY_FACTOR * low:
        return False
    fast, usual, slow = _execution_times(tests)
    return slow <= _EXECUTED_FACTOR * usual and usual <= _EXECUTED_FACTOR * fast


def first_share(
    edge: Edge, watched: Sequence[Conditions | None], tests: Sequence[LoadTest] = ()
) -> float:
    """Of an edge that was measured: the highest rate of a first proof.

    The more, the less the machine was ever slower than in the edge's runs, where executions were
    not either: the witness comes first on its core, and does not see what keeps them waiting.

    Args:
        watched: As of :func:`watched_times`.
        tests: Load tests of the configuration, the edge's among them. Runs that were slow for most
            of their time found the edge of the slow state: they ask for no caution.
    """
    runs = [test for test in tests if test.kind == "edge" and not test.aborted]
    slower = _times_slower(edge, watched)
    _, usual, slow = _execution_times(runs)
    if slower is None or slow > _EXECUTED_FACTOR * usual:
        return SAFE_SHARE
    return max(STEADY_SHARE * min(STEADY_FACTOR / slower, 1.0), SAFE_SHARE)


def free_share(tests: Sequence[LoadTest], miss_rate_max: float) -> float:
    """The least that other programs left of the cores in a run, over what the edge's rate had.

    At most 1, and 1 where it is unknown: runs of a second or two find the edge of a moment.

    Args:
        tests: Load tests of one configuration.
    """
    free = [
        (test, 1.0 - other)
        for test in tests
        if (other := test.resources.other_utilization) is not None and test.duration_s >= _TELLING_S
    ]
    kept = [
        (test.offered_rps or 0.0, left)
        for test, left in free
        if test.kind == "edge"
        and not test.aborted
        and (test.over_budget or 0) <= miss_rate_max * test.requests
    ]
    usual = max(kept)[1] if kept else 0.0
    least = min(left for _, left in free) / usual if usual > 0.0 else 1.0
    return least if least < _TELLING_SHARE else 1.0


def _times_slower(edge: Edge, watched: Sequence[Conditions | None]) -> float | None:
    """How many times longer the witness's work took at the slowest than in the edge's own runs.

    None where nobody saw the machine.
    """
    seen = [found.work_us for found in watched if found is not None and found.work_us]
    if not edge.work_us or len(seen) < len(watched):
        return None
    slowest_us = [float(np.quantile(work_us, 1.0 - USUAL_QUANTILE)) for work_us in seen]
    return max(slowest_us, default=edge.work_us) / edge.work_us


def _execution_times(tests: Sequence[LoadTest]) -> tuple[float, float, float]:
    """Of the runs' moments: relative execution times of the fastest tenth, the median, nine tenths.

    All 1 where nothing tells them.
    """
    traces = [trace for trace in slowness(tests) if len(trace)]
    if not traces:
        return 1.0, 1.0, 1.0
    fast, usual, slow = np.quantile(np.concatenate(traces), (0.1, 0.5, 0.9))
    return float(fast), float(usual), float(slow)


def slower_rates(runs: Mapping[float, LoadTest], kept_rps: float | None) -> list[float]:
    """The rates of the runs in which the machine was slower than in the one that was kept."""
    kept = runs.get(kept_rps or 0.0)
    if kept is None or not kept.work_us:
        return []
    least_us = CONSTANT_FACTOR * kept.work_us
    return [rate for rate, test in runs.items() if (test.work_us or 0.0) > least_us]


def met_slower(edge: Edge, breaking: Sequence[LoadTest], tests: Sequence[LoadTest]) -> bool:
    """Whether a slower machine than in the edge's own runs explains why each of ``breaking`` broke.

    It was slower for at least half as much of the time as requests were late.

    Args:
        tests: All load tests of the configuration.
    """
    met_us = _met_us(edge, watched_seconds(tests)) if breaking else None
    if met_us is None:
        return False
    for test in breaking:
        late = 0.5 * (test.over_budget or 0) / max(test.requests, 1)
        slow_us = slow_work_us(test.conditions, late) if test.conditions is not None else None
        if slow_us is None or slow_us <= CONSTANT_FACTOR * met_us:
            return False
    return True


def _met_us(edge: Edge, seconds: Sequence[WatchedSecond]) -> float | None:
    """The witness's work, at any load, while executions are as quick as in the edge's runs."""
    met_us = edge.slow_us or edge.work_us
    return max(met_us, witness_us(seconds) or 0.0) if met_us else None


def seconds_of_all(
    edge: Edge, own: Sequence[LoadTest], others: Iterable[tuple[Edge, Sequence[LoadTest]]]
) -> list[WatchedSecond]:
    """What the runs of all configurations tell of executions beside the witness's work.

    Execution times are relative to those in the runs of each one's own edge, and these were made at
    a speed of their own: so is the work, in proportion to that in the runs of ``edge``.

    Args:
        own: Load tests of the configuration with ``edge``.
        others: Of each other configuration its edge and its load tests.
    """
    seconds = watched_seconds(own)
    met_us = _met_us(edge, seconds)
    if met_us is None:
        return seconds
    for other, tests in others:
        theirs = watched_seconds(tests)
        if (base_us := _met_us(other, theirs)) is not None:
            seconds += [(met_us * us / base_us, slower) for us, slower in theirs]
    return seconds


def rate_ceiling(
    edge: Edge,
    study: Conditions | None,
    sla: Sla,
    slow_edge: SlowEdge = in_proportion,
    tests: Sequence[LoadTest] = (),
    response: float = 1.0,
) -> float:
    """The rate that the machine's slow state surely carries, requests per second; else infinite.

    A state that takes up more of the time than requests may be late counts, with as many late as
    may be in its share of the time. Where it is slower than the machine ever was for long while the
    edge's rate was kept, its edge is lower by as much as executions are slower in it, or where that
    is not known by the witness's work to the power of ``response``. Where the edge is that of the
    slow state, it counts itself, unless it has an open end: that is a rate that was kept. Of both
    ``SURE_SHARE``.

    Args:
        tests: Load tests of the same configuration, the edge's among them.
        response: As :func:`~analyzer.twin.pace.mean_response`, of the study's runs.
    """
    # What was lowered for a slower state is not lowered for it once more.
    least_rps = edge.own_speed_rps
    seconds = watched_seconds(tests)
    slower = slow_state(edge, study, sla, seconds, response)
    if not least_rps:
        return inf
    if slower is not None:
        late = late_when_slow(edge, study, sla, seconds)
        return SURE_SHARE * least_rps * slow_edge(slower, late)
    if not edge.rate_rps or not edge.work_us or study is None or not study.work_us:
        return inf
    slow_us = slow_work_us(study, sla.miss_rate_max) or 0.0
    varies = slow_us > CONSTANT_FACTOR * float(np.quantile(study.work_us, USUAL_QUANTILE))
    return SURE_SHARE * edge.rate_rps if varies else inf


def slow_state(
    edge: Edge,
    study: Conditions | None,
    sla: Sla,
    seconds: Sequence[WatchedSecond],
    response: float = 1.0,
    *,
    by_witness: bool = True,
) -> float | None:
    """How many times slower executions are in the machine's slow state than in the edge's runs.

    None where the study met no slower state for more of the time than requests may be late.

    Args:
        seconds: What is known of executions beside the witness's work.
        response: How executions answer to that work (``twin.pace.mean_response``).
        by_witness: Whether its work tells how slow they are, where they do not tell. That is no
            more than they may be: at a light load it is slower, and they are not.
    """
    met_us = _met_us(edge, seconds)
    if study is None or met_us is None:
        return None
    slow_us = slow_work_us(study, sla.miss_rate_max)
    if slow_us is None or slow_us <= CONSTANT_FACTOR * met_us:
        return None
    supposed = (slow_us / met_us) ** response if by_witness else None
    return executions_slowdown(seconds, met_us, slow_us) or supposed


def late_when_slow(
    edge: Edge, study: Conditions | None, sla: Sla, seconds: Sequence[WatchedSecond]
) -> float:
    """The share of requests that may be late in the study's slow states, as :func:`slow_state`.

    All that may be late are late then: the SLA's share over that of the seconds that were slower
    than in the edge's runs; the SLA's where none were, or nobody watched.
    """
    met_us = _met_us(edge, seconds)
    share = share_above(study, CONSTANT_FACTOR * met_us) if met_us is not None else 0.0
    return sla.miss_rate_max / share if share > sla.miss_rate_max else sla.miss_rate_max


def slower_before(study: Conditions | None, earlier_us: Sequence[float], sla: Sla) -> float | None:
    """How many times slower the machine was in earlier studies than ever in this one.

    For more of the time than requests may be late; None where it was not, or nobody knows.
    """
    if study is None or not earlier_us:
        return None
    now_us = slow_work_us(study, sla.miss_rate_max)
    before_us = slow_work_us(study.after(earlier_us), sla.miss_rate_max)
    if not now_us or not before_us or before_us <= CONSTANT_FACTOR * now_us:
        return None
    return before_us / now_us


def stalls_too_long(study: Conditions | None, sla: Sla, latency_ms: float | None) -> bool:
    """Whether stalls alone make more requests late than the SLA allows.

    Args:
        latency_ms: The median of the requests' latencies; None for half the budget, if unknown.
    """
    if study is None:
        return False
    slack_ms = sla.latency_budget_ms - (latency_ms or sla.latency_budget_ms / 2)
    return study.stalled_share(slack_ms) > sla.miss_rate_max


def watched_times(
    study: Conditions | None, earlier_us: Sequence[float]
) -> tuple[Conditions | None, ...]:
    """What a claim is held against: the study, and the study after the earlier ones.

    Both, since what is a slow state of a study may be too little of all of them.

    Args:
        earlier_us: ``Conditions.work_us`` of earlier studies on the same machine.
    """
    if study is None or not study.work_us or not earlier_us:
        return (study,)
    return study, study.after(earlier_us)
