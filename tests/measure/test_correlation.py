"""What the twin expects of late requests: how long an empty queue shows, how many it takes."""

from __future__ import annotations

import numpy as np
import pytest

from analyzer.engine.policy import BatchingPolicy
from analyzer.measure.correlation import (
    SUPPOSED_LOAD,
    Correlation,
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
