"""Draws latency over load: a Plotly figure, as :mod:`.figures` draws the other charts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from analyzer.domain.sla import Sla
from analyzer.report.charts import Charts, Curve
from analyzer.report.figure_style import NAMED_ROLES, ROLE_COLOURS, Figure, layout_of
from analyzer.report.wording import GIVEN, milliseconds, percentile_name, rate

_MEDIAN = 50.0  # a percentile
_CURVE_COLOURS = ("var(--front)", "var(--curve-a)", "var(--curve-b)", "var(--curve-c)")


def load_figure(charts: Charts, sla: Sla) -> Figure | None:
    """Latency over load: the tail solid, the median dotted, the budget as a line.

    None where no run lies within the chart. ``left_out`` names the curves of which none does.
    """
    tail = percentile_name(sla.percentile)
    ceiling_ms = _ceiling(charts.curves, sla.latency_budget_ms)
    traces: list[dict[str, Any]] = []
    left_out: list[str] = []
    names = {
        "recommended": "recommended: ",
        "closest": f"{charts.closest_name}: ",
        "baseline": f"{charts.baseline_name}: ",
    }
    for curve, colour in zip(charts.curves, _colours(charts.curves), strict=True):
        name = names.get(curve.role, "") + curve.label
        if not _visible(curve, ceiling_ms):
            left_out.append(name)
            continue
        traces.append(_curve_trace(curve, name, colour, tail, curve.latency_ms_sla))
        if sla.percentile != _MEDIAN:
            traces.append(_median_trace(curve, colour))
    if not traces:
        return None
    return {
        "data": traces,
        "layout": layout_of(
            height=420,
            xaxis={
                "title": {"text": "offered load, requests/s"},
                "range": [0, _rate_max(charts.curves, ceiling_ms)],
            },
            yaxis={"title": {"text": "latency, ms"}, "range": [0, ceiling_ms]},
            hovermode="closest",
            legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
            **_budget_line(sla.latency_budget_ms),
        ),
        "left_out": left_out,
    }


def _colours(curves: Sequence[Curve]) -> list[str]:
    """A colour for each curve: that of its role, else the next of those without one."""
    others = itertools.cycle(_CURVE_COLOURS)
    return [
        ROLE_COLOURS[curve.role] if curve.role in NAMED_ROLES else next(others) for curve in curves
    ]


def _budget_line(budget_ms: float) -> dict[str, Any]:
    """The dashed line of the budget and what it is called, as fields of the layout."""
    line = {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": budget_ms,
        "y1": budget_ms,
        "line": {"color": "var(--budget)", "width": 1.5, "dash": "dash"},
    }
    label = {
        "xref": "paper",
        "x": 0,
        "xanchor": "left",
        "y": budget_ms,
        "yanchor": "bottom",
        "text": f"budget {milliseconds(budget_ms, GIVEN)}",
        "showarrow": False,
        "font": {"color": "var(--budget)", "size": 12},
    }
    return {"shapes": [line], "annotations": [label]}


def _curve_trace(
    curve: Curve, name: str, colour: str, said: str, latency_ms: Sequence[float | None]
) -> dict[str, Any]:
    """A solid line with points; ``said`` is what its latency is called."""
    strong = curve.role in NAMED_ROLES
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": name,
        "legendgroup": curve.config_id,
        "x": list(curve.offered_rps),
        "y": list(latency_ms),
        "line": {"color": colour, "width": 3 if strong else 1.75},
        "marker": {"size": 7 if strong else 5, "color": colour},
        "customdata": [
            f"<b>{curve.label}</b><br>{said} {milliseconds(ms)} at {rate(rps)}"
            for rps, ms in zip(curve.offered_rps, latency_ms, strict=True)
        ],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _median_trace(curve: Curve, colour: str) -> dict[str, Any]:
    """The dotted line of the median, which has no entry of its own in the legend."""
    return {
        **_curve_trace(curve, f"{curve.label}, median", colour, "median", curve.latency_ms_p50),
        "showlegend": False,
        "mode": "lines",
        "line": {"color": colour, "width": 1.25, "dash": "dot"},
    }


def _visible(curve: Curve, ceiling_ms: float) -> list[float]:
    """The rates of a curve whose latency lies within the chart."""
    return [
        offered
        for offered, latency in zip(curve.offered_rps, curve.latency_ms_sla, strict=True)
        if latency is not None and latency <= ceiling_ms
    ]


def _ceiling(curves: tuple[Curve, ...], budget_ms: float) -> float:
    """Twice the budget, or less if nothing is that slow; the start of every curve is visible."""
    known = [[v for v in curve.latency_ms_sla if v is not None] for curve in curves]
    highest = max((max(values) for values in known if values), default=0.0)
    starts = max((min(values) for values in known if values), default=0.0)
    return max(budget_ms * 1.2, starts * 1.25, min(budget_ms * 2, highest * 1.05))


def _rate_max(curves: tuple[Curve, ...], ceiling_ms: float) -> float:
    """A little beyond the highest rate that lies below the ceiling: overload is off the chart."""
    visible = [offered for curve in curves for offered in _visible(curve, ceiling_ms)]
    return 1.08 * max(visible)
