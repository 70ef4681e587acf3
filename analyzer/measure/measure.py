"""Strategies on a loaded target: find its edge, certify a rate, measure at a fixed rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from analyzer.domain.configuration import Configuration
from analyzer.domain.load_test import Conditions, LoadTest
from analyzer.domain.measurement import Certificate, Edge, Measurement, RateEvidence
from analyzer.domain.speeds import EVIDENCE_MIN
from analyzer.errors import TargetError
from analyzer.measure.certify import certify_capacity
from analyzer.measure.certify_goal import AT_ONCE, CertifyGoal
from analyzer.measure.correlation import (
    SUPPOSED_LOAD,
    Correlation,
    guessed_inflation,
    relaxation_s,
    requests_needed,
    slow_edge_at,
)
from analyzer.measure.edge import (
    EdgeGoal,
    EdgeSearch,
    RateOutcome,
    only_stalled,
    raised_edge,
    telling,
)
from analyzer.measure.hopeless import answered_rps, may_abort
from analyzer.measure.judge import judge_runs, merge_tests
from analyzer.measure.plan import STREAM_EDGE, CertifyPlan, EdgePlan, LoadPlan, warm_up_concurrency
from analyzer.measure.refute import refute_target
from analyzer.measure.session import REQUESTS_MIN, Session
from analyzer.measure.virtual_session import VirtualSession
from analyzer.measure.walk_claims import conditions_met
from analyzer.measure.witness import (
    carried,
    first_share,
    free_share,
    lasting_work_us,
    met_slow_states,
    rate_ceiling,
    slower_rates,
    watched_times,
)
from analyzer.stats.certificate import passes

# Invalid runs before the configuration is given up, and the factor to the next rate: the share of
# the requests that the server answered, within bounds. A run that was aborted was far too fast.
_INVALID_MAX = 12
_INVALID_EASE_MIN = 0.25
_INVALID_EASE_MAX = 0.9
_ABORTED_EASE_MAX = 0.5
# A run of an edge that the least evidence takes: so much more than that, since its start does not
# count, and at most so many times the longest run.
_EVIDENCE_FACTOR = 1.15
_EVIDENCE_LONGER = 1.5
# Runs that broke the SLA only since the server stood still are made again, so many at most. Where
# the machine was slower in those above the edge than in the one that was kept, the search goes on
# as if they had not been, for so many times its seconds.
_STALLED_MAX = 3
_DOUBT_FACTOR = 1.5
# The first step down from a prediction that is good to a few percent.
_STEP_DOWN_TRUSTED = 1.12
# Of an edge that is only supposed, the highest rate of a first proof.
_SUPPOSED_SHARE = 0.97
# Repeats of the twin's search with other service noise, and how far it may correct an edge: short
# runs flatter it; a larger correction would be the twin's own error.
_CONTROL_RUNS = 5
_CONTROL_RANGE = (0.75, 1.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What certifying came to.

    Args:
        rate_rps: The certified rate; None if none was.
        certificate: Of that rate, or of the one tried last.
        headline: All of this walk's runs at that rate as one load test; None without any.
        evidence: By rate in ascending order, what was known included.
    """

    rate_rps: float | None = None
    certificate: Certificate | None = None
    headline: LoadTest | None = None
    evidence: tuple[RateEvidence, ...] = ()


