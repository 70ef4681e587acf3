"""What a recommendation gains: like with like, with an interval that is honest at open ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from analyzer.domain.configuration import Configuration
from analyzer.domain.gain import Gain, gain, never_keeps
from analyzer.domain.load_test import (
    ExecutionTimes,
    LatencySummary,
    LoadTest,
    Validity,
)
from analyzer.domain.measurement import (
    Certificate,
    Edge,
    Measurement,
)
from analyzer.domain.sla import Sla

SLA = Sla(latency_budget_ms=50.0)
COST = Sla(latency_budget_ms=50.0, target_rate_rps=1000.0, objective="cost")
LATENCY = Sla(latency_budget_ms=50.0, target_rate_rps=100.0, objective="latency")


def side(
    instances: int,
    edge: float | None,
    bounds: tuple[float | None, float | None] | None = None,
    *,
    capacity: float | None = None,
    p50: float | None = 5.0,
    tail: float | None = 40.0,
    verdict: Any = None,
    tried: float = 10.0,
    execution_ms: float | None = None,
) -> Measurement:
    test = LoadTest(
        kind="certify",
        offered_rps=capacity or edge or tried,
        achieved_rps=10.0,
        throughput_ips=10.0,
        requests=1000,
        over_budget=0 if edge or capacity else 600,
        errors=0,
        duration_s=10.0,
        latency_ms=LatencySummary(p50=p50, p99=tail, sla=tail),
        executions=(ExecutionTimes(batch_size=4, count=250, mean_ms=execution_ms),)
        if execution_ms
        else (),
        validity=Validity(valid=True),
    )
    certificate = None
    if verdict:
        certificate = Certificate(
            verdict=verdict,
            requests=1000,
            over_budget=900,
            effective_requests=500.0,
            confidence=0.95,
            mlperf="FAIL",
        )
    return Measurement(
        configuration=Configuration(instance_count=instances),
        edge=Edge(rate_rps=edge, interval_rps=bounds or (edge, edge)),
        capacity_rps=capacity,
        certificate=certificate,
        headline=test if capacity or verdict else None,
        load_tests=(test,),
    )


def found(gained: Gain | None) -> tuple[float, str, tuple[float | None, float | None]]:
    assert gained is not None
    low, high = gained.interval
    return (
        round(gained.ratio, 3),
        gained.basis,
        (low and round(low, 3), high and round(high, 3)),
    )


def test_certified_rates_at_the_same_share_are_compared() -> None:
    ours = side(1, 300.0, (290.0, 310.0), capacity=270.0)
    theirs = side(2, 100.0, (95.0, 104.0), capacity=88.0)
    # What each carries lies between its certified rate and its edge's upper end.
    assert found(gain(SLA, ours, theirs)) == (3.068, "certified", (2.596, 3.523))


def test_certified_rates_at_unequal_shares_are_not() -> None:
    ours = side(1, 300.0, (290.0, 310.0), capacity=290.0)
    theirs = side(2, 200.0, (190.0, 210.0), capacity=100.0)
    assert found(gain(SLA, ours, theirs)) == (1.5, "edges", (1.381, 1.632))


def test_a_baseline_without_a_certificate_is_compared_by_the_edges() -> None:
    ours = side(1, 300.0, (290.0, 310.0), capacity=290.0)
    assert found(gain(SLA, ours, side(2, 100.0, (90.0, 110.0)))) == (
        3.0, "edges", (2.636, 3.444),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ours", "theirs", "ratio", "interval"),
    [
        # Ours may carry more, theirs may: the ratio is a bound on that side only.
        (side(1, None, (300.0, None)), side(2, 100.0, (90.0, 110.0)), 3.0, (2.727, None)),
        (side(1, 300.0, (290.0, 310.0)), side(2, None, (100.0, None)), 3.0, (None, 3.1)),
        (side(1, None, (300.0, None)), side(2, None, (100.0, None)), 3.0, (None, None)),
        (side(1, 300.0, (290.0, 310.0)), side(2, None, (0.0, 20.0)), 15.0, (14.5, None)),
    ],
    ids=["ours open", "theirs open", "both open", "theirs below"],
)
def test_an_open_edge_leaves_the_interval_open(
    ours: Measurement,
    theirs: Measurement,
    ratio: float,
    interval: tuple[float | None, float | None],
) -> None:
    assert found(gain(SLA, ours, theirs)) == (ratio, "edges", interval)


def test_what_clearly_broke_bounds_a_gain_over_an_edge_that_too_few_requests_left_open() -> None:
    """It was kept at 100/s by few requests and broke at 144/s: "at most 3.1 times" told no gain."""
    ours = side(1, 300.0, (290.0, 310.0))
    theirs = side(2, None, (100.0, None))
    theirs = replace(theirs, edge=replace(theirs.edge, broken_rps=144.0))
    assert found(gain(SLA, ours, theirs)) == (2.5, "edges", (2.014, 3.1))
    # What contradicts a rate that was kept since says nothing.
    theirs = replace(theirs, edge=replace(theirs.edge, broken_rps=90.0))
    assert found(gain(SLA, ours, theirs)) == (3.0, "edges", (None, 3.1))


def test_cost_compares_machines() -> None:
    ours = side(1, 300.0, (290.0, 310.0), capacity=250.0)
    theirs = side(2, 110.0, (105.0, 120.0), capacity=92.0)
    assert found(gain(COST, ours, theirs)) == (2.75, "certified", (2.25, 2.75))
    four = gain(COST, ours, theirs, devices_per_machine=4)
    assert four is not None and four.ratio == 3.0


def test_latency_is_compared_at_the_target_rate_and_has_no_interval() -> None:
    ours = side(1, 300.0, capacity=100.0, tail=10.0)
    theirs = side(2, 110.0, capacity=100.0, tail=40.0)
    assert found(gain(LATENCY, ours, theirs)) == (4.0, "certified", (None, None))
    assert gain(LATENCY, ours, side(2, 60.0)) is None, "it does not carry the target rate"


def test_the_baseline_recommended_itself_gains_nothing() -> None:
    same = side(1, 300.0, (290.0, 310.0), capacity=250.0)
    assert found(gain(SLA, same, same)) == (1.0, "certified", (1.0, 1.0))


@pytest.mark.parametrize(
    "baseline",
    [
        None,
        side(2, None),
        # One of 70 ms: at 4/s nothing waits. Alone an inference takes 401 / (4 of a batch x 2
        # instances that share the cores) ms at least.
        side(2, None, (0.0, 20.0), p50=70.0, tried=4.0, verdict="FAIL"),
        side(2, None, (0.0, 20.0), p50=900.0, execution_ms=401.0),
    ],
    ids=["none", "nothing known", "refuted without queues", "too slow alone"],
)
def test_a_baseline_that_never_keeps_the_sla_gives_none(baseline: Measurement | None) -> None:
    assert gain(SLA, side(1, 300.0, capacity=290.0), baseline) is None


@pytest.mark.parametrize(
    "baseline",
    [
        side(2, None, (0.0, 20.0), p50=70.0, tried=20.0),
        side(2, None, (0.0, 20.0), p50=None, tried=20.0),
        side(2, None, (0.0, 20.0), p50=70.0, tried=20.0, verdict="FAIL"),
        side(2, None, (0.0, 20.0), p50=900.0, tried=20.0, execution_ms=399.0),
    ],
    ids=["most are late", "most failed", "refuted where it queues", "perhaps quick alone"],
)
def test_a_baseline_that_was_late_where_it_was_tried_gives_a_bound(baseline: Measurement) -> None:
    assert not never_keeps(baseline, SLA)
    ours = side(1, 300.0, (290.0, 310.0), capacity=290.0)
    assert found(gain(SLA, ours, baseline)) == (15.0, "edges", (14.5, None))
    assert gain(LATENCY, ours, baseline) is None, "it is not known to carry the target rate"


def test_nothing_recommended_gains_nothing() -> None:
    assert gain(SLA, None, side(2, 100.0)) is None
