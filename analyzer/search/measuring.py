"""Measures until the budget ends: takes one step after another on the workers, and learns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import Edge, Failure, Measurement
from analyzer.measure.certify import AT_ONCE, CLIMBING
from analyzer.measure.edge import revised_edge
from analyzer.measure.jobs import Job, JobResult
from analyzer.measure.plan import CertifyPlan, EdgePlan
from analyzer.measure.tasks import MeasureTask
from analyzer.search.build import BuiltVariants
from analyzer.search.context import WAIT_S, SearchContext
from analyzer.search.next_step import Standing, Step, next_step
from analyzer.search.outcome_log import merged, outcome_of
from analyzer.search.score import score_of
from analyzer.search.screening import Screening
from analyzer.search.time_plan import hangs_after_s
from analyzer.search.wording import describe

if TYPE_CHECKING:
    from analyzer.search.optuna_trials import OptunaTrials, Proposal

# Seconds under load of one search for an edge: this share of the budget, within limits.
_EDGE_SHARE = 0.08
_EDGE_S = (2.5, 20.0)
# With a target rate to be judged at: the shares of the edge and of the run at that rate.
_TARGET_SHARES = (0.6, 0.5)
# A first certificate gets so many times what it is expected to take, so that it ends in a PASS and
# not in a plan; at most this share of what is left.
_FIRST_PROOF_FACTOR = 2.5
_FIRST_PROOF_SHARE = 0.6
_FIRST_PROOF_S_MIN = 3.0  # for the two runs of a first plan
# Once something is proven: the share of what is left then that trials may take, and of what is left
# later that a climb leaves to the baseline's certificate.
_TRIALS_SHARE = 0.45
_BASELINE_SHARE = 0.25
# A candidate takes the place of the one that is proven already if its edge is so many times as
# high: edges of short runs are known to a few per cent (docs/twin.md).
_WORTH_A_CHANGE = 1.05
# The reason of a baseline that had no turn.
OUT_OF_TIME = "budget"
_LOAD_S_MIN = 1.0  # of any task


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    """A step that runs: what it measures, and the trial that proposed it."""

    step: Step
    configuration: Configuration
    proposal: Proposal | None = None
    capacity_before_rps: float = 0.0


class Measuring:
    """The measuring part of one search. Used once.

    Args:
        trials: Optuna's study; None where no candidate may be measured.
    """

    def __init__(
        self,
        context: SearchContext,
        built: BuiltVariants,
        screening: Screening,
        trials: OptunaTrials | None,
    ) -> None:
        self._context = context
        self._built = built
        self._screening = screening
        self._trials = trials
        self._edge_s = float(np.clip(_EDGE_SHARE * context.request.budget_s, *_EDGE_S))
        self._pending: dict[str, _Pending] = {}
        self._exhausted = trials is None
        # Steps that brought nothing: no higher certified rate, or for the baseline no edge.
        self._stuck: set[str] = set()
        self._begun = 0
        self._trials_until: float | None = None

    def run(self) -> None:
        """Takes steps until none fits; those of an interrupted run of the study count."""
        context = self._context
        stored = [known for known in context.log.stored if known.role == "trial"]
        self._begun = len(stored)
        sla = context.request.sla
        if self._trials is not None:
            self._trials.reconcile({s.trial_number: score_of(s.outcome, sla) for s in stored})
        context.progress.phase("measuring", max(0.0, context.plan.left_s))
        self._begin_wanted()
        while self._pending:
            result = context.executor.next_result(WAIT_S)
            if result is not None:
                self._finish(self._pending.pop(result.job_id), result)
                self._begin_wanted()
        if self._trials is not None:
            self._trials.abandon()

    def complete(self, seconds: float) -> None:
        """Certifies the best candidate at a safe rate, whatever the budget says.

        Args:
            seconds: Under load.
        """
        best = self.best
        if best is not None:
            pending = _Pending(step="proof", configuration=best.configuration)
            task = self._certify_task(best.configuration, best.edge, seconds, AT_ONCE)
            timeout_s = hangs_after_s(seconds)
            (result,) = self._context.run([Job("complete", task, timeout_s, "complete")])
            self._finish(pending, result)

    @property
    def missing_s(self) -> float | None:
        """Seconds under load that the best candidate's proof still takes; None if unknown."""
        return self.missing_s_of(self.best) if self.best is not None else None

    def missing_s_of(self, candidate: Measurement | None) -> float | None:
        """Seconds under load that the proof of ``candidate`` still takes; None if unknown.

        Without a candidate: that of what would be measured first.
        """
        if candidate is None:
            return self._screening.proof_s()
        certificate, test = candidate.certificate, candidate.headline
        rate_rps = test.offered_rps if test is not None else candidate.edge.at_least_rps
        if certificate is not None and certificate.requests_missing and rate_rps:
            return certificate.requests_missing / rate_rps
        return self._screening.proof_s(candidate.configuration)

    # --- what next -------------------------------------------------------------------------------

    def _begin_wanted(self) -> None:
        """Gives every idle worker a step, as long as one fits."""
        while len(self._pending) < self._context.executor.workers:
            step = next_step(self._standing())
            if step is None or not self._begin(step):
                return

    def _standing(self) -> Standing:
        context, best = self._context, self.best
        left_s = context.plan.left_s
        proven = self._winner is not None
        if proven and self._trials_until is None:
            self._trials_until = context.clock() + _TRIALS_SHARE * max(left_s, 0.0)
        trials_s = 0.0 if self._trials_until is None else self._trials_until - context.clock()
        baseline = context.log.measurement(context.baseline.config_id)
        return Standing(
            left_s=left_s,
            start_s=context.server_start_s,
            edge_s=self._edge_s,
            proven=proven,
            best_share=self._share(best),
            climbing=best is not None and _id(best) not in self._stuck,
            baseline_share=self._share(baseline),
            baseline_open=context.baseline.config_id not in self._stuck
            and not _failed(context.log.latest.get(context.baseline.config_id))
            and self._baseline_proof_fits(left_s),
            trials_wanted=self._trials_wanted(),
            trials_s=trials_s,
            pending=frozenset(pending.step for pending in self._pending.values()),
        )

    @property
    def best(self) -> Measurement | None:
        """The candidate with the best edge (or objective) that keeps every limit."""
        ranked = self._context.log.ranked(self._screening.allowed)
        best = next((m for m in ranked if m.capacity_rps or _id(m) not in self._stuck), None)
        winner = self._winner
        if best is None or winner is None or not self._by_edge or _id(winner) in self._stuck:
            return best
        edge, proven = best.edge.at_least_rps or 0.0, winner.edge.at_least_rps or 0.0
        # What another candidate would have to prove first is worth more than its little gain.
        return winner if edge < _WORTH_A_CHANGE * proven else best

    @property
    def _by_edge(self) -> bool:
        return self._context.request.sla.objective in ("capacity", "cost")

    @property
    def _winner(self) -> Measurement | None:
        return self._context.log.certified(self._screening.allowed)

    def _trials_wanted(self) -> bool:
        request = self._context.request
        if request.trials_max is not None and self._begun >= request.trials_max:
            return False
        if not self._exhausted and request.sampler == "twin":
            if self._winner is not None:
                self._exhausted = self._screening.designer.finished(request.sla.confidence)
            elif self._begun and self.best is None:
                # The rest of the time goes to the proof that nothing keeps the SLA.
                self._exhausted = self._screening.hopeless
        return not self._exhausted

    def _share(self, measurement: Measurement | None) -> float | None:
        """Certified rate over the edge at all speeds met; None where no rate was kept."""
        if measurement is None or not measurement.edge.at_least_rps:
            return None
        factor = self._screening.speed_factor(measurement.configuration)
        return (measurement.capacity_rps or 0.0) / (factor * measurement.edge.at_least_rps)

    # --- steps -----------------------------------------------------------------------------------

    def _begin(self, step: Step) -> bool:
        """Submits a step; False where the sampler has nothing left for it.

        A certificate waits for another of its family: both would take the same claim numbers.
        """
        context = self._context
        proposal = None
        if step in _CERTIFYING and self._certifies(baseline=step == "baseline_proof"):
            return False
        if step in ("first", "trial"):
            proposal = self._propose()
            if proposal is None:
                self._exhausted = True
                return self._begin_instead()
            configuration = proposal.configuration
            self._begun += 1
        elif step in ("baseline", "baseline_proof"):
            configuration = context.baseline
        else:
            assert self.best is not None
            configuration = self.best.configuration
        known = context.log.measurement(configuration.config_id)
        seconds, task = self._task(step, configuration, known)
        job_id = f"{step}-{proposal.trial_number if proposal else configuration.config_id}"
        self._pending[job_id] = _Pending(
            step=step,
            configuration=configuration,
            proposal=proposal,
            capacity_before_rps=(known.capacity_rps or 0.0) if known is not None else 0.0,
        )
        context.progress.detail(f"{step.replace('_', ' ')}: {describe(configuration)}")
        timeout_s = hangs_after_s(seconds)
        context.executor.submit(Job(job_id, task, timeout_s, configuration.config_id))
        return True

    def _certifies(self, *, baseline: bool) -> bool:
        """Whether a certificate of the candidates' family, or of the baseline's, is pending."""
        allowed, baseline_id = self._screening.allowed, self._context.baseline.config_id
        own = baseline and baseline_id not in allowed
        return any(
            (p.configuration.config_id not in allowed) == own
            for p in self._pending.values()
            if p.step in _CERTIFYING
        )

    def _begin_instead(self) -> bool:
        step = next_step(self._standing())
        return step is not None and self._begin(step)

    def _propose(self) -> Proposal | None:
        assert self._trials is not None
        ids = frozenset(p.configuration.config_id for p in self._pending.values())
        return self._trials.ask(self._context.log.scores, ids)

    def _task(
        self, step: Step, configuration: Configuration, known: Measurement | None
    ) -> tuple[float, MeasureTask]:
        """The step's task, and its seconds under load."""
        left_s = max(self._context.plan.left_s - self._context.server_start_s, _LOAD_S_MIN)
        if step in ("proof", "climb", "baseline_proof"):
            assert known is not None
            waits = step == "climb" and self._baseline_waits
            waits = waits and self._baseline_proof_fits(_BASELINE_SHARE * left_s)
            share = 1.0 - _BASELINE_SHARE if waits else 1.0
            seconds = max(share * left_s, _LOAD_S_MIN)
            shares = AT_ONCE if step == "baseline_proof" else CLIMBING
            return seconds, self._certify_task(configuration, known.edge, seconds, shares)
        wanted_s = _LOAD_S_MIN if self._screening.hopeless else self._edge_s
        edge_s = min(wanted_s, left_s)
        if step != "first":
            return edge_s, self._edge_task(configuration, edge_s)
        wanted_s = _FIRST_PROOF_FACTOR * (self._screening.proof_s(configuration) or edge_s)
        wanted_s = min(wanted_s, _FIRST_PROOF_SHARE * left_s)
        seconds = max(min(max(wanted_s, _FIRST_PROOF_S_MIN), left_s - edge_s), _LOAD_S_MIN)
        task = replace(
            self._edge_task(configuration, edge_s),
            certify=self._certify_plan(configuration, None, seconds, CLIMBING),
        )
        return edge_s + seconds, task

    @property
    def _baseline_waits(self) -> bool:
        baseline = self._context.baseline.config_id
        known = self._context.log.measurement(baseline)
        return known is not None and not known.capacity_rps and baseline not in self._stuck

    def _baseline_proof_fits(self, seconds: float) -> bool:
        """Whether a certificate of the baseline may end in so many seconds; its edge counts too."""
        known = self._context.log.measurement(self._context.baseline.config_id)
        if known is None or not known.edge.at_least_rps:
            return True
        needed_s = self.missing_s_of(known)
        return needed_s is None or self._context.server_start_s + needed_s <= seconds

    def _edge_task(self, configuration: Configuration, seconds: float) -> MeasureTask:
        sla = self._context.request.sla
        at_target = sla.objective in ("latency", "memory") and sla.target_rate_rps is not None
        edge_share, target_share = _TARGET_SHARES if at_target else (1.0, 0.0)
        predicted = self._predicted(configuration)
        return self._context.measure_task(
            configuration,
            accuracy=self._built.accuracy(configuration),
            predicted_rps=predicted,
            edge_plan=self._edge_plan(configuration, predicted, edge_share * seconds),
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

    def _certify_task(
        self, configuration: Configuration, edge: Edge, seconds: float, shares: tuple[float, ...]
    ) -> MeasureTask:
        return self._context.measure_task(
            configuration,
            accuracy=self._built.accuracy(configuration),
            predicted_rps=self._predicted(configuration),
            edge_plan=None,
            certify=self._certify_plan(configuration, edge, seconds, shares),
        )

    def _certify_plan(
        self,
        configuration: Configuration,
        edge: Edge | None,
        seconds: float,
        shares: tuple[float, ...],
    ) -> CertifyPlan:
        sla = self._context.request.sla
        fixed = sla.target_rate_rps if sla.objective in ("latency", "memory") else None
        predicted = self._predicted(configuration)
        measured = edge.at_least_rps if edge is not None else None
        scale = predicted / measured if predicted and measured else 1.0
        log, config_id = self._context.log, configuration.config_id
        known = log.measurement(config_id)
        baseline = config_id == self._context.baseline.config_id
        winner = self._winner
        # A baseline that may be recommended is one of the family.
        allowed = self._screening.allowed
        return CertifyPlan(
            seconds=seconds,
            edge=edge,
            rate_rps=fixed,
            twin=self._screening.server_model(configuration, rate_scale=scale),
            shares=shares,
            # A candidate that proves less than what is proven already changes nothing.
            above_rps=(winner.capacity_rps or 0.0)
            if winner is not None and not baseline and fixed is None
            else 0.0,
            earlier=known.evidence if known is not None else (),
            open_claims=log.open_claims(allowed if config_id in allowed else [config_id]),
            slowness=self._screening.twin.slowness,
            conditions=log.conditions,
        )

    def _predicted(self, configuration: Configuration) -> float | None:
        return self._screening.twin.edges([configuration])[0] or None

    # --- outcomes --------------------------------------------------------------------------------

    def _finish(self, pending: _Pending, result: JobResult) -> None:
        """Stores a step's outcome, then tells it to Optuna and to the designer."""
        context, sla = self._context, self._context.request.sla
        config_id = pending.configuration.config_id
        outcome, logs = outcome_of(result, pending.configuration)
        known = context.log.measurement(config_id)
        if isinstance(outcome, Measurement):
            outcome = self._joined(known, outcome)
        elif known is not None:
            context.log.warn(f"{describe(pending.configuration)}: {outcome.message}")
        proposal = pending.proposal
        context.log.record(
            outcome,
            role=_ROLES[pending.step],
            trial_number=proposal.trial_number if proposal is not None else -1,
            params=proposal.params if proposal is not None else None,
            logs=logs,
        )
        score = score_of(outcome, sla)
        if proposal is not None and self._trials is not None:
            self._trials.tell(proposal.trial_number, score)
        # The designer compares edges that were found alike: it learns once of what works.
        if known is None:
            self._screening.designer.update(config_id, score.value, feasible=score.feasible)
        # Simulations take all cores, on which no load test may run meanwhile.
        if isinstance(outcome, Measurement) and not self._pending:
            self._screening.learn([outcome], context.baseline)
        if not _gained(pending, outcome):
            self._stuck.add(config_id)

    def _joined(self, known: Measurement | None, outcome: Measurement) -> Measurement:
        """A measurement with what was known before, its edge held against the longer runs."""
        context, sla = self._context, self._context.request.sla
        if known is not None:
            outcome = merged(known, outcome)
        edge = revised_edge(outcome.edge, outcome.load_tests, miss_rate_max=sla.miss_rate_max)
        if edge != outcome.edge:
            context.log.warn(
                f"{describe(outcome.configuration)}: the certificate's runs broke the SLA below "
                f"the edge that shorter runs gave ({outcome.edge.rate_rps or 0:,.0f}/s), so it was "
                "lowered. This machine's speed may drift."
            )
        completed = self._screening.twin.completed(replace(outcome, edge=edge))
        assert isinstance(completed, Measurement)
        return completed


_ROLES: dict[Step, str] = {
    "first": "trial",
    "trial": "trial",
    "proof": "recommendation",
    "climb": "recommendation",
    "baseline": "baseline",
    "baseline_proof": "baseline",
}

_CERTIFYING: frozenset[Step] = frozenset({"first", "proof", "climb", "baseline_proof"})


def _failed(outcome: Measurement | Failure | None) -> bool:
    return isinstance(outcome, Failure) and outcome.reason != OUT_OF_TIME


def _gained(pending: _Pending, outcome: Measurement | Failure) -> bool:
    """Whether a step brought what it was for, so that another like it may bring more."""
    if isinstance(outcome, Failure):
        return False
    if pending.step in ("proof", "climb", "baseline_proof"):
        return (outcome.capacity_rps or 0.0) > pending.capacity_before_rps
    return pending.step != "baseline" or outcome.edge.at_least_rps is not None


def _id(measurement: Measurement) -> str:
    return measurement.configuration.config_id
