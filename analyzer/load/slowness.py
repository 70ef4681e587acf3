"""How the speed of a server's machine varied during a run, from the times of its executions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.load_test import (
    SLOWNESS_BIN_S,
    STATUS_OK,
    RequestLog,
)

Floats = NDArray[np.float64]

# Executions of a batch size from which a median is taken, and those that a bin needs on average so
# that the model's own noise averages out (Law, chapter 9: a mean of five varies half as much).
_EXECUTIONS_MIN = 5
# What an execution takes besides the model, by and large: a thread wakes up and takes over. It is
# in both times, so that waits of that size beside executions of hundredths of a millisecond are not
# told as a machine that is several times slower: larger batches do not wait longer.
_HANDOVER_S = 1e-4
#: A stalled bin is told as so many times the usual time.
SLOWNESS_MAX = 50.0


def slowness_of(log: RequestLog) -> tuple[float, ...]:
    """How slow executions were by bin of SLOWNESS_BIN_S, over the run's median bin.

    Requests of one execution have the same compute time to the nanosecond. A bin counts all its
    time over all its usual time (the run's medians for the batch sizes), as work over a speed: one
    short execution that had to wait for a core says little beside long ones. Executions of a tenth
    of a millisecond wait now and then in every bin, so that bins lie above 1 by that measure all
    the same; the median bin takes it out again. Bins without an execution repeat the one before;
    where executions are rare, several bins share a value. Empty where the server tells no times,
    or too few.
    """
    told = (log.status == STATUS_OK) & (log.compute_infer_s > 0)
    begin_s = (log.intended_s + log.send_lag_s + log.queue_s)[told]
    time_s = log.compute_infer_s[told]
    if len(time_s) < 2 * _EXECUTIONS_MIN:
        return ()
    order = np.argsort(begin_s, kind="stable")
    begin_s, time_s, sizes = begin_s[order], time_s[order], log.batch_size[told][order]
    first = np.flatnonzero(np.append(True, np.diff(time_s) != 0.0))
    size = np.add.reduceat(sizes, first)
    taken_s = time_s[first].astype(np.float64)
    usual_s = _medians(taken_s, size)
    known = np.isfinite(usual_s)
    begin_s = begin_s[first][known]
    taken_s, usual_s = taken_s[known] + _HANDOVER_S, usual_s[known] + _HANDOVER_S
    if len(taken_s) < 2 * _EXECUTIONS_MIN:
        return ()
    return _binned(begin_s - begin_s[0], taken_s, usual_s)


def _binned(begin_s: Floats, taken_s: Floats, usual_s: Floats) -> tuple[float, ...]:
    """As :func:`slowness_of`, of executions by their begin, ascending from 0, shape (n,)."""
    bins = int(begin_s[-1] / SLOWNESS_BIN_S) + 1
    width = max(1, int(np.ceil(_EXECUTIONS_MIN * bins / len(taken_s))))
    index = (begin_s / (width * SLOWNESS_BIN_S)).astype(np.int64)
    ending = index == index[-1]
    if np.count_nonzero(ending) < _EXECUTIONS_MIN and not ending.all():
        # The run ended in that bin: few executions say little of it.
        index[ending] = index[~ending][-1]
    taken, usual = np.bincount(index, weights=taken_s), np.bincount(index, weights=usual_s)
    last = np.maximum.accumulate(np.where(usual > 0.0, np.arange(len(usual)), 0))
    ratio = np.clip(taken[last] / usual[last], 1.0 / SLOWNESS_MAX, SLOWNESS_MAX)
    values = np.resize(np.repeat(ratio, width), bins)
    values[len(ratio) * width :] = ratio[-1]
    return tuple(round(float(value), 2) for value in values / np.median(values))


def _medians(time_s: Floats, size: NDArray[np.integer]) -> Floats:
    """The median time of each execution's size; nan where that was executed too rarely."""
    medians = np.full(len(time_s), np.nan)
    for value in np.unique(size):
        same = size == value
        if np.count_nonzero(same) >= _EXECUTIONS_MIN:
            medians[same] = np.median(time_s[same])
    return medians
