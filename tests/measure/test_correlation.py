"""What the twin expects of late requests: how long an empty queue shows, how many it takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from analyzer.domain.measurement import HigherRuns, RateEvidence
from analyzer.engine.policy import BatchingPolicy
from analyzer.measure.correlation import (
    SUPPOSED_LOAD,
    Correlation,
    carried_down,
    guessed_inflation,
    relaxation_s,
    requests_needed,
    slow_edge_at,
)
from analyzer.measure.plan import STREAM_CERTIFY, CertifyPlan, LoadPlan
from analyzer.measure.virtual_session import VirtualSession
from analyzer.twin.server_model import ServerModel
from analyzer.twin.service import ServiceTime
from analyzer.twin.speed import SpeedPath


def test_a_lead_in_is_as_long_as_the_batches_that_run_not_as_those_that_were_probed(
    load: LoadPlan,
) -> None:
    service = ServiceTime(batch_sizes=(1, 8), service_ms=(25.0, 200.0))
    alone = ServerModel(policy=BatchingPolicy(instance_count=2), service=service)
    joined = ServerModel(
        policy=BatchingPolicy(max_batch_size=8, dynamic_batching=True, instance_count=2),
        service=service,
    )
    # 20 of 80/s: 25 ms over (1 - sqrt(1/4))².
    assert relaxation_s(alone, load, 20.0) == pytest.approx(0.1)
    assert relaxation_s(joined, load, 20.0) == pytest.approx(0.1)


def test_batches_that_must_be_larger_to_carry_the_rate_take_longer_to_forget(
    load: LoadPlan,
) -> None:
    policy = BatchingPolicy(max_batch_size=8, dynamic_batching=True)
    model = ServerModel(
        policy=policy, service=ServiceTime(batch_sizes=(1, 8), service_ms=(10.0, 17.0))
    )
    assert model.execution_s(50.0) == pytest.approx(0.010)
    assert model.execution_s(300.0) == pytest.approx(0.013)  # four of them in 13 ms
    assert model.execution_s(5000.0) == pytest.approx(0.017)
    assert relaxation_s(model, load, 300.0) > relaxation_s(model, load, 50.0)


def test_a_walk_that_begins_with_a_certificate_takes_in_the_speeds_that_it_meets(
    load: LoadPlan,
) -> None:
    service = ServiceTime(batch_sizes=(1, 8), service_ms=(4.0, 11.0))
    policy = BatchingPolicy(max_batch_size=8, dynamic_batching=True)
    model = ServerModel(policy=policy, service=service)
    speed = SpeedPath(start_s=np.array([0.0, 10.0, 15.0]), speed=np.array([1.0, 0.5, 1.0]))
    session = VirtualSession(model, load, speed=speed)
    correlation = Correlation(session, CertifyPlan(seconds=60.0, twin=model), load)
    before = correlation.inflation(300.0)
    session.run(300.0, 25.0, kind="certify", stream=STREAM_CERTIFY, abort=False)
    after = correlation.inflation(300.0)
    assert before is not None and after is not None and after > 3 * before


def test_a_rate_that_is_expected_to_fail_is_never_cheap(load: LoadPlan) -> None:
    assert requests_needed(load.sla, inflation=2.0, miss_rate=0.02, claim=1) is None
    assert requests_needed(load.sla, inflation=2.0, miss_rate=0.01, claim=1) is None


def test_a_slower_machine_leaves_less_of_the_edge_than_its_speed(load: LoadPlan) -> None:
    """The latency budget stays; the scarcer it is, the more that costs."""
    policy = BatchingPolicy(max_batch_size=8, dynamic_batching=True)

    def share(execution_ms: float, slowdown: float, late: float = 0.01) -> float:
        service = ServiceTime(batch_sizes=(1, 8), service_ms=(execution_ms, 3 * execution_ms))
        return slow_edge_at(ServerModel(policy=policy, service=service), load)(slowdown, late)

    budget_ms = load.sla.latency_budget_ms
    ample, scarce = share(budget_ms / 200, 1.8), share(budget_ms / 8, 1.8)
    assert ample == pytest.approx(1 / 1.8, rel=0.05)
    assert 0.5 / 1.8 <= scarce < 0.85 / 1.8
    assert share(budget_ms / 8, 1.0) == 1.0
    assert slow_edge_at(None, load)(1.8, 0.01) == pytest.approx(1 / 1.8)
    # A state of 3 % of the time may have a third of its requests late: no more than it serves.
    assert 1.2 * scarce < share(budget_ms / 8, 1.8, 1 / 3) < 1.0


def test_without_a_twin_a_higher_load_is_supposed_to_need_more(load: LoadPlan) -> None:
    """As a table of simulations has it (docs/statistics.md), so that a rate that failed is followed
    by one that is proven sooner."""
    loads = (0.5, 0.7, 0.8, 0.9)
    assert [guessed_inflation(share) for share in loads] == pytest.approx([6, 13, 25, 61], rel=0.1)
    guess = requests_needed(
        load.sla, inflation=guessed_inflation(SUPPOSED_LOAD), miss_rate=None, claim=1
    )
    known = requests_needed(load.sla, inflation=2.0, miss_rate=0.0, claim=1)
    later = requests_needed(load.sla, inflation=2.0, miss_rate=0.0, claim=2)
    assert guess is not None and known is not None and later is not None
    assert known == pytest.approx(2 * 380, rel=0.01)
    assert guess > later > known


def runs_at(rate_rps: float, inflation: float, *, late: int, requests: int = 100_000) -> HigherRuns:
    return HigherRuns(rate_rps=rate_rps, requests=requests, over_budget=late, inflation=inflation)


def test_a_spell_that_a_higher_rate_met_counts_for_a_lower_one_the_less_the_lower() -> None:
    def expected(rate_rps: float) -> float:
        return rate_rps / 10.0

    met = [runs_at(1000.0, 600.0, late=500)]  # six times what is expected there
    found = [carried_down(expected, rate, met, 0.01) for rate in (950.0, 700.0, 300.0)]
    assert found == pytest.approx([95 * 6**0.921, 70 * 6**0.565, 30 * 6**0.146], rel=0.01)
    assert carried_down(expected, 1000.0, met, 0.01) == pytest.approx(600.0)


@pytest.mark.parametrize(
    "runs",
    [
        runs_at(1000.0, 600.0, late=1001),  # a rate that is not carried
        runs_at(1000.0, 600.0, late=9),  # too few to tell anything
        runs_at(900.0, 600.0, late=500),  # a lower rate
        runs_at(1000.0, 80.0, late=500),  # less than is expected
    ],
)
def test_what_tells_nothing_of_a_lower_rate_leaves_the_expected_inflation(runs: HigherRuns) -> None:
    assert carried_down(lambda rate: rate / 10.0, 950.0, [runs], 0.01) == 95.0
    assert carried_down(lambda rate: None, 950.0, [runs], 0.01) is None


def test_no_lower_rate_is_more_correlated_than_what_was_met() -> None:
    met = [runs_at(1000.0, 101.0, late=50)]
    assert 100.0 < (carried_down(lambda rate: 100.0, 999.0, met, 0.01) or 0.0) <= 101.0


def test_a_walk_counts_the_spells_of_its_own_runs_and_of_earlier_ones(load: LoadPlan) -> None:
    """A server that stands still for half a second, as the twin does not know."""
    service = ServiceTime(batch_sizes=(1, 8), service_ms=(4.0, 11.0))
    policy = BatchingPolicy(max_batch_size=8, dynamic_batching=True)
    model = ServerModel(policy=policy, service=service)
    speed = SpeedPath(start_s=np.array([0.0, 10.0, 10.15]), speed=np.array([1.0, 0.1, 1.0]))
    session = VirtualSession(model, load, speed=speed)
    plan = CertifyPlan(seconds=60.0, twin=model, tells_speed=False)
    correlation = Correlation(session, plan, load)
    usual = correlation.inflation(280.0, walk=True)
    test = session.run(300.0, 40.0, kind="certify", stream=STREAM_CERTIFY, abort=False)
    assert 10 <= (test.over_budget or 0) <= 0.01 * test.requests
    assert usual is not None and correlation.inflation(280.0) == usual
    assert (correlation.inflation(280.0, walk=True) or 0.0) > 2 * usual
    assert correlation.inflation(320.0, walk=True) == correlation.inflation(320.0)

    known = RateEvidence(
        rate_rps=300.0,
        requests=test.requests,
        over_budget=test.over_budget or 0,
        inflation=20 * usual,
        claim=1,
        blocks=1,
        seen=20 * usual,
    )
    later = Correlation(VirtualSession(model, load), replace(plan, earlier=(known,)), load)
    assert (later.inflation(280.0) or 0.0) > 2 * usual
    assert later.inflation(300.0) == correlation.inflation(300.0)  # its claim counts it already
    by_twin = replace(plan, earlier=(replace(known, seen=None),))  # no run showed it
    assert Correlation(VirtualSession(model, load), by_twin, load).inflation(280.0) == usual
    given_up = replace(plan, earlier=(replace(known, claim=0),))
    again = Correlation(VirtualSession(model, load), given_up, load)
    assert again.inflation(300.0) == pytest.approx(20 * usual)