def measure_edge(
    session: Session,
    plan: EdgePlan,
    load: LoadPlan,
    saturation_rps: float,
    *,
    known: Sequence[RateOutcome] = (),
) -> Edge:
    """The edge of the target, from runs of ``plan.seconds`` in all; longer until a rate is kept.

    Half as long again where the machine was slower in the runs above the edge than below it: these
    do not count then. A run that only a stall of the server broke is made again. No run is begun
    that would not end within the session's time.

    Args:
        saturation_rps: What a closed loop achieved: where the search starts without a prediction.
        known: What rates did before; the search starts where it would start anyway, but for
            ``plan.known``.

    Raises:
        TargetError: Not one run was valid.
    """
    low_s, high_s = plan.run_seconds
    search = _edge_search(plan, load, saturation_rps, known)
    spent_s, seconds_max = 0.0, plan.seconds
    invalid: list[LoadTest] = []
    stalled = 0
    again_rps: float | None = None
    runs = {test.offered_rps: test for test in plan.known}
    session.skip_arrivals(plan.known)
    while True:
        rate, again_rps = again_rps or search.next_rate_rps(), None
        if rate is None or (spent_s >= seconds_max and search.kept_rps is not None):
            seconds_max = _DOUBT_FACTOR * plan.seconds
            doubtful = slower_rates(runs, search.kept_rps)
            if spent_s >= seconds_max or not search.forget_above(doubtful):
                break
            continue
        # Where that suffices, half as long again: a side with few requests leaves the edge open.
        enough_s = _EVIDENCE_FACTOR * EVIDENCE_MIN / rate
        longest_s = enough_s if high_s < enough_s <= _EVIDENCE_LONGER * high_s else high_s
        seconds = float(np.clip(500 / rate, low_s, longest_s))
        if plan.within:
            seconds = min(seconds, max(plan.seconds - spent_s, low_s))
        begun = search.tried or invalid or stalled
        if begun and session.left_s < max(seconds, REQUESTS_MIN / rate):
            break
        test = session.run(rate, seconds, kind="edge", stream=STREAM_EDGE)
        spent_s += test.duration_s
        if only_stalled(test, load.sla.miss_rate_max) and stalled < _STALLED_MAX:
            stalled += 1
            again_rps = rate
            continue
        if not (outcomes := telling([test], load.sla.miss_rate_max)):
            # An overload of a shared machine makes the generator late as well; a lower one may not.
            invalid.append(test)
            ease_max = _ABORTED_EASE_MAX if test.aborted else _INVALID_EASE_MAX
            ease = np.clip(test.achieved_rps / rate, _INVALID_EASE_MIN, ease_max)
            search.record_overload(rate, float(ease))
            if len(invalid) >= _INVALID_MAX:
                break
            continue
        search.record(outcomes[0])
        runs[rate] = test
    edge = search.edge()
    kept = runs.get(search.kept_rps or 0.0)
    if kept is not None and (seen := kept.conditions) is not None and seen.work_us:
        slow_us = lasting_work_us(seen, load.sla.latency_budget_ms / 1e3)
        edge = replace(edge, work_us=float(np.median(seen.work_us)), slow_us=slow_us)
    if invalid and edge.rate_rps is None and edge.interval_rps == (None, None):
        reasons = "; ".join(invalid[-1].validity.reasons) or "the server stood still meanwhile"
        raise TargetError(
            f"None of {len(invalid)} load tests was valid: {reasons}.",
            hint="Something else keeps this machine busy; run it again when it is quiet.",
        )
    return edge


def _edge_search(
    plan: EdgePlan, load: LoadPlan, saturation_rps: float, known: Sequence[RateOutcome]
) -> EdgeSearch:
    goal = EdgeGoal(
        budget_ms=load.sla.latency_budget_ms,
        miss_rate_max=load.sla.miss_rate_max,
        # A little below the prediction, where a run is most informative about both sides.
        start_rps=0.97 * plan.start_rps if plan.start_rps else 0.8 * saturation_rps,
        step=_step(plan),
        step_down=_STEP_DOWN_TRUSTED if plan.trusted else 2.0,
        precision=1.04,
        floor_rps=REQUESTS_MIN / plan.run_seconds[1],
    )
    runs = telling(plan.known, load.sla.miss_rate_max)
    return EdgeSearch(goal, [*runs, *known], goes_on=bool(runs))


def long_run_edge(edge: Edge, plan: EdgePlan, load: LoadPlan) -> Edge:
    """``edge`` without the optimism of short runs; itself where there is no twin.

    Near the edge the misses come in rare bursts, which most runs of a second do not see. The twin
    goes through the same search on the same arrivals; how far that lies above its own long-run
    edge is how far the live search lies above the live one (a control variate).
    """
    predicted = plan.twin_edge_rps
    # Short runs mostly meet the usual speed; what the others cost is told of all edges alike.
    twin = replace(plan.twin, path=None) if plan.twin is not None else None
    if twin is None or not predicted or not edge.rate_rps:
        return edge
    ratios = []
    for repeat in range(_CONTROL_RUNS):
        session = VirtualSession(twin, load, noise_seed=repeat)
        same = replace(plan, start_rps=predicted, twin=None, known=())
        found = measure_edge(session, same, load, predicted).rate_rps
        if found:
            ratios.append(predicted / found)
    if not ratios:
        return edge
    ratio = float(np.clip(np.median(ratios), *_CONTROL_RANGE))
    low, high = edge.interval_rps
    return replace(
        edge,
        rate_rps=edge.rate_rps * ratio,
        interval_rps=(
            # Of rates that were kept and broken it leaves none inside.
            low * min(ratio, 1.0) if low is not None else None,
            high * max(ratio, 1.0) if high is not None else None,
        ),
    )


