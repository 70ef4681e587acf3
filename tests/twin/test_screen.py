"""Every configuration gets a prediction, whatever the time allows."""

from __future__ import annotations

import numpy as np
import pytest

from analyzer.domain.workload import Poisson, parse_arrivals
from analyzer.engine.policy import BatchingPolicy
from analyzer.twin.arrivals import UnitArrivals
from analyzer.twin.screen import dispersion, screen
from analyzer.twin.server_model import ServerModel
from analyzer.twin.service import ServiceTime


@pytest.fixture(scope="module")
def arrivals() -> UnitArrivals:
    return UnitArrivals.draw(Poisson(), seed=1, count=200_000)


def models(first_ms: float) -> list[ServerModel]:
    service = ServiceTime(
        batch_sizes=(1, 32), service_ms=(first_ms, 9 * first_ms), interference=(1.0, 1.4)
    )
    return [
        ServerModel(
            policy=BatchingPolicy(
                max_batch_size=batch, dynamic_batching=batch > 1, instance_count=count
            ),
            service=service,
        )
        for batch in (1, 2, 4, 8, 16, 32)
        for count in (1, 2)
    ]


@pytest.mark.parametrize("first_ms", [0.05, 1.0, 2000.0])
@pytest.mark.parametrize("budgets", [3, 60, 1000])
@pytest.mark.parametrize("seconds_max", [0.0, 1e9])
def test_none_is_left_out(
    arrivals: UnitArrivals, first_ms: float, budgets: float, seconds_max: float
) -> None:
    space = models(first_ms)
    now = iter(np.arange(0.0, 1e6, 1.0))
    found = screen(
        space, arrivals, budget_ms=budgets * first_ms, percentile=99.0, cores=1,
        clock=lambda: float(next(now)), seconds_max=seconds_max,
    )  # fmt: skip
    assert len(found) == len(space)
    assert any(edge.simulated for edge in found) == (seconds_max > 0)
    for edge, model in zip(found, space, strict=True):
        assert 0 < edge.rate_rps <= model.saturation_rps()
    rates = np.array([edge.rate_rps for edge in found])
    simulated = np.array([m.edge(arrivals, budget_ms=budgets * first_ms) or 0.0 for m in space])
    assert simulated[np.argmax(rates)] >= (0.95 if seconds_max else 0.85) * simulated.max()


def test_what_keeps_the_sla_nowhere_is_zero(arrivals: UnitArrivals) -> None:
    found = screen(
        models(10.0), arrivals, budget_ms=9.0, percentile=99.0, cores=1,
        clock=lambda: 0.0, seconds_max=10.0,
    )  # fmt: skip
    assert {edge.rate_rps for edge in found} == {0.0}


def test_a_common_scale_moves_every_edge(arrivals: UnitArrivals) -> None:
    plain = models(1.0)
    scaled = [ServerModel(policy=m.policy, service=m.service, rate_scale=2.0) for m in plain]
    both = [
        screen(
            some, arrivals, budget_ms=50.0, percentile=99.0, cores=1,
            clock=lambda: 0.0, seconds_max=seconds,
        )
        for some in (plain, scaled)
        for seconds in (0.0, 10.0)
    ]  # fmt: skip
    for one, two in ((both[0], both[2]), (both[1], both[3])):
        for edge, half in zip(one, two, strict=True):
            assert half.rate_rps == pytest.approx(edge.rate_rps / 2)


@pytest.mark.parametrize(
    ("arrivals_name", "expected"), [("poisson", 1.0), ("constant", 0.0), ("gamma:2", 4.0)]
)
def test_dispersion_of_renewal_arrivals(arrivals_name: str, expected: float) -> None:
    gaps = parse_arrivals(arrivals_name).interarrival_s(400_000, 1.0, np.random.default_rng(1))
    assert dispersion(np.cumsum(gaps)) == pytest.approx(expected, rel=0.1, abs=0.02)


def test_dispersion_needs_two_windows() -> None:
    assert dispersion(np.array([0.5, 1.0])) == 1.0
