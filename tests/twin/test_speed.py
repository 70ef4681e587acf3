"""A clock that runs at a changing speed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.domain.workload import Poisson
from analyzer.engine.policy import BatchingPolicy
from analyzer.twin.arrivals import UnitArrivals
from analyzer.twin.server_model import ServerModel
from analyzer.twin.service import ServiceTime
from analyzer.twin.speed import SpeedPath


@given(
    dwells=st.lists(st.floats(0.01, 30.0), min_size=1, max_size=20),
    speeds=st.lists(st.floats(0.05, 2.0), min_size=21, max_size=21),
    seed=st.integers(0, 100),
)
def test_there_and_back(dwells: list[float], speeds: list[float], seed: int) -> None:
    start_s = np.concatenate([[0.0], np.cumsum(dwells)])
    path = SpeedPath(start_s=start_s, speed=np.array(speeds[: len(start_s)]))
    real_s = np.sort(np.random.default_rng(seed).uniform(0, 2 * start_s[-1], 200))
    work_s = path.work_s(real_s)
    assert (np.diff(work_s) >= 0).all()
    np.testing.assert_allclose(path.real_s(work_s), real_s, rtol=1e-6, atol=1e-6)


def test_half_the_speed_takes_twice_as_long() -> None:
    path = SpeedPath(start_s=np.array([0.0, 10.0]), speed=np.array([1.0, 0.5]))
    begin, end = path.work_s(np.array([9.0]))[0], path.work_s(np.array([9.0]))[0] + 2.0
    assert path.real_s(np.array([end]))[0] - 9.0 == pytest.approx(3.0), "1 s, then 2 s for the rest"
    assert begin == 9.0


def test_the_speed_that_it_undercuts_for_a_share_of_the_time() -> None:
    path = SpeedPath(
        start_s=np.array([0.0, 10.0, 10.5, 15.0]), speed=np.array([1.0, 0.1, 0.7, 1.0]),
        period_s=100.0,
    )  # fmt: skip
    assert path.undercut_for(0.001) == 0.1
    assert path.undercut_for(0.01) == 0.7
    assert path.undercut_for(0.2) == 1.0
    assert SpeedPath.constant(0.5).undercut_for(0.01) == 0.5


def test_a_spell_that_is_shorter_than_the_span_counts_by_its_part() -> None:
    path = SpeedPath(
        start_s=np.array([0.0, 10.0, 10.5, 15.0]), speed=np.array([1.0, 0.1, 0.7, 1.0]),
        period_s=100.0,
    )  # fmt: skip
    assert path.undercut_for(0.0, span_s=1.0) == pytest.approx(0.4, abs=0.01), "0.5 s of 0.1, 0.7"
    assert path.undercut_for(0.02, span_s=1.0) == pytest.approx(0.7), "lasts 4.5 s"
    assert path.undercut_for(0.0, span_s=50.0) == pytest.approx(0.964, abs=0.001)


def test_work_waits_for_the_end_of_a_stall() -> None:
    path = SpeedPath.stalls(every_s=22.0, length_s=0.5, until_s=100.0)
    # Begun 10 ms before the stall at 11 s, 20 ms of work: 10 ms, the stall, 10 ms.
    end = path.real_s(path.work_s(np.array([10.99])) + 0.02)[0]
    assert end - 10.99 == pytest.approx(0.52, abs=1e-4)


def test_two_speeds_and_drift_have_their_means() -> None:
    path = SpeedPath.two_speeds(
        slow=0.55, dwell_s=(0.1, 30.0), until_s=50_000.0, rng=np.random.default_rng(1)
    )
    assert path.work_s(np.array([50_000.0]))[0] / 50_000 == pytest.approx(0.775, abs=0.02)
    swing = SpeedPath.drift(to=0.6, every_s=300.0, until_s=3000.0)
    assert swing.work_s(np.array([3000.0]))[0] / 3000 == pytest.approx(0.8, abs=0.01)


@given(
    dwells=st.lists(st.floats(0.01, 30.0), min_size=1, max_size=20),
    speeds=st.lists(st.floats(0.05, 2.0), min_size=21, max_size=21),
    part=st.floats(0.01, 1.5),
)
def test_a_sample_of_a_path_meets_all_of_it(
    dwells: list[float], speeds: list[float], part: float
) -> None:
    start_s = np.concatenate([[0.0], np.cumsum(dwells)])
    period_s = float(start_s[-1]) + 1.0
    path = SpeedPath(start_s=start_s, speed=np.array(speeds[: len(start_s)]), period_s=period_s)
    sample = path.sampled(part * period_s)
    assert sample.period_s == min(part, 1.0) * period_s or part > 1.0
    assert set(sample.speed) <= set(path.speed)
    # A piece of a stretch stands for so much of the period, but for one stretch at each end.
    slowest = path.speed == path.speed.min()
    real = np.diff(np.append(start_s, period_s))[slowest].sum() / period_s
    met = (
        np.diff(np.append(sample.start_s, sample.period_s))[sample.speed == path.speed.min()].sum()
        / sample.period_s
    )
    assert met == pytest.approx(real, abs=2 * slowest.sum() / 16)
    assert path.sampled(2 * period_s) is path


@pytest.mark.parametrize("slow_at", [0, 1, 2])
def test_where_in_the_path_a_slow_state_lies_makes_no_difference(slow_at: int) -> None:
    speed = np.ones(3)
    speed[slow_at] = 0.4
    path = SpeedPath(start_s=np.array([0.0, 40.0, 80.0]), speed=speed, period_s=120.0)
    policy = BatchingPolicy(max_batch_size=8, dynamic_batching=True)
    service = ServiceTime(batch_sizes=(1, 8), service_ms=(1.0, 2.0))
    model = ServerModel(policy=policy, service=service, path=path)
    arrivals = UnitArrivals.draw(Poisson(), count=50_000)
    # At 1,800/s the requests are enough for 28 of the 120 s; late are those of the slow state.
    assert model.miss_rate(arrivals, 1800.0, budget_ms=10.0) == pytest.approx(1 / 3, abs=0.08)
