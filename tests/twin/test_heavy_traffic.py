"""The edge in microseconds, against simulations and against what it must never exceed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from analyzer.domain.workload import parse_arrivals
from analyzer.engine.policy import BatchingPolicy
from analyzer.twin.arrivals import UnitArrivals
from analyzer.twin.heavy_traffic import heavy_traffic_edges
from analyzer.twin.server_model import ServerModel
from analyzer.twin.service import ServiceTime


def server(
    first_ms: float, last_ms: float, instances: int, batch: int, **noise: object
) -> tuple[BatchingPolicy, ServiceTime, float]:
    policy = BatchingPolicy(
        max_batch_size=batch, dynamic_batching=batch > 1, instance_count=instances
    )
    sizes = (1, batch) if batch > 1 else (1,)
    times = (first_ms, last_ms) if batch > 1 else (first_ms,)
    return policy, ServiceTime(batch_sizes=sizes, service_ms=times, **noise), 0.0  # type: ignore[arg-type]


def approximate(one: tuple[BatchingPolicy, ServiceTime, float], budget_ms: float) -> float:
    return float(heavy_traffic_edges([one], budget_ms=budget_ms, percentile=99.0)[0])


# The simulated edges of docs/sources.md, section 4; where a run is too short to see the queue it
# finds saturation, 0.5 % above.
@pytest.mark.parametrize(
    ("one", "budget_ms", "simulated_rps", "tolerance"),
    [
        (server(0.42, 4.14, 1, 32), 60, 7729, 0.01),
        (server(0.42, 4.14, 2, 32), 60, 15459, 0.01),
        (server(4.4, 16.8, 1, 32), 35, 1712, 0.05),
        (server(3, 3, 1, 1), 50, 286.9, 0.01),
        (server(3, 9, 2, 4), 50, 836, 0.01),
        (server(0.07, 0.37, 1, 16), 20, 43243, 0.01),
        (server(25, 25, 2, 1), 200, 67.8, 0.01),
    ],
)
def test_published_simulations(
    one: tuple[BatchingPolicy, ServiceTime, float],
    budget_ms: float,
    simulated_rps: float,
    tolerance: float,
) -> None:
    assert approximate(one, budget_ms) == pytest.approx(simulated_rps, rel=tolerance)


@pytest.mark.parametrize("arrivals", ["poisson", "gamma:2", "constant"])
@pytest.mark.parametrize("noise", ["deterministic", "exponential"])
def test_agrees_with_simulation_where_the_budget_is_long(arrivals: str, noise: str) -> None:
    process = parse_arrivals(arrivals)
    unit = UnitArrivals.draw(process, seed=3, count=1_000_000)
    scv = {"poisson": 1.0, "gamma:2": 4.0, "constant": 0.0}[arrivals]
    for batch, instances in ((1, 2), (4, 2), (8, 1)):
        policy, service, _ = server(2.0, 6.0, instances, batch, distribution=noise)
        found = heavy_traffic_edges(
            [(policy, service, 0.0)], budget_ms=180.0, percentile=99.0, arrival_scv=scv
        )[0]
        simulated = ServerModel(policy=policy, service=service).edge(unit, budget_ms=180.0)
        assert found == pytest.approx(simulated, rel=0.06)


def test_never_beyond_saturation_and_zero_where_nothing_is_in_time() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        first = float(10 ** rng.uniform(-2, 3))
        one = server(
            first, first * rng.uniform(1, 60), int(rng.integers(1, 9)), int(2 ** rng.integers(0, 7))
        )
        budget = first * float(10 ** rng.uniform(-0.5, 3))
        found = approximate(one, budget)
        assert 0.0 <= found <= one[1].saturation_rps(one[0]) * (1 + 1e-9)
        assert (found > 0) == (budget > first)
    slow = server(10, 10, 1, 1, distribution="exponential")
    assert approximate(slow, 25.0) == 0.0, "eight of a hundred executions alone take longer"


def test_large_requests_and_no_dynamic_batching() -> None:
    policy = BatchingPolicy(max_batch_size=8, dynamic_batching=False, instance_count=1)
    service = ServiceTime(batch_sizes=(1, 8), service_ms=(1.0, 8.0))
    (found,) = heavy_traffic_edges(
        [(policy, service, 0.0)], budget_ms=400.0, percentile=99.0, request_batch_size=4
    )
    assert found == pytest.approx(250.0, rel=0.05), "four items take 4 ms, one request at a time"


@pytest.mark.parametrize(("batch", "most"), [(64, 10_000), (8, 40_000)])
def test_changes_of_the_batch_size_count_where_two_of_them_keep_no_budget(
    batch: int, most: float
) -> None:
    """Up to 64, batches that change take 12 ms, and two of those more than the budget of 20 ms."""
    policy = BatchingPolicy(max_batch_size=batch, dynamic_batching=True)
    times: dict[str, Any] = {"batch_sizes": (1, 8, 64), "service_ms": (0.17, 0.23, 0.85)}
    changing = ServiceTime(**times, change_ms=(7.0, 7.0, 12.0))
    edge = approximate((policy, changing, 0.3), 20)
    simulated = ServerModel(policy=policy, service=changing, overhead_ms=0.3).edge(
        UnitArrivals.draw(parse_arrivals("poisson"), seed=3), budget_ms=20
    )
    assert simulated is not None and 0.9 * simulated < edge < min(2 * simulated, most)
    assert edge <= approximate((policy, ServiceTime(**times), 0.3), 20)
