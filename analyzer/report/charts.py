"""What the charts of a report show, as plain data; drawing is in :mod:`.figures`.

A study may hold 100,000 outcomes: the charts show the front, the baseline, the recommendation, the
next best and an even sample of the rest, and say so.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from analyzer.domain.answer import (
    edge_cost,
    find,
    memory_bytes,
    rank,
    representative_test,
)
from analyzer.domain.load_test import STAGES, LoadTest
from analyzer.domain.measurement import Measurement
from analyzer.domain.sla import Sla
from analyzer.domain.study import StudyResult
from analyzer.report.entries import StudyReport
from analyzer.report.gain_text import edge_text
from analyzer.report.wording import configuration_label, rate

Role = Literal["recommended", "closest", "baseline", "front", "other"]

# What a chart can be read with; the CSV has all.
POINTS_MAX = 600
NEXT_BEST = 200
CURVES_MAX = 5
BARS_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """One configuration in the trade-off chart; latency at ``measured_at_rps``.

    ``edge_rps`` is the lower end where the edge was not bracketed (``bounded`` is false), as
    ``edge`` says in words.
    """

    config_id: str
    label: str
    role: Role
    edge_rps: float
    edge: str
    bounded: bool
    edge_low_rps: float | None
    edge_high_rps: float | None
    measured_at_rps: float | None
    latency_ms: float | None
    memory_bytes: int | None
    cost_per_million: float | None
    capacity_rps: float | None
    accuracy: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Latency over load of one configuration, by offered rate ascending; valid runs alone.

    Of the runs at one rate the median.
    """

    config_id: str
    label: str
    role: Role
    offered_rps: tuple[float, ...]
    latency_ms_p50: tuple[float | None, ...]
    latency_ms_sla: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBar:
    """Mean milliseconds in each of STAGES at ``rate_rps``; None where the target does not tell."""

    config_id: str
    label: str
    role: Role
    rate_rps: float
    stages_ms: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBar:
    """One step from the simplest configuration to the winner.

    ``edge_rps`` is the lower end where the edge was not bracketed, as ``edge`` says in words; such
    an edge has no ``change_rps``, as one that is unknown has none.
    """

    setting: str
    edge: str
    edge_rps: float | None
    change_rps: float | None
    measured: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Charts:
    """All charts of a report.

    Args:
        baseline_name: What the baseline is called.
        closest_name: What came closest is called, where nothing is recommended.
        points: Of the trade-off chart, the baseline and what the report speaks of last (drawn on
            top).
        points_total: How many configurations have an edge; more than ``points`` if some are left
            out.
        best: Of the table, the best first; ``ranked_total`` is of how many.
    """

    baseline_name: str
    closest_name: str
    points: tuple[FrontPoint, ...]
    points_total: int
    curves: tuple[Curve, ...]
    bars: tuple[StageBar, ...]
    steps: tuple[StepBar, ...]
    importance: tuple[tuple[str, float], ...]
    best: tuple[Measurement, ...]
    ranked_total: int


def make_charts(report: StudyReport) -> Charts:
    """The charts of a study."""
    result = report.result
    ranked = rank(
        report.measured, result.sla, devices_per_machine=result.pricing.devices_per_machine
    )
    front = [entry.measurement for entry in report.front]
    recommended = find(report.measured, result.recommended_id)
    closest = report.closest.entry.measurement if report.closest is not None else None
    baseline = find(report.measured, result.baseline_id)
    roles: dict[int, Role] = {id(m): "front" for m in front}
    if baseline is not None:
        roles[id(baseline)] = "baseline"
    if closest is not None:
        roles[id(closest)] = "closest"
    if recommended is not None:
        roles[id(recommended)] = "recommended"

    def role(measurement: Measurement) -> Role:
        return roles.get(id(measurement), "other")

    with_edge = [m for m in ranked if m.edge.at_least_rps]
    shown = _sample(with_edge, [m for m in with_edge if id(m) in roles])
    order: dict[Role, int] = {"other": 0, "front": 1, "baseline": 2, "closest": 3, "recommended": 3}
    points = [_point(m, role(m), result) for m in shown]
    points.sort(key=lambda point: (order[point.role], -point.edge_rps))

    # What the report speaks of, the baseline, then the front: the ones a reader compares. One may
    # be several of these.
    named = (m for m in (recommended, closest, baseline) if m is not None)
    leaders = list({id(m): m for m in (*named, *(front or ranked))}.values())
    curves = [_curve(m, role(m)) for m in leaders[:CURVES_MAX]]
    bars = [_bar(m, role(m), result) for m in leaders[:BARS_MAX]]
    return Charts(
        baseline_name=report.baseline_name,
        closest_name=report.closest_name,
        points=tuple(points),
        points_total=len(with_edge),
        curves=tuple(curve for curve in curves if curve.offered_rps),
        bars=tuple(bar for bar in bars if bar is not None),
        steps=make_steps(report),
        importance=tuple(sorted(result.explanation.importance, key=lambda item: -item[1])),
        best=ranked[:25],
        ranked_total=len(ranked),
    )


