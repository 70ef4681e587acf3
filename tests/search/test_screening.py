"""What a screening says of edges over all speeds of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from load_tests import load_test

from analyzer.domain.configuration import Configuration
from analyzer.domain.load_test import Conditions, LoadTest
from analyzer.domain.measurement import Edge, Measurement
from analyzer.domain.sla import Sla
from analyzer.search.screening import Screening, preference

CONFIGURATION = Configuration(precision="fp32")


def ran(kind: str, work_us: float, execution_ms: float) -> LoadTest:
    """Four seconds, in which the canary's work took so long."""
    return load_test([1.0] * 40, kind=kind, mean_ms=execution_ms, work_us=(work_us,) * 4)


EDGE = Edge(rate_rps=600.0, interval_rps=(590.0, 610.0), work_us=100.0)


def screening(
    twins_factor: float,
    conditions: Conditions | None,
    *tests: LoadTest,
    edge: Edge = EDGE,
    others: Sequence[Measurement] = (),
) -> Screening:
    """One that knows of an edge of 600/s, found while the canary's work took 100 µs."""
    measured = Measurement(configuration=CONFIGURATION, edge=edge, load_tests=tests)
    latest = {one.configuration.config_id: one for one in (measured, *others)}
    parts: dict[str, Any] = {
        "twin": SimpleNamespace(
            long_run_factor=lambda _: twins_factor, server_model=lambda *_, **__: None
        ),
        "designer": SimpleNamespace(trusted=True),
        "log": SimpleNamespace(
            latest=latest,
            first=latest,
            measurement=latest.get,
            conditions=conditions,
            holding_us=(),
            response=lambda: 1.0,
        ),
        "load": SimpleNamespace(sla=Sla(latency_budget_ms=40.0), least_s=0.0),
    }
    predicted = {CONFIGURATION.config_id: 600.0}
    return Screening(**parts, allowed={}, recommendable={}, predicted=predicted, by_edge=True)


def test_no_edge_is_told_above_what_the_slow_state_carries() -> None:
    slow = Conditions(seconds=100.0, work_us=(100.0,) * 90 + (160.0,) * 10)
    tests = (ran("edge", 100.0, 2.0), ran("certify", 160.0, 3.0))
    assert screening(0.9, slow, *tests).speed_factor(CONFIGURATION) == pytest.approx(1.0 / 1.5)
    assert screening(0.5, slow, *tests).speed_factor(CONFIGURATION) == 0.5
    for conditions in (None, Conditions(seconds=100.0, work_us=(100.0,) * 100)):
        assert screening(0.9, conditions, *tests).speed_factor(CONFIGURATION) == 0.9
    lowered = replace(EDGE, rate_rps=450.0, interval_rps=(420.0, 610.0), before_rps=600.0)
    found = screening(0.95, slow, *tests, edge=lowered).speed_factor(CONFIGURATION)
    assert 450.0 * found == pytest.approx(600.0 / 1.5), "for the slow state, and once"
    never_measured = Configuration(precision="fp16")
    assert screening(0.9, slow, *tests).speed_factor(never_measured) == 0.9


def test_a_proof_is_expected_at_no_more_than_the_slow_state_carries() -> None:
    """A baseline's was begun for the last seconds of a budget at a rate that could not be kept."""
    quiet = Conditions(seconds=100.0, work_us=(100.0,) * 100)
    slow = Conditions(seconds=100.0, work_us=(100.0,) * 90 + (400.0,) * 10)
    usual_s, slow_s = (
        screening(1.0, seen, ran("edge", 100.0, 2.0)).proof_s(CONFIGURATION)
        for seen in (quiet, slow)
    )
    assert usual_s and slow_s and slow_s > 1.2 * usual_s


def test_a_proof_at_a_share_of_the_edge_takes_longer_and_none_is_expected_beyond_a_slow_state() -> (
    None
):
    quiet = Conditions(seconds=100.0, work_us=(100.0,) * 100)
    slow = Conditions(seconds=100.0, work_us=(100.0,) * 90 + (400.0,) * 10)
    seen, met_slow = (
        screening(1.0, conditions, ran("edge", 100.0, 2.0)) for conditions in (quiet, slow)
    )
    low_s, high_s = (seen.proof_s(CONFIGURATION, share=share) for share in (0.5, 0.8))
    assert low_s and high_s and high_s > 1.5 * low_s
    assert met_slow.proof_s(CONFIGURATION, share=0.8) is None


def test_what_others_tell_of_a_slow_state_counts_from_the_speed_of_their_own_edge() -> None:
    slow = Conditions(seconds=100.0, work_us=(100.0,) * 90 + (160.0,) * 10)
    edge_run, other = ran("edge", 100.0, 2.0), Configuration(precision="fp16")

    def factor(edge_us: float, *tests: LoadTest) -> float:
        edge = replace(EDGE, work_us=edge_us)
        measured = Measurement(configuration=other, edge=edge, load_tests=tests)
        return screening(0.9, slow, edge_run, others=[measured]).speed_factor(CONFIGURATION)

    slower = ran("edge", 100.0, 2.0), ran("certify", 160.0, 3.0)
    assert 1.0 / 1.6 <= factor(100.0, *slower) <= 1.0 / 1.5, "what they tell of the witness counts"
    assert factor(160.0, ran("edge", 160.0, 2.0), ran("certify", 160.0, 2.0)) == 0.9
    # Runs that met the slow state alone do not show that the edge's own met it.
    own = (edge_run, ran("certify", 160.0, 3.0))
    there = Measurement(
        configuration=other,
        edge=replace(EDGE, work_us=160.0),
        load_tests=(ran("edge", 160.0, 2.0), *[ran("certify", 160.0, 2.0)] * 9),
    )
    found = screening(0.9, slow, *own, others=[there]).speed_factor(CONFIGURATION)
    assert found == pytest.approx(1.0 / 1.5)


def test_a_canary_that_is_slow_alone_lowers_no_edge() -> None:
    """A real Triton does not tell how long executions took by the second."""
    slow = Conditions(seconds=100.0, work_us=(100.0,) * 90 + (160.0,) * 10)
    assert screening(0.9, slow).speed_factor(CONFIGURATION) == 0.9
    quick = (ran("edge", 100.0, 2.0), ran("certify", 160.0, 2.0))
    assert screening(0.9, slow, *quick).speed_factor(CONFIGURATION) == 0.9


def test_what_waits_for_a_large_part_of_the_budget_comes_later() -> None:
    def cost(delay_us: int, budget_ms: float) -> float:
        waiting = replace(
            CONFIGURATION,
            dynamic_batching=True,
            max_batch_size=8,
            max_queue_delay_us=delay_us,
        )
        return -preference(waiting, Sla(latency_budget_ms=budget_ms))

    assert preference(CONFIGURATION, Sla(latency_budget_ms=20.0)) == 0.0 == cost(0, 20.0)
    assert cost(2_000, 200.0) < 0.001 < 0.03 < cost(10_000, 20.0) < 0.04
    assert cost(10_000, 20.0) < cost(30_000, 20.0) < 0.3, "none is ruled out"
