"""Certifies a rate of a loaded target, as far as what is known of the machine allows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

from analyzer.domain.load_test import Conditions, LoadTest
from analyzer.domain.measurement import Certificate, Edge, RateEvidence
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
from analyzer.measure.hopeless import answered_rps, may_abort
from analyzer.measure.judge import judge_runs, merge_tests
from analyzer.measure.plan import REQUESTS_MIN, CertifyPlan, LoadPlan
from analyzer.measure.session import Session
from analyzer.measure.slow_states import (
    MET_SHARE,
    least_met,
    met_slow_states,
    outweighs,
    tenable,
)
from analyzer.measure.walk_claims import all_met, conditions_met, evidence_of
from analyzer.measure.witness import first_share, free_share, rate_ceiling, watched_times
from analyzer.stats.certificate import passes

# Of an edge that is only supposed, the highest rate of a first proof.
_SUPPOSED_SHARE = 0.97


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What certifying came to.

    Args:
        rate_rps: The certified rate; None if none was.
        certificate: Of that rate, or of the one tried last.
        headline: All of this walk's runs at that rate as one load test; None without any.
        evidence: By rate in ascending order, what was known included.
        trouble: As of :class:`~analyzer.measure.certify_goal.Certified`.
    """

    rate_rps: float | None = None
    certificate: Certificate | None = None
    headline: LoadTest | None = None
    evidence: tuple[RateEvidence, ...] = ()
    trouble: str = ""


def certify_target(session: Session, load: LoadPlan, plan: CertifyPlan, *, edge: Edge) -> Proof:
    """Certifies the plan's rate, or the highest share of ``edge`` that its time allows."""
    sla = load.sla
    correlation = Correlation(session, plan, load)
    slow_edge = slow_edge_at(plan.twin, load)
    answer = plan.answer
    answer_slow_edge = slow_edge_at(answer.twin if answer is not None else None, load)
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

    def lacking_s(rate: float, known: RateEvidence | None) -> float:
        least_s = 0.0 if rate == plan.certified_rps else load.least_s
        return least_s - (known.seconds if known is not None else 0.0)

    def counts_below(known: RateEvidence, rate: float) -> bool:
        here, there = correlation.miss_rate(known.rate_rps), correlation.miss_rate(rate)
        return here is not None and there is not None and there <= here

    def runs() -> list[LoadTest]:
        return [*plan.tests, *session.tests]

    def study() -> Conditions | None:
        return Conditions.pooled([plan.conditions, *(test.conditions for test in session.tests)])

    def times() -> tuple[Conditions | None, ...]:
        return watched_times(study(), plan.earlier_us)

    def met(rate: float, seen: Conditions | None) -> float:
        made = session.tests[first:]
        of_all = all_met(rate, seen, plan.earlier, made, miss_rate_max=sla.miss_rate_max)
        return least_met(rate, edge, times(), sla, of_all, slow_edge, runs(), plan.response)

    def upheld(known: RateEvidence) -> bool:
        return outweighs(known, met(known.rate_rps, known.conditions), sla)

    @cache
    def ceiling_after(tests: int) -> float:
        """Asked for each of a ladder's rates, and told by the ``tests`` made so far."""
        return min(
            rate_ceiling(edge, watched, sla, slow_edge, runs(), plan.response)
            for watched in times()
        )

    def answer_stands() -> bool:
        return answer is None or tenable(
            answer.measurement, study(), sla, answer_slow_edge, plan.response, plan.earlier_us
        )

    def judge(
        rate: float, indices: Sequence[int], claim: int, known: RateEvidence | None
    ) -> Certificate:
        tests = [session.tests[first + index] for index in indices]
        seen = conditions_met(known, tests)
        watched = study()
        often = met_slow_states(watched, sla, seen)
        logs = [session.logs[first + index] for index in indices]
        judged = partial(judge_runs, tests, logs, load, earlier=known, claim=claim, study=watched)
        found = judged(correlation.inflation(rate, met=often, walk=True) if indices else None)
        if found.verdict == "FAIL" and indices:  # having met more slow states says too much
            found = judged(correlation.inflation(rate, met=False, walk=True))
        if found.verdict == "PASS":
            proven = evidence_of(
                found,
                (known, claim),
                tests,
                rate_rps=rate,
                blocks=len(tests),
                miss_rate_max=sla.miss_rate_max,
            )
            if not upheld(proven):
                return replace(found, verdict="UNDECIDED")
            if (missing := math.ceil(lacking_s(rate, proven) * rate)) > 0:
                return replace(found, verdict="UNDECIDED", requests_missing=missing)
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
            enough_rps=plan.enough_rps,
            lacking_s=lacking_s,
            earlier=plan.earlier,
            open_claims=plan.open_claims,
            lead_in_s=lambda rate: relaxation_s(plan.twin, load, rate),
            ceiling_rps=lambda: ceiling_after(len(session.tests)),
            may_exceed=(lambda rate: met(rate, study()) >= MET_SHARE) if plan.exceeds else None,
            upheld=upheld,
            counts_below=counts_below,
            proves=lambda of: passes(of, percentile=sla.percentile, confidence=sla.confidence),
            goes_on=answer_stands,
            requests_min=REQUESTS_MIN,
            answered_rps=lambda: answered_rps(session.tests[-1], session.logs[-1], REQUESTS_MIN),
            left_s=lambda: session.sending_s(load),
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
    certificate, rate_rps = result.certificate, result.rate_rps
    missing = certificate.requests_missing if certificate is not None else None
    if certificate is not None and missing and not certificate.is_late(sla.miss_rate_max):
        assert rate_rps
        missing_s = lacking_s(rate_rps, result.evidence.get(rate_rps))
        missing = max(missing, math.ceil(missing_s * rate_rps))
        certificate = replace(certificate, requests_missing=missing)
    return Proof(
        rate_rps=rate_rps if result.passed else None,
        certificate=certificate,
        headline=headline,
        evidence=tuple(known for _, known in sorted(result.evidence.items())),
        trouble=result.trouble,
    )
