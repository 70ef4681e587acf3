"""The report as one offline HTML file: the answer first, then the charts, then the sources."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from analyzer.domain.answer import memory_bytes, representative_test
from analyzer.domain.measurement import Measurement
from analyzer.domain.sla import Sla
from analyzer.report.charts import Charts, Role, make_charts
from analyzer.report.commands import study_command
from analyzer.report.entries import StudyReport
from analyzer.report.figure_style import Figure, text_of
from analyzer.report.figures import (
    front_figure,
    importance_figure,
    stage_figure,
    steps_figure,
)
from analyzer.report.gain_text import edge_text
from analyzer.report.load_figure import load_figure
from analyzer.report.page import render_template
from analyzer.report.wording import (
    configuration_label,
    milliseconds,
    percent,
    proven_rate,
    rate,
    size,
)
from analyzer.resources import templates_dir

# Rows that a page can be read with; the CSV has all.
FAILURES_SHOWN = 40

IMPORTANCE_CAPTION = (
    "The share of the variance of the predicted edges that goes with each parameter, looked at "
    "alone. The shares overlap where parameters vary together, and leave out what only works "
    "together: they need not add up to 100 %."
)

_NUMBER_AND_UNIT = re.compile(r"(?<=\d) (?=(?:ms|/s|%|s|W)(?![\w]))")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One line of the table of configurations, as text."""

    config_id: str
    label: str
    role: Role
    edge: str
    certified: str
    latency: str
    at: str
    memory: str
    accuracy: str
    predicted: str


def render_html(report: StudyReport, *, config_pbtxt: str | None = None) -> str:
    """One HTML file that needs nothing else: no network, no other file.

    Args:
        config_pbtxt: Triton's configuration of the recommended model, shown where it is given.
    """
    from markupsafe import Markup

    folder, result = templates_dir(), report.result
    charts = make_charts(report)
    figures = draw_figures(charts, result.sla)
    own = {
        "charts": charts,
        "figures": figures,
        "in_words": {name: text_of(figure) for name, figure in figures.items()},
        "figures_json": Markup(_script_json(figures)),
        "predicted_steps": any(not step.measured for step in charts.steps),
        "importance_caption": IMPORTANCE_CAPTION,
        "config_pbtxt": config_pbtxt,
        "table": [_table_row(measurement, report) for measurement in charts.best],
        "failures_caption": _failures_caption(report),
        "failures_shown": FAILURES_SHOWN,
        "css": Markup((folder / "report.css").read_text(encoding="utf-8")),
        "js": Markup((folder / "report.js").read_text(encoding="utf-8")),
        "plotly_js": Markup(_plotly_js()) if figures else "",
    }
    return render_template("report.html.j2", report, own, html=True, finalize=_keep_units)


def draw_figures(charts: Charts, sla: Sla) -> dict[str, Figure]:
    """The charts that have something to show, by the id of their place in the page."""
    drawn = {
        "chart-front": front_figure(charts, sla),
        "chart-load": load_figure(charts, sla),
        "chart-stages": stage_figure(charts),
        "chart-steps": steps_figure(charts),
        "chart-importance": importance_figure(charts),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None}


def _table_row(measurement: Measurement, report: StudyReport) -> TableRow:
    result, closest = report.result, report.closest
    config_id = measurement.configuration.config_id
    test = representative_test(measurement, result.sla)
    accuracy = measurement.real_accuracy
    role: Role = "other"
    if config_id == result.recommended_id:
        role = "recommended"
    elif closest is not None and measurement is closest.entry.measurement:
        role = "closest"
    elif config_id == result.baseline_id:
        role = "baseline"
    return TableRow(
        config_id=config_id,
        label=configuration_label(measurement.configuration),
        role=role,
        edge=edge_text(measurement.edge, bounded=False),
        certified=proven_rate(measurement.capacity_rps),
        latency=milliseconds(test.latency_ms.sla if test else None),
        at=proven_rate(test.offered_rps if test else None),
        memory=size(memory_bytes(measurement)),
        accuracy=percent(accuracy.value if accuracy else None),
        predicted=rate(measurement.predicted.edge_rps),
    )


def _failures_caption(report: StudyReport) -> str:
    listed = min(len(report.failures), FAILURES_SHOWN)
    total = max(report.result.search.failed, listed)
    if total > listed:
        command = study_command("studies show", report.result, report.store_url)
        return f"The first {listed:,} of {total:,}; the store has them all: {command}."
    return "Failures are results: they are stored, and the search learns from them."


def _keep_units(value: Any) -> Any:
    """Text in which a number and its unit stay on one line."""
    if type(value) is not str:  # markup is a subclass, and stays as it is
        return value
    return _NUMBER_AND_UNIT.sub("\u00a0", value)


def _script_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _plotly_js() -> str:
    """The library, as its Python package ships it."""
    from plotly.offline import get_plotlyjs

    text: str = get_plotlyjs()
    return text.replace("</script", "<\\/script")
