"""The Optuna study of a search: every trial with its parameters, value and constraints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.storages import BaseStorage
from optuna.trial import TrialState

from analyzer.domain.configuration import Configuration
from analyzer.domain.space import Params, SearchSpace
from analyzer.search.designer import Designer
from analyzer.search.optuna_samplers import LISTED, choices, make_sampler
from analyzer.search.request import SearchRequest
from analyzer.search.score import UNUSABLE, Score
from analyzer.store.running_trials import DrivenStorage

# Proposals of configurations that are measured already, in a row, before a sampler is held to be
# going in circles.
_REPEATS_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A configuration to measure, and the trial that proposed it."""

    trial_number: int
    configuration: Configuration
    params: Params


def open_trials(
    request: SearchRequest,
    allowed: frozenset[str],
    designer: Designer,
    *,
    storage: BaseStorage | None = None,
    parallel: bool = False,
) -> OptunaTrials:
    """The trials of a search, proposed by its sampler.

    Args:
        allowed: As of :class:`OptunaTrials`.
        designer: What the sampler ``twin`` proposes.
        storage: Where the study is kept, and gone on with if it is there; None for memory.
        parallel: Whether several trials run at the same time.

    Raises:
        StoreError: The database cannot be read or written.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    together: Callable[[], AbstractContextManager[None]] = nullcontext
    if isinstance(storage, DrivenStorage):
        together = storage.together
    with together():
        study = optuna.create_study(
            storage=storage, study_name=request.part, direction="maximize", load_if_exists=True
        )
        # One that goes on would draw what it drew before, all of which is measured.
        drawn = len(study.get_trials(deepcopy=False))
    study.sampler = make_sampler(
        request.sampler,
        seed=(request.seed + drawn) % 2**32,
        space=request.space,
        parallel=parallel,
        designer=designer,
    )
    return OptunaTrials(study, request.space, allowed, together=together)


class OptunaTrials:
    """The trials of one study, in the same database as our own tables.

    Args:
        study: The Optuna study; its direction is to maximise :attr:`Score.value`.
        space: What may be proposed.
        allowed: Ids of the configurations that may be measured (its variant exists and keeps the
            accuracy limit).
        together: As :meth:`DrivenStorage.together`; every use of the database is inside.

    Every method raises:
        StoreError: The database cannot be read or written.
    """

    def __init__(
        self,
        study: optuna.Study,
        space: SearchSpace,
        allowed: frozenset[str],
        *,
        together: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._study = study
        self._together = together
        self._space = space
        self._allowed = allowed
        self._choices = choices(space)
        self._open: dict[int, optuna.Trial] = {}

    def ask(self, done: Mapping[str, Score], pending: frozenset[str]) -> Proposal | None:
        """A configuration that is neither measured nor being measured.

        One that is measured already is told again from ``done``, and never measured twice.

        Returns:
            None when the sampler finds nothing new: the space is used up or it goes in circles.
        """
        if self._allowed <= done.keys() | pending:
            return None
        for _ in range(_REPEATS_MAX):
            with self._together():
                trial = self._study.ask()
                params = self._suggest(trial)
            configuration = self._space.configuration(params)
            config_id = configuration.config_id if configuration is not None else ""
            if config_id in self._allowed and config_id in done:
                self._finish(trial, done[config_id])
            elif configuration is None or config_id not in self._allowed or config_id in pending:
                self._finish(trial, UNUSABLE)
            else:
                self._open[trial.number] = trial
                return Proposal(
                    trial_number=trial.number, configuration=configuration, params=params
                )
        return None

    def tell(self, trial_number: int, score: Score) -> None:
        """Tells what a proposed configuration turned out to be; nothing if it is not open."""
        trial = self._open.pop(trial_number, None)
        if trial is not None:
            self._finish(trial, score)

    def reconcile(self, scores: Mapping[int, Score]) -> None:
        """Brings the study up to date with what was stored before an interruption.

        Of the trials that still run there, those with a score are told it; nobody will ever finish
        the others: they are abandoned, so that their configurations can be proposed.

        Args:
            scores: By trial number.
        """
        with self._together():
            for frozen in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                self._open[frozen.number] = optuna.Trial(self._study, frozen._trial_id)
        for number in sorted(self._open.keys() & scores.keys()):
            self.tell(number, scores[number])
        self.abandon()

    def abandon(self) -> None:
        """Ends what is still open (the search stops); such trials teach nothing."""
        with self._together():
            for trial in self._open.values():
                self._study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)
        self._open.clear()

    def _suggest(self, trial: optuna.Trial) -> Params:
        if self._space.listed:
            label = trial.suggest_categorical(LISTED, self._choices[LISTED])
            return dict(self._space.listed[self._choices[LISTED].index(label)].params)
        params: Params = {}
        for parameter in self._space.parameters:
            if parameter.active(params):
                value: Any = trial.suggest_categorical(parameter.name, parameter.choices)
                params[parameter.name] = value
        return params

    def _finish(self, trial: optuna.Trial, score: Score) -> None:
        """Ends a trial; without a value it has the worst, so that it teaches a sampler too."""
        with self._together():
            for name, violation in score.constraints.items():
                trial.set_constraint(name, violation)
            self._study.tell(trial, score.value or 0.0, skip_if_finished=True)
