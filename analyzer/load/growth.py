"""Tells a queue that only grows from one in balance, in runs of a few latency budgets."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.configuration import Configuration
from analyzer.domain.load_test import LoadTest

# An overload makes requests late within so many budgets; a run that is longer shows it by that.
_BUDGETS = 10.0
# So many standard errors of a growth are no chance. That of a queue near saturation, whose requests
# come and go as a random walk, is about one over the root of the requests.
_DEVIATIONS = 3.0
_REQUESTS_MIN = 20
# So many executions tell how long one takes, to some per cent.
_EXECUTIONS_MIN = 20


def outgrows(
    intended_s: NDArray[np.float64], latency_s: NDArray[np.float64], budget_s: float
) -> bool:
    """Whether latencies grow so that a run of ten budgets would be late, though this one is not.

    At ``r`` times the rate that a server carries, each second adds ``1 - 1/r`` seconds to the wait
    of the requests that come then; until that is the budget, no request is late. So the growth over
    the run's second half, where it is no chance, is continued to ten budgets. False where the run
    is as long, or where requests failed, which are late themselves.

    Args:
        intended_s: When the requests that count were to be sent, seconds, ascending.
        latency_s: Their latencies, seconds; not finite where they failed.
        budget_s: The latency budget.
    """
    if not len(intended_s):
        return False
    length_s = float(intended_s[-1] - intended_s[0])
    left_s = _BUDGETS * budget_s - length_s
    quarter = (intended_s - intended_s[0]) * (4.0 / max(length_s, 1e-9))
    third, fourth = latency_s[(quarter >= 2.0) & (quarter < 3.0)], latency_s[quarter >= 3.0]
    requests = len(third) + len(fourth)
    if left_s <= 0.0 or requests < _REQUESTS_MIN or not len(third):
        return False
    if not (np.isfinite(third).all() and np.isfinite(fourth).all()):
        return False
    reached_s = float(fourth.mean())
    growth = (reached_s - float(third.mean())) / (length_s / 4.0)
    return growth > _DEVIATIONS / math.sqrt(requests) and reached_s + growth * left_s > budget_s


def exceeds_capacity(
    test: LoadTest, configuration: Configuration, *, inferences: float, budget_s: float
) -> bool:
    """Whether a rate is above what the run's own executions allow, every instance always busy.

    An overload by a fifth is no growth that few requests show, and none of them is late in a run of
    one or two budgets. The bound is exact where batches cannot get larger: without dynamic
    batching, or by the executions of full batches. False where nothing tells, or where the run is
    so long that requests would be late.

    Args:
        configuration: What was loaded.
        inferences: In each request, the mean.
        budget_s: The latency budget.
    """
    grows = configuration.dynamic_batching and configuration.max_batch_size > 1
    full = [
        one
        for one in test.executions
        if not grows or one.batch_size == configuration.max_batch_size
    ]
    busy_s = sum(one.count * one.mean_ms for one in full) / 1e3
    told = sum(one.count for one in full) >= _EXECUTIONS_MIN and busy_s > 0.0
    if not told or test.concurrency is not None or test.duration_s >= _BUDGETS * budget_s:
        return False
    executed = sum(one.count * one.batch_size for one in full)
    capacity_ips = configuration.instance_count * executed / busy_s
    return test.offered_rps is not None and test.offered_rps * inferences > capacity_ips
