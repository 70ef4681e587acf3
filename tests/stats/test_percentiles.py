from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.stats.percentiles import nearest_rank, nearest_rank_position, summarize_latency


@pytest.mark.parametrize(
    ("count", "percentile", "position"),
    [
        (1000, 99.9, 999),
        (1000, 99, 990),
        (100, 99, 99),
        (101, 99, 100),
        (10, 99, 10),
        (1, 50, 1),
        (10_000, 99.99, 9_999),
        (5, 0, 1),
        (7, 100, 7),
        (1000, 70.1, 701),
    ],
)
def test_position_is_exact(count: int, percentile: float, position: int) -> None:
    assert nearest_rank_position(count, percentile) == position


def test_failures_rank_last_and_give_none() -> None:
    values = np.array([math.inf, 1.0, 2.0, 3.0])
    assert nearest_rank(values, 75) == 3.0
    assert nearest_rank(values, 76) is None
    assert nearest_rank(np.array([]), 50) is None
    assert nearest_rank(np.array([math.nan, 1.0]), 50) == 1.0


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=200), st.integers(1, 100))
def test_share_at_or_below_is_at_least_the_percentile(values: list[float], percentile: int) -> None:
    array = np.array(values)
    found = nearest_rank(array, percentile)
    assert found is not None
    assert np.sum(array <= found) * 100 >= percentile * len(array)
    assert np.sum(array < found) * 100 < percentile * len(array)


def test_summary_is_in_milliseconds_with_the_mean_of_what_succeeded() -> None:
    latency_s = np.array([0.010, 0.020, 0.030, math.inf])
    summary = summarize_latency(latency_s, 75)
    assert summary.mean == pytest.approx(20.0)
    assert summary.p50 == pytest.approx(20.0)
    assert summary.sla == pytest.approx(30.0)
    assert summary.p90 is None and summary.p99 is None


def test_summary_of_nothing_is_none() -> None:
    summary = summarize_latency(np.array([]), 99)
    assert summary.mean is None and summary.p50 is None and summary.sla is None
    assert summarize_latency(np.array([math.inf]), 99).mean is None
