"""Draws the charts: plain data in, Plotly figures (as JSON-ready dictionaries) out."""

from __future__ import annotations

from typing import Any

from analyzer.domain.load_test import STAGES
from analyzer.domain.sla import Sla
from analyzer.report.charts import Charts, FrontPoint, Role
from analyzer.report.figure_style import DOMINATED, NAMED_ROLES, ROLE_COLOURS, Figure, layout_of
from analyzer.report.wording import (
    dollars,
    milliseconds,
    percent,
    percentile_name,
    proven_rate,
    signed_percent,
    size,
)

_MIB = 1 << 20  # bytes
# Symbol, and its size in pixels.
_ROLE_MARKERS: dict[Role, tuple[str, int]] = {
    "recommended": ("star", 17),
    "closest": ("star-open", 17),
    "baseline": ("diamond", 12),
    "front": ("circle", 10),
    "other": ("circle-open", 7),
}
# Of an edge that was not bracketed: it points to where the edge may lie.
_OPEN_EDGE = "triangle-up-open"
_STAGE_NAMES = {
    "queue": "waits in the queue",
    "compute_input": "input",
    "compute_infer": "inference",
    "compute_output": "output",
    "overhead": "wire and client",
}
_STAGE_COLOURS = {
    "queue": "var(--stage-queue)",
    "compute_input": "var(--stage-input)",
    "compute_infer": "var(--stage-infer)",
    "compute_output": "var(--stage-output)",
    "overhead": "var(--stage-overhead)",
}


def front_figure(charts: Charts, sla: Sla) -> Figure | None:
    """The trade-off: edge over latency, memory or cost (the page switches the x axis)."""
    if not charts.points:
        return None
    tail = percentile_name(sla.percentile)
    names: dict[Role, str] = {
        "other": DOMINATED,
        "front": "on the front",
        "baseline": charts.baseline_name,
        "closest": charts.closest_name,
        "recommended": "recommended",
    }
    traces = []
    for role, name in names.items():
        points = [point for point in charts.points if point.role == role]
        if points:
            traces.append(_front_trace(role, name, points))
    priced = any(point.cost_per_million is not None for point in charts.points)
    axes = [{"key": "latency", "title": f"latency {tail} at the rate measured, ms"}]
    axes.append({"key": "memory", "title": "peak memory, MiB"})
    if priced:
        axes.append({"key": "cost", "title": "cost of a million inferences at the edge, $"})
    return {
        "data": traces,
        "layout": layout_of(
            height=440,
            # Room for the half of a name that stands over a point at the very end.
            margin={"l": 56, "r": 56, "t": 40, "b": 48},
            xaxis={"title": {"text": axes[0]["title"]}},
            yaxis={"title": {"text": "edge, requests/s"}, "rangemode": "tozero"},
            hovermode="closest",
            legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        ),
        "axes": axes,
    }


def _front_trace(role: Role, name: str, points: list[FrontPoint]) -> dict[str, Any]:
    def share(point: FrontPoint, bound: float | None, sign: int) -> float:
        return max(0.0, sign * (bound - point.edge_rps)) if bound is not None else 0.0

    shape, px = _ROLE_MARKERS[role]
    latency = [point.latency_ms for point in points]
    memory = [p.memory_bytes / _MIB if p.memory_bytes is not None else None for p in points]
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": latency,
        "y": [point.edge_rps for point in points],
        "alternatives": {
            "latency": latency,
            "memory": memory,
            "cost": [point.cost_per_million for point in points],
        },
        "customdata": [_hover(point, name) for point in points],
        "hovertemplate": "%{customdata}<extra></extra>",
        "marker": {
            "symbol": [shape if point.bounded else _OPEN_EDGE for point in points],
            "size": px,
            "color": ROLE_COLOURS[role],
            "line": {"width": 1.5, "color": ROLE_COLOURS[role]},
        },
    }
    if role in NAMED_ROLES:
        trace["mode"] = "markers+text"
        trace["texttemplate"] = name
        trace["textposition"] = "top center"
        trace["textfont"] = {"color": ROLE_COLOURS[role], "size": 13}
        trace["cliponaxis"] = False
    if role != "other" and any(point.bounded for point in points):
        trace["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": [share(p, p.edge_high_rps, 1) for p in points],
            "arrayminus": [share(p, p.edge_low_rps, -1) for p in points],
            "thickness": 1,
            "width": 3,
            "color": ROLE_COLOURS[role],
        }
    return trace


def _hover(point: FrontPoint, name: str) -> str:
    named = point.role in NAMED_ROLES
    lines = [
        f"<b>{name}: {point.label}</b>" if named else f"<b>{point.label}</b>",
        f"edge {point.edge}",
        f"certified {proven_rate(point.capacity_rps)}",
        f"{milliseconds(point.latency_ms)} at {proven_rate(point.measured_at_rps)}",
        f"memory {size(point.memory_bytes)}",
    ]
    if point.cost_per_million is not None:
        lines.append(f"{dollars(point.cost_per_million)} a million inferences")
    if point.accuracy is not None:
        lines.append(f"accuracy {percent(point.accuracy)}")
    lines.append(f"<i>{point.config_id}</i>")
    return "<br>".join(lines)


