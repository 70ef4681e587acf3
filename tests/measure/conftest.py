"""Simulated servers whose truth is known."""

from __future__ import annotations

import pytest

from analyzer.domain.sla import Sla
from analyzer.domain.workload import Poisson
from analyzer.engine.policy import BatchingPolicy
from analyzer.measure.plan import LoadPlan
from analyzer.measure.virtual_session import VirtualSession
from analyzer.twin.server_model import ServerModel
from analyzer.twin.service import ServiceTime


@pytest.fixture
def load() -> LoadPlan:
    return LoadPlan(sla=Sla(latency_budget_ms=40.0), arrivals=Poisson(), seed=7)


@pytest.fixture
def service() -> ServiceTime:
    return ServiceTime(batch_sizes=(1, 8), service_ms=(4.0, 11.0))


@pytest.fixture
def policy() -> BatchingPolicy:
    return BatchingPolicy(max_batch_size=8, dynamic_batching=True)


@pytest.fixture
def session(policy: BatchingPolicy, service: ServiceTime, load: LoadPlan) -> VirtualSession:
    return VirtualSession(ServerModel(policy=policy, service=service), load)
