"""What the explanation says of the twin's error."""

from __future__ import annotations

import pytest

from analyzer.domain.configuration import Configuration
from analyzer.domain.load_test import (
    Conditions,
    LatencySummary,
    LoadTest,
    Validity,
)
from analyzer.domain.measurement import (
    Edge,
    Measurement,
    Prediction,
)
from analyzer.domain.study import Explanation, Step
from analyzer.search.explain import drift_sentence, importance


def measured(predicted_rps: float, edge_rps: float, work_us: float | None) -> Measurement:
    test = LoadTest(
        kind="edge", offered_rps=1.0, achieved_rps=1.0, throughput_ips=1.0, requests=1, errors=0,
        duration_s=1.0, latency_ms=LatencySummary(), validity=Validity(valid=True),
        conditions=None if work_us is None else Conditions(seconds=1.0, work_us=(work_us,)),
    )  # fmt: skip
    return Measurement(
        configuration=Configuration(),
        edge=Edge(rate_rps=edge_rps, interval_rps=(None, None)),
        load_tests=(test,),
        predicted=Prediction(edge_rps=predicted_rps),
    )


def test_a_machine_at_half_speed_is_no_error_of_the_model() -> None:
    """Half the edge at half the speed: the model is right, and the machine drifts."""
    outcomes = [measured(100, 100, 50.0), measured(100, 100, 50.0), measured(100, 50, 100.0)]
    assert "would be 0%" in drift_sentence(outcomes)
    both = drift_sentence([measured(100, 100, 50.0), measured(100, 50, 100.0)])
    assert "differed by 33%" in both


@pytest.mark.parametrize("work_us", [None, 50.0])
def test_nothing_is_said_without_a_witness_of_two(work_us: float | None) -> None:
    assert drift_sentence([measured(100, 90, work_us)]) == ""


def test_a_measured_step_is_restated_by_its_own_factor() -> None:
    steps = tuple(
        Step(setting=name, config_id=name, edge_rps=100.0, measured=measured)
        for name, measured in (("mine", True), ("other", True), ("guess", False))
    )
    told = Explanation(contributions=steps).scaled(0.5, {"mine": 0.5, "other": 0.8})
    assert [step.edge_rps for step in told.contributions] == [50.0, 80.0, 50.0]


def test_the_shares_of_settings_that_vary_together_overlap() -> None:
    """Each is at most 1, as its definition says; their sum is not."""
    together = [Configuration(instance_count=n, intra_op_threads=n).canonical() for n in (1, 2, 4)]
    assert dict(importance(together, [10.0, 20.0, 40.0])) == pytest.approx(
        {"instance_count": 1.0, "intra_op_threads": 1.0}
    )
    apart = [
        Configuration(instance_count=n, intra_op_threads=m).canonical()
        for n in (1, 2)
        for m in (1, 2)
    ]
    shares = dict(importance(apart, [10.0, 20.0, 30.0, 40.0]))
    assert shares == pytest.approx({"instance_count": 0.8, "intra_op_threads": 0.2})
