"""The trials of a search: the sampler proposes, the workers measure, the designer learns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from analyzer.domain.configuration import Configuration
from analyzer.measure.jobs import Job, JobResult
from analyzer.measure.tasks import MeasureTask
from analyzer.search.build import BuiltVariants
from analyzer.search.context import WAIT_S, SearchContext
from analyzer.search.outcome_log import outcome_of
from analyzer.search.score import score_of
from analyzer.search.screening import Screening
from analyzer.search.wording import describe

if TYPE_CHECKING:
    from analyzer.search.optuna_trials import OptunaTrials, Proposal

# Seconds under load of one trial: this share of the budget, within limits.
_LOAD_SHARE = 0.08
_LOAD_S = (2.5, 20.0)
# Of these: the shares of the edge and of the run at the target rate, where there is one.
_EDGE_SHARE = 0.6
_TARGET_SHARE = 0.5
# A worker is held to hang after so many seconds, and these times the seconds under load.
_TIMEOUT_S = 120.0
_TIMEOUT_FACTOR = 10.0
# The share of the certificates' reserve that is kept while no edge was measured.
_RESERVE_EARLY = 0.5


class TrialRun:
    """Proposes and measures until the budget, the trials or the space are used up. Used once."""

    def __init__(
        self,
        context: SearchContext,
        built: BuiltVariants,
        screening: Screening,
        trials: OptunaTrials,
    ) -> None:
        self._context = context
        self._built = built
        self._screening = screening
        self._trials = trials
        self._load_s = float(np.clip(_LOAD_SHARE * context.request.budget_s, *_LOAD_S))
        self._pending: dict[str, Proposal] = {}
        self._finished = 0
        self._exhausted = False

    def run(self) -> None:
        """Runs the trials; those of an interrupted run of the study count."""
        context = self._context
        stored = [known for known in context.log.stored if known.role == "trial"]
        self._finished = len(stored)
        sla = context.request.sla
        self._trials.reconcile({s.trial_number: score_of(s.outcome, sla) for s in stored})
        context.progress.phase("measuring", max(0.0, context.left_s - context.reserve_s))
        self._submit_wanted()
        while self._pending:
            result = context.executor.next_result(WAIT_S)
            if result is not None:
                self._finish(self._pending.pop(result.job_id), result)
                self._submit_wanted()
        self._trials.abandon()

    def _submit_wanted(self) -> None:
        """Gives every idle worker a trial, as long as more are wanted."""
        while len(self._pending) < self._context.executor.workers and self._more():
            ids = frozenset(p.configuration.config_id for p in self._pending.values())
            proposal = self._trials.ask(self._context.log.scores, ids)
            if proposal is None:
                self._exhausted = True
                return
            job_id = f"trial-{proposal.trial_number}"
            configuration = proposal.configuration
            self._pending[job_id] = proposal
            timeout_s = _TIMEOUT_S + _TIMEOUT_FACTOR * self._load_s
            task = self._task(configuration)
            self._context.executor.submit(Job(job_id, task, timeout_s, configuration.config_id))
            self._context.progress.detail(describe(configuration))

    def _more(self) -> bool:
        """Whether another trial is wanted; one is always made, even where no time is left."""
        context, request = self._context, self._context.request
        begun = self._finished + len(self._pending)
        if self._exhausted or (request.trials_max is not None and begun >= request.trials_max):
            return False
        reserve_s = context.reserve_s * (1.0 if self._screening.compared else _RESERVE_EARLY)
        if begun and context.left_s - reserve_s < self._load_s + context.server_start_s:
            return False
        designer = self._screening.designer
        self._exhausted = request.sampler == "twin" and designer.finished(request.sla.confidence)
        return not self._exhausted

    def _task(self, configuration: Configuration) -> MeasureTask:
        sla, load_s = self._context.request.sla, self._load_s
        at_target = sla.objective in ("latency", "memory") and sla.target_rate_rps is not None
        predicted = self._screening.predicted.get(configuration.config_id)
        return self._context.measure_task(
            configuration,
            accuracy=self._built.accuracy(configuration),
            predicted_rps=predicted,
            edge_plan=self._screening.edge_plan(
                configuration,
                predicted,
                seconds=load_s * (_EDGE_SHARE if at_target else 1.0),
                run_seconds=(max(0.7, load_s / 5), max(1.5, load_s / 2)),
            ),
            target_seconds=load_s * _TARGET_SHARE if at_target else None,
        )

    def _finish(self, proposal: Proposal, result: JobResult) -> None:
        """Stores a trial's outcome, then tells it to Optuna and to the designer."""
        outcome, logs = outcome_of(result, proposal.configuration)
        outcome = self._screening.twin.completed(outcome)
        self._context.log.record(
            outcome,
            role="trial",
            trial_number=proposal.trial_number,
            params=proposal.params,
            logs=logs,
        )
        score = score_of(outcome, self._context.request.sla)
        self._trials.tell(proposal.trial_number, score)
        self._screening.designer.update(
            proposal.configuration.config_id, score.value, feasible=score.feasible
        )
        self._finished += 1
