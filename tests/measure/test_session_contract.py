"""What every session does: the live one (on a target in this process) and the simulated one."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from analyzer.domain.load_test import STATUS_ERROR, STATUS_OK
from analyzer.domain.sla import Sla
from analyzer.domain.workload import Constant, Poisson, Trace
from analyzer.engine.policy import BatchingPolicy
from analyzer.errors import TargetCrashError
from analyzer.measure.live_session import LiveSession
from analyzer.measure.plan import (
    STREAM_CERTIFY,
    STREAM_EDGE,
    STREAM_MEASURE,
    STREAM_VERIFY,
    LoadPlan,
)
from analyzer.measure.session import Session
from analyzer.measure.virtual_session import VirtualSession
from analyzer.targets.scripted import ScriptedTarget, constant_delay
from analyzer.twin.server_model import ServerModel
from analyzer.twin.service import ServiceTime

MakeSession = Callable[..., Session]
PLAN = LoadPlan(sla=Sla(latency_budget_ms=500.0), arrivals=Poisson(), seed=7)
MIXED = Trace(
    path="mixed.csv",
    arrival_s=np.arange(5) * 0.01,
    batch_size=np.array([1, 4, 2, 8, 1], dtype=np.int64),
)


class ThisProcess(ScriptedTarget):
    """A scripted target whose memory is that of this process."""

    @property
    def pids(self) -> tuple[int, ...]:
        return (os.getpid(),)


def live(plan: LoadPlan, *, service_ms: float = 2.0) -> Session:
    return LiveSession(ThisProcess(constant_delay(service_ms / 1e3)), plan)


def virtual(plan: LoadPlan, *, service_ms: float = 2.0) -> Session:
    policy = BatchingPolicy(max_batch_size=8, dynamic_batching=False, instance_count=64)
    service = ServiceTime.constant(service_ms)
    return VirtualSession(ServerModel(policy=policy, service=service), plan)


@pytest.fixture(
    params=[
        pytest.param(live, id="live", marks=pytest.mark.timing),
        pytest.param(virtual, id="virtual"),
    ]
)
def make(request: pytest.FixtureRequest) -> MakeSession:
    made: MakeSession = request.param
    return made


def intended(session: Session) -> list[np.ndarray[tuple[int], np.dtype[np.float64]]]:
    return [log.intended_s for log in session.logs]


def test_every_run_is_kept_with_what_was_asked(make: MakeSession) -> None:
    session = make(PLAN)
    for rate, kind in ((200.0, "edge"), (400.0, "certify")):
        test = session.run(rate, 0.25, kind=kind, stream=STREAM_EDGE, abort=False)
        assert (test.kind, test.offered_rps, test.seed) == (kind, rate, 7)
    assert [test.requests for test in session.tests] == [50, 100]
    assert [len(log) for log in session.logs] == [50, 100]
    assert all(test.over_budget == test.errors == 0 for test in session.tests)
    assert all((log.status == STATUS_OK).all() for log in session.logs)
    assert session.seconds >= sum(test.duration_s for test in session.tests) - 0.1


class Lost(ThisProcess):
    """A server that answers errors, since its model is not ready any more."""

    def alive(self) -> bool:
        return False

    def why_gone(self) -> str:
        return "its GPU is lost."


@pytest.mark.timing
def test_a_model_that_is_not_ready_any_more_is_a_crash_with_its_reason() -> None:
    """Not a rate that is too high; and errors of a server that is ready are only errors."""
    fails: dict[str, Any] = {"delay": constant_delay(0.001), "status": lambda request: STATUS_ERROR}
    said = r"The model is not ready any more \(20 of 20 requests failed\): its GPU is lost\."
    with pytest.raises(TargetCrashError, match=said) as caught:
        LiveSession(Lost(**fails), PLAN).run(200.0, 0.1, kind="edge", stream=STREAM_EDGE)
    assert "Start its server anew" in caught.value.hint
    with pytest.raises(TargetCrashError, match="its GPU is lost"):
        LiveSession(Lost(**fails), PLAN).warm_up(concurrency=1, seconds=0.05)
    test = LiveSession(ThisProcess(**fails), PLAN).run(
        200.0, 0.1, kind="edge", stream=STREAM_EDGE, abort=False
    )
    assert test.errors == 20


@pytest.mark.timing
def test_why_requests_failed_is_told() -> None:
    """Only their number was, and of a warm-up without an answer not even that."""
    some = LiveSession(
        ThisProcess(
            constant_delay(0.001),
            status=lambda request: STATUS_ERROR if request == 5 else STATUS_OK,
            failure="a shape is wrong",
        ),
        PLAN,
    )
    assert some.run(200.0, 0.1, kind="edge", stream=STREAM_EDGE, abort=False).errors == 1
    assert some.notes == ("Requests failed, the first with: a shape is wrong",)
    quiet = LiveSession(ThisProcess(constant_delay(0.001), failure="an old one"), PLAN)
    quiet.run(200.0, 0.1, kind="edge", stream=STREAM_EDGE, abort=False)
    assert quiet.notes == ()
    none = ThisProcess(
        constant_delay(0.001), status=lambda request: STATUS_ERROR, failure="a shape is wrong"
    )
    with pytest.raises(TargetCrashError, match="was answered: a shape is wrong"):
        LiveSession(none, PLAN).warm_up(concurrency=1, seconds=0.05)
    silent = ThisProcess(constant_delay(math.inf))
    with pytest.raises(TargetCrashError, match="was answered within 2 s"):
        quick = replace(PLAN, sla=replace(PLAN.sla, latency_budget_ms=10.0))
        LiveSession(silent, quick, seconds_max=1.0).warm_up(concurrency=1, seconds=0.05)


def test_a_run_has_at_least_twenty_requests(make: MakeSession) -> None:
    assert make(PLAN).run(200.0, 0.01, kind="edge", stream=STREAM_EDGE).requests == 20


def test_the_rate_is_the_one_that_was_asked(make: MakeSession) -> None:
    session = make(replace(PLAN, arrivals=Constant()))
    test = session.run(250.0, 0.2, kind="edge", stream=STREAM_EDGE, abort=False)
    assert np.diff(session.logs[0].intended_s) == pytest.approx(1 / 250.0)
    assert test.achieved_rps == pytest.approx(250.0, rel=0.2)


def test_a_trace_is_followed_with_its_own_sizes(make: MakeSession) -> None:
    """The simulated session once used the largest size for all, the live one the trace's."""
    session = make(replace(PLAN, arrivals=MIXED, request_batch_size=8))
    test = session.run(200.0, 0.2, kind="measure", stream=STREAM_MEASURE, abort=False)
    assert session.logs[0].batch_size.tolist() == np.resize(MIXED.batch_size, 40).tolist()
    assert test.throughput_ips == pytest.approx(test.achieved_rps * 3.2, rel=0.01)


