"""Costs: the formulas, their rounding, and the table of the AWS blog post to the cent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.domain.cost import (
    cost_per_hour,
    cost_per_million_inferences,
    fleet_for,
    machines_needed,
    replicas_needed,
)

# The 24 rows of AWS's post on Triton on SageMaker: initial instance count, invocations per minute
# per instance, dollars an hour. Price and GPUs of each instance type in the order of the table.
XLARGE = (0.7364, 1)
TWO_XLARGE = (0.94, 1)
TWELVE_XLARGE = (4.89, 4)
TABLE = [
    (XLARGE, 62, 490, 45.6568),
    (XLARGE, 57, 529, 41.9748),
    (XLARGE, 34, 906, 25.0376),
    (XLARGE, 34, 892, 25.0376),
    (XLARGE, 47, 643, 34.6108),
    (XLARGE, 28, 1078, 20.6192),
    (XLARGE, 14, 2202, 10.3096),
    (XLARGE, 10, 3192, 7.364),
    (TWO_XLARGE, 56, 544, 52.64),
    (TWO_XLARGE, 59, 517, 55.46),
    (TWO_XLARGE, 29, 1054, 27.26),
    (TWO_XLARGE, 30, 1017, 28.2),
    (TWO_XLARGE, 42, 718, 39.48),
    (TWO_XLARGE, 23, 1335, 21.62),
    (TWO_XLARGE, 23, 1363, 21.62),
    (TWO_XLARGE, 22, 1369, 20.68),
    (TWELVE_XLARGE, 15, 2138, 73.35),
    (TWELVE_XLARGE, 15, 2110, 73.35),
    (TWELVE_XLARGE, 8, 3862, 39.12),
    (TWELVE_XLARGE, 8, 3822, 39.12),
    (TWELVE_XLARGE, 11, 2892, 53.79),
    (TWELVE_XLARGE, 6, 5356, 29.34),
    (TWELVE_XLARGE, 6, 5210, 29.34),
    (TWELVE_XLARGE, 6, 5235, 29.34),
]


@pytest.mark.parametrize(("instance", "count", "per_minute", "dollars"), TABLE)
def test_the_published_table_comes_out_to_the_cent(
    instance: tuple[float, int], count: int, per_minute: int, dollars: float
) -> None:
    price, gpus = instance
    fleet = fleet_for(
        capacity_rps=per_minute / gpus / 60,
        target_rate_rps=30_000 / 60,
        price_per_hour=price,
        devices_per_machine=gpus,
    )
    assert fleet is not None
    assert fleet.machines == count
    assert fleet.cost_per_hour == pytest.approx(dollars, abs=0.005)


@pytest.mark.parametrize(
    ("target", "capacity", "replicas"),
    [
        (500, 250, 2),
        (500, 250.1, 2),
        (500, 249.9, 3),
        (0.1, 500, 1),
        (0.3, 0.1, 3),
        (1e9, 1, 10**9),
    ],
)
def test_replicas_are_the_ceiling_without_rounding_noise(
    target: float, capacity: float, replicas: int
) -> None:
    assert replicas_needed(target, capacity) == replicas


@pytest.mark.parametrize(("replicas", "devices", "machines"), [(1, 4, 1), (4, 4, 1), (5, 4, 2)])
def test_machines_hold_several_devices(replicas: int, devices: int, machines: int) -> None:
    assert machines_needed(replicas, devices) == machines


@given(
    whole=st.integers(1, 10_000),
    capacity=st.floats(0.01, 1e5),
)
def test_a_target_of_whole_replicas_needs_no_more(whole: int, capacity: float) -> None:
    assert replicas_needed(whole * capacity, capacity) == whole


@given(target=st.floats(0.01, 1e6), capacity=st.floats(0.01, 1e5))
def test_the_replicas_carry_the_target_and_one_less_does_not(
    target: float, capacity: float
) -> None:
    replicas = replicas_needed(target, capacity)
    assert replicas * capacity >= target * (1 - 1e-8)
    assert replicas == 1 or (replicas - 1) * capacity < target


def test_a_million_inferences_cost_the_machine_time_they_take() -> None:
    # One device does 1,000 inferences a second: a million take 1,000 s = 0.2777… h at 3.6 $/h.
    assert cost_per_million_inferences(3.6, 1000.0) == pytest.approx(1.0)
    assert cost_per_million_inferences(3.6, 1000.0, 4) == pytest.approx(0.25)


def test_a_request_with_a_batch_counts_its_inferences() -> None:
    fleet = fleet_for(
        capacity_rps=100.0, target_rate_rps=None, price_per_hour=3.6, request_batch_size=10
    )
    assert fleet is not None
    assert fleet.cost_per_million_inferences == pytest.approx(1.0)
    assert (fleet.replicas, fleet.machines, fleet.cost_per_hour) == (None, None, None)


def test_without_a_price_the_replicas_are_known_and_the_cost_is_not() -> None:
    fleet = fleet_for(capacity_rps=100.0, target_rate_rps=250.0, price_per_hour=None)
    assert fleet is not None
    assert (fleet.replicas, fleet.machines) == (3, 3)
    assert (fleet.cost_per_hour, fleet.cost_per_million_inferences) == (None, None)


def test_a_machine_that_costs_nothing_has_a_known_cost() -> None:
    fleet = fleet_for(capacity_rps=100.0, target_rate_rps=250.0, price_per_hour=0.0)
    assert fleet is not None
    assert (fleet.cost_per_hour, fleet.cost_per_million_inferences) == (0.0, 0.0)


@pytest.mark.parametrize("capacity", [None, 0.0])
def test_no_capacity_is_no_fleet(capacity: float | None) -> None:
    fleet = fleet_for(capacity_rps=capacity, target_rate_rps=250.0, price_per_hour=1.0)
    assert fleet is None


def test_cost_per_hour_counts_machines() -> None:
    assert cost_per_hour(22, 0.94) == pytest.approx(20.68)
