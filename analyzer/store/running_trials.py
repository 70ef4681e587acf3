"""Optuna's database storage for a study that one process drives: running trials from memory.

Optuna's cache of a database reads every unfinished trial again at each question, since another
process may have changed it (``optuna/storages/_cached_storage.py``), and writes each parameter and
each constraint in a transaction of its own. With hundreds of trials that run at the same time each
proposal then takes tenths of a second. Of a study here one process alone asks and tells, so that
what it wrote is what stands there.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from optuna.distributions import (
    BaseDistribution,
    check_distribution_compatibility,
    distribution_to_json,
)
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from optuna.storages._rdb import models
from optuna.storages._rdb.storage import _create_scoped_session
from optuna.trial import FrozenTrial, TrialState

from analyzer.store import engine as engines

_Row = models.TrialParamModel | models.TrialSystemAttributeModel


class DrivenStorage(RDBStorage):
    """Reads a trial from the database only when it is new to this process.

    Every write goes to the database first, those within :meth:`together` at its end. Used by one
    thread.
    """

    def __init__(self, url: str, engine_kwargs: dict[str, Any]) -> None:
        super().__init__(url, engine_kwargs=engine_kwargs)
        self._running: dict[int, FrozenTrial] = {}
        self._ended: list[FrozenTrial] = []
        self._read: set[int] = set()
        self._held: list[_Row] | None = None

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is set of running trials inside is written in one transaction.

        At the end, or before the trial's state: one that ended has all that was set. Where it
        cannot be written, or the block raises, nothing of it is.

        Raises:
            StoreError: The database cannot be read or written.
        """
        assert self._held is None
        self._held = []
        try:
            with engines.translated(self.engine.url):
                yield
                self._write()
        except StorageInternalError as error:  # Optuna's name for whatever SQLAlchemy raises
            raise engines.store_error(error.__cause__, self.engine.url) from error
        finally:
            self._held = None

    def _write(self) -> None:
        if self._held:
            with _create_scoped_session(self.scoped_session) as session:
                session.add_all(self._held)
            self._held = []

    def _create_new_trial(
        self, study_id: int, template_trial: FrozenTrial | None = None
    ) -> FrozenTrial:
        trial = super()._create_new_trial(study_id, template_trial)
        if not trial.state.is_finished():
            self._running[trial._trial_id] = trial
        return trial

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """From memory while it runs; not copied, as Optuna's cache does not copy finished ones."""
        return self._running.get(trial_id) or super().get_trial(trial_id)

    def _set_trial_param(
        self,
        trial_id: int,
        param_name: str,
        param_value_internal: float,
        distribution: BaseDistribution,
        previous_distribution: BaseDistribution | None = None,
    ) -> None:
        trial = self._running.get(trial_id)
        if self._held is None or trial is None or previous_distribution is None:
            given = (param_name, param_value_internal, distribution, previous_distribution)
            super()._set_trial_param(trial_id, *given)
        else:
            check_distribution_compatibility(previous_distribution, distribution)
            self._held.append(
                models.TrialParamModel(
                    trial_id=trial_id,
                    param_name=param_name,
                    param_value=param_value_internal,
                    distribution_json=distribution_to_json(distribution),
                )
            )
        if trial is not None:
            trial.distributions[param_name] = distribution
            trial.params[param_name] = distribution.to_external_repr(param_value_internal)

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """As Optuna's; held back within :meth:`together`."""
        text = json.dumps(value)
        trial = self._running.get(trial_id)
        if self._held is None or trial is None or key in trial.system_attrs:
            self._write()  # the earlier value, if that is held
            super().set_trial_system_attr(trial_id, key, value)
        else:
            self._held.append(
                models.TrialSystemAttributeModel(trial_id=trial_id, key=key, value_json=text)
            )
        if trial is not None:
            trial.system_attrs[key] = json.loads(text)

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        """As Optuna's, after whatever was held back."""
        self._write()
        done = super().set_trial_state_values(trial_id, state, values)
        ended = self._running.pop(trial_id, None) if done and state.is_finished() else None
        if ended is not None:
            ended.state, ended.values = state, None if values is None else list(values)
            ended.datetime_complete = datetime.now()
            self._ended.append(ended)
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
        trials = [*self._running.values(), *self._ended]
        self._ended.clear()
        return sorted(trials, key=lambda trial: trial._trial_id)