def test_each_run_of_a_claim_meets_another_section_of_a_trace(make: MakeSession) -> None:
    """Each began with the first row: what comes late in a trace was never sent, and its start
    counted again and again. A measurement by hand does begin there."""
    bursts = Trace(
        path="bursts.csv",
        arrival_s=np.cumsum(np.repeat([0.03, 0.01], 500)),
        batch_size=np.ones(1000, dtype=np.int64),
    )
    session = make(replace(PLAN, arrivals=bursts))
    for stream in (STREAM_CERTIFY,) * 6:
        session.run(400.0, 0.1, kind="certify", stream=stream, abort=False)
    counts = {len(log) for log in session.logs}
    assert len(counts) > 1 and counts <= set(range(19, 82)), "0.5 to 1.5 times the mean of 40"
    session.run(400.0, 0.1, kind="measure", stream=STREAM_MEASURE, abort=False)
    assert np.diff(session.logs[-1].intended_s) == pytest.approx(0.03 / 0.02 / 400.0, rel=0.01)


def test_a_trace_without_sizes_takes_the_plan_s(make: MakeSession) -> None:
    """The live session once sent ones, the simulated one what was asked for."""
    plain = replace(MIXED, batch_size=np.ones(5, dtype=np.int64))
    session = make(replace(PLAN, arrivals=plain, request_batch_size=4))
    session.run(200.0, 0.1, kind="edge", stream=STREAM_EDGE, abort=False)
    assert set(session.logs[0].batch_size.tolist()) == {4}


def test_runs_of_the_edge_share_their_arrivals(make: MakeSession) -> None:
    session = make(PLAN)
    session.run(200.0, 0.1, kind="edge", stream=STREAM_EDGE, abort=False)
    session.run(400.0, 0.05, kind="edge", stream=STREAM_EDGE, abort=False)
    session.run(200.0, 0.1, kind="edge", stream=STREAM_EDGE, abort=False)
    first, faster, repeated = intended(session)
    assert faster == pytest.approx(first / 2), "the same users, twice as fast"
    assert not np.allclose(first, repeated), "a rate that is repeated adds evidence"


def test_runs_of_a_certificate_have_fresh_ones(make: MakeSession) -> None:
    session = make(PLAN)
    for _ in range(2):
        session.run(200.0, 0.1, kind="certify", stream=STREAM_CERTIFY, abort=False)
    first, second = intended(session)
    assert not np.allclose(first, second)


def test_a_restart_repeats_the_plan_s_arrivals_and_another_seed_does_not(
    make: MakeSession,
) -> None:
    plans = (PLAN, PLAN, replace(PLAN, seed=PLAN.seed + 1))
    sessions = [make(plan) for plan in plans]
    for session in sessions:
        session.run(200.0, 0.1, kind="verify", stream=STREAM_VERIFY, abort=False)
    first, restarted, other = (intended(session)[0] for session in sessions)
    assert np.array_equal(first, restarted)
    assert not np.allclose(first, other)


