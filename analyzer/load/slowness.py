"""How the speed of a server's machine varied during a run, from the times of its executions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.measurement import SLOWNESS_BIN_S, STATUS_OK, RequestLog

Floats = NDArray[np.float64]

# Executions of a batch size from which a median is taken, and those that a bin needs on average so
# that the model's own noise averages out (Law, chapter 9: a mean of five varies half as much).
_EXECUTIONS_MIN = 5
#: A stalled bin is told as so many times the usual time.
SLOWNESS_MAX = 50.0


def slowness_of(log: RequestLog) -> tuple[float, ...]:
    """Time of executions over the run's median for their batch size, by bin of SLOWNESS_BIN_S.

    Requests of one execution have the same compute time to the nanosecond. Bins without an
    execution repeat the one before; where executions are rare, several bins share a mean. Empty
    where the server tells no times, or too few.
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
    ratio = _over_median(time_s[first].astype(np.float64), size)
    known = np.isfinite(ratio)
    begin_s, ratio = begin_s[first][known], ratio[known]
    if len(ratio) < 2 * _EXECUTIONS_MIN:
        return ()
    return binned(begin_s - begin_s[0], ratio)


def binned(begin_s: Floats, ratio: Floats) -> tuple[float, ...]:
    """Means of ``ratio`` by bin of SLOWNESS_BIN_S, as in :func:`slowness_of`.

    Args:
        begin_s: Begin of each execution, seconds from 0, ascending, shape (n,).
        ratio: Its time over the usual one, shape (n,).
    """
    bins = int(begin_s[-1] / SLOWNESS_BIN_S) + 1
    width = max(1, int(np.ceil(_EXECUTIONS_MIN * bins / len(ratio))))
    index = (begin_s / (width * SLOWNESS_BIN_S)).astype(np.int64)
    counts = np.bincount(index)
    means = np.bincount(index, weights=ratio) / np.maximum(counts, 1)
    last = np.maximum.accumulate(np.where(counts > 0, np.arange(len(counts)), 0))
    values = np.repeat(np.clip(means[last], 1.0 / SLOWNESS_MAX, SLOWNESS_MAX), width)[:bins]
    return tuple(round(float(value), 2) for value in values)


def _over_median(time_s: Floats, size: NDArray[np.integer]) -> Floats:
    """Each time over the median of its size; nan where that was executed too rarely."""
    ratio = np.full(len(time_s), np.nan)
    for value in np.unique(size):
        same = size == value
        if np.count_nonzero(same) >= _EXECUTIONS_MIN:
            ratio[same] = time_s[same] / np.median(time_s[same])
    return ratio
