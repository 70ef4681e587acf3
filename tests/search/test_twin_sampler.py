from __future__ import annotations

from typing import Any

import numpy as np
import optuna
import pytest

from analyzer.search.designer import Candidate, Designer
from analyzer.search.optuna_samplers import TwinSampler

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


IDS = {repr(sorted(params.items())): str(i) for i, params in enumerate(all_params())}


def make(wrong: bool = False) -> tuple[optuna.Study, Designer]:
    """A study whose sampler asks the designer, which the test updates, as a search does."""
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
    designer = Designer(candidates)
    params = {str(i): p for i, p in enumerate(space)}
    sampler = TwinSampler(designer, params=params, choices=CHOICES, seed=0)
    return optuna.create_study(direction="maximize", sampler=sampler), designer


def measure(study: optuna.Study, designer: Designer) -> dict[str, Any]:
    """One trial from its proposal to its end."""
    trial = study.ask()
    params = suggest(trial)
    trial.set_constraint("sla", -1.0)
    study.tell(trial, true_value(params))
    designer.update(IDS[repr(sorted(params.items()))], true_value(params))
    return params


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
    study, _ = make()
    params = suggest(study.ask())
    assert params["instances"] == 4 and params["batching"] is True and "delay_us" in params


def test_never_repeats_while_candidates_are_left() -> None:
    study, designer = make()
    seen = [tuple(measure(study, designer).items()) for _ in all_params()]
    assert len(set(seen)) == len(all_params())
    suggest(study.ask())  # the space is used up: the fallback answers


def test_parallel_trials_differ() -> None:
    study, _ = make()
    trials = [study.ask() for _ in range(4)]
    params = [tuple(suggest(trial).items()) for trial in trials]
    assert len(set(params)) == 4


def test_trials_that_another_sampler_proposed_are_pending() -> None:
    study, _ = make()
    first = suggest(study.ask())
    study.sampler = make()[0].sampler
    assert suggest(study.ask()) != first


def test_abandoned_trials_are_proposed_again() -> None:
    study, _ = make()
    trial = study.ask()
    first = suggest(trial)
    study.tell(trial, state=optuna.trial.TrialState.FAIL)
    assert suggest(study.ask()) == first


def test_falls_back_to_tpe_where_the_twin_is_wrong() -> None:
    study, designer = make(wrong=True)
    for _ in range(12):
        measure(study, designer)
    assert not designer.trusted
    suggested = designer.suggest()
    proposed = [IDS[repr(sorted(suggest(study.ask()).items()))] for _ in range(4)]
    assert set(proposed) != {suggested}