# Of a bar with its two lines of label above it.
_ROW_PX = 74


def _above(row: int, first: str, second: str) -> dict[str, Any]:
    """Two lines over the bar in ``row``: neither beside it nor in one is there room on a phone."""
    return {
        "xref": "paper",
        "x": 0,
        "xanchor": "left",
        "y": row - 0.24,
        "yanchor": "bottom",
        "text": f"{first}<br>{second}",
        "showarrow": False,
        "align": "left",
    }


def _row_axis(rows: int) -> dict[str, Any]:
    """The vertical axis of labelled rows, the first on top."""
    return {"range": [rows - 0.6, -0.75], "visible": False}


def stage_figure(charts: Charts) -> Figure | None:
    """Latency stacked by stage, a bar per configuration."""
    bars = charts.bars
    if not bars:
        return None
    names = {
        "recommended": "<b>★ recommended</b>, ",
        "closest": f"<b>☆ {charts.closest_name}</b>, ",
        "baseline": f"<b>◆ {charts.baseline_name}</b>, ",
    }
    rows = list(range(len(bars)))
    traces = []
    for index, stage in enumerate(STAGES):
        values = [bar.stages_ms[index] for bar in bars]
        if all(value is None for value in values):
            continue
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": _STAGE_NAMES[stage],
                "y": rows,
                "x": values,
                "width": 0.44,
                "marker": {"color": _STAGE_COLOURS[stage]},
                "customdata": [
                    f"<b>{bar.label}</b><br>{_STAGE_NAMES[stage]}: {milliseconds(value)}"
                    for bar, value in zip(bars, values, strict=True)
                ],
                "hovertemplate": "%{customdata}<extra></extra>",
            }
        )
    return {
        "data": traces,
        "layout": layout_of(
            height=130 + _ROW_PX * len(bars),
            margin={"l": 16, "r": 16, "t": 40, "b": 48},
            barmode="stack",
            xaxis={"title": {"text": "mean latency, ms"}, "rangemode": "tozero"},
            yaxis=_row_axis(len(bars)),
            hovermode="closest",
            annotations=[
                _above(row, f"{names.get(bar.role, '')}at {proven_rate(bar.rate_rps)}", bar.label)
                for row, bar in enumerate(bars)
            ],
            legend={
                "orientation": "h",
                "x": 0,
                "y": 1.0,
                "yanchor": "bottom",
                "traceorder": "normal",
            },
        ),
    }


def steps_figure(charts: Charts) -> Figure | None:
    """From the simplest configuration to the winner: a floating bar per step."""
    steps = charts.steps
    if sum(step.edge_rps is not None for step in steps) < 2:
        return None
    bases, widths, colours, shapes = [], [], [], []
    names, told = [], []
    for step in steps:
        edge = step.edge_rps or 0.0
        change = step.change_rps
        start = edge - change if change is not None else 0.0
        bases.append(start)
        widths.append(edge - start)
        names.append(step.setting if step.measured else f"{step.setting} <i>(predicted)</i>")
        ratio = ""
        if change is None:
            colours.append("var(--faint-bar)")
        else:
            colours.append("var(--gain)" if change >= 0 else "var(--loss)")
            ratio = f" ({signed_percent(change / start)})" if start else ""
        shapes.append("" if step.measured else "/")
        told.append(f"<b>{step.edge}</b>{ratio}")
    labels = list(zip(names, told, strict=True))
    return {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "y": list(range(len(steps))),
                "x": widths,
                "base": bases,
                "width": 0.44,
                "marker": {"color": colours, "pattern": {"shape": shapes, "solidity": 0.35}},
                "customdata": [": ".join(label) for label in labels],
                "hovertemplate": "%{customdata}<extra></extra>",
                "showlegend": False,
            },
        ],
        "layout": layout_of(
            height=90 + _ROW_PX * len(steps),
            margin={"l": 16, "r": 16, "t": 8, "b": 48},
            xaxis={"title": {"text": "edge, requests/s"}, "rangemode": "tozero"},
            yaxis=_row_axis(len(steps)),
            hovermode="closest",
            annotations=[_above(row, *label) for row, label in enumerate(labels)],
        ),
    }


def importance_figure(charts: Charts) -> Figure | None:
    """The share of the edge's variance that goes with each parameter alone."""
    items = charts.importance[:10]
    if not items:
        return None
    return {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "y": [name for name, _ in items],
                "x": [share for _, share in items],
                "text": [percent(share, 2) for _, share in items],
                "textposition": "outside",
                "cliponaxis": False,
                "marker": {"color": "var(--front)"},
                "customdata": [f"{name}: {percent(share)}" for name, share in items],
                "hovertemplate": "%{customdata}<extra></extra>",
            }
        ],
        "layout": layout_of(
            height=90 + 34 * len(items),
            bargap=0.4,
            margin={"l": 16, "r": 16, "t": 8, "b": 48},
            xaxis={
                "tickformat": ".0%",
                "range": [0, max(share for _, share in items) * 1.18 or 1],
                "title": {"text": "share of the edge's variance, each alone"},
            },
            yaxis={"autorange": "reversed", "automargin": True, "ticks": "", "showgrid": False},
        ),
    }
