"""The report as Markdown, for a pull request or a wiki."""

from __future__ import annotations

import re

from analyzer.report.entries import StudyReport
from analyzer.report.gain_text import edge_text
from analyzer.report.summary import provenance_rows, search_rows, sla_rows, summarize
from analyzer.report.wording import (
    configuration_label,
    configuration_rows,
    milliseconds,
    percentile_name,
    rate,
    signed_percent,
    size,
)
from analyzer.resources import templates_dir

# Rows that a page can be read with; the CSV has all.
FRONT_SHOWN = 25
FAILURES_SHOWN = 200


def render_markdown(report: StudyReport) -> str:
    """The report as Markdown with GitHub's tables; ends with a newline."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates_dir()),
        autoescape=False,  # not HTML: the filters below escape what Markdown would read
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["text"] = escape_text
    environment.filters["cell"] = escape_cell
    result, summary = report.result, summarize(report)
    text: str = environment.get_template("report.md.j2").render(
        report=report,
        result=result,
        summary=summary,
        configuration_rows=configuration_rows(report.shown.configuration) if report.shown else [],
        sla_rows=sla_rows(result),
        search_rows=search_rows(result, summary.conditions),
        provenance_rows=provenance_rows(result),
        front_shown=FRONT_SHOWN,
        failures_shown=FAILURES_SHOWN,
        tail=percentile_name(result.sla.percentile),
        label=configuration_label,
        rate=rate,
        edge_text=edge_text,
        milliseconds=milliseconds,
        size=size,
        signed_percent=signed_percent,
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def escape_text(value: str) -> str:
    """``value`` on one line, with nothing that Markdown or HTML would act on."""
    flat = " ".join(str(value).split())
    return re.sub(r"([\\`*_\[\]<])", r"\\\1", flat)


def escape_cell(value: str) -> str:
    """:func:`escape_text` for a table's cell."""
    return escape_text(value).replace("|", "\\|")