def test_live_and_simulated_runs_get_the_same_arrivals() -> None:
    one, other = live(PLAN), virtual(PLAN)
    for session in (one, other):
        for stream in (STREAM_EDGE, STREAM_CERTIFY):
            session.run(300.0, 0.1, kind="edge", stream=stream, abort=False)
    for a, b in zip(intended(one), intended(other), strict=True):
        assert a == pytest.approx(b, abs=1e-8), "the generator counts whole nanoseconds"


@pytest.mark.parametrize("abort", [True, False])
def test_a_hopeless_run_ends_early_where_it_may(make: MakeSession, abort: bool) -> None:
    plan = replace(PLAN, sla=Sla(latency_budget_ms=5.0))
    session = make(plan, service_ms=20.0)
    test = session.run(500.0, 1.0, kind="edge", stream=STREAM_EDGE, abort=abort)
    assert test.aborted is abort
    assert (test.requests < 400) is abort
    assert test.over_budget is not None and test.over_budget > 10
    assert len(session.logs[0]) == test.requests


def test_a_run_of_a_claim_ends_early_only_where_a_quarter_is_late(make: MakeSession) -> None:
    """And counts every request after its lead-in, though it might have been given up."""
    # Equal gaps: 500 requests count.
    plan = replace(PLAN, sla=Sla(latency_budget_ms=5.0), arrivals=Constant())
    session = make(plan, service_ms=20.0)
    asked: dict[str, Any] = {"kind": "certify", "stream": STREAM_CERTIFY, "claim": True}
    test = session.run(500.0, 1.0, lead_in_s=0.2, **asked)
    assert test.aborted and test.over_budget is not None
    (log,) = session.logs
    assert 125 < test.over_budget <= test.requests < 400
    assert log.intended_s[log.warmup - 1] < 0.2 <= log.intended_s[log.warmup]
    calm = make(PLAN)
    assert calm.run(500.0, 0.5, lead_in_s=0.1, **asked).requests == len(calm.logs[0]) - int(
        np.searchsorted(calm.logs[0].intended_s, 0.1)
    )


@pytest.mark.parametrize("claim", [False, True])
def test_a_run_of_a_low_percentile_ends_early_too(claim: bool) -> None:
    """For a p50 three times what may be late is more than all requests."""
    plan = replace(PLAN, sla=Sla(latency_budget_ms=5.0, percentile=50.0), arrivals=Constant())
    session = virtual(plan, service_ms=200.0)
    test = session.run(500.0, 2.0, kind="edge", stream=STREAM_EDGE, claim=claim)
    assert test.aborted and test.over_budget is not None
    assert 740 < test.over_budget <= test.requests < 900


def test_a_warm_up_tells_a_throughput_and_is_not_kept(make: MakeSession) -> None:
    session = make(PLAN)
    assert session.warm_up(concurrency=4, seconds=0.1) > 100
    assert session.seconds >= 0.09
    assert session.tests == session.logs == []


@pytest.mark.timing
def test_a_warm_up_waits_longer_than_a_load_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that took 3 s for an inference was told as one that crashed."""
    monkeypatch.setattr("analyzer.measure.live_session._TIMEOUT_S_MIN", 0.05)
    plan, delay_s = replace(PLAN, sla=Sla(latency_budget_ms=1.0)), 0.3
    session = LiveSession(ThisProcess(constant_delay(delay_s)), plan)
    assert 0.0 < session.warm_up(concurrency=2, seconds=0.1) < 2.0 / delay_s
    short = LiveSession(ThisProcess(constant_delay(delay_s)), plan, seconds_max=0.15)
    with pytest.raises(TargetCrashError, match=r"answered within 0\.1\d* s\."):
        short.warm_up(concurrency=2, seconds=0.1)


def test_the_peak_is_that_of_all_runs(make: MakeSession) -> None:
    session = make(PLAN)
    assert session.peak().memory_bytes_peak is None
    for _ in range(2):
        session.run(200.0, 0.3, kind="edge", stream=STREAM_EDGE)
    peaks = [test.resources.memory_bytes_peak or 0 for test in session.tests]
    assert session.peak().memory_bytes_peak == max(peaks) > 1 << 20


def test_the_notes_are_sentences(make: MakeSession) -> None:
    assert all(isinstance(note, str) for note in make(PLAN).notes)


@pytest.mark.timing
def test_a_run_does_not_wait_behind_what_an_aborted_one_left_in_the_queue() -> None:
    """The server goes on with the requests of a connection that was closed, as Triton does."""
    free_s = 0.0

    def queued(request: int, batch_size: int) -> float:
        nonlocal free_s
        now_s = time.perf_counter()
        free_s = max(now_s, free_s) + 0.002
        return free_s - now_s

    plan = replace(PLAN, sla=Sla(latency_budget_ms=60.0))
    session = LiveSession(ScriptedTarget(queued), plan)
    hopeless = session.run(4000.0, 1.0, kind="edge", stream=STREAM_EDGE)
    assert hopeless.aborted and free_s - time.perf_counter() > 0.06
    after = session.run(100.0, 0.5, kind="edge", stream=STREAM_EDGE)
    assert (after.aborted, after.over_budget) == (False, 0)
