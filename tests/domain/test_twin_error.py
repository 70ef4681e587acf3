"""The twin's error, the model's part and the machine's apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import (
    Edge,
    Measurement,
    Prediction,
)
from analyzer.domain.twin_error import twin_errors, with_errors


def test_a_slow_machine_is_drift_and_not_the_model_s_error() -> None:
    usual, same, slow, unknown = twin_errors(
        [(110.0, 100.0, 10.0), (90.0, 100.0, 10.0), (110.0, 50.0, 20.0), (None, 100.0, 10.0)]
    )
    assert unknown is None and usual is not None and same is not None and slow is not None
    assert (usual.error, usual.model, usual.drift) == pytest.approx((0.1, 0.1, 0.0))
    assert (slow.error, slow.model, slow.drift) == pytest.approx((1.2, 0.1, 1.0))
    for found in (usual, same, slow):
        assert found.model is not None and found.drift is not None
        assert 1 + found.error == pytest.approx((1 + found.model) * (1 + found.drift))


def test_one_watched_edge_has_no_usual_speed() -> None:
    (found, other) = twin_errors([(110.0, 100.0, 10.0), (50.0, 100.0, None)])
    assert found is not None and found.error == pytest.approx(0.1) and found.model is None
    assert other is not None and other.error == -0.5 and other.drift is None


def test_measurements_carry_it() -> None:
    def measured(edge_rps: float | None, predicted_rps: float, work_us: float) -> Measurement:
        return Measurement(
            configuration=Configuration(),
            edge=Edge(rate_rps=edge_rps, interval_rps=(None, None), work_us=work_us),
            predicted=Prediction(edge_rps=predicted_rps, latency_ms_p99=7.0),
        )

    first, second, open_ = with_errors(
        [measured(100.0, 105.0, 8.0), measured(80.0, 105.0, 10.0), measured(None, 105.0, 9.0)]
    )
    assert first.predicted.error == pytest.approx(0.05) and first.predicted.latency_ms_p99 == 7.0
    assert first.predicted.drift == pytest.approx(8 / 9 - 1)
    assert second.predicted.model_error == pytest.approx(105 / 80 / (10 / 9) - 1)
    assert open_.predicted == Prediction(edge_rps=105.0, latency_ms_p99=7.0)
    # An edge that was withdrawn since has no error either.
    withdrawn = replace(first, edge=replace(first.edge, rate_rps=None))
    assert with_errors([withdrawn])[0].predicted == open_.predicted
