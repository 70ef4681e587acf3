"""Measures until the budget ends: takes one step after another on the workers, and learns."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import Failure, Measurement
from analyzer.errors import BudgetEndedError
from analyzer.measure.edge import revised_edge
from analyzer.measure.jobs import Job, JobResult
from analyzer.measure.tasks import MeasureTask
from analyzer.search.build import BuiltVariants
from analyzer.search.candidates import Candidates
from analyzer.search.context import SearchContext
from analyzer.search.next_step import (
    CERTIFYING,
    CLOSING,
    PROVING,
    ROLES,
    Standing,
    Step,
    next_step,
)
from analyzer.search.outcome_log import merged, outcome_of
from analyzer.search.score import score_of
from analyzer.search.screening import Screening
from analyzer.search.step_tasks import StepTasks
from analyzer.search.time_plan import hangs_after_s
from analyzer.search.wording import describe, spell_edge

if TYPE_CHECKING:
    from analyzer.search.optuna_trials import OptunaTrials, Proposal

# Of what the twin expected: a candidate that kept less of it is left for another where its proof
# does not fit (a perceptron of 0.2 ms kept 13 of 1,800/s, and 28 s went to certificates at 7/s).
_DISAPPOINTING_SHARE = 0.25
# Once something is proven: the share of what is left then that trials may take.
_TRIALS_SHARE = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    """A step that runs: what it measures, and the trial that proposed it.

    Args:
        runs_before: Those behind what is known of it.
        leaves_time: Whether it leaves time to the baseline's certificate.
    """

    step: Step
    configuration: Configuration
    proposal: Proposal | None = None
    runs_before: int = 0
    leaves_time: bool = False


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
        self._tasks = StepTasks(context, built, screening)
        self._pending: dict[str, _Pending] = {}
        # What the twin was not told yet.
        self._unlearned: list[Measurement] = []
        self._exhausted = trials is None
        self._candidates = Candidates(context, screening.recommendable, self._tasks)
        # Whose open edges were searched once more.
        self._closed: set[str] = set()
        # Of whose steps one ended by a fault, after the configuration had been measured.
        self._faulty: set[str] = set()
        self._begun = 0
        self._trials_until: float | None = None

    def run(self) -> None:
        """Takes steps until none fits; those of an interrupted run of the study count."""
        context = self._context
        # Those without a number are runs that were to refute.
        stored = [
            known
            for known in context.log.stored
            if known.role == "trial" and known.trial_number >= 0
        ]
        self._begun = len(stored)
        sla = context.request.sla
        if self._trials is not None:
            self._trials.reconcile({s.trial_number: score_of(s.outcome, sla) for s in stored})
        context.progress.phase("measuring", max(0.0, context.plan.left_s))
        self._begin_wanted()
        try:
            while self._pending:
                result = context.next_result()
                if result is not None:
                    self._finish(self._pending.pop(result.job_id), result)
                    self._begin_wanted()
        except BudgetEndedError:
            for pending in self._pending.values():
                context.log.warn(f"{describe(pending.configuration)}: the budget ended meanwhile.")
            self._pending.clear()
        self._learn()
        if self._trials is not None:
            self._trials.abandon()

    def complete(self, seconds: float) -> None:
        """Completes the certificate that lacks the least, or certifies a safe rate without one.

        Args:
            seconds: Under load, whatever the budget says.
        """
        if (nearest := self._nearest) is not None:
            self._take("proof", self._tasks.completion(nearest, seconds), seconds)

    def measure_baseline(self) -> None:
        """Measures the baseline's edge as cheaply as may be, whatever the budget says."""
        baseline = self._context.baseline
        seconds, task = self._tasks.task("baseline", baseline, None, leaves_time=False)
        self._take("baseline", task, seconds)

    def _take(self, step: Step, task: MeasureTask, seconds: float) -> None:
        """Takes one step, and waits for it."""
        pending = _Pending(step=step, configuration=task.configuration)
        with suppress(BudgetEndedError):
            for result in self._context.run([Job(step, task, hangs_after_s(seconds))]):
                self._finish(pending, result)

    @property
    def baseline_s(self) -> float:
        """As :attr:`StepTasks.baseline_edge_s`."""
        return self._tasks.baseline_edge_s

    @property
    def missing_s(self) -> float | None:
        """Seconds under load that the nearest proof still takes; None if unknown."""
        nearest = self._nearest
        return self.missing_s_of(nearest) if nearest is not None else None

    @property
    def _nearest(self) -> Measurement | None:
        """What lacks the least to a proof, or is held back; the best where none is begun."""
        return self._candidates.nearest or self.best

    def missing_s_of(self, candidate: Measurement | None) -> float | None:
        """As :meth:`StepTasks.missing_s`."""
        return self._tasks.missing_s(candidate)

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
        candidates = self._candidates
        proven = candidates.winner is not None
        if proven and self._trials_until is None:
            self._trials_until = context.clock() + _TRIALS_SHARE * max(left_s, 0.0)
        trials_s = 0.0 if self._trials_until is None else self._trials_until - context.clock()
        baseline = context.log.measurement(context.baseline.config_id)
        return Standing(
            left_s=left_s,
            start_s=context.server_start_s,
            edge_s=self._tasks.edge_s,
            begun=self._begun > 0,
            proven=proven,
            best_share=self._share(best),
            disappointing=best is not None and self._disappoints(best, left_s),
            climbing=best is not None and best.configuration.config_id not in candidates.stuck,
            risked_share=self._share(candidates.risked),
            baseline_share=self._share(baseline),
            baseline_open=context.baseline.config_id not in candidates.stuck
            and not context.log.failed(context.baseline.config_id)
            and self._tasks.baseline_proof_fits(left_s),
            baseline_comparable=proven
            and self._tasks.baseline_comparable(self._share(best) or 0.0, left_s),
            baseline_edge_s=self._tasks.baseline_edge_s,
            trials_wanted=self._trials_wanted(),
            trials_s=trials_s,
            closing_s=(self._closing_s(best), self._closing_s(baseline)),
            pending=frozenset(pending.step for pending in self._pending.values()),
        )

    @property
    def best(self) -> Measurement | None:
        """What may be recommended with the best edge (or objective) that keeps every limit.

        Where none does and no other is left to try, one whose certificate is open.
        """
        best = self._candidates.best
        return best if best is not None or self._trials_wanted() else self._candidates.open_one

    def _trials_wanted(self) -> bool:
        request = self._context.request
        if request.trials_max is not None and self._begun >= request.trials_max:
            return False
        if self._context.log.nothing_runs:
            return False
        if not self._exhausted and request.sampler == "twin":
            if self._candidates.winner is not None:
                self._exhausted = self._screening.designer.finished(request.sla.confidence)
            elif self._begun and self._candidates.best is None:
                # The rest of the time goes to the proof that nothing keeps the SLA.
                self._exhausted = self._screening.hopeless
        return not self._exhausted

    def _closing_s(self, measurement: Measurement | None) -> float | None:
        if measurement is None or measurement.configuration.config_id in self._closed:
            return None
        return self._tasks.closing_s(measurement)

    def _share(self, measurement: Measurement | None) -> float | None:
        """Certified rate over the edge at all speeds met; None where no rate was kept.

        1 where it is the one rate that is asked for, or a machine carries the target rate: more
        makes nothing better.
        """
        if measurement is None or not measurement.edge.at_least_rps:
            return None
        capacity_rps = measurement.capacity_rps or 0.0
        request = self._context.request
        enough_rps = request.sla.fixed_rps or request.enough_rps
        if enough_rps and capacity_rps >= enough_rps:
            return 1.0
        factor = self._screening.speed_factor(measurement.configuration)
        return capacity_rps / (factor * measurement.edge.at_least_rps)

    def _disappoints(self, candidate: Measurement, left_s: float) -> bool:
        """Whether it kept a small share of what was expected, whose proof would take too long."""
        kept_rps, expected_rps = candidate.edge.at_least_rps, candidate.predicted.edge_rps
        if not kept_rps or not expected_rps or kept_rps >= _DISAPPOINTING_SHARE * expected_rps:
            return False
        missing_s = self.missing_s_of(candidate)
        return missing_s is not None and self._context.server_start_s + missing_s > left_s

    # --- steps -----------------------------------------------------------------------------------

    def _begin(self, step: Step) -> bool:
        """Submits a step; False where the sampler has nothing left for it.

        A certificate waits for another of its family: both would take the same claim numbers.
        """
        context = self._context
        proposal = None
        if step in CERTIFYING and self._certifies(baseline=step == "baseline_proof"):
            return False
        if step in ("first", "trial"):
            proposal = self._propose()
            if proposal is None:
                self._exhausted = True
                instead = next_step(self._standing())
                return instead is not None and self._begin(instead)
            configuration = proposal.configuration
            self._begun += 1
        elif step in ("baseline", "baseline_edge", "baseline_proof"):
            configuration = context.baseline
        else:
            chosen = self._candidates.risked if step == "climb_beyond" else self.best
            assert chosen is not None
            configuration = chosen.configuration
        known = context.log.measurement(configuration.config_id)
        leaves_time = (
            step == "climb"
            and self._baseline_waits
            and self._tasks.leaves_time_to_baseline(configuration, self._share(known) or 0.0)
        )
        seconds, task = self._tasks.task(step, configuration, known, leaves_time=leaves_time)
        job_id = f"{step}-{proposal.trial_number if proposal else configuration.config_id}"
        self._pending[job_id] = _Pending(
            step=step,
            configuration=configuration,
            proposal=proposal,
            runs_before=_runs(known) if known is not None else 0,
            leaves_time=leaves_time,
        )
        context.progress.detail(f"{step.replace('_', ' ')}: {describe(configuration)}")
        context.executor.submit(Job(job_id, task, hangs_after_s(seconds), configuration.config_id))
        return True

    def _certifies(self, *, baseline: bool) -> bool:
        """Whether a certificate of the candidates' family, or of the baseline's, is pending."""
        allowed = self._screening.recommendable
        own = baseline and self._context.baseline.config_id not in allowed
        return any(
            (p.configuration.config_id not in allowed) == own
            for p in self._pending.values()
            if p.step in CERTIFYING
        )

    def _propose(self) -> Proposal | None:
        assert self._trials is not None
        pending = {p.configuration.config_id for p in self._pending.values()}
        return self._trials.ask(self._context.log.scores, frozenset(pending))

    @property
    def _baseline_waits(self) -> bool:
        baseline = self._context.baseline.config_id
        known = self._context.log.measurement(baseline)
        stuck = self._candidates.stuck
        return known is not None and not known.capacity_rps and baseline not in stuck

    # --- outcomes --------------------------------------------------------------------------------

    def _finish(self, pending: _Pending, result: JobResult) -> None:
        """Stores a step's outcome, then tells it to Optuna and to the designer."""
        context, sla = self._context, self._context.request.sla
        config_id = pending.configuration.config_id
        outcome, logs = outcome_of(result, pending.configuration)
        known = context.log.measurement(config_id)
        if isinstance(outcome, Measurement):
            outcome = self._joined(known, outcome)
            context.tell_notes(outcome)
        elif known is not None:
            context.log.warn(f"{describe(pending.configuration)}: {outcome.message}")
        proposal = pending.proposal
        context.log.record(
            outcome,
            role=ROLES[pending.step],
            trial_number=proposal.trial_number if proposal is not None else -1,
            params=proposal.params if proposal is not None else None,
            logs=logs,
        )
        score = score_of(outcome, sla)
        if proposal is not None and self._trials is not None:
            self._trials.tell(proposal.trial_number, score)
        # The designer compares edges that were found alike: it learns once of what works, and
        # again where an open edge was closed.
        if pending.step in CLOSING:
            self._closed.add(config_id)
        if known is None or pending.step in CLOSING:
            self._screening.designer.update(
                config_id, score.value, feasible=score.feasible, exact=score.exact
            )
        if isinstance(outcome, Measurement):
            self._unlearned.append(outcome)
        self._learn()
        # A rate that was taken back is none that a further walk must exceed.
        before = known if known is not None and context.log.stands(known) else None
        before_rps = (before.capacity_rps or 0.0) if before is not None else 0.0
        gained = _gained(pending, outcome, before_rps)
        if gained or self._left_for_nothing(pending, outcome) or self._once_more(known, outcome):
            return
        self._candidates.brought_nothing(config_id, beyond=pending.step == "climb_beyond")

    def _once_more(self, known: Measurement | None, outcome: Measurement | Failure) -> bool:
        """Whether a step was the first that a fault ended, of what had been measured before.

        A worker or a server that is lost once says nothing against the configuration.
        """
        if known is None or isinstance(outcome, Measurement) or not outcome.is_fault:
            return False
        first = known.configuration.config_id not in self._faulty
        self._faulty.add(known.configuration.config_id)
        return first

    def _learn(self) -> None:
        """Tells the twin what was measured, once no load test runs: simulations take all cores."""
        if self._unlearned and not self._pending:
            self._screening.learn(self._unlearned, self._context.baseline)
            self._unlearned = []
        self._tasks.learned()

    def _left_for_nothing(self, pending: _Pending, outcome: Measurement | Failure) -> bool:
        """Whether a climb left time to the baseline's certificate, which does not fit any more.

        What its runs came to counts in the next one, which has that time.
        """
        if not pending.leaves_time or isinstance(outcome, Failure):
            return False
        ran = _runs(outcome) > pending.runs_before
        share = self._share(outcome) or 0.0
        return ran and not self._tasks.baseline_comparable(share, self._context.plan.left_s)

    def _joined(self, known: Measurement | None, outcome: Measurement) -> Measurement:
        """A measurement with what was known before, its edge held against the longer runs."""
        context, sla = self._context, self._context.request.sla
        if known is not None:
            outcome = merged(known, outcome)
        edge = revised_edge(outcome.edge, outcome.load_tests, miss_rate_max=sla.miss_rate_max)
        before = outcome.edge
        if (edge.rate_rps, edge.at_least_rps) != (before.rate_rps, before.at_least_rps):
            context.log.warn(
                f"{describe(outcome.configuration)}: further runs broke the SLA below "
                f"the edge that shorter runs gave ({spell_edge(before)}), so it was lowered. "
                "This machine's speed may drift."
            )
        completed = self._screening.twin.completed(replace(outcome, edge=edge))
        assert isinstance(completed, Measurement)
        return completed


def _gained(pending: _Pending, outcome: Measurement | Failure, before_rps: float) -> bool:
    """Whether a step brought what it was for: a proof more than ``before_rps``, which stands."""
    if isinstance(outcome, Failure):
        return False
    if pending.step in PROVING:
        # A rate that was taken back may be claimed again without a run.
        new = before_rps > 0.0 or _runs(outcome) > pending.runs_before
        return new and (outcome.capacity_rps or 0.0) > before_rps
    return pending.step != "baseline" or outcome.edge.at_least_rps is not None


def _runs(measurement: Measurement) -> int:
    """Those behind all that is known of its rates."""
    return sum(known.blocks for known in measurement.evidence)