def _step(plan: EdgePlan) -> float:
    """The first factor between rates: what the start may be off by."""
    if plan.trusted:
        return 1.06
    return 1.1 if plan.start_rps else 1.25


def certify_target(session: Session, load: LoadPlan, plan: CertifyPlan, *, edge: Edge) -> Proof:
    """Certifies the plan's rate, or the highest share of ``edge`` that its time allows."""
    sla = load.sla
    correlation = Correlation(session, plan, load)
    slow_edge = slow_edge_at(plan.twin, load)
    first = len(session.tests)

    def needed(rate: float, claim: int, known: RateEvidence | None) -> float | None:
        supposed = rate / edge.at_least_rps if edge.at_least_rps else SUPPOSED_LOAD
        return requests_needed(
            sla,
            inflation=correlation.inflation(rate) or guessed_inflation(supposed),
            miss_rate=correlation.miss_rate(rate),
            claim=claim,
            known=known,
        )

    def counts_below(known: RateEvidence, rate: float) -> bool:
        here, there = correlation.miss_rate(known.rate_rps), correlation.miss_rate(rate)
        return here is not None and there is not None and there <= here

    def runs() -> list[LoadTest]:
        return [*plan.tests, *session.tests]

    def study() -> Conditions | None:
        return Conditions.pooled([plan.conditions, *(test.conditions for test in session.tests)])

    def times() -> tuple[Conditions | None, ...]:
        return watched_times(study(), plan.earlier_us)

    def held(rate: float, met: Conditions | None) -> bool:
        return all(
            carried(rate, edge, watched, sla, met, slow_edge, runs(), plan.response)
            for watched in times()
        )

    def ceiling_rps() -> float:
        return min(
            rate_ceiling(edge, watched, sla, slow_edge, runs(), plan.response)
            for watched in times()
        )

    def judge(
        rate: float, indices: Sequence[int], claim: int, known: RateEvidence | None
    ) -> Certificate:
        tests = [session.tests[first + index] for index in indices]
        seen = conditions_met(known, tests)
        watched = study()
        met = met_slow_states(watched, sla, seen)
        logs = [session.logs[first + index] for index in indices]
        judged = partial(judge_runs, tests, logs, load, earlier=known, claim=claim, study=watched)
        found = judged(correlation.inflation(rate, met=met) if indices else None)
        if found.verdict == "FAIL" and indices:  # having met more slow states says too much
            found = judged(correlation.inflation(rate, met=False))
        if found.verdict == "PASS" and not held(rate, seen):
            return replace(found, verdict="UNDECIDED")
        return found

    # A first proof leaves time to climb; a supposed edge is a low one already, but may be far off.
    later = plan.above_rps > 0.0 or plan.shares == AT_ONCE
    predicted = plan.supposed_rps is not None and not plan.rate_rps
    measured = plan.supposed_rps is None
    safe_share = first_share(edge, times(), runs()) if measured else _SUPPOSED_SHARE
    result = certify_capacity(
        CertifyGoal(
            edge_rps=edge.at_least_rps or plan.rate_rps or 0.0,
            seconds=plan.seconds,
            requests_needed=needed,
            percentile=sla.percentile,
            fixed_rps=plan.rate_rps,
            shares=plan.shares,
            safe_share=1.0 if later else safe_share,
            free_share=lambda: free_share(runs(), sla.miss_rate_max),
            climb_gain=plan.climb_gain if measured else math.inf,
            climbs_within_s=plan.climbs_within_s if measured else 0.0,
            climb_kept_s=plan.climb_kept_s,
            above_rps=plan.above_rps,
            # One machine that carries the target rate is the cheapest.
            enough_rps=sla.enough_rps or math.inf,
            earlier=plan.earlier,
            open_claims=plan.open_claims,
            lead_in_s=lambda rate: relaxation_s(plan.twin, load, rate),
            ceiling_rps=ceiling_rps,
            carried=held,
            counts_below=counts_below,
            proves=lambda of: passes(of, percentile=sla.percentile, confidence=sla.confidence),
            requests_min=REQUESTS_MIN,
            answered_rps=lambda: answered_rps(session.tests[-1], session.logs[-1], REQUESTS_MIN),
            left_s=lambda: session.left_s,
            kept_s=plan.kept_s,
            later_s=plan.later_s,
        ),
        lambda rate, lead_s, length_s: session.run(
            rate,
            length_s,
            kind=plan.kind,
            stream=plan.stream,
            abort=predicted
            and may_abort(rate, session.tests[first:], plan.earlier, sla.miss_rate_max),
            claim=True,
            lead_in_s=lead_s,
        ),
        judge,
    )
    headline = None
    if result.blocks:
        logs = [
            log
            for test, log in zip(session.tests[first:], session.logs[first:], strict=True)
            if any(test is block for block in result.blocks)
        ]
        headline = merge_tests(result.blocks, logs, percentile=sla.percentile)
    return Proof(
        rate_rps=result.rate_rps if result.passed else None,
        certificate=result.certificate,
        headline=headline,
        evidence=tuple(known for _, known in sorted(result.evidence.items())),
    )


