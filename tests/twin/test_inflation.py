"""The variance inflation: independent, alternating and queued indicators."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from analyzer.domain.workload import Poisson
from analyzer.engine.policy import BatchingPolicy
from analyzer.stats.batchmeans import variance_inflation
from analyzer.twin.arrivals import UnitArrivals
from analyzer.twin.inflation import batch_means_inflation, late_inflation
from analyzer.twin.server_model import ServerModel
from analyzer.twin.service import ServiceTime
from analyzer.twin.speed import SpeedPath

MODEL = ServerModel(
    policy=BatchingPolicy(max_batch_size=32, dynamic_batching=True),
    service=ServiceTime(batch_sizes=(1, 11), service_ms=(4.4, 8.4)),
)
ARRIVALS = UnitArrivals.draw(Poisson(), count=2_000_000)


def test_independent_indicators_are_not_inflated() -> None:
    over = np.random.default_rng(0).random(400_000) < 0.01
    assert batch_means_inflation(over, 256) == pytest.approx(1.0, abs=0.3)


def test_runs_of_one_fate_inflate_by_their_length() -> None:
    over = np.repeat(np.random.default_rng(0).random(40_000) < 0.05, 20)
    assert batch_means_inflation(over, 256) == pytest.approx(20, rel=0.25)


def test_one_fate_for_all_is_one() -> None:
    assert batch_means_inflation(np.zeros(1000, dtype=np.bool_), 10) == 1.0


@pytest.mark.parametrize(("load", "recorded"), [(0.5, 6), (0.7, 13), (0.8, 25), (0.9, 61)])
def test_grows_with_the_load_as_recorded(load: float, recorded: float) -> None:
    """docs/statistics.md, section 3: the simulated server that misses p99 by a little."""
    found = MODEL.inflation(ARRIVALS, load * MODEL.saturation_rps(), budget_ms=1e4)
    assert recorded / 1.7 < found < recorded * 2.2


def test_no_stable_queue_no_finite_inflation() -> None:
    assert MODEL.inflation(ARRIVALS, 1.01 * MODEL.saturation_rps(), budget_ms=50) == math.inf


def test_a_slow_state_that_causes_no_overload_is_no_cluster_of_late_requests() -> None:
    """Far below the budget latencies follow the speed; near it slow states carry them over it."""
    rng = np.random.default_rng(5)
    path = SpeedPath.two_speeds(slow=0.6, dwell_s=(0.5, 3.0), until_s=120.0, rng=rng)
    varied = replace(MODEL, path=replace(path, period_s=120.0))
    rate = 0.5 * MODEL.saturation_rps()
    arrivals = UnitArrivals.draw(Poisson(), count=400_000)
    slow = replace(MODEL, path=SpeedPath.constant(0.6))
    alone = slow.inflation(arrivals, rate, budget_ms=200.0)
    assert varied.inflation(arrivals, rate, budget_ms=200.0) == pytest.approx(alone)
    # Where others take half of the cores for a while, that would carry them over it. What they
    # take no more of than the speeds that were met tell is in these, and counts once.
    busy = partial(varied.inflation, arrivals, rate, budget_ms=200.0)
    assert busy(free_share=0.55) > 1.4 * alone
    assert busy(free_share=0.7) == pytest.approx(alone)
    # What is only supposed of the slow speed must leave the promise far from broken.
    supposed = [
        varied.inflation(arrivals, rate, budget_ms=b, kept_share=0.5) for b in (60.0, 600.0)
    ]
    kept = [varied.inflation(arrivals, rate, budget_ms=b) for b in (60.0, 600.0)]
    assert supposed[0] > 1.4 * kept[0] and supposed[1] == pytest.approx(kept[1])
    # Ten budgets of a second are longer than a slow spell: what lasts is faster than that.
    lasting = varied.inflation(arrivals, rate, budget_ms=1e3)
    assert MODEL.inflation(arrivals, rate, budget_ms=1e3) < lasting < alone
    assert varied.inflation(arrivals, rate, budget_ms=20.0) > 10 * alone


def test_thresholds_below_the_least_do_not_count() -> None:
    latency_ns = np.repeat(np.arange(1, 101), 1000)
    assert late_inflation(latency_ns, limit_ns=200, percentile=99.0) > 100
    found = late_inflation(latency_ns, limit_ns=200, percentile=99.0, least_ns=150)
    assert found == 1.0


def test_the_threshold_is_the_nearest_rank() -> None:
    """99.9 % of 10,000 requests are 9,990; a rounding error once made that 9,991."""
    latency_ns = np.zeros(10_000, dtype=np.int64)
    latency_ns[5_000:5_010] = np.arange(1, 11)
    found = late_inflation(latency_ns, limit_ns=100, percentile=99.9)
    assert found == max(batch_means_inflation(latency_ns > 0, batches) for batches in (64, 128))
    assert found == pytest.approx(10.0, rel=0.05), "ten late at once, not nine"


def test_a_threshold_that_few_exceed_gives_way_to_a_lower_one() -> None:
    """Of a million requests one in a million exceeds the threshold of p99.9999: of one all is 1."""
    latency_ns = np.zeros(1_000_000, dtype=np.int64)
    for start in range(100_000, 600_000, 100_000):
        latency_ns[start : start + 20] = np.arange(start, start + 20)
    found = late_inflation(latency_ns, limit_ns=2_000_000, percentile=99.9999)
    assert found == max(batch_means_inflation(latency_ns > 0, batches) for batches in (64, 128))
    assert found == pytest.approx(19.0, rel=0.05), "a hundred late in five overloads"


def test_rare_percentiles_are_inflated_as_common_ones() -> None:
    """It was 1.0 at every load."""
    rate = 0.8 * MODEL.saturation_rps()
    rare, common = (
        MODEL.inflation(ARRIVALS, rate, budget_ms=1e4, percentile=p) for p in (99.9999, 99.0)
    )
    assert 0.3 * common < rare < 5 * common


def test_twin_and_certificate_share_their_estimator() -> None:
    over = np.repeat(np.random.default_rng(0).random(8_000) < 0.05, 20)
    certified = variance_inflation([over], batches=(64,))
    assert certified is not None
    assert batch_means_inflation(over, 64) == certified.point
