"""Certificates: the ladder of rates, the way down after a FAIL, and never more than the truth."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from analyzer.domain.configuration import baseline_configuration
from analyzer.domain.load_test import (
    Conditions,
    LatencySummary,
    LoadTest,
    LoadTestKind,
    RequestLog,
    Validity,
)
from analyzer.domain.measurement import (
    Certificate,
    Edge,
    Measurement,
    RateEvidence,
)
from analyzer.domain.workload import Poisson
from analyzer.engine.policy import BatchingPolicy
from analyzer.errors import TargetError
from analyzer.measure.certify import (
    certify_capacity,
)
from analyzer.measure.certify_goal import (
    CertifyGoal,
    Judge,
)
from analyzer.measure.hopeless import answered_rps, may_abort
from analyzer.measure.judge import judge_runs, merge_tests
from analyzer.measure.measure import measure_configuration
from analyzer.measure.plan import (
    STREAM_CERTIFY,
    CertifyPlan,
    EdgePlan,
    LoadPlan,
    certifying_runs,
)
from analyzer.measure.prove import certify_target
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
        self.claims: dict[float, int] = {}

    def run(self, rate: float, lead_s: float, seconds: float) -> LoadTest:
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

    @property
    def seconds(self) -> float:
        return sum(test.duration_s for test in self.tests)

    def judge(
        self, rate: float, indices: Sequence[int], claim: int, before: object = None
    ) -> Certificate:
        self.claims[rate] = claim
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


def goal(seconds: float, needed: float | None = 1000, **more: Any) -> CertifyGoal:
    return CertifyGoal(
        edge_rps=100.0, seconds=seconds, requests_needed=lambda rate, claim, known: needed, **more
    )


def needing(
    seconds_by_rate: Mapping[float, float],
) -> Callable[[float, int, RateEvidence | None], float]:
    """The requests of a rate that is expected to take the seconds of the nearest one."""

    def needed(rate: float, claim: int, known: RateEvidence | None) -> float:
        nearest = min(seconds_by_rate, key=lambda other: abs(other - rate))
        return rate * seconds_by_rate[nearest] / 1.3

    return needed


def test_with_much_time_the_highest_rate_of_the_ladder_is_certified() -> None:
    script = Script(passes_up_to=100.0, needed=1000)
    result = certify_capacity(goal(100.0), script.run, script.judge)
    assert result.passed and result.rate_rps == pytest.approx(97.0)
    assert result.certificate is not None and result.certificate.verdict == "PASS"


def test_a_fail_goes_clearly_down_and_a_pass_up_again_but_never_above_the_fail() -> None:
    """Each rate that fails is a claim: by 15 % at a time, and between the two at the end."""
    script = Script(passes_up_to=80.0, needed=200)
    result = certify_capacity(goal(300.0, needed=200), script.run, script.judge)
    assert result.passed and result.rate_rps == pytest.approx(78.0)
    tried = list(dict.fromkeys(round(rate) for rate in script.rates))
    assert tried[:3] == [97, 82, 66]
    assert all(66 < rate < 82 for rate in tried[3:]) and 78 in tried
    assert [block.offered_rps for block in result.blocks] == [result.rate_rps] * len(result.blocks)


@pytest.mark.parametrize(
    ("needed_s", "later_s", "spent"),
    [(22, 0, True), (28, 0, False), (28, 12, False), (31, 12, True), (40, 12, False)],
)
def test_what_is_kept_is_spent_where_a_first_proof_ends_with_it(
    needed_s: float, later_s: float, spent: bool
) -> None:
    """In it, or in a completion after it; not where that suffices, nor where nothing does."""
    needed = round(50.0 * needed_s)
    script = Script(passes_up_to=60.0, needed=needed)
    walk = goal(
        20.0,
        needed=needed,
        fixed_rps=50.0,
        left_s=lambda: 24.0 - script.seconds,
        kept_s=4.0,
        later_s=later_s,
    )
    assert certify_capacity(walk, script.run, script.judge).passed is (needed_s <= 24.0)
    assert 21.0 < script.seconds <= 24.0 if spent else script.seconds <= 20.5


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
        edge_rps=100.0,
        seconds=20.0,
        requests_needed=lambda rate, claim, known: 500 if rate <= 70.5 else 5000,
    )
    result = certify_capacity(by_rate, script.run, script.judge)
    assert result.passed and result.rate_rps == pytest.approx(70.0)


def test_a_rate_is_left_for_one_that_is_proven_much_sooner() -> None:
    """Not for the next one of the ladder, which takes about as long again."""
    script = Script(passes_up_to=100.0, needed=5000)
    by_rate = CertifyGoal(
        edge_rps=100.0,
        seconds=100.0,
        requests_needed=lambda rate, claim, known: 1800 if 60.0 < rate < 95.0 else 500,
    )
    certify_capacity(by_rate, script.run, script.judge)
    first, second, *_ = dict.fromkeys(script.rates)
    assert first == pytest.approx(97.0) and second == pytest.approx(58.0)


@pytest.mark.parametrize(("left_s", "leaves"), [(80.0, False), (40.0, True)])
def test_a_rate_that_is_not_proven_in_time_is_left_for_any_that_is(
    left_s: float, leaves: bool
) -> None:
    """Else only for one that takes less than half of what is missing."""
    script = Script(passes_up_to=100.0, needed=4000)
    by_rate = CertifyGoal(
        edge_rps=100.0,
        seconds=22.0,
        left_s=lambda: left_s - script.seconds,
        requests_needed=lambda rate, claim, known: 1600 if rate > 71.0 else 1200,
    )
    certify_capacity(by_rate, script.run, script.judge)
    assert script.rates[0] == pytest.approx(97.0)
    assert (len(set(script.rates)) > 1) is leaves


@pytest.mark.parametrize(("left_s", "climbs"), [(40.0, True), (90.0, False)])
def test_a_first_proof_climbs_on_where_a_later_climb_would_have_no_more_time(
    left_s: float, climbs: bool
) -> None:
    script = Script(passes_up_to=100.0, needed=500)
    walk = goal(
        12.0,
        needed=500,
        safe_share=0.5,
        climb_gain=1.3,
        climbs_within_s=35.0,
        climb_kept_s=8.0,
        left_s=lambda: left_s - script.seconds,
    )
    result = certify_capacity(walk, script.run, script.judge)
    assert result.passed and script.rates[0] == 50.0
    assert (result.rate_rps or 0.0) > 50.0 if climbs else result.rate_rps == 50.0
    assert script.seconds <= left_s - 8.0, "what is kept is left"


def test_a_rate_that_lacks_little_at_the_end_of_its_time_is_not_begun_anew_lower() -> None:
    script = Script(passes_up_to=100.0, needed=500)
    short = goal(8.0, needed=100, safe_share=0.5, left_s=lambda: 60.0)
    result = certify_capacity(short, script.run, script.judge)
    assert set(script.rates[: len(result.blocks)]) == {50.0}
    assert result.passed and (result.rate_rps or 0.0) >= 50.0


def test_a_fixed_rate_is_the_only_one_tried() -> None:
    script = Script(passes_up_to=50.0, needed=200)
    result = certify_capacity(goal(100.0, fixed_rps=60.0), script.run, script.judge)
    assert not result.passed and set(script.rates) == {60.0}


def test_no_proof_is_shorter_than_a_slow_moment_of_the_machine(
    policy: BatchingPolicy, load: LoadPlan
) -> None:
    """A model of a fraction of a millisecond was certified in a second, far too high."""
    service = ServiceTime(batch_sizes=(1, 8), service_ms=(0.1, 0.2))
    model = ServerModel(policy=policy, service=service)
    rate = 0.5 * model.saturation_rps()
    edge = Edge(rate_rps=2 * rate, interval_rps=(None, None))
    plan = CertifyPlan(seconds=20.0, rate_rps=rate, twin=model)
    for least_s in (0.0, 4.0):
        long = replace(load, least_s=least_s)
        proof = certify_target(VirtualSession(model, long), long, plan, edge=edge)
        assert proof.rate_rps == rate
        (known,) = proof.evidence
        assert max(least_s, 0.3) <= known.seconds < 1.5 * max(least_s, 0.6)
    known = replace(known, requests=round(2.0 * rate))  # what is known already counts
    session = VirtualSession(model, long)
    again = certify_target(session, long, replace(plan, earlier=(known,)), edge=edge)
    assert again.rate_rps == rate and 1.9 <= session.seconds < 3.0
    # A study that goes on with more time keeps what was certified of runs as long as its own.
    longer = replace(load, least_s=8.0)
    climb = replace(
        plan, seconds=3.0, rate_rps=None, earlier=(known,), above_rps=rate, certified_rps=rate
    )
    kept = certify_target(VirtualSession(model, longer), longer, climb, edge=edge)
    assert kept.rate_rps == rate and kept.certificate is not None
    left = certify_target(
        VirtualSession(model, longer), longer, replace(climb, certified_rps=0.0), edge=edge
    )
    assert left.rate_rps is None and left.certificate is not None
    missing = left.certificate.requests_missing or 0
    assert missing > 2.0 * rate, "what a completion needs is told"


@pytest.mark.parametrize("seed", range(4))
def test_on_a_simulated_server_no_more_than_the_true_edge_is_certified(
    policy: BatchingPolicy, service: ServiceTime, load: LoadPlan, seed: int
) -> None:
    model = ServerModel(policy=policy, service=service)
    truth = model.edge(UnitArrivals.draw(Poisson(), count=400_000), budget_ms=40.0)
    assert truth is not None
    plan = LoadPlan(sla=load.sla, arrivals=load.arrivals, seed=seed)
    session = VirtualSession(model, plan)
    edge = Edge(rate_rps=1.1 * truth, interval_rps=(None, None))
    proof = certify_target(session, plan, CertifyPlan(seconds=60.0, twin=model), edge=edge)
    capacity, certificate, headline = proof.rate_rps, proof.certificate, proof.headline
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
    edge = Edge(rate_rps=rate, interval_rps=(None, None))
    proof = certify_target(session, load, CertifyPlan(seconds=20.0, rate_rps=rate), edge=edge)
    assert proof.rate_rps is None
    assert proof.certificate is not None and proof.certificate.verdict == "FAIL"


def test_an_invalid_run_turns_a_fail_into_undecided(
    session: VirtualSession, load: LoadPlan
) -> None:
    test = session.run(2000.0, 5.0, kind="certify", stream=STREAM_CERTIFY, abort=False)
    assert judge_runs([test], session.logs, load, None).verdict == "FAIL"
    disturbed = replace(test, validity=Validity(valid=False, reasons=("lag",)))
    assert judge_runs([disturbed], session.logs, load, None).verdict == "UNDECIDED"


class Lagging(VirtualSession):
    """The generator is late in every run."""

    def _keep(self, test: LoadTest, log: RequestLog, seconds: float) -> LoadTest:
        late = Validity(valid=False, reasons=("late",), kinds=("lag",))
        return super()._keep(replace(test, validity=late), log, seconds)


def test_a_run_that_lag_made_invalid_fails_no_rate_in_the_next_walk_either(
    policy: BatchingPolicy, service: ServiceTime, load: LoadPlan
) -> None:
    """Its late requests stayed in the evidence, and that they may be the lag's was forgotten."""
    model = ServerModel(policy=policy, service=service)
    edge = Edge(rate_rps=2000.0, interval_rps=(None, None))
    plan = CertifyPlan(seconds=5.0, rate_rps=2000.0)
    first = certify_target(Lagging(model, load), load, plan, edge=edge)
    assert first.certificate is not None and first.certificate.verdict == "UNDECIDED"
    (known,) = first.evidence
    assert known.lagged == (known.requests, known.over_budget)
    assert known.over_budget > 0.01 * known.requests
    for seconds, verdict in ((0.1, "UNDECIDED"), (5.0, "FAIL")):
        again = replace(plan, seconds=seconds, earlier=first.evidence, open_claims=1)
        proof = certify_target(VirtualSession(model, load, first=9), load, again, edge=edge)
        assert proof.certificate is not None and proof.certificate.verdict == verdict


