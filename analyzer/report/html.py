"""The report as one offline HTML file: the answer first, then the charts, then the sources."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from analyzer.domain.answer import memory_bytes, representative_test
from analyzer.domain.measurement import Measurement
from analyzer.domain.study import StudyResult
from analyzer.report.facts import answer_facts, flatten, promise_rows, search_rows
from analyzer.report.figures import (
    Figure,
    front_figure,
    importance_figure,
    load_figure,
    stage_figure,
    steps_figure,
)
from analyzer.report.plots import Plots, Role, plot_facts
from analyzer.report.wording import (
    config_label,
    config_rows,
    configuration_label,
    milliseconds,
    percent,
    percentile_name,
    rate,
    signed_percent,
    size,
)
from analyzer.resources import templates_dir

FAILURES_SHOWN = 40

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


def render_html(
    facts: StudyResult, document: dict[str, Any], *, config_pbtxt: str | None = None
) -> str:
    """One HTML file that needs nothing else: no network, no other file.

    Args:
        facts: The study.
        document: What :func:`~analyzer.report.document.build_document` made of it.
        config_pbtxt: Triton's configuration of the recommended model, shown where it is given.
    """
    import jinja2
    from markupsafe import Markup

    folder = templates_dir()
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_keep_units,
    )
    plots = plot_facts(facts)
    figures = draw_figures(plots, document["sla"])
    answer = answer_facts(document)
    return environment.get_template("report.html.j2").render(
        document=document,
        answer=answer,
        plots=plots,
        figures=figures,
        figures_json=Markup(_script_json(figures)),
        explanation=facts.explanation,
        predicted_steps=any(not step.measured for step in plots.steps),
        config_rows=config_rows(answer.entry["config"]) if answer.entry else [],
        config_pbtxt=config_pbtxt,
        table=table_rows(plots, facts),
        tail=percentile_name(facts.sla.percentile),
        failures_caption=_failures_caption(document),
        failures_shown=FAILURES_SHOWN,
        promise_rows=promise_rows(document),
        search_rows=search_rows(document),
        provenance_rows=flatten(document["provenance"]),
        label=config_label,
        rate=rate,
        signed_percent=signed_percent,
        css=Markup((folder / "report.css").read_text(encoding="utf-8")),
        js=Markup((folder / "report.js").read_text(encoding="utf-8")),
        plotly_js=Markup(_plotly_js()) if figures else "",
    )


def draw_figures(plots: Plots, sla: dict[str, Any]) -> dict[str, Figure]:
    """The charts that have something to show, by the id of their place in the page."""
    drawn = {
        "chart-front": front_figure(plots, sla),
        "chart-load": load_figure(plots, sla),
        "chart-stages": stage_figure(plots),
        "chart-steps": steps_figure(plots),
        "chart-importance": importance_figure(plots),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None}


def table_rows(plots: Plots, facts: StudyResult) -> tuple[TableRow, ...]:
    """The best configurations, the best first."""
    return tuple(_table_row(measurement, facts) for measurement in plots.best)


def _table_row(measurement: Measurement, facts: StudyResult) -> TableRow:
    config_id = measurement.configuration.config_id
    test = representative_test(measurement, facts.sla)
    accuracy = measurement.accuracy
    role: Role = "other"
    if config_id == facts.recommended_id:
        role = "recommended"
    elif config_id == facts.baseline_id:
        role = "baseline"
    scored = accuracy is not None and not accuracy.synthetic
    return TableRow(
        config_id=config_id,
        label=configuration_label(measurement.configuration),
        role=role,
        edge=rate(measurement.edge.rate_rps),
        certified=rate(measurement.capacity_rps),
        latency=milliseconds(test.latency_ms.sla if test else None),
        at=rate(test.offered_rps if test else None),
        memory=size(memory_bytes(measurement)),
        accuracy=percent(accuracy.value if accuracy is not None and scored else None),
        predicted=rate(measurement.predicted.edge_rps),
    )


def _failures_caption(document: dict[str, Any]) -> str:
    listed = min(len(document["failures"]), FAILURES_SHOWN)
    total = max(document["search"]["failed"], listed)
    if total > listed:
        return f"The first {listed:,} of {total:,}; the store has them all (analyze studies show)."
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
