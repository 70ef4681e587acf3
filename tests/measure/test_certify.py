"""Certificates: the ladder of rates, the way down after a FAIL, and never more than the truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from analyzer.domain.measurement import Certificate, LatencySummary, LoadTest, Validity
from analyzer.domain.workload import Poisson
from analyzer.engine.policy import BatchingPolicy
from analyzer.measure.certify import CertifyGoal, certify_capacity
from analyzer.measure.judge import judge_runs, merge_tests
from analyzer.measure.measure import certify_target
from analyzer.measure.plan import STREAM_CERTIFY, CertifyPlan, LoadPlan
from analyzer.measure.virtual_session import VirtualSession
from analyzer.twin.arrivals import UnitArrivals
from analyzer.twin.server_model import ServerModel
from analyzer.twin.service import ServiceTime


class Script:
    """A server that passes up to a rate, and a judge that needs so many requests."""

    def __init__(self, passes_up_to: float, needed: int, valid: bool = True) -> None:
        self.passes_up_to = passes_up_to
        self.needed = needed
        self.rates: list[float] = []
        self.tests: list[LoadTest] = []

    def run(self, rate: float, seconds: float) -> LoadTest:
        self.rates.append(rate)
        test = LoadTest(
            kind="certify",
            offered_rps=rate,
            achieved_rps=rate,
            throughput_ips=rate,
            requests=round(rate * seconds),
            over_budget=0,
            errors=0,
            duration_s=seconds,
            latency_ms=LatencySummary(mean=1, p50=1, p90=1, p95=1, p99=1, sla=1),
            send_lag_ms_p99=0.0,
            validity=Validity(valid=True),
        )
        self.tests.append(test)
        return test

    def judge(self, rate: float, indices: Sequence[int]) -> Certificate:
        requests = sum(self.tests[index].requests for index in indices)
        missing = max(self.needed - requests, 0)
        verdict = "UNDECIDED" if missing else ("PASS" if rate <= self.passes_up_to else "FAIL")
        return Certificate(
            verdict=verdict,
            requests=requests,
            over_budget=0,
            effective_requests=float(requests),
            confidence=0.95,
            mlperf=None,
            requests_missing=missing or None,
        )


def goal(seconds: float, needed: float | None = 1000, **more: float) -> CertifyGoal:
    return CertifyGoal(edge_rps=100.0, seconds=seconds, requests_needed=lambda rate: needed, **more)


def test_with_much_time_the_highest_rate_of_the_ladder_is_certified() -> None:
    script = Script(passes_up_to=100.0, needed=1000)
    result = certify_capacity(goal(100.0), script.run, script.judge)
    assert result.passed and result.rate_rps == pytest.approx(97.0)
    assert result.certificate is not None and result.certificate.verdict == "PASS"


def test_a_fail_goes_down_and_never_up_again() -> None:
    script = Script(passes_up_to=80.0, needed=200)
    result = certify_capacity(goal(300.0, needed=200), script.run, script.judge)
    assert result.passed and result.rate_rps == pytest.approx(78.0)
    assert script.rates == sorted(script.rates, reverse=True)
    assert [block.offered_rps for block in result.blocks] == [result.rate_rps] * len(result.blocks)


def test_nothing_is_claimed_where_every_rate_fails() -> None:
    script = Script(passes_up_to=0.0, needed=50)
    result = certify_capacity(goal(400.0, needed=50), script.run, script.judge)
    assert not result.passed
    assert result.certificate is not None and result.certificate.verdict == "FAIL"


def test_too_little_time_stays_undecided() -> None:
    script = Script(passes_up_to=100.0, needed=10**9)
    result = certify_capacity(goal(5.0, needed=None), script.run, script.judge)
    assert not result.passed
    assert result.certificate is not None and result.certificate.verdict == "UNDECIDED"
    assert sum(test.duration_s for test in result.runs) <= 5.0 + 1e-6


def test_little_time_starts_lower() -> None:
    script = Script(passes_up_to=100.0, needed=500)
    by_rate = CertifyGoal(
        edge_rps=100.0, seconds=20.0, requests_needed=lambda rate: 500 if rate <= 70.5 else 5000
    )
    result = certify_capacity(by_rate, script.run, script.judge)
    assert result.passed and result.rate_rps == pytest.approx(70.0)


def test_a_fixed_rate_is_the_only_one_tried() -> None:
    script = Script(passes_up_to=50.0, needed=200)
    result = certify_capacity(goal(100.0, fixed_rps=60.0), script.run, script.judge)
    assert not result.passed and set(script.rates) == {60.0}


@pytest.mark.parametrize("seed", range(4))
def test_on_a_simulated_server_no_more_than_the_true_edge_is_certified(
    policy: BatchingPolicy, service: ServiceTime, load: LoadPlan, seed: int
) -> None:
    model = ServerModel(policy=policy, service=service)
    truth = model.edge(UnitArrivals.draw(Poisson(), count=400_000), budget_ms=40.0)
    assert truth is not None
    plan = LoadPlan(sla=load.sla, arrivals=load.arrivals, seed=seed)
    session = VirtualSession(model, plan)
    capacity, certificate, headline = certify_target(
        session, plan, CertifyPlan(seconds=60.0, twin=model), edge_rps=1.1 * truth
    )
    assert certificate is not None
    if capacity is None:
        assert certificate.verdict != "PASS"
        return
    assert 0.5 * truth <= capacity <= 1.01 * truth
    assert headline is not None and headline.requests == certificate.requests
    assert headline.offered_rps == capacity


def test_an_overload_is_never_certified(
    session: VirtualSession, load: LoadPlan, policy: BatchingPolicy, service: ServiceTime
) -> None:
    rate = 1.2 * service.saturation_rps(policy, 1)
    capacity, certificate, _ = certify_target(
        session, load, CertifyPlan(seconds=20.0, rate_rps=rate), edge_rps=rate
    )
    assert capacity is None
    assert certificate is not None and certificate.verdict == "FAIL"


def test_an_invalid_run_turns_a_fail_into_undecided(
    session: VirtualSession, load: LoadPlan
) -> None:
    test = session.run(2000.0, 5.0, kind="certify", stream=STREAM_CERTIFY, abort=False)
    assert judge_runs([test], session.logs, load, None).verdict == "FAIL"
    disturbed = replace(test, validity=Validity(valid=False, reasons=("lag",)))
    assert judge_runs([disturbed], session.logs, load, None).verdict == "UNDECIDED"


def test_merged_runs_pool_requests_and_latencies(session: VirtualSession) -> None:
    for seconds in (1.0, 3.0):
        session.run(100.0, seconds, kind="certify", stream=STREAM_CERTIFY, abort=False)
    first, second = session.tests
    merged = merge_tests(session.tests, session.logs, percentile=99.0)
    assert merged.requests == first.requests + second.requests
    assert merged.over_budget == (first.over_budget or 0) + (second.over_budget or 0)
    assert merged.duration_s == pytest.approx(first.duration_s + second.duration_s)
    pooled = np.sort(np.concatenate([log.latency_s for log in session.logs])) * 1e3
    rank = int(np.ceil(0.99 * len(pooled)))
    assert merged.latency_ms.p99 == pytest.approx(pooled[rank - 1])
    assert merge_tests([first], session.logs[:1], percentile=99.0) is first


def test_one_invalid_run_marks_the_whole(session: VirtualSession) -> None:
    for _ in range(2):
        session.run(100.0, 1.0, kind="certify", stream=STREAM_CERTIFY, abort=False)
    tests = [
        session.tests[0],
        replace(session.tests[1], validity=Validity(valid=False, reasons=("lag",)), errors=2),
    ]
    merged = merge_tests(tests, session.logs, percentile=99.0)
    assert not merged.validity.valid and merged.validity.reasons == ("lag",)
    assert merged.errors == tests[0].errors + 2


def test_after_a_pass_the_time_left_climbs_and_a_fail_keeps_what_passed() -> None:
    script = Script(passes_up_to=80.0, needed=500)
    by_rate = CertifyGoal(
        edge_rps=100.0,
        seconds=60.0,
        requests_needed=lambda rate: 500 if rate <= 70.5 else 1500 if rate <= 85.5 else 10**6,
    )
    result = certify_capacity(by_rate, script.run, script.judge)
    assert result.passed and result.rate_rps == pytest.approx(78.0)
    tried = list(dict.fromkeys(round(rate) for rate in script.rates))
    assert tried[:2] == [70, 85], "a safe rate first, then one that may fail"
    assert {block.offered_rps for block in result.blocks} == {result.rate_rps}
    assert result.certificate is not None and result.certificate.verdict == "PASS"


def test_a_rate_that_cannot_pass_in_time_any_more_is_left_at_once() -> None:
    """A burst of late requests at the first rate: evidence for a FAIL is not what is wanted."""
    script = Script(passes_up_to=100.0, needed=400)

    def judge(rate: float, indices: Sequence[int]) -> Certificate:
        found = script.judge(rate, indices)
        if rate < 90.0:
            return found
        return replace(
            found, verdict="UNDECIDED", over_budget=found.requests // 20, requests_missing=10**5
        )

    result = certify_capacity(goal(40.0, needed=400), script.run, judge)
    assert result.passed and result.rate_rps == pytest.approx(88.0)
    assert sum(rate > 90.0 for rate in script.rates) <= 3
