"""How correlated requests are: the variance inflation of the over-budget indicator, from the twin.

In a queue an overload makes many requests late at once. The mean of n correlated indicators then
varies as that of n / inflation independent ones; a certificate counts the latter.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from analyzer.stats.batchmeans import over_independent
from analyzer.stats.percentiles import nearest_rank_position

#: The numbers of batches whose means are compared.
_BATCHES = (64, 128)
# A threshold that fewer exceed says nothing of how they cluster. Ten times what is asked of real
# requests (``batchmeans.MISSES_MIN``): simulated ones cost little.
_MISSES_MIN = 100


def batch_means_inflation(over: NDArray[np.bool_], batches: int) -> float:
    """Variance of batch means of ``over`` [n], relative to that of independent indicators.

    At least 1, and 1 where all requests have one fate. Right where a batch is much longer than the
    correlation.
    """
    length = len(over) // batches
    sums = over[: length * batches].reshape(batches, length).sum(axis=1)
    share = float(sums.sum()) / max(length * batches, 1)
    if not 0.0 < share < 1.0:
        return 1.0
    return max(1.0, over_independent(sums, length, share))


def late_inflation(
    latency_ns: NDArray[np.int64], *, limit_ns: int, percentile: float, least_ns: int = 0
) -> float:
    """The variance inflation of "late" among simulated requests, at least 1.

    What a certificate must survive is a server that just misses the promise at this rate. So the
    threshold is where the twin's own fraction of late requests equals 1 - p/100, or the highest
    that a hundred requests exceed, should these be more; the budget itself counts too where at
    least as many miss it. The larger inflation is returned, and of several batch lengths the one
    that finds most.

    Args:
        latency_ns: Of all requests in the order of arrival, int64 [n].
        limit_ns: The latency budget.
        least_ns: Thresholds below this do not count; it is one itself where a hundred requests
            exceed it.
    """
    rank = nearest_rank_position(len(latency_ns), percentile) - 1
    rank = min(rank, max(len(latency_ns) - _MISSES_MIN - 1, 0))
    just_missing = int(np.partition(latency_ns, rank)[rank])
    thresholds = [just_missing] if just_missing >= least_ns else []
    thresholds += [
        threshold
        for threshold in ({limit_ns, least_ns} if least_ns else {limit_ns})
        if np.count_nonzero(latency_ns > threshold) >= _MISSES_MIN
    ]
    return max(
        (
            batch_means_inflation(latency_ns > threshold, batches)
            for threshold in thresholds
            for batches in _BATCHES
        ),
        default=1.0,
    )
