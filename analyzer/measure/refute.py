"""Shows that a configuration keeps the SLA at no rate, or that its runs do not show it.

A FAIL of one short run says little: an idle processor answers slower than a busy one (cold caches,
its frequency, wake-ups), and a neighbour's burst of 0.1 to 10 s makes requests late at any rate. So
a refutation visits several rates in turn, for seconds each time, and counts only if

- at every rate every visit was late on its own, and together they FAIL;
- none of the visits was disturbed (:func:`disturbed`): executions far slower than elsewhere at such
  a rate, or the canary's work slow in all of its seconds;
- at the lowest rate the requests that met no other FAIL by themselves, whatever the arrivals: a
  queue says nothing of lower rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.load_test import (
    Conditions,
    LoadTest,
    RequestLog,
)
from analyzer.domain.measurement import (
    Certificate,
    Edge,
    RateEvidence,
)
from analyzer.measure.correlation import Correlation, relaxation_s
from analyzer.measure.edge import RateOutcome, telling
from analyzer.measure.judge import judge_runs, merge_tests
from analyzer.measure.plan import REQUESTS_MIN, CertifyPlan, LoadPlan, RefutePlan
from analyzer.measure.session import Session
from analyzer.measure.walk_claims import evidence_of
from analyzer.measure.witness import USUAL_QUANTILE
from analyzer.stats.certificate import certify
from analyzer.twin.pace import SLOW_FACTOR

# Executions are far slower than elsewhere beyond this factor; from a rate to its half they grew by
# up to 1.3 on an idle processor (random models on two cores, 0.1 to 1 ms).
_FAR_SLOWER = 1.6
_NEAR_RATE = 1.5
# Where there is no other run: than in the probes, which keep the processor busy, they were up to
# 3.5 times slower at 13/s.
_FAR_SLOWER_THAN_EXPECTED = 4.0
# The canary's work takes up to a half longer at a light load than at a full one.
_LIGHT_LOAD = 1.5
# Executions behind a mean.
_EXECUTIONS_MIN = 5
# A fifth of a run at most is left out at its start.
_LEAD_IN_SHARE = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Refutation:
    """What the runs came to.

    Args:
        certificate: Of the rate where the smallest share was late; FAIL only where all of it shows
            that no rate keeps the SLA, else UNDECIDED, and ``void_reasons`` say why.
        headline: The runs at that rate.
        evidence: By rate in ascending order, what was known included.
        edge: What is known of it by now: a rate that was kept is its lower end.
    """

    certificate: Certificate | None
    headline: LoadTest | None
    evidence: tuple[RateEvidence, ...]
    edge: Edge


def refute_target(session: Session, load: LoadPlan, plan: CertifyPlan) -> Refutation:
    """Visits the rates of ``plan.refute`` in turn, and says whether they refute the SLA."""
    assert plan.refute is not None
    walk = _Walk(session, load, plan, plan.refute)
    walk.visit()
    return walk.result()


def disturbed(
    test: LoadTest,
    others: Sequence[LoadTest],
    *,
    study: Conditions | None,
    before: bool = True,
    expected_ms: float | None = None,
) -> str:
    """Why what a run says of its rate may be a neighbour's doing; empty where nothing tells so.

    Args:
        others: Load tests of the same configuration.
        study: What the machine was like over the study; None where nobody watched.
        before: Whether it was measured before this walk, so that its executions are known.
        expected_ms: Mean execution of one request as expected, milliseconds; None if unknown.
    """
    rate_rps, times = test.offered_rps, _main_execution(test)
    if times is not None:
        size, mean_ms = times
        near = [
            of.mean_ms
            for other in others
            if other is not test and other.validity.valid
            if other.offered_rps <= _NEAR_RATE * rate_rps
            for of in other.executions
            if of.batch_size == size and of.count >= _EXECUTIONS_MIN
        ]
        slower = mean_ms / min(near, default=mean_ms)
        if slower > _FAR_SLOWER:
            return f"executions took {slower:.1f} times as long as in other runs at such a rate"
        slower = mean_ms / expected_ms if expected_ms else 1.0
        if not before and slower > _FAR_SLOWER_THAN_EXPECTED:
            return f"executions took {slower:.1f} times as long as the probes let expect"
    seen_us = test.conditions.work_us if test.conditions is not None else ()
    if study is not None and study.work_us and seen_us:
        usual_us = float(np.quantile(study.work_us, USUAL_QUANTILE))
        if min(seen_us) > SLOW_FACTOR * _LIGHT_LOAD * usual_us:
            return f"the machine was {min(seen_us) / usual_us:.1f} times slower all of the time"
    return ""


def _main_execution(test: LoadTest) -> tuple[int, float] | None:
    """The batch size that most executions of a run had, and their mean time, milliseconds."""
    most = max(test.executions, key=lambda of: of.count, default=None)
    if most is None or most.count < _EXECUTIONS_MIN:
        return None
    return most.batch_size, most.mean_ms


def lone(log: RequestLog) -> NDArray[np.bool_]:
    """Which of a run's counted requests came when all before them were answered, shape (n,)."""
    intended_s = np.asarray(log.intended_s, dtype=np.float64)
    answered_s = np.maximum.accumulate(intended_s + log.latency_s)
    free = np.concatenate([[True], answered_s[:-1] <= intended_s[1:]])
    found: NDArray[np.bool_] = free[log.warmup :]
    return found


