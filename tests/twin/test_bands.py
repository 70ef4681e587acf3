"""Feasible rates: the band of a queue delay, edges against long runs, degenerate cases."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from analyzer.domain.sla import Sla
from analyzer.domain.workload import Constant, Poisson
from analyzer.engine.policy import BatchingPolicy, QueuePolicy
from analyzer.stats import mlperf
from analyzer.twin.arrivals import UnitArrivals
from analyzer.twin.bands import RateScan
from analyzer.twin.server_model import ServerModel, edges
from analyzer.twin.service import ServiceTime

SERVICE = ServiceTime(batch_sizes=(1, 11), service_ms=(4.4, 8.4))


@pytest.fixture(scope="module")
def poisson() -> UnitArrivals:
    return UnitArrivals.draw(Poisson(), seed=7)


@pytest.fixture(scope="module")
def fresh() -> UnitArrivals:
    """Other arrivals, for the long runs that judge."""
    return UnitArrivals.draw(Poisson(), seed=8, count=4_000_000)


def model(policy: BatchingPolicy, service: ServiceTime = SERVICE, **settings: float) -> ServerModel:
    return ServerModel(policy=policy, service=service, **settings)


def batcher(**settings: object) -> BatchingPolicy:
    return BatchingPolicy(max_batch_size=32, dynamic_batching=True, **settings)  # type: ignore[arg-type]


def test_queue_delay_makes_a_band(poisson: UnitArrivals) -> None:
    """The case of docs/statistics.md, section 8: about 862 to 1,450 requests per second."""
    policy = batcher(preferred_batch_size=(16,), max_queue_delay_us=50_000)
    bands = model(policy).feasible_bands(poisson, budget_ms=35)
    assert len(bands) == 1
    low, high = bands[0]
    assert low == pytest.approx(862, rel=0.03)
    assert high == pytest.approx(1450, rel=0.03)
    assert model(policy).edge(poisson, budget_ms=35) == pytest.approx(high, rel=0.02)


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
    bands = model(policy).feasible_bands(poisson, budget_ms=budget_ms, percentile=percentile)
    assert bands[0][0] == 0.0
    quick = model(policy).edge(poisson, budget_ms=budget_ms, percentile=percentile)
    assert quick is not None
    for rate in (bands[-1][1], quick):
        below, above = (
            model(policy).miss_rate(fresh, rate * factor, budget_ms=budget_ms, requests=4_000_000)
            for factor in (0.98, 1.02)
        )
        assert below < 1 - percentile / 100 < above


def test_noisy_service_counts_into_the_edge(poisson: UnitArrivals, fresh: UnitArrivals) -> None:
    service = ServiceTime(
        batch_sizes=(1, 11), service_ms=(4.4, 8.4), distribution="lognormal", cv=0.3
    )
    noisy = model(batcher(), service, overhead_ms=1)
    found = noisy.edge(poisson, budget_ms=20)
    assert found is not None
    below, above = (
        noisy.miss_rate(fresh, found * factor, budget_ms=20, requests=4_000_000)
        for factor in (0.98, 1.02)
    )
    assert below < 0.01 < above


def test_nowhere_feasible(poisson: UnitArrivals) -> None:
    assert model(batcher()).feasible_bands(poisson, budget_ms=4.3) == []
    assert model(batcher()).edge(poisson, budget_ms=4.3) is None
    # The service alone would do, but not with the wait for further requests.
    waiting = BatchingPolicy(max_batch_size=2, dynamic_batching=True, max_queue_delay_us=50_000)
    slow = ServiceTime(batch_sizes=(1, 2), service_ms=(10, 40))
    assert model(waiting, slow).feasible_bands(poisson, budget_ms=30) == []


def test_constant_arrivals_reach_the_server_s_own_speed() -> None:
    arrivals = UnitArrivals.draw(Constant(), count=200_000)
    policy = BatchingPolicy(max_batch_size=1)
    bands = model(policy, ServiceTime.constant(10)).feasible_bands(arrivals, budget_ms=15)
    assert bands == [(0.0, pytest.approx(100, rel=0.01))]


def test_batches_end_with_the_preferred_size_where_nothing_waits(poisson: UnitArrivals) -> None:
    """The capacity of a long latency budget was that of the largest batches, which never form."""
    service = ServiceTime(batch_sizes=(1, 8), service_ms=(10.0, 16.0))
    policy = BatchingPolicy(max_batch_size=8, dynamic_batching=True, preferred_batch_size=(4,))
    four_rps = 4e3 / (10.0 + 3 * 6.0 / 7)
    assert model(policy, service).saturation_rps() == pytest.approx(four_rps)
    bands = model(policy, service).feasible_bands(poisson, budget_ms=60_000)
    assert bands[-1][1] == pytest.approx(four_rps, rel=0.02)
    waiting = replace(policy, max_queue_delay_us=1000)
    assert model(waiting, service).saturation_rps() == pytest.approx(500.0)


def test_a_rate_at_which_time_stands_still_is_not_looked_at() -> None:
    """Service times of 0 have no saturation; the search ends all the same."""
    arrivals = UnitArrivals.draw(Poisson(), count=50_000)
    bands = model(batcher(), ServiceTime.constant(0.0)).feasible_bands(arrivals, budget_ms=1)
    assert len(bands) == 1
    assert bands[0][0] == 0.0
    assert math.isfinite(bands[0][1])


def test_edges_on_threads_equal_edges_one_by_one(poisson: UnitArrivals) -> None:
    models = [model(batcher(instance_count=count), overhead_ms=0.5) for count in (1, 2, 3)]
    together = edges(models, poisson, budget_ms=20, cores=2)
    assert together == [one.edge(poisson, budget_ms=20) for one in models]


def test_a_scaled_model_takes_and_gives_live_rates(poisson: UnitArrivals) -> None:
    plain = model(batcher(), overhead_ms=0.5)
    scaled = model(batcher(), overhead_ms=0.5, rate_scale=2.0)
    found = plain.edge(poisson, budget_ms=20)
    assert found is not None
    assert scaled.edge(poisson, budget_ms=20) == pytest.approx(found / 2)
    live = 0.45 * found
    assert scaled.miss_rate(poisson, live, budget_ms=20) == plain.miss_rate(
        poisson, 2 * live, budget_ms=20
    )
    assert scaled.latency_ms(poisson, live, 99) == plain.latency_ms(poisson, 2 * live, 99)
    assert scaled.saturation_rps() == plain.saturation_rps() / 2


# What an H100 gave for the digits example: an execution of another batch size than the last takes
# 7 to 12 ms more (docs/gpu.md).
CHANGING = ServiceTime(
    batch_sizes=(1, 4, 16, 64),
    service_ms=(0.17, 0.19, 0.31, 0.85),
    change_ms=(7.0, 7.0, 7.0, 12.0),
)


def test_an_edge_promises_all_rates_below_it_where_batches_that_change_cost(
    poisson: UnitArrivals,
) -> None:
    """Full batches at 74,000/s all have one size; at 4,000 to 73,000/s each costs 7 to 12 ms."""
    policy = BatchingPolicy(max_batch_size=64, dynamic_batching=True)
    server = model(policy, CHANGING)
    bands = server.feasible_bands(poisson, budget_ms=20)
    assert len(bands) == 2 and bands[1][0] > 10 * bands[0][1], bands
    assert server.edge(poisson, budget_ms=20) == pytest.approx(bands[0][1], rel=0.05)


def test_single_requests_never_change_the_batch_size(poisson: UnitArrivals) -> None:
    one = BatchingPolicy(max_batch_size=1, instance_count=4)
    plain = ServiceTime(batch_sizes=CHANGING.batch_sizes, service_ms=CHANGING.service_ms)
    expected = model(one, plain).edge(poisson, budget_ms=20)
    assert model(one, CHANGING).edge(poisson, budget_ms=20) == pytest.approx(expected, rel=0.02)


def test_rates_so_rare_that_their_times_exceed_int64_are_feasible() -> None:
    """200,000 requests at 2e-5/s take 1e19 ns: times wrapped around, no rate seemed feasible."""
    arrivals = UnitArrivals.draw(Poisson(), seed=7, count=200_000)
    bands = model(BatchingPolicy(max_batch_size=1), ServiceTime.constant(500)).feasible_bands(
        arrivals, budget_ms=2000, percentile=99.99
    )
    assert len(bands) == 1
    low, high = bands[0]
    assert low == 0.0 and 0.2 < high < 2.0


@pytest.mark.parametrize("percentile", [90.0, 99.0, 99.9, 99.9999])
def test_as_many_requests_may_be_late_as_the_sla_allows(
    percentile: float, poisson: UnitArrivals
) -> None:
    """1 - 0.99 is 0.010000000000000009."""
    scan = RateScan(
        batcher(), SERVICE, poisson, budget_ms=20, percentile=percentile, overhead_ms=0.0
    )
    sla = Sla(latency_budget_ms=20, percentile=percentile)
    assert scan.allowed == sla.miss_rate_max == mlperf.tail_share(percentile)
