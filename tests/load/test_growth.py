"""Queues that only grow, told from queues in balance."""

from __future__ import annotations

import numpy as np
import pytest

from analyzer.domain.configuration import Configuration
from analyzer.domain.sla import Sla
from analyzer.domain.workload import Poisson
from analyzer.engine.policy import BatchingPolicy
from analyzer.load.growth import outgrows
from analyzer.measure.plan import STREAM_CERTIFY, LoadPlan
from analyzer.measure.virtual_session import VirtualSession
from analyzer.twin.server_model import ServerModel
from analyzer.twin.service import ServiceTime


def share_growing(*, load_share: float, budget_ms: float, seconds: float, one_ms: float) -> float:
    """Of 40 runs at a share of saturation."""
    plan = LoadPlan(sla=Sla(latency_budget_ms=budget_ms), arrivals=Poisson(), seed=3)
    model = ServerModel(
        policy=BatchingPolicy(),
        service=ServiceTime(batch_sizes=(1, 2), service_ms=(one_ms, 2.0 * one_ms)),
    )
    session = VirtualSession(model, plan)
    rate = load_share * model.saturation_rps()
    runs = [
        session.run(rate, seconds, kind="certify", stream=STREAM_CERTIFY, abort=False, claim=True)
        for _ in range(40)
    ]
    return sum(run.growing for run in runs) / len(runs)


@pytest.mark.parametrize("load_share", [1.3, 2.0])
def test_an_overload_shows_before_a_request_is_late(load_share: float) -> None:
    growing = share_growing(load_share=load_share, budget_ms=500.0, seconds=1.0, one_ms=0.5)
    assert growing == 1.0


@pytest.mark.parametrize(
    ("budget_ms", "seconds", "one_ms"), [(500.0, 1.0, 0.5), (100.0, 1.0, 20.0), (3e3, 3.0, 80.0)]
)
def test_a_queue_in_balance_is_hardly_ever_taken_for_one(
    budget_ms: float, seconds: float, one_ms: float
) -> None:
    """Fast and slow models, with budgets of 1,000, 5 and 38 service times."""
    growing = share_growing(load_share=0.8, budget_ms=budget_ms, seconds=seconds, one_ms=one_ms)
    assert growing <= 0.05


def test_a_long_run_shows_an_overload_by_its_late_requests() -> None:
    intended_s = np.arange(0.0, 6.0, 0.01)
    grows = 0.3 * intended_s
    assert outgrows(intended_s, grows, budget_s=2.0)
    assert not outgrows(intended_s, grows, budget_s=0.5), "twelve budgets"
    assert not outgrows(intended_s, np.where(intended_s > 5.0, np.inf, grows), budget_s=2.0)
    assert not outgrows(intended_s[:0], grows[:0], budget_s=2.0)


@pytest.mark.parametrize(
    ("configuration", "load_share", "told"),
    [
        (Configuration(instance_count=2), 1.25, 1.0),
        (Configuration(instance_count=2), 0.95, 0.0),
        (Configuration(instance_count=2, max_batch_size=2, dynamic_batching=True), 1.25, 1.0),
        (Configuration(instance_count=2, max_batch_size=2, dynamic_batching=True), 0.95, 0.0),
        # Batches of four would carry more, and none was executed.
        (Configuration(instance_count=2, max_batch_size=4, dynamic_batching=True), 0.95, 0.0),
    ],
)
def test_no_rate_is_kept_that_the_executions_of_its_own_run_do_not_allow(
    configuration: Configuration, load_share: float, told: float
) -> None:
    """A detector of 20.5 ms kept 121/s for a second within 500 ms; two instances execute 97/s."""
    plan = LoadPlan(sla=Sla(latency_budget_ms=500.0), arrivals=Poisson(), seed=3)
    service = ServiceTime(batch_sizes=(1, 2, 4), service_ms=(20.5, 38.0, 60.0), cv=0.1)
    server = ServerModel.of(configuration, service, overhead_ms=0.2)
    session = VirtualSession(server, plan)
    session.served = configuration
    rate = load_share * server.saturation_rps()
    runs = [
        session.run(rate, 1.0, kind="edge", stream=STREAM_CERTIFY, abort=False) for _ in range(20)
    ]
    assert all(run.over_budget == 0 for run in runs)
    assert sum(run.growing for run in runs) / len(runs) == told