@pytest.mark.parametrize(("rate_rps", "verdict"), [(200.0, "PASS"), (2000.0, "FAIL")])
def test_a_certificate_taken_while_the_gpu_throttled_is_void_and_says_so(
    session: VirtualSession, load: LoadPlan, rate_rps: float, verdict: str
) -> None:
    test = session.run(rate_rps, 60.0, kind="certify", stream=STREAM_CERTIFY, abort=False)
    assert judge_runs([test], session.logs, load, 1.0).verdict == verdict
    reason = "the GPU throttled in 34% of the run (hw_slowdown)"
    hot = replace(test, validity=Validity(valid=False, reasons=(reason,), kinds=("throttled",)))
    assert judge_runs([hot], session.logs, load, 1.0).verdict == "UNDECIDED"
    assert judge_runs([hot], session.logs, load, 1.0).void_reasons == (reason,)
    assert judge_runs([test], session.logs, load, 1.0).void_reasons == ()
    merged = merge_tests([hot], session.logs, percentile=99.0)
    assert merged.validity.reasons == (reason,)


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


def test_a_climb_that_gains_little_is_left_to_a_later_walk() -> None:
    def needed(rate: float, claim: int, known: object) -> float | None:
        return 500 if rate <= 52.0 else 900 if rate <= 60.0 else None

    def walk(gain: float) -> Script:
        script = Script(passes_up_to=100.0, needed=500)
        few = CertifyGoal(
            edge_rps=100.0, seconds=40.0, requests_needed=needed, safe_share=0.5, climb_gain=gain
        )
        assert certify_capacity(few, script.run, script.judge).passed
        return script

    assert max(walk(1.0).rates) == pytest.approx(58.0)
    assert max(walk(1.3).rates) == pytest.approx(50.0)


