"""What an outcome is worth to Optuna and to the designer."""

from __future__ import annotations

import pytest

from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import (
    Accuracy,
    Edge,
    Failure,
    Measurement,
)
from analyzer.domain.sla import Objective, Sla
from analyzer.search.score import reciprocal, score_of

SLA = Sla(latency_budget_ms=50.0)


def measured(edge_rps: float | None, drop: float | None = None) -> Measurement:
    accuracy = None
    if drop is not None:
        accuracy = Accuracy(
            metric="label_accuracy", value=0.9, drop=drop, interval=(drop, drop), samples=100
        )
    return Measurement(
        configuration=Configuration().canonical(),
        edge=Edge(rate_rps=edge_rps, interval_rps=(None, None)),
        accuracy=accuracy,
    )


def test_every_trial_has_the_same_constraints() -> None:
    """Optuna's GP sampler refuses a study whose trials have different numbers of them."""
    crashed = Failure(
        configuration=Configuration().canonical(), stage="load", reason="crash", message="gone"
    )
    scores = [
        score_of(outcome, SLA)
        for outcome in (crashed, measured(None), measured(100.0), measured(100.0, drop=0.5))
    ]
    assert len({tuple(score.constraints) for score in scores}) == 1
    assert scores[0].constraints["works"] > 0 and scores[0].value is None
    assert scores[1].constraints["sla"] > 0 and scores[1].value is None
    assert [score.feasible for score in scores] == [False, False, True, False]


def test_a_value_that_breaks_a_limit_is_still_told() -> None:
    score = score_of(measured(100.0, drop=0.5), SLA)
    assert score.constraints["accuracy"] > 0 and score.value == 100.0


@pytest.mark.parametrize(("objective", "scale"), [("latency", 1.0), ("memory", 1e9)])
def test_less_is_better_becomes_more_is_better(objective: Objective, scale: float) -> None:
    sla = Sla(latency_budget_ms=50.0, target_rate_rps=10.0, objective=objective)
    assert reciprocal(4.0, sla) == scale / 4.0 > reciprocal(5.0, sla)
