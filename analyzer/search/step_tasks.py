"""The task of each step of a search: what is measured, for how long, and what is proven."""

from __future__ import annotations

import math
from dataclasses import replace

from analyzer.domain.configuration import Configuration
from analyzer.domain.load_test import LoadTest
from analyzer.domain.measurement import Edge, Measurement
from analyzer.domain.speeds import EVIDENCE_MIN
from analyzer.measure.certify_goal import AT_ONCE, BOLD, CLIMBING
from analyzer.measure.plan import (
    REQUESTS_MIN,
    CertifyPlan,
    EdgePlan,
    ProvenAnswer,
    certifying_runs,
)
from analyzer.measure.tasks import MeasureTask
from analyzer.search.build import BuiltVariants
from analyzer.search.context import SearchContext
from analyzer.search.next_step import COMPARABLE, PROVING, Step
from analyzer.search.screening import Screening

# Seconds under load of one search for an edge: this share of the budget, within limits; of a slow
# model it may be as many as four runs of the fewest requests take at half of the expected edge.
_EDGE_SHARE = 0.08
_EDGE_S = (2.5, 20.0)
_EDGE_RUNS = 4
_EDGE_REACH = 0.5
# With a target rate to be judged at: the shares of the edge and of the run at that rate.
_TARGET_SHARES = (0.6, 0.5)
# A first certificate gets so many times what it is expected to take, so that it ends in a PASS and
# not in a plan; at most this share of what is left, or what the baseline's edge leaves of it: there
# is no time for a second one of a slow model.
_FIRST_PROOF_FACTOR = 2.5
_FIRST_PROOF_SHARE = 0.6
# The least gain for which it goes on after its PASS: what it leaves goes to a later climb, which
# has all that is left.
_CLIMB_GAIN = 1.3
_FIRST_PROOF_S_MIN = 3.0  # for the two runs of a first plan
# A search for an edge takes up to half as long again where the machine varies.
_EDGE_LONGER = 1.5
# It comes before the edge where the time may not suffice for both: with runs that are given up, a
# search takes up to twice its seconds, and a proof by half more than is expected of it.
_EDGE_FACTOR = 2.0
_PROOF_FACTOR = 1.5
# Where no proof fits after it, the baseline's edge may take so many times as long, since the time
# brings nothing else.
_BASELINE_FACTOR = 2.0
# Of a predicted edge: what the edge is supposed to reach before it was measured. Probes that were
# up to 40 % off were met (docs/twin.md).
_SUPPOSED_SHARE = 0.6
# Of what is left once something is proven: what a climb leaves to the baseline's certificate.
_BASELINE_SHARE = 0.25
# An open edge is closed by so many runs of the least evidence, by fewer where a rate above it
# clearly broke the SLA already; in this share of the budget at most.
_CLOSING_RUNS = 2.4
_CLOSING_RUNS_BROKEN = 1.2
_CLOSING_SHARE = 0.15
_LOAD_S_MIN = 1.0  # of any task
# Of what is left: what a first proof may leave to the baseline's edge.
_KEPT_SHARE = 0.35
#: A candidate takes the place of the one that is proven already if its edge is so many times as
#: high, and tries no rate below so many times the proven one: edges of short runs are known to a
#: few per cent (docs/twin.md).
WORTH_A_CHANGE = 1.05


def _open_rate(candidate: Measurement, miss_rate_max: float) -> float | None:
    """The rate whose certificate misses requests to a PASS; None where there is none.

    Where more requests were late than may be, what it misses is missing to a FAIL.
    """
    certificate, test = candidate.certificate, candidate.headline
    if certificate is None or not certificate.requests_missing:
        return None
    late = certificate.is_late(miss_rate_max)
    return None if late or test is None else test.offered_rps


