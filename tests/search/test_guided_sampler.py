from __future__ import annotations

from typing import Any

import numpy as np
import optuna
import pytest

from analyzer.search.guided import Candidate, GuidedSearch
from analyzer.search.twin_sampler import TwinSampler

CHOICES: dict[str, list[Any]] = {
    "instances": [1, 2, 4],
    "batching": [False, True],
    "delay_us": [0, 100, 1000],
}


def all_params() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for instances in CHOICES["instances"]:
        found.append({"instances": instances, "batching": False})
        found.extend(
            {"instances": instances, "batching": True, "delay_us": delay}
            for delay in CHOICES["delay_us"]
        )
    return found


def true_value(params: dict[str, Any]) -> float:
    return float(100 * params["instances"] ** 0.5 + 50 * params["batching"])


def make(wrong: bool = False) -> TwinSampler:
    space = all_params()
    rng = np.random.default_rng(0)
    candidates = [
        Candidate(
            config_id=str(i),
            features=np.array(
                [np.log2(p["instances"]), p["batching"], np.log10(1 + p.get("delay_us", 0))]
            ),
            predicted=1e4 / true_value(p) ** 2 if wrong else true_value(p) * rng.uniform(0.95, 1.1),
        )
        for i, p in enumerate(space)
    ]
    return TwinSampler(
        GuidedSearch(candidates),
        params={str(i): p for i, p in enumerate(space)},
        choices=CHOICES,
        seed=0,
    )


def suggest(trial: optuna.Trial) -> dict[str, Any]:
    params: dict[str, Any] = {}
    params["instances"] = trial.suggest_categorical("instances", CHOICES["instances"])
    params["batching"] = trial.suggest_categorical("batching", CHOICES["batching"])
    if params["batching"]:
        params["delay_us"] = trial.suggest_categorical("delay_us", CHOICES["delay_us"])
    return params


@pytest.fixture(autouse=True)
def _quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def test_proposes_the_best_prediction_with_all_its_parameters() -> None:
    study = optuna.create_study(direction="maximize", sampler=make())
    params = suggest(study.ask())
    assert params["instances"] == 4 and params["batching"] is True and "delay_us" in params


def test_never_repeats_while_candidates_are_left() -> None:
    study = optuna.create_study(direction="maximize", sampler=make())
    seen = []
    for _ in all_params():
        trial = study.ask()
        params = suggest(trial)
        seen.append(tuple(params.items()))
        trial.set_constraint("sla", -1.0)
        study.tell(trial, true_value(params))
    assert len(set(seen)) == len(all_params())
    suggest(study.ask())  # the space is used up: the fallback answers


def test_parallel_trials_differ() -> None:
    study = optuna.create_study(direction="maximize", sampler=make())
    trials = [study.ask() for _ in range(4)]
    params = [tuple(suggest(trial).items()) for trial in trials]
    assert len(set(params)) == 4


def test_broken_constraints_are_infeasible() -> None:
    sampler = make()
    study = optuna.create_study(direction="maximize", sampler=sampler)
    trial = study.ask()
    suggest(trial)
    trial.set_constraint("memory", 0.5)
    study.tell(trial, 999.0)
    suggest(study.ask())
    assert sampler.search.best is None and len(sampler.search.measured) == 1


def test_a_resumed_study_is_heard() -> None:
    study = optuna.create_study(direction="maximize", sampler=make())
    for _ in range(3):
        trial = study.ask()
        params = suggest(trial)
        study.tell(trial, true_value(params))
    fresh = make()
    study.sampler = fresh
    suggest(study.ask())
    assert len(fresh.search.measured) == 3


def test_abandoned_trials_teach_nothing() -> None:
    sampler = make()
    study = optuna.create_study(direction="maximize", sampler=sampler)
    trial = study.ask()
    first = suggest(trial)
    study.tell(trial, state=optuna.trial.TrialState.FAIL)
    assert suggest(study.ask()) == first


def test_falls_back_to_tpe_where_the_twin_is_wrong() -> None:
    sampler = make(wrong=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for _ in range(12):
        trial = study.ask()
        params = suggest(trial)
        trial.set_constraint("sla", -1.0)
        study.tell(trial, true_value(params))
    assert sampler.fell_back and not sampler.search.trusted


def test_a_negative_objective_is_read_as_its_reciprocal() -> None:
    sampler = make()
    study = optuna.create_study(direction="maximize", sampler=sampler)
    trial = study.ask()
    suggest(trial)
    study.tell(trial, -5.0)
    suggest(study.ask())
    best = sampler.search.best
    assert best is not None and best[1] == pytest.approx(0.2)
