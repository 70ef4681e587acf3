"""The trade-off of what a job has measured so far, drawn as SVG with the SLA's line.

Higher is a higher edge, further left a lower latency at the rate that a configuration was measured
at. A configuration whose edge alone is known so far stands on the vertical axis.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from analyzer.domain.pareto import non_dominated
from analyzer.report.charts import POINTS_MAX, Role
from analyzer.report.gain_text import edge_text
from analyzer.report.wording import (
    NOT_MEASURED,
    milliseconds,
    number,
    percentile_name,
    rate,
    size,
)
from analyzer.service.pages.figures import counted
from analyzer.service.result import Edged, Result, Sla, Trial

# The drawing's own units; it is scaled to the page's width.
WIDTH, HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 16, 34, 44
_TICKS = 5  # about so many on an axis


@dataclass(frozen=True, slots=True)
class Point:
    """A configuration: ``x``, ``y`` in the drawing; ``text`` says what it is."""

    x: float
    y: float
    role: Role
    text: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A place on an axis, and its number."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Line:
    """A limit of the SLA: a latency (vertical) or a rate (horizontal)."""

    kind: Literal["budget", "target"]
    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Front:
    """What the template draws; ``path`` joins the points of the front."""

    points: tuple[Point, ...]
    path: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Line, ...]
    x_title: str
    total: int
    summary: str
    width: int = WIDTH
    height: int = HEIGHT
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    top: int = _TOP
    bottom: int = HEIGHT - _BOTTOM


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known of one configuration; ``edge_text`` tells also where the edge is open."""

    config_id: str
    label: str
    edge_rps: float
    edge_text: str
    latency_ms: float | None
    memory_bytes: float | None


def make_front(
    trials: Sequence[Trial], result: Result | None, sla: Sla, *, ended: bool
) -> Front | None:
    """The chart; None as long as nothing was measured.

    Args:
        ended: Whether nothing more will be measured.
    """
    known = list(_known(trials, result).values())
    if not known:
        return None
    recommended = result.recommendation.config_id if result and result.recommendation else ""
    baselines = {trial.config_id for trial in trials if trial.role == "baseline"}
    if result is not None and result.baseline is not None:
        baselines = {result.baseline.config_id}
    both = [item for item in known if item.latency_ms is not None]
    front = {
        both[index].config_id
        for index in non_dominated([[p.edge_rps, p.latency_ms] for p in both], ["up", "down"])
    }

    def role(item: _Known) -> Role:
        if item.config_id == recommended:
            return "recommended"
        if item.config_id in baselines:
            return "baseline"
        return "front" if item.config_id in front else "other"

    order: dict[Role, int] = {"recommended": 0, "baseline": 1, "front": 2, "other": 3}
    shown = sorted(known, key=lambda item: (order[role(item)], -item.edge_rps))[:POINTS_MAX]
    budget = sla.latency_budget_ms
    latencies = [item.latency_ms for item in shown if item.latency_ms is not None]
    x_max = _nice(max([*latencies, (budget or 0.0) * 1.08, 1e-3]))
    target = sla.target_rate_rps
    highest = max(item.edge_rps for item in shown)
    # A target far above everything would press the points onto the axis.
    near = target is not None and target < 4 * highest
    y_max = _nice(max(highest, target or 0.0 if near else 0.0) * 1.06)

    def x(value: float | None) -> float:
        return round(_LEFT + (value or 0.0) / x_max * (WIDTH - _LEFT - _RIGHT), 1)

    def y(value: float) -> float:
        return round(HEIGHT - _BOTTOM - value / y_max * (HEIGHT - _TOP - _BOTTOM), 1)

    lines = []
    if budget is not None:
        lines.append(Line("budget", x(budget), f"budget {sla.budget}"))
    if target is not None and near:
        lines.append(Line("target", y(target), f"target {sla.target}"))
    steps = sorted(
        (item for item in shown if item.config_id in front), key=lambda item: item.latency_ms or 0.0
    )
    best = max(shown, key=lambda item: item.edge_rps)
    return Front(
        # The ones that matter are drawn last, on top.
        points=tuple(
            Point(x(item.latency_ms), y(item.edge_rps), role(item), _text(item))
            for item in reversed(shown)
        ),
        path=" ".join(f"{x(item.latency_ms)},{y(item.edge_rps)}" for item in steps),
        x_ticks=tuple(Tick(x(value), number(value)) for value in _ticks(x_max)),
        y_ticks=tuple(Tick(y(value), number(value)) for value in _ticks(y_max)),
        lines=tuple(lines),
        x_title=f"latency {percentile_name(sla.percentile)} at the rate measured, ms",
        total=len(known),
        summary=f"{counted(len(known), 'configuration')}; the highest edge "
        f"{'' if ended else 'so far '}is {best.edge_text} ({best.label}).",
    )


def _known(trials: Sequence[Trial], result: Result | None) -> dict[str, _Known]:
    found: dict[str, _Known] = {}
    for trial in trials:
        edge_rps = trial.edge.at_least_rps or trial.capacity_rps
        if edge_rps:
            found[trial.config_id] = _Known(
                config_id=trial.config_id,
                label=trial.variant,
                edge_rps=edge_rps,
                edge_text=_edge_text(trial, edge_rps),
                latency_ms=trial.latency_ms_sla,
                memory_bytes=trial.memory_bytes,
            )
    for entry in result.entries if result is not None else ():
        if edge_rps := entry.edge.at_least_rps:
            found[entry.config_id] = _Known(
                config_id=entry.config_id,
                label=entry.sentence,
                edge_rps=edge_rps,
                edge_text=_edge_text(entry, edge_rps),
                latency_ms=entry.latency_ms.sla,
                memory_bytes=entry.memory_bytes,
            )
    return found


def _edge_text(of: Edged, at_least_rps: float) -> str:
    """The edge without its interval; where nothing is told of it, the rate that was certified."""
    text = edge_text(of.edge, bounded=False)
    return f"at least {rate(at_least_rps)}" if text == NOT_MEASURED else text


def _text(item: _Known) -> str:
    latency = f", {milliseconds(item.latency_ms)}" if item.latency_ms is not None else ""
    memory = f", {size(item.memory_bytes)}" if item.memory_bytes else ""
    return f"{item.label}: edge {item.edge_text}{latency}{memory} ({item.config_id})"


def _nice(value: float) -> float:
    """The next end of an axis that divides into round numbers."""
    step = _step(value)
    return math.ceil(value / step) * step


def _step(value: float) -> float:
    """About a :data:`_TICKS`-th of ``value`` as 1, 2 or 5 times a power of ten."""
    raw = value / _TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)


def _ticks(end: float) -> list[float]:
    step = _step(end)
    return [index * step for index in range(round(end / step) + 1)]
