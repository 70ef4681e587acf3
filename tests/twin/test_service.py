"""Service times: the curve, interference, noise, saturation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from analyzer.engine.policy import BatchingPolicy
from analyzer.twin.service import SerialCost, ServiceTime
from analyzer.twin.simulator import OpenWorkload, simulate


@pytest.mark.parametrize(
    ("batch_size", "milliseconds"), [(1, 10), (8, 16), (2, 10 + 6 / 7), (15, 22), (22, 28)]
)
def test_linear_between_and_beyond(batch_size: int, milliseconds: float) -> None:
    service = ServiceTime(batch_sizes=(1, 8), service_ms=(10, 16))
    assert service.curve_ms(np.array([batch_size]))[0] == pytest.approx(milliseconds, rel=1e-12)


def test_nothing_is_quicker_beyond_the_last_point_or_per_inference_below_the_first() -> None:
    service = ServiceTime(batch_sizes=(4, 8, 16), service_ms=(1, 5, 4))
    assert service.curve_ms(np.array([1, 2, 4, 8, 24, 64])).tolist() == [0.25, 0.5, 1, 5, 4, 4]


def test_a_slope_beyond_the_last_point_takes_the_place_of_the_nearest() -> None:
    service = ServiceTime(batch_sizes=(1, 8), service_ms=(10, 16), beyond_ms=3.0)
    assert service.curve_ms(np.array([8, 10])).tolist() == [16, 22]
    one = ServiceTime(batch_sizes=(2,), service_ms=(10,), beyond_ms=5.0)
    assert one.curve_ms(np.array([1, 2, 4])).tolist() == [5, 10, 20]


def test_one_point_is_a_constant() -> None:
    assert ServiceTime.constant(3.0).curve_ms(np.array([1, 100])).tolist() == [3, 3]


def test_interference_goes_on_with_its_last_factor() -> None:
    service = ServiceTime(batch_sizes=(1,), service_ms=(1,), interference=(1.0, 1.5))
    assert service.interference_at(4, np.array([1, 7])).T.tolist() == [[1.0, 1.5, 1.5, 1.5]] * 2


def test_interference_by_batch_size_is_linear_in_its_logarithm() -> None:
    service = ServiceTime(
        batch_sizes=(1, 16),
        service_ms=(2.0, 17.0),
        interference_by_size=((1, (1.0, 1.8)), (16, (1.0, 1.0))),
    )
    factors = service.interference_at(2, np.array([1, 4, 16, 64]))
    assert factors[0].tolist() == [1.0] * 4
    assert factors[1] == pytest.approx([1.8, 1.4, 1.0, 1.0])
    table = service.table_ns(2, 16)
    assert table.shape == (3, 17)
    assert table[2, 4] == pytest.approx(1.4 * 5e6) and table[1, 4] == pytest.approx(5e6)
    policy = BatchingPolicy(max_batch_size=1, instance_count=2)
    assert service.saturation_rps(policy) == pytest.approx(2 / 0.0036)


@pytest.mark.parametrize(
    ("settings", "cv"),
    [
        ({"distribution": "exponential"}, 1.0),
        ({"distribution": "lognormal", "cv": 0.3}, 0.3),
        ({"distribution": "empirical", "residuals": (1.0, 1.0, 4.0)}, 0.5**0.5),
        ({}, 0.0),
    ],
)
def test_noise_has_mean_one(settings: dict[str, object], cv: float) -> None:
    service = ServiceTime(batch_sizes=(1,), service_ms=(1,), **settings)  # type: ignore[arg-type]
    drawn = service.draw_noise(200_000, np.random.default_rng(0))
    spread = service.noise_at((np.arange(200_000) + 0.5) / 200_000)
    for noise in (drawn, spread):
        assert noise.mean() == pytest.approx(1.0, abs=0.01)
        assert noise.std() == pytest.approx(cv, abs=0.02)


def test_what_the_server_adds_has_none_of_the_models_noise_and_interference() -> None:
    """A model of 0.1 ms behind a backend that takes 0.9 ms more: an interruption is no longer."""
    service = ServiceTime(
        batch_sizes=(1, 8),
        service_ms=(1.0, 2.0),
        distribution="empirical",
        residuals=(1.0, 1.0, 1.0, 17.0),
        steady_ms=(0.9, 1.2),
        interference=(1.0, 1.5),
    )
    means, sizes = np.array([1.0, 2.0]), np.array([1, 8])
    assert service.busy_ms(2, sizes) == pytest.approx(np.array([means, [1.05, 2.4]]))
    factor = 17.0 / 5.0  # over the mean of the factors
    assert service.noisy_ms(means, sizes, factor) == pytest.approx([1.24, 2.0 + 0.8 * 2.4])
    assert service.scv_at(means, sizes) == pytest.approx(service.scv * np.array([0.01, 0.16]))


def test_noise_is_a_share_of_the_first_milliseconds() -> None:
    """What a thread waits for a core is as long in a large batch as in a small one."""
    service = ServiceTime(
        batch_sizes=(1, 8),
        service_ms=(2.0, 16.0),
        distribution="empirical",
        residuals=(1.0, 1.0, 1.0, 3.0),
        noise_ms=2.0,
    )
    waits = 3.0 / 1.5  # over the mean of the factors
    means, sizes = np.array([1.0, 2.0, 16.0]), np.array([1, 1, 8])
    assert service.noisy_ms(means, sizes, waits) == pytest.approx([2.0, 4.0, 18.0])
    shares = np.array([1.0, 1.0, 2.0 / 16.0])
    assert service.scv_at(means, sizes) == pytest.approx(service.scv * shares**2)
    policy = BatchingPolicy(max_batch_size=8, dynamic_batching=True)
    full = OpenWorkload(
        arrival_ns=np.repeat(np.arange(50) * 100_000_000, 8), batch_size=np.array([1])
    )
    run = simulate(policy, service, full, seed=1)
    lasted_ms = (run.execution_end_ns - run.execution_start_ns) / 1e6
    more_ms = lasted_ms - service.curve_ms(run.execution_batch_size)
    assert run.execution_batch_size.max() > 4
    assert set(np.round(more_ms, 3)) == {-0.667, 2.0}


def test_saturation_is_the_best_batch_on_the_best_number_of_instances() -> None:
    service = ServiceTime(
        batch_sizes=(1, 8), service_ms=(10, 16), interference=(1.0, 1.25, 2.5, 5.0)
    )
    policy = BatchingPolicy(max_batch_size=8, dynamic_batching=True, instance_count=4)
    assert service.saturation_rps(policy) == pytest.approx(8 / 0.016 * 2 / 1.25)
    assert service.saturation_rps(policy, 3) == pytest.approx(2 / (10 + 6 / 7 * 5) * 1e3 * 2 / 1.25)
    alone = BatchingPolicy(max_batch_size=8)
    assert service.saturation_rps(alone, 8) == pytest.approx(1 / 0.016)


def saturated_rps(policy: BatchingPolicy, service: ServiceTime, sizes: list[int]) -> float:
    """What comes through of requests that are all there at the beginning, 1/s."""
    count = 120
    workload = OpenWorkload(
        arrival_ns=np.zeros(count, dtype=np.int64), batch_size=np.resize(np.array(sizes), count)
    )
    run = simulate(policy, service, workload)
    return float(count / (run.execution_end_ns.max() / 1e9))


def test_requests_of_several_sizes_fill_batches_that_the_smallest_alone_do_not() -> None:
    """2 + 2 + 3 make 7, which is no multiple of 2: more than the bound of 257/s came through."""
    service = ServiceTime(batch_sizes=(1, 7), service_ms=(10.0, 10.0))
    policy = BatchingPolicy(max_batch_size=7, dynamic_batching=True)
    sizes = [2, 2, 3]
    bound_rps = service.saturation_rps(policy, np.array(sizes))
    assert bound_rps == pytest.approx(300.0)
    assert 270.0 < saturated_rps(policy, service, sizes) <= bound_rps
    assert service.saturation_rps(policy, np.array([2, 2])) == service.saturation_rps(policy, 2)


def test_requests_that_run_alone_take_their_own_times() -> None:
    """A time for the mean size, 10 ms here, bounded by 100/s what came through at 182/s."""
    service = ServiceTime(
        batch_sizes=(1, 2, 8), service_ms=(1.0, 10.0, 10.0), interference=(1.0, 1.25)
    )
    sizes = np.array([1, 8])
    alone = BatchingPolicy(max_batch_size=8)
    assert service.saturation_rps(alone, sizes) == pytest.approx(2 / 0.011)
    assert saturated_rps(alone, service, [1, 8]) == pytest.approx(2 / 0.011)
    two = BatchingPolicy(max_batch_size=8, instance_count=2)
    assert service.saturation_rps(two, sizes) == pytest.approx(2 / 0.011 * 2 / 1.25)
    serial = SerialCost(execution_ms=8.0, request_ms=2.0)
    assert replace(service, serial=serial).saturation_rps(two, sizes) == pytest.approx(100.0)
