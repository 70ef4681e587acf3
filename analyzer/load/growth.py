"""Tells a queue that only grows from one in balance, in runs of a few latency budgets."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

# An overload makes requests late within so many budgets; a run that is longer shows it by that.
_BUDGETS = 10.0
# So many standard errors of a growth are no chance. That of a queue near saturation, whose requests
# come and go as a random walk, is about one over the root of the requests.
_DEVIATIONS = 3.0
_REQUESTS_MIN = 20


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
