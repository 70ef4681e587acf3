"""What a walk over the rates is asked to certify, what it may do, and what comes of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from analyzer.domain.load_test import LoadTest
from analyzer.domain.measurement import Certificate, RateEvidence
from analyzer.stats.certificate import claim_confidence, expected_requests
from analyzer.stats.mlperf import tail_share

#: ``CertifyGoal.shares`` of a walk that leaves time to climb, and of one that spends it at once.
CLIMBING = (0.4, 0.65, 0.9)
AT_ONCE = (0.9,)
#: The same of a first proof whose edge was measured: where less restricts a rate, a later climb to
#: a higher one hardly fits, since what a rate takes grows faster than the rate.
BOLD = CLIMBING[1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifyGoal:
    """What is to be certified.

    Args:
        edge_rps: The estimated edge; every rate tried is a share of it.
        seconds: Time under load that may be spent.
        requests_needed: Further requests that a PASS at a rate, as a claim of this number, is
            expected to take beside what is known; None where no number is enough.
        percentile: The SLA's, 0 to 100.
        fixed_rps: The one rate to certify instead (the target rate); None for the highest possible.
        shares: Shares of the time left that a first proof may be planned to take; the first that
            suffices for a rate counts.
        safe_share: No rate above this share of the edge is tried before one has passed, but for
            the lowest; where one fails, the next is lower by more than a step. 1 for any rate.
        free_share: What other programs left of the cores at the worst, over what they left while
            the edge's rate was kept (``witness.free_share``): ``safe_share`` falls with it; asked
            anew.
        climb_gain: After a PASS no rate below so many times the proven one is tried; inf ends the
            walk there.
        climbs_within_s: Where no more than this is left after a PASS, the walk goes on to any
            higher rate at once, with all of it but ``climb_kept_s``.
        climb_kept_s: What it leaves to other steps then, seconds.
        above_rps: No rate up to this is tried, a fixed one excepted.
        lacking_s: Seconds of runs that are missing to the least of a proof, from what is known of a
            rate; at most 0 where none are.
        enough_rps: No rate above this is worth a run; itself is tried where the edge carries it.
        earlier: What is known by rate; these rates keep their claims' numbers.
        open_claims: As in ``CertifyPlan``.
        lead_in_s: Of a run at a rate: seconds at its start that do not count.
        ceiling_rps: No higher rate is begun, a fixed one excepted; asked anew before each run.
        may_exceed: Of a walk whose time is of no other use: whether a rate is begun nevertheless,
            once something is proven and no lower one is left. Its runs must meet the machine's slow
            states. Such a walk also tries what is not expected to be carried, step by step.
        upheld: Whether what is known of a rate may be claimed for all that was seen of the machine:
            it goes on above ``ceiling_rps`` then.
        counts_below: Whether what is known of a rate may count for a lower one: no larger share is
            late there.
        proves: Whether what is known of a rate proves it, whatever was seen of the machine.
        goes_on: Whether the walk is still what the time is for; asked after each run.
        requests_min: Requests of the shortest run: a low rate takes long for them.
        answered_rps: What the server answered in the last run, requests per second, where that was
            given up as hopeless; None where it was not, or told nothing.
        left_s: Seconds until the walk must end, simulations and pauses included; asked anew.
        kept_s: Of these: seconds that are left to what comes next, unless a first proof needs them.
        later_s: Seconds in which a first proof may be completed after the walk.
    """

    edge_rps: float
    seconds: float
    requests_needed: Callable[[float, int, RateEvidence | None], float | None]
    percentile: float = 99.0
    fixed_rps: float | None = None
    shares: tuple[float, ...] = CLIMBING
    safe_share: float = 1.0
    free_share: Callable[[], float] = lambda: 1.0
    climb_gain: float = 1.0
    climbs_within_s: float = 0.0
    climb_kept_s: float = 0.0
    above_rps: float = 0.0
    lacking_s: Callable[[float, RateEvidence | None], float] = lambda rate_rps, known: 0.0
    enough_rps: float = math.inf
    earlier: tuple[RateEvidence, ...] = ()
    open_claims: int = 0
    lead_in_s: Callable[[float], float] = lambda rate_rps: 0.0
    ceiling_rps: Callable[[], float] = lambda: math.inf
    may_exceed: Callable[[float], bool] | None = None
    upheld: Callable[[RateEvidence], bool] = lambda known: False
    counts_below: Callable[[RateEvidence, float], bool] = lambda known, rate_rps: False
    proves: Callable[[RateEvidence], bool] = lambda known: False
    goes_on: Callable[[], bool] = lambda: True
    requests_min: int = 0
    answered_rps: Callable[[], float | None] = lambda: None
    left_s: Callable[[], float] = lambda: math.inf
    kept_s: float = 0.0
    later_s: float = 0.0

    @property
    def miss_rate_max(self) -> float:
        """The fraction of requests that may be late."""
        return tail_share(self.percentile)

    def may_be_run(self, rate: float, known: RateEvidence | None) -> bool:
        """Whether the machine's slow state is expected to carry a rate, or its own runs met it.

        What they came to (``known``) counts then. A fixed rate is not chosen.
        """
        if self.fixed_rps or rate <= self.ceiling_rps():
            return True
        return known is not None and self.upheld(known)

    def to_pass(self, certificate: Certificate, claim: int) -> float:
        """Further requests, none of them late, that a PASS takes; infinite for no number."""
        found = expected_requests(
            miss_rate=0.0,
            inflation=certificate.inflation or 1.0,
            percentile=self.percentile,
            confidence=claim_confidence(certificate.confidence, claim),
            requests=certificate.own_requests,
            over_budget=certificate.own_over_budget,
            higher=certificate.higher,
        )
        return found if found is not None else math.inf


@dataclass(slots=True)
class Certified:
    """What came of it.

    Args:
        rate_rps: The rate of ``certificate``; None if no run was made.
        passed: Whether ``rate_rps`` may be claimed.
        blocks: The runs of this walk at ``rate_rps``.
        runs: Every run made, in order.
        evidence: By rate: what was known, and what the runs added.
        trouble: Why the walk ended early though something had passed, as a sentence; else empty.
    """

    rate_rps: float | None = None
    certificate: Certificate | None = None
    passed: bool = False
    blocks: list[LoadTest] = field(default_factory=list)
    runs: list[LoadTest] = field(default_factory=list)
    evidence: dict[float, RateEvidence] = field(default_factory=dict)
    trouble: str = ""


Run = Callable[[float, float, float], LoadTest]
"""Offers a rate (requests per second) for a lead-in and then for seconds that count, with fresh
arrivals."""

Judge = Callable[[float, Sequence[int], int, RateEvidence | None], Certificate]
"""The certificate of a rate from the runs with these indices in the order of ``Run`` and from what
was known before them, as the claim of this number."""