def _sample(ranked: Sequence[Measurement], always: Sequence[Measurement]) -> list[Measurement]:
    """``always``, the NEXT_BEST after them, and an even sample of the rest; POINTS_MAX at most.

    ``always`` itself may exceed the limit (a front can be large); it is then sampled evenly too,
    its two ends kept.
    """
    known = {id(m) for m in always}
    rest = [m for m in ranked if id(m) not in known]
    head, tail = rest[:NEXT_BEST], rest[NEXT_BEST:]
    chosen = [*_even(always, POINTS_MAX - NEXT_BEST), *head]
    return [*chosen, *_even(tail, POINTS_MAX - len(chosen))]


def _even(items: Sequence[Measurement], count: int) -> list[Measurement]:
    if len(items) <= count:
        return list(items)
    step = (len(items) - 1) / max(count - 1, 1)
    return [items[round(index * step)] for index in range(count)]


def _point(measurement: Measurement, role: Role, result: StudyResult) -> FrontPoint:
    test = _kept_test(measurement, result.sla)
    edge_rps = measurement.edge.at_least_rps
    assert edge_rps
    low, high = measurement.edge.interval_rps
    accuracy = measurement.real_accuracy
    return FrontPoint(
        config_id=measurement.configuration.config_id,
        label=configuration_label(measurement.configuration),
        role=role,
        edge_rps=edge_rps,
        edge=edge_text(measurement.edge),
        bounded=measurement.edge.rate_rps is not None,
        edge_low_rps=low,
        edge_high_rps=high,
        measured_at_rps=test.offered_rps if test else None,
        latency_ms=test.latency_ms.sla if test else None,
        memory_bytes=memory_bytes(measurement),
        cost_per_million=edge_cost(
            measurement, result.pricing_of(measurement.configuration), result.request_batch_size
        ),
        capacity_rps=measurement.capacity_rps,
        accuracy=accuracy.value if accuracy else None,
    )


def _kept_test(measurement: Measurement, sla: Sla) -> LoadTest | None:
    """The test that stands for a configuration, if it keeps the budget; else the highest that does.

    An edge does not go together with the latency of a rate beyond it.
    """
    test = representative_test(measurement, sla)
    if test is None or _within(test.latency_ms.sla, sla):
        return test
    kept = [one for one in _open_loop(measurement) if _within(one.latency_ms.sla, sla)]
    return max(kept, key=lambda one: one.offered_rps, default=None)


def _within(latency_ms: float | None, sla: Sla) -> bool:
    return latency_ms is not None and latency_ms <= sla.latency_budget_ms


def _open_loop(measurement: Measurement) -> list[LoadTest]:
    """The valid load tests at a given rate."""
    tests = measurement.load_tests
    return [test for test in tests if test.validity.valid and test.concurrency is None]


def _curve(measurement: Measurement, role: Role) -> Curve:
    tests: dict[str, list[LoadTest]] = {}
    for test in sorted(_open_loop(measurement), key=lambda test: test.offered_rps):
        tests.setdefault(f"{test.offered_rps:.6g}", []).append(test)
    runs = tests.values()
    return Curve(
        config_id=measurement.configuration.config_id,
        label=configuration_label(measurement.configuration),
        role=role,
        offered_rps=tuple(same[0].offered_rps for same in runs),
        latency_ms_p50=tuple(_median([test.latency_ms.p50 for test in same]) for same in runs),
        latency_ms_sla=tuple(_median([test.latency_ms.sla for test in same]) for same in runs),
    )


def _median(latencies_ms: list[float | None]) -> float | None:
    """The median, in which None is infinitely late; None if it is that."""
    middle = statistics.median(math.inf if ms is None else ms for ms in latencies_ms)
    return middle if math.isfinite(middle) else None


def _bar(measurement: Measurement, role: Role, result: StudyResult) -> StageBar | None:
    test = representative_test(measurement, result.sla)
    if test is None:
        return None
    stages: list[Any] = [getattr(test.breakdown_ms, stage) for stage in STAGES]
    if all(stage is None for stage in stages):
        return None
    return StageBar(
        config_id=measurement.configuration.config_id,
        label=configuration_label(measurement.configuration),
        role=role,
        rate_rps=test.offered_rps,
        stages_ms=tuple(stages),
    )


def make_steps(report: StudyReport) -> tuple[StepBar, ...]:
    """Each step with its change against the last step whose edge is known."""
    open_edges = {
        measurement.configuration.config_id: measurement.edge
        for measurement in report.measured
        if measurement.edge.rate_rps is None
    }
    bars: list[StepBar] = []
    before: float | None = None
    for step in report.result.explanation.contributions:
        known = step.edge_rps is not None and before is not None
        edge = open_edges.get(step.config_id) if step.measured else None
        bars.append(
            StepBar(
                setting=step.setting,
                edge=rate(step.edge_rps) if edge is None else edge_text(edge),
                edge_rps=step.edge_rps if edge is None else edge.at_least_rps,
                change_rps=(step.edge_rps or 0.0) - (before or 0.0) if known else None,
                measured=step.measured,
            )
        )
        before = step.edge_rps if step.edge_rps is not None else before
    return tuple(bars)
