"""The claims of one walk: what each rate's began with, its number, and what it came to.

A claim that was left undecided may go down: a lower rate has its number then and counts its runs
(docs/statistics.md, section 5).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from analyzer.domain.load_test import Conditions, LoadTest
from analyzer.domain.measurement import Certificate, RateEvidence
from analyzer.measure.certify_goal import CertifyGoal
from analyzer.stats.certificate import OWN_SOURCES, all_counts

Opening = tuple[RateEvidence | None, int]
"""What a claim begins with other than its walk's runs at its rate, and its number."""


def conditions_met(known: RateEvidence | None, tests: Sequence[LoadTest]) -> Conditions | None:
    """What the machine was like in a claim's runs; None where its earlier ones do not tell.

    Runs that nobody watched are left out.
    """
    if known is not None and known.conditions is None:
        return None
    before = known.conditions if known is not None else None
    counted = [test.conditions for test in tests if test.validity.excused]
    return Conditions.pooled([before, *counted])


def all_met(
    rate_rps: float,
    own: Conditions | None,
    evidence: Iterable[RateEvidence],
    tests: Iterable[LoadTest] = (),
    *,
    miss_rate_max: float,
) -> tuple[Conditions | None, ...]:
    """What a claim's runs met (``own``), and the same with what those at higher rates met.

    A slow state in which a higher rate was kept is one that the claim's rate keeps as well. Of each
    rate all runs count, so that no rate is kept in some moments alone.

    Args:
        evidence: What is known by rate, and ``tests`` made since.
        miss_rate_max: The fraction of requests that may be late.
    """
    found: dict[float, list[tuple[int, int, Conditions | None]]] = defaultdict(list)
    for known in evidence:
        # What was handed down to a lower rate counts there.
        if known.rate_rps > rate_rps and known.claim:
            counts = all_counts(known.requests, known.over_budget, known.higher)
            found[known.rate_rps].append((*counts, known.conditions))
    for test in tests:
        if (offered_rps := test.offered_rps or 0.0) > rate_rps:
            found[offered_rps].append((test.requests, test.over_budget or 0, test.conditions))
    kept = [
        conditions
        for runs in found.values()
        if sum(late for _, late, _ in runs) <= miss_rate_max * sum(count for count, _, _ in runs)
        for _, _, conditions in runs
        if conditions is not None
    ]
    return (own, Conditions.pooled([own, *kept])) if own is not None and kept else (own,)


def evidence_of(
    certificate: Certificate,
    opening: Opening,
    tests: Sequence[LoadTest],
    *,
    rate_rps: float,
    blocks: int,
    miss_rate_max: float,
    given_up: int = 0,
) -> RateEvidence:
    """What is known of a rate once ``tests`` were judged together with what its claim began with.

    Args:
        certificate: The judgement.
        blocks: Runs at the rate that were made so far.
        miss_rate_max: The fraction of requests that may be late.
        given_up: As of :class:`RateEvidence`.
    """
    known, claim = opening
    lagged = [
        (test.requests, test.over_budget or 0)
        for test in tests
        if not test.validity.valid and (test.over_budget or 0) > miss_rate_max * test.requests
    ]
    if known is not None:
        lagged.append(known.lagged)
    seen = [known.seen if known is not None else None]
    if certificate.inflation_source in OWN_SOURCES:
        seen.append(certificate.inflation)
    return RateEvidence(
        rate_rps=rate_rps,
        requests=certificate.own_requests,
        over_budget=certificate.own_over_budget,
        inflation=certificate.inflation,
        claim=claim,
        blocks=blocks,
        conditions=conditions_met(known, tests),
        higher=certificate.higher,
        lagged=(sum(count for count, _ in lagged), sum(late for _, late in lagged)),
        given_up=given_up,
        seen=max(filter(None, seen), default=None),
    )


