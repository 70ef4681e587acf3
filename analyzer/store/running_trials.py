"""Optuna's database storage for a study that one process drives: running trials from memory.

Optuna's cache of a database reads every unfinished trial again at each question, since another
process may have changed it (``optuna/storages/_cached_storage.py``). With hundreds of trials that
run at the same time each proposal then takes tenths of a second. Of a study here one process alone
asks and tells, so that what it wrote is what stands there.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState


class DrivenStorage(RDBStorage):
    """Reads a trial from the database when it is new to this process or has just ended.

    Every write goes to the database first. Used by one thread.
    """

    def __init__(self, url: str, engine_kwargs: dict[str, Any]) -> None:
        super().__init__(url, engine_kwargs=engine_kwargs)
        self._running: dict[int, FrozenTrial] = {}
        self._ended: set[int] = set()
        self._read: set[int] = set()

    def _create_new_trial(
        self, study_id: int, template_trial: FrozenTrial | None = None
    ) -> FrozenTrial:
        trial = super()._create_new_trial(study_id, template_trial)
        if not trial.state.is_finished():
            self._running[trial._trial_id] = trial
        return trial

    def _set_trial_param(
        self,
        trial_id: int,
        param_name: str,
        param_value_internal: float,
        distribution: BaseDistribution,
        previous_distribution: BaseDistribution | None = None,
    ) -> None:
        super()._set_trial_param(
            trial_id, param_name, param_value_internal, distribution, previous_distribution
        )
        if (trial := self._running.get(trial_id)) is not None:
            trial.distributions[param_name] = distribution
            trial.params[param_name] = distribution.to_external_repr(param_value_internal)

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        super().set_trial_system_attr(trial_id, key, value)
        if (trial := self._running.get(trial_id)) is not None:
            trial.system_attrs[key] = value

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        done = super().set_trial_state_values(trial_id, state, values)
        if self._running.pop(trial_id, None) is not None:
            self._ended.add(trial_id)
        return done

    def _get_trials(
        self,
        study_id: int,
        states: Container[TrialState] | None,
        included_trial_ids: set[int],
        trial_id_greater_than: int,
    ) -> list[FrozenTrial]:
        if study_id not in self._read:  # an earlier process may have written these
            self._read.add(study_id)
            found = super()._get_trials(study_id, states, set(), -1)
            self._running |= {t._trial_id: t for t in found if not t.state.is_finished()}
            self._ended.clear()
            return found
        ended = [self.get_trial(trial_id) for trial_id in self._ended]
        self._ended.clear()
        trials = [*self._running.values(), *ended]
        return sorted(trials, key=lambda trial: trial._trial_id)
