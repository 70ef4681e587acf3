"""The machine's speed over time, as the executions of a study's load tests met it.

On a shared machine a core is slower for a tenth of a second or for a minute, and comes back. A
queue near saturation feels that far more than independent noise of the same spread, so the twin
replays the speeds that were seen, one run after the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import exp, log
from statistics import median

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.load_test import SLOWNESS_BIN_S, LoadTest
from analyzer.twin.speed import SpeedPath

Floats = NDArray[np.float64]
WatchedSecond = tuple[float, float]
"""The witness's work, microseconds, and execution times relative to the edge's runs."""

# Seconds of traces from which there is a path at all, and those that are replayed at most, the
# latest ones: a simulation must go through all of it.
_SECONDS_MIN = 3.0
_SECONDS_MAX = 120.0
# Runs of one configuration differ by the load too: executions on busy cores took a tenth less than
# on cores that sleep in between (2.1 and 2.35 ms, digits int8). What is beyond is the machine's.
_SAME_LEVEL = float(np.log(1.15))
_EXECUTIONS_MIN = 20
#: A second is slow where the canary's work took so many times as long; the speed of a shared core
#: wanders by a few per cent.
SLOW_FACTOR = 1.25
# Of the seconds of comparable runs: what the witness's work takes, its own noise apart.
_WITNESS_QUANTILE = 0.75
# Of the slow seconds: the power of the witness's slow-down that counts, and how many are needed.
_SLOW_QUANTILE, _SLOW_SECONDS_MIN = 0.9, 3
# Of the seconds of runs at one load: the witness's work at the machine's usual speed.
_USUAL_QUANTILE = 0.25
#: The speed is as good as constant where the slowest hundredth of the time is within this factor of
#: the fastest half; what execution times vary by within is in the service times' own spread.
CONSTANT_FACTOR = 1.12


def slowness(tests: Sequence[LoadTest]) -> list[Floats]:
    """Of one configuration's runs: relative execution times by bin, 1 in its edge's runs.

    Where the target does not tell execution times, the witness of the machine's speed does, by the
    second. Shape (bins,) each; empty for a run of which nothing is known.
    """
    told = [np.array(test.slowness) for test in tests]
    levels = _levels(tests, told)
    witnessed = _witnessed(tests)
    return [
        trace * level if len(trace) else other
        for trace, level, other in zip(told, levels, witnessed, strict=True)
    ]


def reference_us(tests: Sequence[LoadTest]) -> float | None:
    """The witness's work at the speed that is 1 in :func:`slowness`; None where nobody watched.

    What a run told is relative to its own median speed, which is the median of its seconds.
    """
    told = [np.array(test.slowness) for test in tests]
    found = [
        (test.kind, test.work_us / level)
        for test, trace, level in zip(tests, told, _levels(tests, told), strict=True)
        if test.work_us and len(trace)
    ]
    # At a light load the witness is slower than the machine is (:func:`witness_us`).
    of_edge = [us for kind, us in found if kind == "edge"]
    return float(np.median(of_edge or [us for _, us in found])) if found else _usual_us(tests)


def witness_us(seconds: Sequence[WatchedSecond]) -> float | None:
    """The witness's work while executions are as quick as in the edge's runs; None where unknown.

    That of three quarters of the seconds. Where cores sleep in between, its work takes longer (up
    to a half here) and executions do not: that is the load, and no slow state of the machine.
    """
    found = [us / slower for us, slower in seconds]
    return float(np.quantile(found, _WITNESS_QUANTILE)) if found else None


def executions_slowdown(
    seconds: Sequence[WatchedSecond], met_us: float, slow_us: float
) -> float | None:
    """How much slower executions are where the witness's work takes ``slow_us``, not ``met_us``.

    That work is short and suffers more than they from a neighbour on the same core: how much they
    answer to it (the power of its slow-down) is told by nine of ten of the seconds at least half as
    slow. From 1 to the witness's own slow-down; None where fewer than three such seconds are known.
    """
    found = [
        np.log(slower) / np.log(us / met_us)
        for us, slower in seconds
        if us > max(met_us, np.sqrt(met_us * slow_us))
    ]
    if len(found) < _SLOW_SECONDS_MIN:
        return None
    power = np.clip(np.quantile(found, _SLOW_QUANTILE), 0.0, 1.0)
    return float((slow_us / met_us) ** power)


def watched_seconds(tests: Sequence[LoadTest]) -> list[WatchedSecond]:
    """The seconds of those runs whose executions can be held against the edge's."""
    return [second for _, found in _watched_runs(tests) for second in found]


def _watched_runs(tests: Sequence[LoadTest]) -> list[tuple[LoadTest, list[WatchedSecond]]]:
    told = [np.array(test.slowness) for test in tests]
    usual = _usual_times(tests, told)
    of_edge = _edge_medians(tests, usual)
    bins = round(1.0 / SLOWNESS_BIN_S)
    found = []
    for test, trace, run in zip(tests, told, usual, strict=True):
        log_ratio = _log_ratio(run, of_edge)
        if log_ratio is None:
            continue
        work_us, level = _work_us(test), exp(log_ratio)
        parts = [trace[at * bins : (at + 1) * bins] for at in range(len(work_us))]
        seconds = [
            (float(us), float(part.mean()) * level)
            for us, part in zip(work_us, parts, strict=True)
            if len(part)
        ]
        found.append((test, seconds))
    return found