def test_after_a_pass_the_time_left_climbs_and_a_fail_keeps_what_passed() -> None:
    script = Script(passes_up_to=80.0, needed=500)
    by_rate = CertifyGoal(
        edge_rps=100.0,
        seconds=60.0,
        requests_needed=lambda rate, claim, known: (
            500 if rate <= 70.5 else 2500 if rate <= 85.5 else 10**6
        ),
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

    def judge(rate: float, indices: Sequence[int], claim: int, _: object) -> Certificate:
        found = script.judge(rate, indices, claim)
        if rate < 90.0:
            return found
        return replace(
            found, verdict="UNDECIDED", over_budget=found.requests // 20, requests_missing=10**5
        )

    result = certify_capacity(goal(40.0, needed=400), script.run, judge)
    assert result.passed and result.rate_rps == pytest.approx(88.0)
    assert sum(rate > 90.0 for rate in script.rates) <= 4


def test_a_first_proof_is_safe_and_a_climb_follows() -> None:
    script = Script(passes_up_to=85.5, needed=300)
    result = certify_capacity(goal(60.0, needed=300, safe_share=0.5), script.run, script.judge)
    assert script.rates[0] == pytest.approx(50.0)
    assert result.passed and result.rate_rps == pytest.approx(85.0)


def test_a_first_rate_is_left_once_others_take_cores_but_not_where_little_is_missing() -> None:
    def tried(needed: int, free: float) -> list[float]:
        script = Script(passes_up_to=100.0, needed=needed)
        plan = goal(
            60.0, needed=500, safe_share=0.5, climb_gain=9.0,
            free_share=lambda: free if script.tests else 1.0,
        )  # fmt: skip
        certify_capacity(plan, script.run, script.judge)
        return list(dict.fromkeys(script.rates))

    first, second, *_ = tried(2000, 0.5)
    assert first == pytest.approx(50.0) and second == pytest.approx(25.0)
    assert tried(2000, 0.9) == [pytest.approx(50.0)]
    assert tried(500, 0.5) == [pytest.approx(50.0)]


def test_a_first_proof_goes_to_the_highest_rate_that_takes_hardly_longer() -> None:
    """A slow model's lower rates need fewer requests, and as many seconds for them."""

    def first(
        seconds_by_rate: dict[float, float], left_s: float = 60.0, open_claims: int = 0
    ) -> float:
        script = Script(passes_up_to=100.0, needed=10**6)

        plan = replace(
            goal(50.0, safe_share=0.5, open_claims=open_claims),
            requests_needed=needing(seconds_by_rate),
            left_s=lambda: left_s - script.seconds,
        )
        certify_capacity(plan, script.run, script.judge)
        return script.rates[0]

    assert first({50.0: 35.0, 30.0: 30.0}) == pytest.approx(50.0)
    assert first({50.0: 40.0, 30.0: 30.0}) < 42.0
    # Where there is time for both, an answer comes first.
    assert first({50.0: 35.0, 30.0: 30.0}, left_s=140.0) < 42.0
    # A claim that is open already says that the edge, or the machine, is not what it seemed.
    assert first({50.0: 35.0, 30.0: 30.0}, open_claims=1) < 42.0
    # Where it takes more than nine tenths of the time, it is not expected to end.
    assert first({50.0: 46.0, 30.0: 40.0}) < 42.0
    assert first({50.0: 44.0, 30.0: 40.0}) == pytest.approx(50.0)


def test_where_no_rate_fits_one_that_a_completion_ends_goes_before_the_one_that_needs_least() -> (
    None
):
    seconds_by_rate = {50.0: 90.0, 42.0: 65.0, 20.0: 60.0}

    def first(later_s: float) -> float:
        script = Script(passes_up_to=100.0, needed=10**6)

        plan = replace(
            goal(50.0, safe_share=0.5, later_s=later_s),
            requests_needed=needing(seconds_by_rate),
            left_s=lambda: 60.0 - script.seconds,
        )
        certify_capacity(plan, script.run, script.judge)
        return script.rates[0]

    assert first(later_s=0.0) < 30.0
    assert 38.0 < first(later_s=30.0) < 47.0
    # Both together are hardly more than what it is expected to take.
    assert first(later_s=10.0) < 30.0


def test_a_first_rate_that_was_left_for_want_of_time_is_followed_by_one_a_little_lower() -> None:
    """None of its requests was late; after one that failed the next is at most 0.7 of it."""

    def second(passes_up_to: float, needed: int) -> float:
        script = Script(passes_up_to=passes_up_to, needed=needed)

        def judge(
            rate: float, indices: Sequence[int], claim: int, before: object = None
        ) -> Certificate:
            script.needed = needed if rate > 48.0 else 150
            return script.judge(rate, indices, claim, before)

        plan = replace(
            goal(10.0, safe_share=0.5, climb_gain=math.inf),
            requests_needed=needing({50.0: 6.0, 42.0: 5.0, 20.0: 5.0}),
            left_s=lambda: 12.0 - script.seconds,
        )
        certify_capacity(plan, script.run, judge)
        return list(dict.fromkeys(script.rates))[1]

    assert 0.7 * 50.0 < second(passes_up_to=100.0, needed=500) <= 0.85 * 50.0
    assert second(passes_up_to=45.0, needed=100) <= 0.7 * 50.0


def test_a_first_rate_that_failed_gets_time_for_a_lower_one() -> None:
    def passed(in_all_s: float) -> bool:
        script = Script(passes_up_to=35.0, needed=150)

        def left_s() -> float:
            return in_all_s - sum(test.duration_s for test in script.tests)

        few_s = goal(5.0, needed=150, safe_share=0.5, left_s=left_s)
        return certify_capacity(few_s, script.run, script.judge).passed

    assert passed(30.0) and not passed(5.0)


def test_each_rate_is_a_claim_of_its_own_and_keeps_its_number() -> None:
    script = Script(passes_up_to=80.0, needed=500)
    known = RateEvidence(
        rate_rps=70.0, requests=100, over_budget=0, inflation=1.0, claim=2, blocks=1
    )
    result = certify_capacity(
        goal(100.0, needed=500, earlier=(known,), open_claims=4), script.run, script.judge
    )
    assert script.claims.pop(70.0) == 2
    # What passed gave its number back.
    numbers = list(script.claims.values())
    assert sorted(set(numbers)) == list(range(5, 5 + len(set(numbers))))
    assert all(numbers.count(number) <= 2 for number in numbers)
    assert {found.claim for found in result.evidence.values()} == {2, *script.claims.values()}


def test_a_claim_that_passed_gives_its_part_of_the_error_back() -> None:
    script = Script(passes_up_to=80.0, needed=500)
    by_rate = CertifyGoal(
        edge_rps=100.0,
        seconds=60.0,
        requests_needed=lambda rate, claim, known: (
            500 if rate <= 70.5 else 2500 if rate <= 85.5 else 10**6
        ),
    )
    certify_capacity(by_rate, script.run, script.judge)
    numbers = {round(rate): claim for rate, claim in script.claims.items()}
    assert numbers == {70: 1, 85: 1, 78: 2, 82: 2}, "70 and 78 passed, the others did not"


def test_nothing_is_tried_that_would_prove_less_than_what_is_proven() -> None:
    script = Script(passes_up_to=80.0, needed=500)
    result = certify_capacity(goal(100.0, needed=500, above_rps=72.0), script.run, script.judge)
    assert result.passed and min(script.rates) > 72.0


def test_no_rate_above_the_one_that_is_enough() -> None:
    script = Script(passes_up_to=80.0, needed=500)
    result = certify_capacity(goal(100.0, needed=500, enough_rps=12.5), script.run, script.judge)
    assert result.passed and result.rate_rps == 12.5 and set(script.rates) == {12.5}
    # Where the edge is below it, the ladder is what it was.
    script = Script(passes_up_to=80.0, needed=500)
    certify_capacity(goal(100.0, needed=500, enough_rps=500.0), script.run, script.judge)
    assert max(script.rates) > 60.0


@pytest.mark.parametrize("missing", [60, 150, 400])
def test_a_certificate_that_misses_little_is_completed(missing: int) -> None:
    """What was run needs less than its neighbours, lower ones too: bisecting stepped over it."""
    known = RateEvidence(
        rate_rps=50.0, requests=1000, over_budget=0, inflation=2.8, claim=1, blocks=9
    )

    def needed(rate: float, claim: int, known: object) -> float:
        return float(missing) if rate == 50.0 else 1100.0 * max(1.0, (rate / 30.0) ** 2.5)

    script = Script(passes_up_to=60.0, needed=missing)
    by_rate = CertifyGoal(
        edge_rps=100.0, seconds=12.0, requests_needed=needed, shares=(0.9,),
        earlier=(known,), open_claims=1,
    )  # fmt: skip
    result = certify_capacity(by_rate, script.run, script.judge)
    assert script.rates[0] == 50.0 and result.passed


def test_what_an_earlier_walk_proved_stands_without_a_run(
    session: VirtualSession, load: LoadPlan
) -> None:
    known = RateEvidence(
        rate_rps=500.0, requests=5000, over_budget=0, inflation=5.0, claim=1, blocks=2
    )
    plan = CertifyPlan(seconds=0.1, earlier=(known,), open_claims=1)
    edge = Edge(rate_rps=600.0, interval_rps=(None, None))
    proof = certify_target(session, load, plan, edge=edge)
    assert proof.rate_rps == 500.0 and proof.evidence == (known,) and not session.tests
    assert proof.certificate is not None and proof.certificate.requests == 5000


@pytest.mark.parametrize("passes_up_to", [0.0, 300.0])
def test_what_an_earlier_walk_proved_is_claimed_again_once_runs_tell_more(
    passes_up_to: float,
) -> None:
    """The canary alone held it back; the walk's own runs show how slow the slow state is."""
    script = Script(passes_up_to=passes_up_to, needed=10**6 if not passes_up_to else 100)
    known = RateEvidence(
        rate_rps=600.0, requests=5000, over_budget=0, inflation=5.0, claim=1, blocks=2
    )

    def judge(rate: float, indices: Sequence[int], claim: int, _: object) -> Certificate:
        certificate = script.judge(rate, indices, claim)
        if rate != known.rate_rps:
            return certificate
        return replace(certificate, verdict="PASS" if script.tests else "UNDECIDED")

    again = goal(5.0, needed=500, earlier=(known,), open_claims=1, ceiling_rps=lambda: 500.0)
    found = certify_capacity(again, script.run, judge)
    assert script.rates and max(script.rates) <= 500.0
    assert found.passed and found.rate_rps == 600.0 and not found.blocks


def test_a_walk_goes_down_once_the_machine_does_not_carry_what_is_proven() -> None:
    """A climb meets a slow state: the server is there, so that a lower rate is proven at once."""
    script = Script(passes_up_to=50.0, needed=100)
    known = RateEvidence(
        rate_rps=70.0, requests=5000, over_budget=0, inflation=1.0, claim=1, blocks=2
    )

    def judge(rate: float, indices: Sequence[int], claim: int, _: object) -> Certificate:
        if rate == known.rate_rps:
            return replace(script.judge(rate, indices, claim), verdict="PASS")
        return script.judge(rate, indices, claim)

    climb = goal(
        60.0,
        needed=100,
        earlier=(known,),
        open_claims=1,
        above_rps=70.0,
        proves=lambda of: of.rate_rps == 70.0 or (of.rate_rps <= 50.0 and of.requests >= 100),
        ceiling_rps=lambda: 55.0 if script.tests else 100.0,
        left_s=lambda: 60.0 - script.seconds,
    )
    found = certify_capacity(climb, script.run, judge)
    assert script.rates[0] > 70.0 and found.passed
    assert found.rate_rps is not None and 40.0 < found.rate_rps <= 50.0


def climbing(script: Script, **more: Any) -> CertifyGoal:
    """One above 50/s that the slow state carries up to 55/s."""
    goal_ = goal(60.0, needed=100, above_rps=50.0, ceiling_rps=lambda: 55.0, **more)
    return replace(goal_, left_s=lambda: 60.0 - script.seconds)


def test_a_rate_above_the_slow_state_s_is_tried_where_time_is_of_no_other_use() -> None:
    """Ten minutes ended at 0.78 of the edge: what slow states surely carry, with 200 s left."""
    usual = Script(passes_up_to=80.0, needed=100)
    found = certify_capacity(climbing(usual), usual.run, usual.judge)
    assert found.rate_rps is not None and max(usual.rates) <= 55.0

    beyond = Script(passes_up_to=80.0, needed=100)
    found = certify_capacity(
        climbing(beyond, may_exceed=lambda rate: True, upheld=lambda known: True),
        beyond.run,
        beyond.judge,
    )
    assert beyond.rates[0] <= 55.0, "what it surely carries comes first"
    assert found.passed and found.rate_rps is not None and 70.0 < found.rate_rps <= 80.0

    forbidden = Script(passes_up_to=80.0, needed=100)
    certify_capacity(
        climbing(forbidden, may_exceed=lambda rate: False), forbidden.run, forbidden.judge
    )
    assert max(forbidden.rates) <= 55.0, "its runs would not meet that state"


def test_where_the_twin_expects_no_rate_to_be_carried_a_walk_goes_up_by_steps() -> None:
    """25,000 requests were kept in a tenth of the time, and every higher rate needed infinitely
    many by a twin that was wrong."""
    usual = Script(passes_up_to=80.0, needed=100)
    vetoed = goal(60.0, needed=None, above_rps=50.0)
    certify_capacity(vetoed, usual.run, usual.judge)
    assert not usual.rates

    beyond = Script(passes_up_to=80.0, needed=100)
    found = certify_capacity(
        replace(vetoed, may_exceed=lambda rate: True), beyond.run, beyond.judge
    )
    assert 55.0 <= beyond.rates[0] < 62.0
    assert found.passed and found.rate_rps is not None and 70.0 < found.rate_rps <= 80.0


def test_a_walk_ends_where_its_time_is_for_another_proof() -> None:
    script = Script(passes_up_to=100.0, needed=10**6)
    ended = goal(60.0, needed=10**6, goes_on=lambda: not script.tests)
    found = certify_capacity(ended, script.run, script.judge)
    assert len(script.rates) == 1 and not found.passed


def test_a_run_whose_latencies_only_grow_proves_nothing(
    load: LoadPlan, service: ServiceTime
) -> None:
    """1.3 times what a server carries, in runs of three budgets: not a request is late."""
    load = replace(load, sla=replace(load.sla, latency_budget_ms=2000.0))
    model = ServerModel(policy=BatchingPolicy(), service=replace(service, service_ms=(2.0, 16.0)))
    rate = 1.3 * model.saturation_rps()
    session = VirtualSession(model, load)
    plan = CertifyPlan(seconds=6.0, rate_rps=rate)
    proof = certify_target(session, load, plan, edge=Edge(interval_rps=(None, None)))
    (test,) = session.tests
    assert test.growing and not test.over_budget
    assert proof.rate_rps is None and proof.certificate is not None
    assert proof.certificate.verdict == "UNDECIDED"
    assert "grew" in proof.certificate.void_reasons[0]
    assert not any(known.claim for known in proof.evidence)


@pytest.mark.parametrize("proven", [False, True])
def test_a_claim_that_was_given_up_keeps_its_part_of_the_error(proven: bool) -> None:
    """The next walk's had the same number; one that passed before had given its part back."""
    script = Script(passes_up_to=100.0, needed=10**6)

    def run(rate: float, lead_s: float, seconds: float) -> LoadTest:
        script.run(rate, lead_s, seconds)
        script.tests[-1] = replace(script.tests[-1], growing=len(script.tests) > 1)
        return script.tests[-1]

    walk = goal(30.0, needed=10**6, fixed_rps=50.0, proves=lambda known: proven)
    (known,) = certify_capacity(walk, run, script.judge).evidence.values()
    assert len(script.tests) == 2 and known.requests and known.claim == 0
    assert known.given_up == (0 if proven else 1)
    script.tests.clear()
    again = replace(walk, seconds=5.0, earlier=(known,), open_claims=known.given_up)
    (then,) = certify_capacity(again, script.run, script.judge).evidence.values()
    assert then.claim == 1 + known.given_up and then.given_up == known.given_up


@pytest.mark.parametrize("again", [False, True])
def test_a_server_that_fails_in_a_climb_takes_no_proof_with_it(again: bool) -> None:
    """Of this walk; what an earlier one proved is stored, and the fault is told."""
    script = Script(passes_up_to=100.0, needed=500)
    known = RateEvidence(
        rate_rps=50.0, requests=500, over_budget=0, inflation=1.0, claim=1, blocks=1
    )

    def run(rate: float, lead_s: float, seconds: float) -> LoadTest:
        if rate > 60.0:
            raise TargetError("The server failed.")
        return script.run(rate, lead_s, seconds)

    def judge(rate: float, indices: Sequence[int], claim: int, _: object) -> Certificate:
        found = script.judge(rate, indices, claim)
        return found if indices else replace(found, verdict="PASS")

    walk = goal(100.0, needed=500, safe_share=0.5, earlier=(known,) if again else ())
    if again:
        with pytest.raises(TargetError, match="failed"):
            certify_capacity(walk, run, judge)
    else:
        found = certify_capacity(walk, run, judge)
        assert found.passed and found.rate_rps == 50.0 and found.blocks == script.tests
        assert found.trouble.endswith("The server failed.")


def test_nothing_is_claimed_again_above_a_rate_that_failed() -> None:
    script = Script(passes_up_to=0.0, needed=10)
    known = RateEvidence(
        rate_rps=600.0, requests=5000, over_budget=0, inflation=5.0, claim=1, blocks=2
    )

    def judge(rate: float, indices: Sequence[int], claim: int, _: object) -> Certificate:
        certificate = script.judge(rate, indices, claim)
        told = "PASS" if script.tests else "UNDECIDED"
        return replace(certificate, verdict="FAIL" if rate != known.rate_rps else told)

    again = goal(5.0, needed=500, earlier=(known,), open_claims=1, ceiling_rps=lambda: 500.0)
    found = certify_capacity(again, script.run, judge)
    assert script.rates and not found.passed


@pytest.mark.parametrize("carried", [True, False])
def test_a_rate_whose_runs_met_the_slow_state_is_not_left_for_it(carried: bool) -> None:
    """What the machine's slow seconds came to at the rate counts, not what they let expect."""
    script = Script(passes_up_to=100.0, needed=1000)

    def ceiling_rps() -> float:
        return 30.0 if script.tests else 100.0

    slowed = goal(
        30.0, ceiling_rps=ceiling_rps, upheld=lambda known: carried and known.rate_rps <= 60.0
    )
    result = certify_capacity(replace(slowed, safe_share=0.6), script.run, script.judge)
    first = script.rates[0]
    assert 30.0 < first <= 60.0
    if carried:
        assert result.passed and result.rate_rps == first
    else:
        assert set(script.rates[1:]) and max(script.rates[1:]) <= 30.0


def lacking(script: Script, rate_rps: float) -> Judge:
    """A judge that counts requests at higher rates as well, and needs many more above a rate."""

    def judge(
        rate: float, indices: Sequence[int], claim: int, before: RateEvidence | None
    ) -> Certificate:
        found = script.judge(rate, indices, claim)
        higher = before.higher if before is not None else ()
        counted = found.requests + sum(of.requests for of in higher)
        missing = 2500 if rate > rate_rps else max(script.needed - counted, 0)
        return replace(
            found,
            requests=counted,
            verdict="UNDECIDED" if missing else "PASS",
            inflation=2.0,
            requests_missing=missing or None,
            higher=higher,
        )

    return judge


@pytest.mark.parametrize("counts", [True, False])
def test_a_lower_rate_goes_on_with_a_claim_that_the_time_does_not_suffice_for(counts: bool) -> None:
    """What was run at the higher rate counts, under the same number; that rate is no claim then."""
    script = Script(passes_up_to=100.0, needed=1500)

    def needed(rate: float, claim: int, known: RateEvidence | None) -> float:
        higher = known.higher if known is not None else ()
        if rate > 80.0:
            return 10.0**6 if higher else 1700.0
        return 1500.0 - sum(of.requests for of in higher)

    climbing = CertifyGoal(
        edge_rps=100.0, seconds=28.0, requests_needed=needed, above_rps=60.0, shares=(0.9,),
        counts_below=lambda known, rate: counts, left_s=lambda: 28.0 - script.seconds,
    )  # fmt: skip
    result = certify_capacity(climbing, script.run, lacking(script, 80.0))
    first = script.rates[0]
    assert first > 80.0 and result.evidence[first].requests > 700
    if not counts:
        assert not result.passed and {known.claim for known in result.evidence.values()} == {1}
        return
    assert result.passed and result.rate_rps is not None and 60.0 < result.rate_rps <= 80.0
    proven = result.evidence[result.rate_rps]
    assert proven.claim == 1 and proven.requests < 1000 and not result.evidence[first].claim
    assert next(of.rate_rps for of in proven.higher) == first
    assert result.certificate is not None
    assert result.certificate.own_requests == proven.requests


def test_a_claim_that_began_at_a_higher_rate_gives_nothing_of_the_error_back() -> None:
    """The higher rate may have been too high, and could have passed wrongly before it was left."""
    script = Script(passes_up_to=100.0, needed=300)
    left = RateEvidence(
        rate_rps=95.0, requests=290, over_budget=0, inflation=1.0, claim=1, blocks=1
    )

    def needed(rate: float, claim: int, known: RateEvidence | None) -> float:
        return 10**6 if rate > 91.5 else 10.0 if known is not None else 500.0

    climbing = CertifyGoal(
        edge_rps=100.0, seconds=30.0, requests_needed=needed, earlier=(left,), open_claims=1,
        counts_below=lambda known, rate: True, left_s=lambda: 30.0 - script.seconds, safe_share=0.6,
    )  # fmt: skip
    result = certify_capacity(climbing, script.run, lacking(script, 90.0))
    assert result.passed and script.claims[script.rates[0]] == 1
    later = [claim for rate, claim in script.claims.items() if rate not in (95.0, script.rates[0])]
    assert later and min(later) == 2, "the first one is still open"


def test_a_rate_that_handed_its_claim_down_begins_anew() -> None:
    """Its requests and its number are the lower rate's: counted in both they would count twice."""
    script = Script(passes_up_to=100.0, needed=500)
    left = RateEvidence(
        rate_rps=90.0, requests=400, over_budget=0, inflation=1.0, claim=1, blocks=7
    )

    def needed(rate: float, claim: int, known: RateEvidence | None) -> float:
        """The rest of the higher rate takes too long, until the lower one was run."""
        if not script.tests and rate > 85.5:
            return 10.0**5
        return 100.0 if known is not None else 300.0

    def left_s() -> float:
        return 40.0 - script.seconds

    climbing = CertifyGoal(
        edge_rps=92.0, seconds=40.0, requests_needed=needed, earlier=(left,), open_claims=1,
        counts_below=lambda known, rate: not script.tests, left_s=left_s,
    )  # fmt: skip
    result = certify_capacity(climbing, script.run, lacking(script, 100.0))
    lower = next(known for known in result.evidence.values() if known.higher)
    assert lower.rate_rps < 90.0 and lower.claim == 1 and lower.higher[0].requests == 400
    again = result.evidence[90.0]
    assert script.rates.count(90.0) and again.claim == 2 and not again.higher
    assert again.requests == sum(t.requests for t in script.tests if t.offered_rps == 90.0)
    assert again.blocks == 7 + script.rates.count(90.0)


def test_a_claim_that_was_proven_and_held_back_gives_its_number_back_once() -> None:
    script = Script(passes_up_to=100.0, needed=300)
    held = RateEvidence(
        rate_rps=70.0, requests=5000, over_budget=0, inflation=1.0, claim=1, blocks=2
    )

    def judge(
        rate: float, indices: Sequence[int], claim: int, known: RateEvidence | None
    ) -> Certificate:
        found = script.judge(rate, indices, claim)
        return found if indices else replace(found, verdict="UNDECIDED")

    climbing = goal(
        60.0, needed=300, earlier=(held,), proves=lambda known: known is held, safe_share=0.7
    )
    result = certify_capacity(climbing, script.run, judge)
    assert result.passed and 70.0 in script.rates and max(script.rates) > 70.0
    assert min(script.claims.values()) == 1


def test_runs_at_a_higher_rate_count_where_no_larger_share_is_late_below(
    service: ServiceTime, load: LoadPlan
) -> None:
    """The twin tells: in a band, requests wait for a batch longer than the budget allows."""
    known = RateEvidence(
        rate_rps=560.0, requests=3000, over_budget=0, inflation=30.0, claim=1, blocks=2
    )
    edge = Edge(rate_rps=600.0, interval_rps=(None, None))

    def rates(delay_us: int) -> tuple[RateEvidence, ...]:
        policy = BatchingPolicy(
            max_batch_size=8,
            dynamic_batching=True,
            preferred_batch_size=(8,),
            max_queue_delay_us=delay_us,
        )
        model = ServerModel(policy=policy, service=service)
        own = VirtualSession(model, load, seconds_max=2.0)
        plan = CertifyPlan(seconds=2.0, earlier=(known,), open_claims=1, twin=model, shares=(0.9,))
        return certify_target(own, load, plan, edge=edge).evidence

    assert any(found.higher for found in rates(0))
    assert not any(found.higher for found in rates(10**6))


def test_earlier_runs_count_together_with_new_ones(session: VirtualSession, load: LoadPlan) -> None:
    test = session.run(200.0, 5.0, kind="certify", stream=STREAM_CERTIFY, abort=False)
    late = RateEvidence(
        rate_rps=200.0, requests=1000, over_budget=400, inflation=3.0, claim=1, blocks=1
    )
    found = judge_runs([test], session.logs, load, 1.0, earlier=late, claim=1)
    assert found.verdict == "FAIL" and found.confidence == load.sla.confidence
    assert found.requests == test.requests + 1000
    assert found.over_budget == (test.over_budget or 0) + 400


def test_a_later_fail_at_the_same_rate_takes_a_pass_back() -> None:
    script = Script(passes_up_to=50.0, needed=1000)
    known = RateEvidence(
        rate_rps=60.0, requests=900, over_budget=0, inflation=1.0, claim=1, blocks=1
    )
    asked: list[int] = []

    def judge(rate: float, indices: Sequence[int], claim: int, _: object) -> Certificate:
        asked.append(len(indices))
        found = script.judge(rate, indices, claim)
        return found if indices else replace(found, verdict="UNDECIDED")

    result = certify_capacity(goal(60.0, fixed_rps=60.0, earlier=(known,)), script.run, judge)
    assert not result.passed and asked[0] == 0
    assert result.certificate is not None and result.certificate.verdict == "FAIL"


def test_a_resumed_walk_never_repeats_arrivals(
    policy: BatchingPolicy, service: ServiceTime, load: LoadPlan
) -> None:
    model = ServerModel(policy=policy, service=service)
    sessions = [VirtualSession(model, load, first=first) for first in (0, 2)]
    for session in sessions:
        for _ in range(2):
            session.run(100.0, 1.0, kind="certify", stream=STREAM_CERTIFY, abort=False)
    starts = {float(log.intended_s[0]) for session in sessions for log in session.logs}
    assert len(starts) == 4
    # An invalid run drew its arrivals as well, and speaks for no rate.
    tests = [*sessions[0].tests, replace(sessions[1].tests[0], kind="edge")]
    tests[0] = replace(tests[0], validity=Validity(valid=False, reasons=("busy",), kinds=("cpu",)))
    assert certifying_runs(None) == 0
    measurement = Measurement(
        configuration=baseline_configuration(batchable=True),
        edge=Edge(rate_rps=None, interval_rps=(None, None)),
        capacity_rps=None,
        certificate=None,
        headline=None,
        load_tests=tuple(tests),
    )
    assert certifying_runs(measurement) == 2


def test_only_a_late_generator_is_excused(session: VirtualSession, load: LoadPlan) -> None:
    test = session.run(100.0, 60.0, kind="certify", stream=STREAM_CERTIFY, abort=False)

    def verdict(*kinds: Any) -> str:
        validity = Validity(valid=False, reasons=("a sentence",), kinds=kinds)
        return judge_runs([replace(test, validity=validity)], session.logs, load, 1.0).verdict

    assert judge_runs([test], session.logs, load, 1.0).verdict == "PASS"
    assert verdict("lag") == "PASS"
    assert verdict("lag", "littles_law") == verdict("offered_rate") == verdict() == "UNDECIDED"


def test_a_lead_in_is_stored_and_not_counted(session: VirtualSession, load: LoadPlan) -> None:
    test = session.run(
        400.0, 8.0, kind="certify", stream=STREAM_CERTIFY, abort=False, lead_in_s=2.0
    )
    (log,) = session.logs
    assert log.warmup > 500 and test.requests == len(log) - log.warmup
    assert log.intended_s[log.warmup - 1] < 2.0 <= log.intended_s[log.warmup]
    assert test.duration_s == pytest.approx(8.0, rel=0.1)
    assert session.seconds == pytest.approx(10.0, rel=0.1)


STALLING = Conditions(seconds=440.0, stalls_ms=(500.0,) * 20, work_us=(100.0,) * 440)


def test_stalls_that_break_the_sla_alone_forbid_a_pass(
    session: VirtualSession, load: LoadPlan
) -> None:
    """Half a second in 22: 2 % of the requests are late at any rate."""
    edge = Edge(rate_rps=600.0, interval_rps=(None, None))
    plan = CertifyPlan(seconds=60.0, rate_rps=100.0)
    assert certify_target(session, load, plan, edge=edge).rate_rps == 100.0
    found = certify_target(session, load, replace(plan, conditions=STALLING), edge=edge)
    assert found.rate_rps is None
    assert found.certificate is not None and found.certificate.verdict == "UNDECIDED"
    assert found.certificate.conditions is not None
    assert found.certificate.conditions.stalls_ms == STALLING.stalls_ms


def test_no_rate_is_tried_that_the_slow_state_does_not_carry(
    session: VirtualSession, load: LoadPlan
) -> None:
    slow = Conditions(seconds=60.0, work_us=(100.0,) * 40 + (180.0,) * 20)
    edge = Edge(rate_rps=600.0, interval_rps=(None, None), work_us=100.0)
    certify_target(session, load, CertifyPlan(seconds=20.0, conditions=slow), edge=edge)
    assert max(test.offered_rps for test in session.tests) <= 600.0 / 1.8


@pytest.mark.parametrize("seed", range(3))
def test_a_supposed_edge_that_is_far_too_high_costs_little(
    policy: BatchingPolicy, service: ServiceTime, load: LoadPlan, seed: int
) -> None:
    """The next rate follows from what the server answered; nothing false is claimed."""
    model = ServerModel(policy=policy, service=service)
    truth = model.edge(UnitArrivals.draw(Poisson(), count=400_000), budget_ms=40.0)
    assert truth is not None
    plan = CertifyPlan(seconds=30.0, supposed_rps=40.0 * truth)
    edge = Edge(interval_rps=(40.0 * truth, None))
    session = VirtualSession(model, replace(load, seed=seed))
    proof = certify_target(session, load, plan, edge=edge)
    hopeless = [test for test in session.tests if test.aborted]
    assert len({test.offered_rps for test in hopeless}) == 1, "one run, and then what is possible"
    assert sum(test.duration_s for test in hopeless) < 1.0
    assert proof.rate_rps is not None and 0.3 * truth < proof.rate_rps <= truth
    known = {found.rate_rps: found for found in proof.evidence}[hopeless[0].offered_rps]
    assert known.over_budget > 0.9 * known.requests


def test_a_run_that_was_given_up_never_speaks_for_a_pass(
    session: VirtualSession, load: LoadPlan
) -> None:
    test = session.run(200.0, 60.0, kind="certify", stream=STREAM_CERTIFY, abort=False)
    assert judge_runs([test], session.logs, load, 1.0).verdict == "PASS"
    given_up = replace(test, aborted=True)
    assert judge_runs([given_up], session.logs, load, 1.0).verdict == "UNDECIDED"
    late = session.run(2000.0, 5.0, kind="certify", stream=STREAM_CERTIFY, claim=True)
    assert late.aborted and late.over_budget is not None
    assert judge_runs([late], session.logs[1:], load, 1.0).verdict == "FAIL"


def test_a_rate_up_to_a_kept_one_is_never_given_up(session: VirtualSession) -> None:
    known = RateEvidence(
        rate_rps=150.0, requests=1000, over_budget=5, inflation=1.0, claim=1, blocks=1
    )
    assert may_abort(151.0, [], (known,), 0.01) and not may_abort(150.0, [], (known,), 0.01)
    broken = replace(known, over_budget=50)
    assert may_abort(100.0, [], (broken,), 0.01)
    kept = session.run(200.0, 2.0, kind="certify", stream=STREAM_CERTIFY, abort=False)
    assert may_abort(201.0, [kept], (), 0.01) and not may_abort(200.0, [kept], (), 0.01)


def test_only_enough_replies_of_a_hopeless_run_tell_a_throughput(session: VirtualSession) -> None:
    """Those to its lead-in are replies as well: 8 requests take 11 ms."""
    test = session.run(
        5000.0, 2.0, kind="certify", stream=STREAM_CERTIFY, claim=True, lead_in_s=0.4
    )
    assert test.aborted
    assert answered_rps(test, session.logs[0], 20) == pytest.approx(8e3 / 11, rel=0.05)
    assert answered_rps(test, session.logs[0], 10_000) is None
    assert answered_rps(replace(test, aborted=False), session.logs[0], 20) is None


@pytest.mark.parametrize("supposed", [True, False])
def test_only_a_predicted_rate_may_be_given_up(
    session: VirtualSession, load: LoadPlan, supposed: bool
) -> None:
    rate = 5000.0
    plan = CertifyPlan(seconds=3.0, supposed_rps=rate if supposed else None)
    certify_target(session, load, plan, edge=Edge(rate_rps=rate, interval_rps=(rate, None)))
    assert any(test.aborted for test in session.tests) is supposed


@pytest.fixture
def known_server(policy: BatchingPolicy, service: ServiceTime) -> tuple[ServerModel, float]:
    """A server and its true edge, requests per second."""
    model = ServerModel(policy=policy, service=service)
    truth = model.edge(UnitArrivals.draw(Poisson(), count=400_000), budget_ms=40.0)
    assert truth is not None
    return model, truth


def test_a_supposed_edge_is_of_the_speed_that_the_study_mostly_met(
    known_server: tuple[ServerModel, float], load: LoadPlan
) -> None:
    """It was taken for that of the fastest seconds, and halved where most of them were slow."""
    model, truth = known_server
    edge_plan = EdgePlan(seconds=4.0, start_rps=truth, twin=model, twin_edge_rps=truth)

    def first_rps(*work_us: float) -> float:
        met = Conditions(seconds=float(len(work_us)), work_us=work_us)
        certify = CertifyPlan(
            seconds=8.0,
            twin=model,
            supposed_rps=0.6 * truth,
            supposed_us=float(np.median(work_us)) if work_us else None,
            conditions=met if work_us else None,
        )
        found = measure_configuration(
            VirtualSession(model, load),
            baseline_configuration(batchable=True),
            load,
            edge_plan=edge_plan,
            certify=certify,
        )
        rate = found.load_tests[0].offered_rps
        assert rate is not None
        return rate

    mostly_slow = (100.0,) * 2 + (190.0,) * 18
    assert first_rps(*mostly_slow) == first_rps()
    assert first_rps(*(100.0,) * 18, 190.0, 190.0) < 0.7 * first_rps()


@pytest.mark.parametrize("known_edge", [True, False])
def test_a_server_that_fails_after_its_proof_takes_nothing_back(
    known_server: tuple[ServerModel, float], load: LoadPlan, known_edge: bool
) -> None:
    model, truth = known_server

    class Failing(VirtualSession):
        def run(self, *args: Any, kind: LoadTestKind, **options: Any) -> LoadTest:
            if kind == "edge":
                raise TargetError("The server ended.")
            return super().run(*args, kind=kind, **options)

    edge = Edge(interval_rps=(0.6 * truth, None)) if known_edge else None
    found = measure_configuration(
        Failing(model, load),
        baseline_configuration(batchable=True),
        load,
        edge_plan=EdgePlan(seconds=4.0, start_rps=truth),
        certify=CertifyPlan(seconds=60.0, twin=model, edge=edge, supposed_rps=0.6 * truth),
    )
    assert found.capacity_rps is not None and found.edge.at_least_rps
    assert found.edge.at_least_rps >= found.capacity_rps


def test_a_proof_comes_first_where_the_edge_is_only_supposed(
    known_server: tuple[ServerModel, float], load: LoadPlan
) -> None:
    model, truth = known_server

    def measured(seconds: float, shortest_run_s: float = 1.0, kept_s: float = 0.0) -> Measurement:
        edge_plan = EdgePlan(
            seconds=4.0,
            start_rps=truth,
            run_seconds=(shortest_run_s, 2.5 * shortest_run_s),
            twin=model,
            twin_edge_rps=truth,
        )
        certify = CertifyPlan(seconds=seconds, twin=model, supposed_rps=0.6 * truth, kept_s=kept_s)
        configuration = baseline_configuration(batchable=True)
        session = VirtualSession(model, load, seconds_max=seconds + kept_s)
        return measure_configuration(
            session, configuration, load, edge_plan=edge_plan, certify=certify
        )

    ample = measured(60.0)
    assert next(test.kind for test in ample.load_tests) == "certify"
    assert ample.capacity_rps is not None and ample.capacity_rps < 0.6 * truth
    assert ample.edge.rate_rps == pytest.approx(truth, rel=0.1), "the rest of the time finds it"
    proof_s = sum(test.duration_s for test in ample.load_tests if test.kind == "certify")
    shared = measured(proof_s + 3.0)
    edge_s = sum(test.duration_s for test in shared.load_tests if test.kind == "edge")
    assert shared.capacity_rps is not None and 1.0 <= edge_s <= 3.5, "about what is left"
    late = measured(proof_s + 0.5, kept_s=5.0)
    edge_s = sum(test.duration_s for test in late.load_tests if test.kind == "edge")
    assert 1.0 <= edge_s <= 3.5, "one run, in what was kept for later"
    assert late.edge.at_least_rps is not None and late.edge.at_least_rps > 0.7 * truth
    ended = measured(proof_s + 0.5, kept_s=1.0)
    assert {test.kind for test in ended.load_tests} == {"certify"}, "it might not end in time"
    scarce = measured(60.0, shortest_run_s=40.0)
    assert {test.kind for test in scarce.load_tests} == {"certify"}
    # What long runs kept is the lower end; nothing above it was tried.
    assert scarce.edge.interval_rps == (scarce.capacity_rps, None)
    assert scarce.edge.rate_rps is None


@pytest.mark.parametrize(("service_ms", "kept"), [(25.0, True), (60.0, False)])
def test_what_is_too_slow_for_a_proof_is_measured_nevertheless(
    policy: BatchingPolicy, load: LoadPlan, service_ms: float, kept: bool
) -> None:
    """Its server was started, and nothing of it was told: 20 requests at that rate take 100 s."""
    model = ServerModel(policy=policy, service=ServiceTime.constant(service_ms))
    found = measure_configuration(
        VirtualSession(model, load, seconds_max=55.0),
        baseline_configuration(batchable=True),
        load,
        edge_plan=EdgePlan(seconds=4.0, start_rps=0.3, twin=model, twin_edge_rps=0.3),
        certify=CertifyPlan(seconds=40.0, twin=model, supposed_rps=0.2, kept_s=14.0),
    )
    (test,) = found.load_tests
    assert test.kind == "edge" and test.requests <= 20
    assert test.offered_rps == pytest.approx(20 / (0.7 * 40.0), rel=0.05)
    kept_rps, broken_rps = found.edge.interval_rps
    assert found.capacity_rps is None
    assert bool(kept_rps) is kept and kept is (broken_rps is None)