class _Walk:
    """The runs of one refutation."""

    def __init__(
        self, session: Session, load: LoadPlan, plan: CertifyPlan, refute: RefutePlan
    ) -> None:
        self._session, self._load, self._plan, self._refute = session, load, plan, refute
        self._correlation = Correlation(session, plan, load)
        self._first = len(session.tests)
        self._earlier = {known.rate_rps: known for known in plan.earlier}

    def visit(self) -> None:
        """Makes the runs, as far as the session's time suffices."""
        session, load, refute = self._session, self._load, self._refute
        for _ in range(refute.visits):
            for rate in refute.rates_rps:
                seconds = max(refute.seconds, REQUESTS_MIN / rate)
                if session.sending_s(load) < seconds:
                    return
                lead_s = min(
                    relaxation_s(self._plan.twin, self._load, rate), _LEAD_IN_SHARE * seconds
                )
                session.run(
                    rate,
                    seconds - lead_s,
                    kind="refute",
                    stream=self._plan.stream,
                    abort=False,
                    lead_in_s=lead_s,
                )

    def result(self) -> Refutation:
        certificates, evidence = {}, dict(self._earlier)
        reasons: dict[str, None] = {}
        for position, rate in enumerate(self._refute.rates_rps):
            known = self._earlier.get(rate)
            blocks, given_up = (known.blocks, known.given_up) if known is not None else (0, 0)
            if known is not None and not known.claim:
                known = None  # its runs count for a lower rate, and it begins anew
            claim = known.claim if known is not None else self._plan.open_claims + 1 + position
            runs = self._runs(rate)
            if counted := [run for run in runs if run[0].validity.excused]:
                evidence[rate] = evidence_of(
                    self._judge(rate, counted, known, claim),
                    (known, claim),
                    [test for test, _ in counted],
                    rate_rps=rate,
                    blocks=blocks + len(counted),
                    miss_rate_max=self._load.sla.miss_rate_max,
                    given_up=given_up,
                )
            if runs:
                certificates[rate] = self._judge(rate, runs, None, claim)
            reason = self._doubt(rate, runs, certificates.get(rate), claim)
            if reason:
                reasons[f"at {rate:.3g}/s {reason}"] = None
        found, edge = tuple(evidence[rate] for rate in sorted(evidence)), self._edge()
        if not certificates:
            return Refutation(certificate=None, headline=None, evidence=found, edge=edge)
        # Where one of these rates was kept there is nothing to explain.
        kept = (edge.at_least_rps or 0.0) >= min(self._refute.rates_rps)
        told = () if kept else tuple(reasons)
        least = min(certificates, key=lambda rate: _share(certificates[rate]))
        certificate = replace(
            certificates[least],
            verdict="UNDECIDED" if reasons else "FAIL",
            void_reasons=(*certificates[least].void_reasons, *told),
        )
        runs = self._runs(least)
        headline = merge_tests(
            [test for test, _ in runs], [log for _, log in runs], percentile=self._percentile
        )
        return Refutation(certificate=certificate, headline=headline, evidence=found, edge=edge)

    @property
    def _percentile(self) -> float:
        return self._load.sla.percentile

    def _runs(self, rate: float) -> list[tuple[LoadTest, RequestLog]]:
        session = self._session
        pairs = zip(session.tests[self._first :], session.logs[self._first :], strict=True)
        return [(test, log) for test, log in pairs if test.offered_rps == rate]

    def _judge(
        self,
        rate: float,
        runs: Sequence[tuple[LoadTest, RequestLog]],
        earlier: RateEvidence | None,
        claim: int,
    ) -> Certificate:
        return judge_runs(
            [test for test, _ in runs],
            [log for _, log in runs],
            self._load,
            self._correlation.inflation(rate, met=False),
            earlier=earlier,
            claim=claim,
            study=self._study,
        )

    @property
    def _study(self) -> Conditions | None:
        own = (test.conditions for test in self._session.tests)
        return Conditions.pooled([self._plan.conditions, *own])

    def _doubt(
        self,
        rate: float,
        runs: Sequence[tuple[LoadTest, RequestLog]],
        certificate: Certificate | None,
        claim: int,
    ) -> str:
        """Why the runs at a rate refute nothing; empty where they do."""
        allowed = self._load.sla.miss_rate_max
        others = [*self._plan.tests, *self._session.tests]
        if certificate is None or len(runs) < self._refute.visits:
            return "the time did not suffice"
        for test, _ in runs:
            why = disturbed(
                test,
                others,
                study=self._study,
                before=bool(self._plan.tests),
                expected_ms=self._refute.expected_ms,
            )
            if why:
                return why
        if any((test.over_budget or 0) <= allowed * test.requests for test, _ in runs):
            return "not every run was late"
        if not all(test.validity.valid for test, _ in runs):
            return "not every run was valid"
        # What was known of the rate before counts as well.
        earlier = self._earlier.get(rate)
        together = self._judge(rate, runs, earlier, claim) if earlier is not None else certificate
        if certificate.verdict != "FAIL" or together.verdict != "FAIL":
            return "too few requests decide"
        if rate == min(self._refute.rates_rps) and not self._refute.fixed:
            return self._queue_doubt(runs, certificate)
        return ""

    def _queue_doubt(
        self, runs: Sequence[tuple[LoadTest, RequestLog]], certificate: Certificate
    ) -> str:
        """Why it may have been a queue that made requests late."""
        budget_s = self._load.sla.latency_budget_ms / 1e3
        alone = certify(
            [(log.latency_s[log.warmup :] > budget_s)[lone(log)] for _, log in runs],
            percentile=self._percentile,
            confidence=self._load.sla.confidence,
            twin_inflation=certificate.inflation,
        )
        return "" if alone.verdict == "FAIL" else "a queue may be what made requests late"

    def _edge(self) -> Edge:
        """The known edge; where a rate was kept, that is its lower end."""
        edge = self._plan.edge or Edge(interval_rps=(None, None))
        allowed, kept = self._load.sla.miss_rate_max, 0.0
        for rate in self._refute.rates_rps:
            outcomes = telling([test for test, _ in self._runs(rate)], allowed)
            if outcomes and _together(outcomes).keeps(allowed):
                kept = max(kept, rate)
        if kept > (edge.at_least_rps or 0.0):
            return replace(edge, rate_rps=None, interval_rps=(kept, None))
        low, high = edge.interval_rps
        return replace(edge, interval_rps=(low if low is not None else 0.0, high))


def _together(outcomes: Sequence[RateOutcome]) -> RateOutcome:
    return replace(
        outcomes[0],
        requests=sum(of.requests for of in outcomes),
        over_budget=sum(of.over_budget for of in outcomes),
    )


def _share(certificate: Certificate) -> float:
    return certificate.over_budget / max(certificate.requests, 1)