def responses(tests: Sequence[LoadTest]) -> list[float]:
    """By which powers of the witness's slow-down a configuration's executions slowed down.

    Its work is other work than theirs: beside a neighbour on the same core it took 1.65 times as
    long and they 1.0 to 1.3 times (docs/twin.md). Both depend on the load too, so that only runs at
    one rate are held against each other, and those of an edge. None of those that met one speed.
    """
    by_load: defaultdict[float, list[WatchedSecond]] = defaultdict(list)
    for test, seconds in _watched_runs(tests):
        by_load[0.0 if test.kind == "edge" else test.offered_rps].extend(seconds)
    return [power for own in by_load.values() if (power := _power(own)) is not None]


def mean_response(powers: Iterable[float]) -> float:
    """The power that counts for all, from 0 to 1.

    The mean of what was found and of one that follows it fully, since few seconds tell little.
    """
    return float(np.clip([1.0, *powers], 0.0, 1.0).mean())


def _power(seconds: Sequence[WatchedSecond]) -> float | None:
    """As :func:`responses`, of runs at one load; None where they did not meet both speeds."""
    if not seconds:
        return None
    work_us, times = np.log(np.array(seconds)).T
    slow = work_us > np.quantile(work_us, _USUAL_QUANTILE) + np.log(SLOW_FACTOR)
    if min(np.count_nonzero(slow), np.count_nonzero(~slow)) < _SLOW_SECONDS_MIN:
        return None
    slower = np.median(times[slow]) - np.median(times[~slow])
    return float(slower / (np.median(work_us[slow]) - np.median(work_us[~slow])))


def level(work_us: float | None, usual_us: float | None, response: float = 1.0) -> float:
    """How much slower the machine was, by its witness's work; 1 where it was as usual.

    Args:
        response: As :func:`mean_response`.
    """
    if not work_us or not usual_us:
        return 1.0
    ratio = work_us / usual_us
    return float(ratio**response) if max(ratio, 1.0 / ratio) > SLOW_FACTOR else 1.0


def _levels(tests: Sequence[LoadTest], traces: Sequence[Floats]) -> Floats:
    """How much slower the usual speed of each run was than that of the edge's runs, shape (runs,).

    Only batch sizes that the edge's runs have count; a run that has none is held against all runs.
    """
    usual = _usual_times(tests, traces)
    of_edge, of_all = _edge_medians(tests, usual), _medians(usual)
    logs = [_log_ratio(run, of_edge, of_all) or 0.0 for run in usual]
    return np.exp(np.where(np.abs(logs) < _SAME_LEVEL, 0.0, logs))


def _usual_times(tests: Sequence[LoadTest], traces: Sequence[Floats]) -> list[dict[int, float]]:
    """Of each run the execution times by batch size at its own median speed, milliseconds."""
    usual: list[dict[int, float]] = []
    for test, trace in zip(tests, traces, strict=True):
        mean = float(trace.mean()) if len(trace) else 1.0
        told = test.executions if len(trace) else ()
        usual.append({e.batch_size: e.mean_ms / mean for e in told if e.count >= _EXECUTIONS_MIN})
    return usual


def _medians(runs: Iterable[dict[int, float]]) -> dict[int, float]:
    """Of several runs' usual times the median by batch size, milliseconds."""
    times: defaultdict[int, list[float]] = defaultdict(list)
    for run in runs:
        for size, ms in run.items():
            times[size].append(ms)
    return {size: median(found) for size, found in times.items()}


def _edge_medians(tests: Sequence[LoadTest], usual: Sequence[dict[int, float]]) -> dict[int, float]:
    return _medians(run for test, run in zip(tests, usual, strict=True) if test.kind == "edge")


def _log_ratio(run: dict[int, float], *references: dict[int, float]) -> float | None:
    """log(time / the usual one) of the first of ``references`` that shares batch sizes."""
    for usual in references:
        ratios = [log(ms / usual[size]) for size, ms in run.items() if size in usual]
        if ratios:
            return median(ratios)
    return None


def _witnessed(tests: Sequence[LoadTest]) -> list[Floats]:
    """The same from the canary's work by the second."""
    usual_us = _usual_us(tests)
    bins = round(1.0 / SLOWNESS_BIN_S)
    return [np.repeat([level(float(us), usual_us) for us in _work_us(t)], bins) for t in tests]


def _usual_us(tests: Sequence[LoadTest]) -> float | None:
    """The median of the edge's runs, else of all."""
    of_edge = [_work_us(test) for test in tests if test.kind == "edge" and len(_work_us(test))]
    known = of_edge or [work_us for test in tests if len(work_us := _work_us(test))]
    return float(np.median(np.concatenate(known))) if known else None


def _work_us(test: LoadTest) -> Floats:
    return np.array(test.conditions.work_us if test.conditions is not None else ())


def path_of(traces: Iterable[Floats]) -> SpeedPath | None:
    """The path that replays ``traces`` again and again; None for too few, or a constant speed.

    Args:
        traces: Relative execution times by bin of SLOWNESS_BIN_S, in the order of time.
    """
    known = [trace for trace in traces if len(trace)]
    if not known:
        return None
    values = np.concatenate(known)[-round(_SECONDS_MAX / SLOWNESS_BIN_S) :]
    if len(values) < round(_SECONDS_MIN / SLOWNESS_BIN_S):
        return None
    fast, slow = np.quantile(values, (0.5, 0.99))
    if slow < CONSTANT_FACTOR * fast and values.min() > fast / CONSTANT_FACTOR:
        return None
    change = np.flatnonzero(np.append(True, np.diff(values) != 0.0))
    return SpeedPath(
        start_s=change.astype(np.float64) * SLOWNESS_BIN_S,
        speed=1.0 / values[change],
        period_s=len(values) * SLOWNESS_BIN_S,
    )