class StepTasks:
    """Makes the tasks of one search from what is known and what time is left."""

    def __init__(self, context: SearchContext, built: BuiltVariants, screening: Screening) -> None:
        self._context = context
        self._built = built
        self._screening = screening
        # What a proof takes by configuration and share of its edge: each costs simulations, and is
        # asked at every step.
        self._proofs_s: dict[tuple[str, float | None], float | None] = {}

    @property
    def edge_s(self) -> float:
        """Seconds under load of one search for an edge, of the best that is predicted."""
        screening = self._screening
        edges = [screening.predicted.get(config_id) or 0.0 for config_id in screening.allowed]
        return self._edge_s(max(edges, default=0.0))

    def _edge_s(self, expected_rps: float | None) -> float:
        """Seconds under load of a search for an edge that is expected at ``expected_rps``."""
        shortest_s, longest_s = _EDGE_S
        if expected_rps:
            slow_s = _EDGE_RUNS * REQUESTS_MIN / (_EDGE_REACH * expected_rps)
            longest_s = max(longest_s, slow_s)
        return min(max(_EDGE_SHARE * self._context.request.budget_s, shortest_s), longest_s)

    def task(
        self,
        step: Step,
        configuration: Configuration,
        known: Measurement | None,
        *,
        leaves_time: bool,
    ) -> tuple[float, MeasureTask]:
        """The step's task, and its seconds under load.

        Args:
            known: What was measured of ``configuration`` before.
            leaves_time: Whether time is left to the baseline's certificate.
        """
        left_s = self._load_s
        if step in PROVING:
            assert known is not None
            share = 1.0 - _BASELINE_SHARE if leaves_time else 1.0
            seconds = max(share * left_s, _LOAD_S_MIN)
            kept_s = self._kept_s(left_s) if step == "proof" else 0.0
            seconds = min(seconds, left_s - kept_s)
            shares = AT_ONCE if step == "baseline_proof" else CLIMBING
            task = self.certificate(configuration, known.edge, seconds, shares)
            assert task.certify is not None
            certify = replace(task.certify, kept_s=kept_s, exceeds=step == "climb_beyond")
            if step == "baseline_proof":  # no completion follows it
                certify = replace(certify, later_s=0.0)
            return seconds, replace(task, certify=certify)
        if step in ("edge", "baseline_edge"):
            assert known is not None
            closing_s = self.closing_s(known)
            assert closing_s is not None
            seconds = min(closing_s, left_s)
            # What the SLA allows of a rate is judged by runs of the same kind.
            runs = tuple(test for test in known.load_tests if test.kind == "edge")
            return seconds, self._edge_task(configuration, seconds, known=runs)
        wanted_s = _LOAD_S_MIN
        if not self._screening.hopeless:
            wanted_s = self._edge_s(self._predicted(configuration))
        if step == "baseline" and self._nothing_fits_after(wanted_s):
            wanted_s *= _BASELINE_FACTOR
        edge_s = min(wanted_s, left_s)
        task = self._edge_task(configuration, edge_s, widely=step == "baseline")
        if step != "first":
            return edge_s, task
        proof_s = self._proof_s(configuration)
        supposed_rps = task.predicted.edge_rps and _SUPPOSED_SHARE * task.predicted.edge_rps
        scarce = proof_s is not None and left_s < _EDGE_FACTOR * edge_s + _PROOF_FACTOR * proof_s
        if supposed_rps and task.edge_plan is not None:
            # No run of this search would be slow enough.
            scarce |= supposed_rps < task.edge_plan.floor_rps
        kept_s = self._kept_s(left_s)
        if scarce and supposed_rps and task.target_seconds is None:
            seconds = left_s - kept_s
            plan = self._certify_plan(configuration, None, seconds, CLIMBING)
            # The probes met by and large the study's usual speed so far.
            usual_us = self._context.log.usual_us
            plan = replace(plan, supposed_rps=supposed_rps, supposed_us=usual_us, kept_s=kept_s)
            return seconds, replace(task, certify=plan)
        wanted_s = _FIRST_PROOF_FACTOR * (proof_s or edge_s)
        rest_s = left_s - edge_s - self._baseline_edge_s(self.edge_s)
        wanted_s = min(wanted_s, max(rest_s, _FIRST_PROOF_SHARE * left_s))
        seconds = max(min(max(wanted_s, _FIRST_PROOF_S_MIN), left_s - edge_s), _LOAD_S_MIN)
        certify = self._certify_plan(configuration, None, seconds, BOLD)
        climb_kept_s = self._baseline_edge_s(_EDGE_LONGER * edge_s)
        start_s = self._context.server_start_s
        certify = replace(
            certify,
            climb_gain=_CLIMB_GAIN,
            kept_s=kept_s,
            climb_kept_s=climb_kept_s,
            # A trial that fits before it, with a proof of what it finds.
            climbs_within_s=climb_kept_s + 2.0 * start_s + edge_s + (proof_s or edge_s),
        )
        return edge_s + seconds, replace(task, certify=certify)

    def leaves_time_to_baseline(self, configuration: Configuration, share: float) -> bool:
        """Whether a climb may leave the time that the baseline's proof takes."""
        comparable = self.baseline_comparable(share, _BASELINE_SHARE * self._load_s)
        return comparable and configuration != self._context.baseline

    def _nothing_fits_after(self, edge_s: float) -> bool:
        """Whether a search for an edge leaves too little time for a proof above what is proven."""
        winner = self._context.log.certified(self._screening.recommendable)
        if winner is None:
            return False
        needed_s = self._context.server_start_s + (self._proof_s(winner.configuration) or edge_s)
        return self._load_s - edge_s < needed_s

    @property
    def _load_s(self) -> float:
        """Seconds under load that the next task may take."""
        return max(self._context.plan.left_s - self._context.server_start_s, _LOAD_S_MIN)

    def completion(self, candidate: Measurement, seconds: float) -> MeasureTask:
        """Goes on with the rate whose certificate misses little; without one with a safe rate.

        Args:
            seconds: Under load.
        """
        task = self.certificate(candidate.configuration, candidate.edge, seconds, AT_ONCE)
        assert task.certify is not None
        rate_rps = _open_rate(candidate, self._context.request.sla.miss_rate_max)
        # Nothing comes after it.
        certify = replace(task.certify, rate_rps=task.certify.rate_rps or rate_rps, later_s=0.0)
        return replace(task, certify=certify)

    def certificate(
        self, configuration: Configuration, edge: Edge, seconds: float, shares: tuple[float, ...]
    ) -> MeasureTask:
        """Certifies ``configuration``; its edge is known, and searched after where it never was.

        Args:
            seconds: Under load.
            shares: As in ``CertifyGoal``.
        """
        known = self._context.log.measurement(configuration.config_id)
        tests = known.load_tests if known is not None else ()
        predicted = self._predicted(configuration)
        searched = any(test.kind == "edge" for test in tests)
        edge_plan = None
        if edge.at_least_rps and not searched:
            edge_plan = self._edge_plan(configuration, predicted, _EDGE_S[0])
        return self._context.measure_task(
            configuration,
            accuracy=self._built.accuracy(configuration),
            predicted_rps=predicted,
            edge_plan=edge_plan,
            certify=self._certify_plan(configuration, edge, seconds, shares),
        )

    def closing_s(self, known: Measurement | None) -> float | None:
        """Seconds under load that the upper end of an edge takes; None where there is none to find.

        It is found, or it would take too much of the budget.
        """
        if known is None or known.edge.rate_rps or not known.edge.at_least_rps:
            return None
        runs = _CLOSING_RUNS if known.edge.bounds_rps[1] is None else _CLOSING_RUNS_BROKEN
        needed_s = max(runs * EVIDENCE_MIN / known.edge.at_least_rps, _EDGE_S[0])
        return needed_s if needed_s <= _CLOSING_SHARE * self._context.request.budget_s else None

    def missing_s(self, candidate: Measurement | None) -> float | None:
        """Seconds under load that the proof of ``candidate`` still takes; None if unknown.

        Without a candidate: that of what would be measured first.
        """
        if candidate is None:
            return self._screening.proof_s()
        certificate = candidate.certificate
        if candidate.capacity_rps and not self._context.log.stands(candidate):
            # What proved a rate that the machine's slow state does not carry counts for a lower.
            return _FIRST_PROOF_S_MIN
        rate_rps = _open_rate(candidate, self._context.request.sla.miss_rate_max)
        if rate_rps and certificate is not None and certificate.requests_missing:
            return certificate.requests_missing / rate_rps
        return self._proof_s(candidate.configuration)

    def learned(self) -> None:
        """Forgets what was expected before the twin or an edge changed."""
        self._proofs_s.clear()

    def baseline_proof_fits(self, seconds: float) -> bool:
        """Whether a certificate of the baseline may end in so many seconds; its edge counts too."""
        known = self._context.log.measurement(self._context.baseline.config_id)
        if known is None or not known.edge.at_least_rps:
            return True
        needed_s = self.missing_s(known)
        return needed_s is None or self._context.server_start_s + needed_s <= seconds

    def baseline_comparable(self, share: float, seconds: float) -> bool:
        """Whether a certificate of the baseline may end in time near a share of its edge.

        Only that makes the gain one of certified rates.

        Args:
            share: What is certified of the recommendation's edge; 0 where nothing is yet, which any
                certificate equals. One rate that is asked for is the same for both.
            seconds: That it may take.
        """
        fits = self.baseline_proof_fits(seconds)
        if not fits or not share or self._context.request.sla.fixed_rps:
            return fits
        # In hundredths, so that few are simulated.
        least = math.ceil(100.0 * COMPARABLE * share) / 100.0
        needed_s = self._proof_s(self._context.baseline, least)
        return needed_s is not None and self._context.server_start_s + needed_s <= seconds

    def _proof_s(self, configuration: Configuration, share: float | None = None) -> float | None:
        """As :meth:`Screening.proof_s`, simulated once until something new is learned."""
        key = configuration.config_id, share
        if key not in self._proofs_s:
            self._proofs_s[key] = self._screening.proof_s(configuration, share=share)
        return self._proofs_s[key]

    @property
    def baseline_edge_s(self) -> float:
        """The least that the baseline's edge takes, as :meth:`_baseline_edge_s`."""
        return self._baseline_edge_s(_EDGE_S[0])

    def _kept_s(self, left_s: float) -> float:
        """Of ``left_s``, what a first proof leaves to the baseline's edge, so that a gain is told.

        What the proof misses then is spent beyond the budget, where that is little.
        """
        kept_s = self.baseline_edge_s
        return kept_s if kept_s <= _KEPT_SHARE * left_s else 0.0

    def _baseline_edge_s(self, load_s: float) -> float:
        """Seconds that the baseline's edge takes, its server's start included; 0 where it is known.

        Args:
            load_s: Those under load.
        """
        known = self._context.log.measurement(self._context.baseline.config_id)
        return self._context.server_start_s + load_s if known is None else 0.0

    def _edge_task(
        self,
        configuration: Configuration,
        seconds: float,
        *,
        known: tuple[LoadTest, ...] = (),
        widely: bool = False,
    ) -> MeasureTask:
        """Searches the edge; goes on with the search that ``known`` is of, if any.

        Args:
            widely: As of :class:`EdgePlan`.
        """
        sla = self._context.request.sla
        at_target = not known and sla.fixed_rps is not None
        edge_share, target_share = _TARGET_SHARES if at_target else (1.0, 0.0)
        predicted = self._predicted(configuration)
        plan = self._edge_plan(configuration, predicted, edge_share * seconds)
        return self._context.measure_task(
            configuration,
            accuracy=self._built.accuracy(configuration),
            predicted_rps=predicted,
            edge_plan=replace(plan, known=known, widely=widely),
            target_seconds=target_share * seconds if at_target else None,
        )

    def _edge_plan(
        self, configuration: Configuration, predicted: float | None, seconds: float
    ) -> EdgePlan:
        # A run is a fifth to a half of the search, and no shorter than a second or so.
        runs_s = (max(0.7, seconds / 5), max(1.5, seconds / 2))
        return self._screening.edge_plan(
            configuration, predicted, seconds=seconds, run_seconds=runs_s
        )

    def _certify_plan(
        self,
        configuration: Configuration,
        edge: Edge | None,
        seconds: float,
        shares: tuple[float, ...],
    ) -> CertifyPlan:
        sla = self._context.request.sla
        twin = self._screening.twin
        scale = twin.rate_scale(configuration, edge) if edge is not None else 1.0
        log, config_id = self._context.log, configuration.config_id
        known = log.measurement(config_id)
        baseline = config_id == self._context.baseline.config_id
        # A baseline that may be recommended is one of the family.
        family = self._screening.recommendable
        winner = log.certified(family)
        above_rps, enough_rps = 0.0, self._context.request.enough_rps or math.inf
        if winner is not None and winner.capacity_rps and not baseline:
            # A candidate that proves hardly more than what is proven already changes nothing.
            same = winner.configuration.config_id == config_id
            above_rps = winner.capacity_rps * (1.0 if same else WORTH_A_CHANGE)
            if winner.capacity_rps < enough_rps <= above_rps:
                above_rps = winner.capacity_rps  # the target makes a machine less
        answer = None
        if winner is not None and winner.configuration.config_id != config_id:
            answered_by = self._screening.server_model(winner.configuration)
            answer = ProvenAnswer(measurement=winner, twin=answered_by)
        return CertifyPlan(
            seconds=seconds,
            later_s=max(self._context.plan.beyond_s - self._context.server_start_s, 0.0),
            edge=edge,
            rate_rps=sla.fixed_rps,
            twin=self._screening.server_model(configuration, rate_scale=scale),
            shares=shares,
            above_rps=above_rps,
            certified_rps=(known.capacity_rps if known is not None else None) or 0.0,
            enough_rps=enough_rps,
            earlier=known.evidence if known is not None else (),
            open_claims=log.open_claims(family if config_id in family else [config_id]),
            slowness=twin.slowness,
            tells_speed=twin.tells_speed(configuration),
            tests=tuple(
                test
                for test in (known.load_tests if known is not None else ())
                if test.validity.valid
            ),
            runs_before=certifying_runs(known),
            response=twin.response,
            conditions=log.conditions,
            earlier_us=log.holding_us,
            answer=answer,
        )

    def _predicted(self, configuration: Configuration) -> float | None:
        return self._screening.twin.edges([configuration])[0] or None