def measure_configuration(
    session: Session,
    configuration: Configuration,
    load: LoadPlan,
    *,
    edge_plan: EdgePlan | None = None,
    certify: CertifyPlan | None = None,
    target_seconds: float | None = None,
) -> Measurement:
    """Measures what the plans ask for, in this order: warm-up, edge, target rate, certificate.

    Where the certificate's plan supposes an edge, the certificate comes before it.

    Args:
        edge_plan: How the edge is searched; None to leave it out.
        certify: What is proven; None for nothing.
        target_seconds: How long to run at the SLA's target rate; None for not at all.

    Raises:
        TargetError: The server failed, or not one run was valid.
    """
    saturation = session.warm_up(
        concurrency=warm_up_concurrency(configuration, load, edge_plan, certify)
    )
    edge = Edge(rate_rps=None, interval_rps=(None, None))
    headline = proof = None
    if certify is not None and certify.refute is not None:
        refutation = refute_target(session, load, certify)
        edge = refutation.edge
        proof = Proof(
            certificate=refutation.certificate,
            headline=refutation.headline,
            evidence=refutation.evidence,
        )
    elif certify is not None and certify.edge is not None:
        edge = certify.edge
    elif certify is not None and certify.supposed_rps is not None and edge_plan is not None:
        proof, edge = _proof_then_edge(session, load, certify, edge_plan, saturation)
    elif edge_plan is not None:
        edge = long_run_edge(measure_edge(session, edge_plan, load, saturation), edge_plan, load)
    if target_seconds is not None and load.sla.target_rate_rps is not None:
        headline = session.run(
            load.sla.target_rate_rps, target_seconds, kind="target", stream=STREAM_EDGE
        )
    if proof is None:
        proof = Proof(evidence=certify.earlier if certify is not None else ())
        if certify is not None and (certify.rate_rps or edge.at_least_rps):
            proof = certify_target(session, load, certify, edge=edge)
    return Measurement(
        configuration=configuration.canonical(),
        edge=edge,
        capacity_rps=proof.rate_rps,
        certificate=proof.certificate,
        headline=proof.headline or headline,
        evidence=proof.evidence,
        load_tests=tuple(session.tests),
        load_test_seconds=session.seconds,
        resources=session.peak(),
        notes=session.notes,
    )


def _proof_then_edge(
    session: Session, load: LoadPlan, certify: CertifyPlan, plan: EdgePlan, saturation_rps: float
) -> tuple[Proof, Edge]:
    """A proof at a safe rate; the time that a PASS leaves goes to the edge.

    Without it the edge is what the certificate's runs say of it, with an open end.
    """
    supposed_rps = certify.supposed_rps
    assert supposed_rps is not None
    supposed = Edge(interval_rps=(supposed_rps, None), work_us=certify.supposed_us)
    before_s = session.seconds
    proof = certify_target(session, load, certify, edge=supposed)
    left_s = session.left_s - certify.kept_s
    left_s = min(certify.seconds - (session.seconds - before_s), left_s)
    known = [
        RateOutcome(
            rate_rps=found.rate_rps,
            requests=found.requests,
            over_budget=found.over_budget,
            latency_ms=None,
        )
        for found in proof.evidence
    ]
    plan = replace(plan, seconds=min(plan.seconds, left_s), within=True)
    if proof.rate_rps is not None and plan.seconds >= plan.run_seconds[0]:
        searched = measure_edge(session, plan, load, saturation_rps, known=known)
        edge = long_run_edge(searched, plan, load)
    else:
        edge = _edge_search(plan, load, saturation_rps, known).edge()
    # A rate that long runs kept is no noise.
    miss_rate_max = load.sla.miss_rate_max
    kept = [of.rate_rps for of in proof.evidence if of.over_budget <= miss_rate_max * of.requests]
    return proof, raised_edge(edge, max(kept, default=0.0))
