"""Optuna's storage of a study that one process drives: the same trials, none read anew."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import optuna
import pytest
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

from analyzer.store.optuna_storage import open_optuna_storage
from analyzer.store.results import open_store


def facts(trial: FrozenTrial) -> tuple[object, ...]:
    return (
        trial.number, trial.state, trial.values, trial.params, trial.distributions,
        trial.system_attrs,
    )  # fmt: skip


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'results.db'}"


def study_in(url: str) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(
        storage=open_optuna_storage(open_store(url)), study_name="s", load_if_exists=True,
        direction="maximize", sampler=optuna.samplers.RandomSampler(seed=1),
    )  # fmt: skip


def test_what_is_remembered_is_what_the_database_holds(url: str) -> None:
    study = study_in(url)
    trials = [study.ask() for _ in range(6)]
    for trial in trials[:5]:
        trial.suggest_categorical("a", ("x", "y", 3))
        trial.suggest_categorical("b", (True, False))
        trial.set_constraint("memory", -1.0)
    study.tell(trials[0], 1.5)
    study.tell(trials[3], state=TrialState.FAIL)
    stored = RDBStorage(url)
    wanted = [facts(trial) for trial in stored.get_all_trials(study._study_id)]
    assert [facts(trial) for trial in study.get_trials()] == wanted
    running = study.get_trials(states=(TrialState.RUNNING,))
    assert [trial.number for trial in running] == [1, 2, 4, 5]
    # Another process goes on with what this one left.
    again = study_in(url)
    assert [facts(trial) for trial in again.get_trials()] == wanted
    again.tell(1, 2.5)
    again.ask().suggest_categorical("a", ("x", "y", 3))
    wanted = [facts(trial) for trial in stored.get_all_trials(study._study_id)]
    assert [facts(trial) for trial in again.get_trials()] == wanted


def test_a_proposal_reads_no_trial_that_runs(url: str) -> None:
    study = study_in(url)
    for _ in range(40):
        study.ask().suggest_categorical("a", ("x", "y"))
    build = RDBStorage._build_frozen_trial_from_trial_model
    with patch.object(
        RDBStorage, "_build_frozen_trial_from_trial_model", autospec=True, side_effect=build
    ) as built:
        study.ask().suggest_categorical("a", ("x", "y"))
        study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    assert built.call_count < 10  # Optuna's own storage: 40 at each question