class WalkClaims:
    """What is known by rate, earlier walks included, and how the family's error is spent on it.

    Args:
        evidence: By rate; what the walk adds goes there.
    """

    def __init__(self, goal: CertifyGoal, evidence: dict[float, RateEvidence]) -> None:
        self._goal = goal
        self._evidence = evidence
        self._before = dict(evidence)
        self._open = goal.open_claims

    def opening(self, rate: float) -> Opening:
        """What the claim that ``rate`` is, or would be, begins with, and its number.

        A new one begins with nothing, or goes on with that of a higher rate, whichever needs less.
        """
        known = self._before.get(rate)
        if known is not None and self.known(rate) is not None:
            return known, known.claim
        openings = [(of.below(rate), of.claim) for of in self._sources(rate)]
        return min([self._anew, *openings], key=lambda opening: self.need(rate, *opening))

    def known(self, rate: float) -> RateEvidence | None:
        """What a claim of ``rate`` came to so far; None where it is none, or none any more."""
        found = self._evidence.get(rate)
        return found if found is not None and found.claim else None

    def proven(self, rate: float) -> bool:
        """Whether what a claim of ``rate`` came to so far proves it, and it is only held back."""
        known = self.known(rate)
        return known is not None and self._goal.proves(known)

    def lacking(self, rate: float) -> float:
        """Requests that are missing to the least seconds of a proof; at most 0 where none are."""
        return self._goal.lacking_s(rate, self.known(rate)) * rate

    @property
    def _anew(self) -> Opening:
        return None, self._open + 1

    def need(self, rate: float, known: RateEvidence | None, claim: int) -> float:
        """Further requests that a claim of ``rate`` is expected to take; infinite for no number."""
        needed = self._goal.requests_needed(rate, claim, known)
        return math.inf if needed is None else needed

    def _sources(self, rate: float) -> list[RateEvidence]:
        """The claims of higher rates with which one of ``rate`` may go on."""
        return [
            known
            for known in self._evidence.values()
            if known.claim
            and known.rate_rps > rate
            and known.inflation is not None
            and known.over_budget <= known.requests * self._goal.miss_rate_max
            and (self._goal.proves(known) or self._too_long(known))
            and self._goal.counts_below(known, rate)
        ]

    def _too_long(self, known: RateEvidence) -> bool:
        """Whether what is missing to a rate cannot be run after a new claim of a lower one.

        That takes as long as a new one of this rate, by and large.
        """
        rest = self.need(known.rate_rps, known, known.claim)
        return rest + self.need(known.rate_rps, *self._anew) > known.rate_rps * self._goal.left_s()

    def begin(self, opening: Opening) -> None:
        """Counts a claim that begins with nothing."""
        self._open += opening[0] is None

    def give_up(self, rate: float) -> None:
        """No later walk goes on with what is known of ``rate``.

        The claim keeps its part of the error, unless it passed and gave that back.
        """
        if (known := self.known(rate)) is not None:
            open_ = bool(known.higher) or not self._goal.proves(known)
            given_up = known.given_up + open_
            self._evidence[rate] = replace(known, claim=0, given_up=given_up)

    def passed(self, certificate: Certificate, opening: Opening) -> None:
        """A claim that passed gives its part of the error back.

        Not so one that began at a higher rate, which may have been too high, nor one that was
        proven before, and only held back: that had given it back already.
        """
        known, _ = opening
        if not certificate.higher and (known is None or not self._goal.proves(known)):
            self._open -= 1

    def add(
        self, rate: float, certificate: Certificate, opening: Opening, tests: Sequence[LoadTest]
    ) -> None:
        """Takes in one more run at ``rate``.

        A higher rate whose claim goes on here is a claim no more, unless it is proven.

        Args:
            tests: The walk's runs at the rate.
        """
        known, claim = opening
        assert claim > 0, claim
        before = self._evidence.get(rate)
        if known is not None and known.higher and self.known(rate) is None:
            source = self._evidence[known.higher[-1].rate_rps]
            if not self._goal.proves(source):
                self._evidence[source.rate_rps] = replace(source, claim=0)
        self._evidence[rate] = evidence_of(
            certificate,
            opening,
            tests,
            rate_rps=rate,
            blocks=(before.blocks if before is not None else 0) + 1,
            miss_rate_max=self._goal.miss_rate_max,
            given_up=before.given_up if before is not None else 0,
        )
