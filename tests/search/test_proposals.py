"""What Optuna is told of an outcome."""

from __future__ import annotations

from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import Accuracy, Edge, Failure, Measurement
from analyzer.domain.sla import Sla
from analyzer.search.proposals import constraints, feasible

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
    told = [
        constraints(outcome, SLA)
        for outcome in (crashed, measured(None), measured(100.0), measured(100.0, drop=0.5))
    ]
    assert len({tuple(names) for names in told}) == 1
    assert told[0]["works"] > 0 and not feasible(crashed, SLA)
    assert told[1]["sla"] > 0 and told[3]["accuracy"] > 0
    assert feasible(measured(100.0), SLA) and not feasible(measured(100.0, drop=0.5), SLA)
