"""What is begun near the end of a session's time, and how a slow model is warmed up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from analyzer.domain.configuration import Configuration
from analyzer.domain.load_test import LoadTest, RequestLog
from analyzer.domain.sla import Sla
from analyzer.domain.workload import Poisson
from analyzer.engine.policy import BatchingPolicy
from analyzer.measure.measure import measure_configuration
from analyzer.measure.plan import CertifyPlan, EdgePlan, LoadPlan
from analyzer.measure.session import Schedule
from analyzer.measure.virtual_session import VirtualSession
from analyzer.measure.warm_up import warm_up
from analyzer.twin.server_model import ServerModel
from analyzer.twin.service import ServiceTime

SERVED = Configuration(max_batch_size=8, dynamic_batching=True, instance_count=2)


def server(service_ms: float) -> ServerModel:
    policy = BatchingPolicy(max_batch_size=8, dynamic_batching=True, instance_count=2)
    return ServerModel(policy=policy, service=ServiceTime.constant(service_ms))


@pytest.mark.parametrize(("seconds_max", "ran"), [(8.0, False), (80.0, True)])
def test_a_run_at_the_target_rate_is_left_out_where_it_would_end_too_late(
    seconds_max: float, ran: bool
) -> None:
    """Twenty requests at 0.5/s take 40 s, whatever time was planned for them."""
    sla = Sla(latency_budget_ms=500.0, target_rate_rps=0.5, objective="latency")
    load = LoadPlan(sla=sla, arrivals=Poisson())
    session = VirtualSession(server(20.0), load, seconds_max=seconds_max)
    found = measure_configuration(
        session, SERVED, load, edge_plan=EdgePlan(seconds=3.0, start_rps=80.0), target_seconds=2.4
    )
    assert (found.headline is not None) == ran
    assert found.edge.at_least_rps and session.left_s >= 0.0


class Replying(VirtualSession):
    """The replies to a run's last requests come a latency budget after them, as of a live one."""

    def _offer(self, schedule: Schedule) -> tuple[LoadTest, RequestLog, float]:
        test, log, seconds = super()._offer(schedule)
        return test, log, seconds + self._plan.sla.latency_budget_ms / 1e3


def test_a_proof_ends_with_its_last_replies_in_time() -> None:
    load = LoadPlan(sla=Sla(latency_budget_ms=4000.0), arrivals=Poisson(), seed=2)
    model = server(400.0)
    session = Replying(model, load, seconds_max=40.0)
    edge_plan = EdgePlan(seconds=8.0, start_rps=20.0, run_seconds=(1.6, 4.0))
    certify = CertifyPlan(seconds=60.0, twin=model)
    measure_configuration(session, SERVED, load, edge_plan=edge_plan, certify=certify)
    assert session.tests and session.left_s >= 0.0


@pytest.mark.parametrize(
    ("service_ms", "saturating", "in_flight"),
    [(5.0, True, [4, 16, 32]), (5.0, False, [4]), (2000.0, True, [4])],
)
def test_a_slow_server_is_not_filled_to_warm_it_up(
    service_ms: float, saturating: bool, in_flight: list[int]
) -> None:
    class Counting(VirtualSession):
        def warm_up(self, *, concurrency: int, seconds: float = 0.3) -> float:
            asked.append(concurrency)
            return super().warm_up(concurrency=concurrency, seconds=seconds)

    asked: list[int] = []
    load = LoadPlan(sla=Sla(latency_budget_ms=500.0), arrivals=Poisson())
    model = server(service_ms)
    unbatched: Any = replace(model, policy=replace(model.policy, max_batch_size=1))
    warm_up(Counting(unbatched, load), SERVED, load, saturating=saturating)
    assert asked == in_flight
