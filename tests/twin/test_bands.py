"""Feasible rates: the band of a queue delay, edges against long runs, degenerate cases."""

from __future__ import annotations

import math

import pytest

from analyzer.domain.workload import Constant, Poisson
from analyzer.engine.policy import BatchingPolicy, QueuePolicy
from analyzer.twin.bands import (
    Candidate,
    UnitArrivals,
    edge,
    edges,
    feasible_bands,
    miss_fraction,
)
from analyzer.twin.service import ServiceTime

SERVICE = ServiceTime(batch_sizes=(1, 11), service_ms=(4.4, 8.4))


@pytest.fixture(scope="module")
def poisson() -> UnitArrivals:
    return UnitArrivals.draw(Poisson(), seed=7)


@pytest.fixture(scope="module")
def fresh() -> UnitArrivals:
    """Other arrivals, for the long runs that judge."""
    return UnitArrivals.draw(Poisson(), seed=8, count=4_000_000)


def batcher(**settings: object) -> BatchingPolicy:
    return BatchingPolicy(max_batch_size=32, dynamic_batching=True, **settings)  # type: ignore[arg-type]


def test_queue_delay_makes_a_band(poisson: UnitArrivals) -> None:
    """The case that field.md recorded: about 862 to 1,450 requests per second."""
    policy = batcher(preferred_batch_size=(16,), max_queue_delay_us=50_000)
    bands = feasible_bands(policy, SERVICE, poisson, budget_ms=35)
    assert len(bands) == 1
    low, high = bands[0]
    assert low == pytest.approx(862, rel=0.03)
    assert high == pytest.approx(1450, rel=0.03)
    assert edge(policy, SERVICE, poisson, budget_ms=35) == pytest.approx(high, rel=0.02)


@pytest.mark.parametrize(
    ("policy", "budget_ms", "percentile"),
    [
        (batcher(), 12.0, 99.0),
        (batcher(), 100.0, 99.0),
        (batcher(instance_count=3, max_queue_delay_us=2_000), 15.0, 99.0),
        (BatchingPolicy(max_batch_size=1), 30.0, 95.0),
        (batcher(default_queue_policy=QueuePolicy(max_queue_size=20)), 25.0, 99.0),
    ],
)
def test_edge_is_within_two_percent_of_a_long_run(
    policy: BatchingPolicy,
    budget_ms: float,
    percentile: float,
    poisson: UnitArrivals,
    fresh: UnitArrivals,
) -> None:
    bands = feasible_bands(policy, SERVICE, poisson, budget_ms=budget_ms, percentile=percentile)
    assert bands[0][0] == 0.0
    quick = edge(policy, SERVICE, poisson, budget_ms=budget_ms, percentile=percentile)
    assert quick is not None
    for rate in (bands[-1][1], quick):
        below, above = (
            miss_fraction(
                policy, SERVICE, fresh, rate_rps=rate * factor, budget_ms=budget_ms,
                requests=4_000_000,
            )
            for factor in (0.98, 1.02)
        )  # fmt: skip
        assert below < 1 - percentile / 100 < above


def test_noisy_service_counts_into_the_edge(poisson: UnitArrivals, fresh: UnitArrivals) -> None:
    service = ServiceTime(
        batch_sizes=(1, 11), service_ms=(4.4, 8.4), distribution="lognormal", cv=0.3
    )
    found = edge(batcher(), service, poisson, budget_ms=20, overhead_ms=1)
    assert found is not None
    below, above = (
        miss_fraction(
            batcher(), service, fresh, rate_rps=found * factor, budget_ms=20, overhead_ms=1,
            requests=4_000_000,
        )
        for factor in (0.98, 1.02)
    )  # fmt: skip
    assert below < 0.01 < above


def test_nowhere_feasible(poisson: UnitArrivals) -> None:
    assert feasible_bands(batcher(), SERVICE, poisson, budget_ms=4.3) == []
    assert edge(batcher(), SERVICE, poisson, budget_ms=4.3) is None
    # The service alone would do, but not with the wait for company.
    waiting = BatchingPolicy(max_batch_size=2, dynamic_batching=True, max_queue_delay_us=50_000)
    slow = ServiceTime(batch_sizes=(1, 2), service_ms=(10, 40))
    assert feasible_bands(waiting, slow, poisson, budget_ms=30) == []


def test_constant_arrivals_reach_the_server_s_own_speed() -> None:
    arrivals = UnitArrivals.draw(Constant(), count=200_000)
    policy = BatchingPolicy(max_batch_size=1)
    bands = feasible_bands(policy, ServiceTime.constant(10), arrivals, budget_ms=15)
    assert bands == [(0.0, pytest.approx(100, rel=0.01))]


def test_a_rate_at_which_time_stands_still_is_not_looked_at() -> None:
    """Service times of 0 have no saturation; the search ends all the same."""
    arrivals = UnitArrivals.draw(Poisson(), count=50_000)
    bands = feasible_bands(batcher(), ServiceTime.constant(0.0), arrivals, budget_ms=1)
    assert len(bands) == 1
    assert bands[0][0] == 0.0
    assert math.isfinite(bands[0][1])


def test_edges_on_threads_equal_edges_one_by_one(poisson: UnitArrivals) -> None:
    candidates = [
        Candidate(policy=batcher(instance_count=count), service=SERVICE, overhead_ms=0.5)
        for count in (1, 2, 3)
    ]
    together = edges(candidates, poisson, budget_ms=20, threads=2)
    single = [
        edge(c.policy, c.service, poisson, budget_ms=20, overhead_ms=c.overhead_ms)
        for c in candidates
    ]
    assert together == single
