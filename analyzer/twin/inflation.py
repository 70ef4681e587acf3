"""How correlated requests are: the variance inflation of the over-budget indicator, from the twin.

In a queue an overload makes many requests late at once. The mean of n correlated indicators then
varies as that of n / inflation independent ones; a certificate counts the latter.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.workload import ArrivalProcess
from analyzer.engine.policy import BatchingPolicy
from analyzer.twin.bands import UnitArrivals
from analyzer.twin.service import ServiceTime
from analyzer.twin.simulator import Prepared

#: Requests of the run, and the numbers of batches whose means are compared.
_REQUESTS = 2_000_000
_BATCHES = (64, 128)


def batch_means_inflation(over: NDArray[np.bool_], batches: int) -> float:
    """Variance of batch means of ``over`` [n], relative to that of independent indicators.

    ``length · var(means) / (m (1 - m))`` with the overall mean m; at least 1, and 1 where all
    requests have one fate. Right where a batch is much longer than the correlation.
    """
    length = len(over) // batches
    means = over[: length * batches].reshape(batches, length).mean(axis=1)
    m = float(means.mean())
    if not 0.0 < m < 1.0:
        return 1.0
    return max(1.0, float(means.var(ddof=1)) * length / (m * (1.0 - m)))


def twin_inflation(
    policy: BatchingPolicy,
    service: ServiceTime,
    arrivals: ArrivalProcess,
    *,
    rate_rps: float,
    budget_ms: float,
    percentile: float = 99.0,
    overhead_ms: float = 0.0,
    request_batch_size: int = 1,
    seed: int = 0,
    requests: int = _REQUESTS,
) -> float:
    """The variance inflation at ``rate_rps``, at least 1; infinite where no queue can be stable.

    What a certificate must survive is a server that just misses the promise at this rate. So the
    threshold is where the twin's own fraction of late requests equals 1 - p/100; the budget itself
    counts too where at least a hundred requests miss it. The larger inflation is returned, and of
    several batch lengths the one that finds most.
    """
    if rate_rps >= service.saturation_rps(policy, request_batch_size):
        return math.inf
    drawn = UnitArrivals.draw(
        arrivals, request_batch_size=request_batch_size, seed=seed, count=requests
    )
    arrival_ns = (drawn.time_s * (1e9 / rate_rps)).astype(np.int64)
    batch_of, executions = Prepared.of(policy, service, overhead_ms).run_kernel(
        arrival_ns, drawn.batch_size, requests, service.noise_at(drawn.quantile)
    )
    latency_ns = np.where(batch_of >= 0, executions[1][batch_of] - arrival_ns, np.int64(2**62))[
        requests // 50 :
    ]
    rank = min(math.ceil(percentile / 100.0 * len(latency_ns)), len(latency_ns)) - 1
    thresholds = [int(np.partition(latency_ns, rank)[rank])]
    budget_ns = round((budget_ms - overhead_ms) * 1e6)
    if np.count_nonzero(latency_ns > budget_ns) >= 100:
        thresholds.append(budget_ns)
    return max(
        batch_means_inflation(latency_ns > threshold, batches)
        for threshold in thresholds
        for batches in _BATCHES
    )
