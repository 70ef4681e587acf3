"""Optuna's storage of a study that one process drives: the same trials, none read anew."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import optuna
import pytest
import sqlalchemy
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

from analyzer.cli.search_run import trials_maker
from analyzer.cluster.in_process import InProcessExecutor
from analyzer.domain.sla import Sla
from analyzer.domain.space import Parameter, SearchSpace
from analyzer.domain.workload import Poisson
from analyzer.errors import StoreError
from analyzer.search.designer import Designer
from analyzer.search.optuna_trials import OptunaTrials, open_trials
from analyzer.search.request import SearchRequest
from analyzer.search.score import Score
from analyzer.search.virtual import VIRTUAL_MODEL
from analyzer.store.optuna_storage import open_optuna_storage
from analyzer.store.results import open_store
from analyzer.store.running_trials import DrivenStorage


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


def request_in(space: SearchSpace) -> SearchRequest:
    return SearchRequest(
        study="s", model=VIRTUAL_MODEL, sla=Sla(latency_budget_ms=40.0), arrivals=Poisson(),
        provenance={}, space=space, sampler="random", seed=3,
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


def storage_of(study: optuna.Study) -> DrivenStorage:
    backend = study._storage._backend  # type: ignore[attr-defined]
    assert isinstance(backend, DrivenStorage)
    return backend


def transactions(study: optuna.Study, run: Callable[[], object]) -> int:
    """How many ``run`` commits."""
    counted: list[object] = []

    def count(connection: object) -> None:
        counted.append(connection)

    engine = storage_of(study).engine
    sqlalchemy.event.listen(engine, "commit", count)
    try:
        run()
    finally:
        sqlalchemy.event.remove(engine, "commit", count)
    return len(counted)


def test_a_whole_trial_is_few_transactions_and_reads_nothing_back(url: str) -> None:
    study = study_in(url)
    together = storage_of(study).together

    def trial() -> None:
        with together():
            asked = study.ask()
            for name in "abcdef":
                asked.suggest_categorical(name, ("x", "y"))
        with together():
            for name in ("works", "sla", "memory"):
                asked.set_constraint(name, -1.0)
            study.tell(asked, 2.0)

    trial()
    with patch.object(RDBStorage, "get_trial") as read:
        # Made, parameters, constraints, state; and one that looks for the study.
        assert transactions(study, trial) <= 5
    assert read.call_count == 0
    stored = RDBStorage(url).get_all_trials(study._study_id)
    assert [facts(one) for one in study.get_trials()] == [facts(one) for one in stored]
    assert len(stored[1].params) == 6 and len(stored[1].constraints) == 3
    assert stored[1].datetime_complete is not None


def test_what_is_set_together_is_written_whole_or_not_at_all(url: str) -> None:
    study = study_in(url)
    together = storage_of(study).together
    study.ask().suggest_categorical("a", ("x", "y"))  # the first one is held against the database
    trial = study.ask()
    with pytest.raises(KeyboardInterrupt), together():
        trial.suggest_categorical("a", ("x", "y"))
        raise KeyboardInterrupt
    stored = RDBStorage(url)
    assert [set(t.params) for t in stored.get_all_trials(study._study_id)] == [{"a"}, set()]
    # Nobody waits for the end of the block to know the state, and then all of it is there.
    other = study.ask()
    with together():
        other.suggest_categorical("a", ("x", "y"))
        other.set_constraint("memory", 1.0)
        study.tell(other, 1.0)
        ended = stored.get_all_trials(study._study_id)[2]
        assert (ended.state, ended.constraints) == (TrialState.COMPLETE, {"memory": 1.0})
        assert set(ended.params) == {"a"}


def test_a_random_search_that_goes_on_draws_what_it_has_not_drawn(url: str) -> None:
    """Not the same numbers again, which it would take for a space that is used up."""
    numbers = tuple(range(1, 101))
    parameters = [
        Parameter(name=n, choices=numbers) for n in ("instance_count", "inter_op_threads")
    ]
    space = SearchSpace(
        name="s", device="cpu",
        parameters=(*parameters, Parameter(name="execution_mode", choices=("parallel",))),
    )  # fmt: skip
    allowed = frozenset(space.candidates())
    request = request_in(space)
    done: dict[str, Score] = {}

    def more(count: int) -> None:
        storage = open_optuna_storage(open_store(url))
        trials = open_trials(request, allowed, Designer([], seed=0), storage=storage)
        for _ in range(count):
            proposal = trials.ask(done, frozenset())
            assert proposal is not None
            done[proposal.configuration.config_id] = Score(value=1.0, constraints={})
            trials.tell(proposal.trial_number, done[proposal.configuration.config_id])

    more(250)
    more(10)
    assert len(done) == 260


def test_what_a_search_wrote_is_in_the_file_itself(tmp_path: Path, url: str) -> None:
    """Optuna's connections stayed open to the program's end: a copy of results.db lacked it all."""
    numbers = Parameter(name="instance_count", choices=(1, 2))
    space = SearchSpace(name="s", device="cpu", parameters=(numbers,))
    request = request_in(space)
    executor = InProcessExecutor(device="cpu", cache_dir=tmp_path / "cache", cores=2)
    with open_store(url) as store:
        make = trials_maker(request, store, executor)
        trials = make(frozenset(space.candidates()), Designer([], seed=0))
    # The trials are still there, as in a program that is about to end.
    assert [file.name for file in tmp_path.glob("results.db*")] == ["results.db"], trials


USES: dict[str, Callable[[OptunaTrials, int], object]] = {
    "ask": lambda trials, number: trials.ask({}, frozenset()),
    "tell": lambda trials, number: trials.tell(number, Score(value=1.0, constraints={})),
    "reconcile": lambda trials, number: trials.reconcile({}),
    "abandon": lambda trials, number: trials.abandon(),
}


@pytest.mark.parametrize("use", ["open", *USES])
def test_what_the_database_refuses_is_told_as_of_our_own_tables(
    tmp_path: Path, url: str, use: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Optuna's error was told as a fault of the program."""
    numbers = Parameter(name="instance_count", choices=(1, 2, 3))
    space = SearchSpace(name="s", device="cpu", parameters=(numbers,))
    request = request_in(space)
    allowed = frozenset(space.candidates())

    def opened(storage: RDBStorage) -> OptunaTrials:
        return open_trials(request, allowed, Designer([], seed=0), storage=storage)

    storage, again = (open_optuna_storage(open_store(url)) for _ in range(2))
    trials = opened(storage)
    proposal = trials.ask({}, frozenset())
    assert proposal is not None
    with closing(sqlite3.connect(tmp_path / "results.db")) as other:
        other.execute("ALTER TABLE trials RENAME TO moved")
    monkeypatch.setattr("optuna.storages._rdb.storage.time.sleep", lambda seconds: None)
    with pytest.raises(StoreError, match="did not do what was asked: no such table") as caught:
        if use == "open":
            opened(again)
        else:
            USES[use](trials, proposal.trial_number)
    assert str(tmp_path / "results.db") in caught.value.message and caught.value.exit_code == 2


def test_a_search_goes_on_where_its_driver_was_killed(url: str) -> None:
    """A proposal's parameters are in the database before anybody measures it."""
    study = study_in(url)
    space = SearchSpace(
        name="s", device="cpu", parameters=(Parameter(name="instance_count", choices=(1, 2, 3)),)
    )
    trials = OptunaTrials(
        study, space, frozenset(space.candidates()), together=storage_of(study).together
    )
    proposal = trials.ask({}, frozenset())
    assert proposal is not None
    # Killed here, with an outcome that was stored: another process tells it.
    again = OptunaTrials(study_in(url), space, frozenset(space.candidates()))
    score = Score(value=7.0, constraints={"sla": -1.0})
    again.reconcile({proposal.trial_number: score})
    (trial,) = RDBStorage(url).get_all_trials(study._study_id)
    assert (trial.state, trial.value, trial.params) == (TrialState.COMPLETE, 7.0, proposal.params)
