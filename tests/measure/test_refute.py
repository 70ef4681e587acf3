"""What refutes a promise, and what does not: one walk over several rates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import Measurement
from analyzer.domain.refutation import shown
from analyzer.domain.sla import Sla
from analyzer.measure.measure import measure_configuration
from analyzer.measure.plan import CertifyPlan, LoadPlan, RefutePlan
from analyzer.measure.refute import disturbed, lone
from analyzer.measure.virtual_session import VirtualSession
from analyzer.twin.server_model import ServerModel
from analyzer.twin.service import ServiceTime
from analyzer.twin.speed import SpeedPath

CONFIGURATION = Configuration(max_batch_size=1)


def walk(
    load: LoadPlan, budget_ms: float, rates: tuple[float, ...] = (20.0, 60.0), **how: Any
) -> tuple[Measurement, VirtualSession]:
    """A walk over a server of 5 ms, one request at a time."""
    load = replace(load, sla=Sla(latency_budget_ms=budget_ms))
    model = ServerModel.of(CONFIGURATION, ServiceTime.constant(5.0), overhead_ms=0.0)
    fixed = how.pop("fixed", False)
    session = VirtualSession(model, load, **how)
    plan = CertifyPlan(
        seconds=20.0, refute=RefutePlan(rates_rps=rates, seconds=2.5, fixed=fixed, expected_ms=5.0)
    )
    return measure_configuration(session, CONFIGURATION, load, certify=plan), session


def test_a_promise_below_the_execution_is_refuted_at_every_rate(load: LoadPlan) -> None:
    found, _ = walk(load, 4.0)
    assert shown(found, Sla(latency_budget_ms=4.0))
    assert [known.rate_rps for known in found.evidence] == [20.0, 60.0]
    assert [known.blocks for known in found.evidence] == [2, 2]
    assert found.capacity_rps is None


def test_a_promise_that_only_queues_break_is_not(load: LoadPlan) -> None:
    """The third that waits is late, for some longer than half a millisecond; no other one is."""
    found, _ = walk(load, 5.5, (60.0, 120.0))
    assert found.certificate is not None and found.certificate.verdict == "UNDECIDED"
    assert any("queue" in reason for reason in found.certificate.void_reasons)
    # At a rate that is promised, a queue is no excuse.
    assert shown(walk(load, 5.5, (60.0,), fixed=True)[0], Sla(latency_budget_ms=5.5))


def test_a_rate_that_was_kept_is_the_lower_end_of_the_edge(load: LoadPlan) -> None:
    found, _ = walk(load, 40.0)
    assert found.edge.interval_rps == (60.0, None)
    assert found.certificate is not None and found.certificate.verdict == "UNDECIDED"
    assert not found.certificate.void_reasons


@pytest.mark.parametrize("until_s", [2.0, 6.0])
def test_a_burst_in_a_part_of_the_walk_refutes_nothing(load: LoadPlan, until_s: float) -> None:
    path = SpeedPath(start_s=np.array([0.0, until_s]), speed=np.array([0.4, 1.0]))
    found, _ = walk(load, 8.0, speed=path)
    assert found.certificate is not None and found.certificate.verdict == "UNDECIDED"


def test_no_walk_without_the_time_for_all_visits(load: LoadPlan) -> None:
    found, _ = walk(load, 4.0, seconds_max=7.0)
    assert found.certificate is not None and found.certificate.verdict == "UNDECIDED"
    assert any("time" in reason for reason in found.certificate.void_reasons)


def test_what_disturbs_a_run(load: LoadPlan) -> None:
    _, session = walk(load, 4.0)
    test = session.tests[0]
    slow = replace(test, executions=tuple(replace(e, mean_ms=9.0) for e in test.executions))
    assert not disturbed(test, session.tests, study=test.conditions)
    assert "other runs" in disturbed(slow, session.tests, study=None)
    assert "probes" in disturbed(
        replace(slow, executions=(replace(slow.executions[0], mean_ms=21.0),)),
        (),
        study=None,
        before=False,
        expected_ms=5.0,
    )
    # An idle server's longer executions are its own: faster rates do not speak against it.
    faster = replace(test, offered_rps=1000.0)
    assert not disturbed(slow, [faster], study=test.conditions)
    assert test.conditions is not None
    busy = replace(test, conditions=replace(test.conditions, work_us=(250.0, 260.0)))
    assert "machine" in disturbed(busy, (), study=test.conditions)
    passing = replace(test, conditions=replace(test.conditions, work_us=(250.0, 100.0)))
    assert not disturbed(passing, (), study=test.conditions)


def test_a_request_that_meets_no_other_is_told(load: LoadPlan) -> None:
    _, session = walk(load, 5.5)
    for log in session.logs:
        alone = lone(log)
        assert len(alone) == len(log) - log.warmup
        assert (log.latency_s[log.warmup :][alone] < 0.0051).all()
        assert 0.6 < alone.mean() < 1.0
