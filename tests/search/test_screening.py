"""What a screening says of edges over all speeds of the machine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import Conditions, Edge, Measurement
from analyzer.domain.sla import Sla
from analyzer.search.screening import Screening

CONFIGURATION = Configuration(precision="fp32")


def screening(twins_factor: float, conditions: Conditions | None) -> Screening:
    """One that knows of an edge of 600/s, found while the canary's work took 100 µs."""
    measured = Measurement(
        configuration=CONFIGURATION,
        edge=Edge(rate_rps=600.0, interval_rps=(590.0, 610.0), work_us=100.0),
    )
    latest = {CONFIGURATION.config_id: measured}
    parts: dict[str, Any] = {
        "twin": SimpleNamespace(
            long_run_factor=lambda _: twins_factor, server_model=lambda *_, **__: None
        ),
        "designer": SimpleNamespace(trusted=True),
        "log": SimpleNamespace(latest=latest, measurement=latest.get, conditions=conditions),
        "load": SimpleNamespace(sla=Sla(latency_budget_ms=40.0)),
    }
    return Screening(**parts, allowed={}, predicted={}, by_edge=True)


def test_no_edge_is_told_above_what_the_slow_state_carries() -> None:
    slow = Conditions(seconds=100.0, work_us=(100.0,) * 90 + (160.0,) * 10)
    assert screening(0.9, slow).speed_factor(CONFIGURATION) == pytest.approx(1.0 / 1.6)
    assert screening(0.5, slow).speed_factor(CONFIGURATION) == 0.5
    for conditions in (None, Conditions(seconds=100.0, work_us=(100.0,) * 100)):
        assert screening(0.9, conditions).speed_factor(CONFIGURATION) == 0.9
    never_measured = Configuration(precision="fp16")
    assert screening(0.9, slow).speed_factor(never_measured) == 0.9
