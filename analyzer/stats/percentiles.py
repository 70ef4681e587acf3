"""Nearest-rank percentiles, with failures as infinitely late requests."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.load_test import LatencySummary


def nearest_rank_position(count: int, percentile: float) -> int:
    """Returns ⌈p·n/100⌉, at least 1: which of ``count`` sorted values is the percentile.

    The percentile is taken for the decimal number that it is written as, so that 99.9 % of 1,000
    is the 999th value and not, by a rounding error of 1e-13, the 1,000th.

    Args:
        count: How many values there are, at least 1.
        percentile: 0 to 100.
    """
    assert count >= 1 and 0 <= percentile <= 100, (count, percentile)
    exact = Fraction(str(float(percentile))) * count / 100
    return max(1, -(-exact.numerator // exact.denominator))


def nearest_rank(values: NDArray[np.floating], percentile: float) -> float | None:
    """Returns the ⌈p·n/100⌉-th smallest value; None if it is not finite or there is none.

    Args:
        values: Shape (n,), in any order, not changed; inf or NaN for a request that failed.
        percentile: 0 to 100.
    """
    if len(values) == 0:
        return None
    position = nearest_rank_position(len(values), percentile) - 1
    return nearest_rank_sorted(np.partition(values, position), percentile)


def nearest_rank_sorted(ordered: NDArray[np.floating], percentile: float) -> float | None:
    """As :func:`nearest_rank` of values that are ascending already (NaN last, behind inf)."""
    if len(ordered) == 0:
        return None
    value = float(ordered[nearest_rank_position(len(ordered), percentile) - 1])
    return value if np.isfinite(value) else None


def summarize_latency(latency_s: NDArray[np.floating], percentile: float) -> LatencySummary:
    """Returns mean and percentiles in milliseconds.

    The percentiles rank failed requests as infinitely late. The mean is that of the requests that
    succeeded, since an infinite mean would say nothing; how many failed stands beside it as the
    load test's ``errors``.

    Args:
        latency_s: Shape (n,), seconds, float; inf (or NaN) for a request that failed, timed out
            or never came back.
        percentile: The SLA's, 0 to 100.
    """
    finite = latency_s[np.isfinite(latency_s)]
    in_order = np.sort(latency_s)

    def at(wanted: float) -> float | None:
        value = nearest_rank_sorted(in_order, wanted)
        return value * 1e3 if value is not None else None

    return LatencySummary(
        mean=float(np.mean(finite, dtype=np.float64)) * 1e3 if len(finite) else None,
        p50=at(50),
        p90=at(90),
        p95=at(95),
        p99=at(99),
        sla=at(percentile),
    )
