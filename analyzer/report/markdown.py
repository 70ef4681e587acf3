"""The report as Markdown, for a pull request or a wiki."""

from __future__ import annotations

import re

from analyzer.domain.answer import memory_bytes
from analyzer.report.charts import make_steps
from analyzer.report.commands import study_command
from analyzer.report.entries import StudyReport
from analyzer.report.page import render_template
from analyzer.report.wording import milliseconds, proven_rate, size

# Rows that a page can be read with; the CSV has all.
FRONT_SHOWN = 25
FAILURES_SHOWN = 200


def render_markdown(report: StudyReport) -> str:
    """The report as Markdown with GitHub's tables; ends with a newline."""
    text = render_template(
        "report.md.j2",
        report,
        {
            "front_shown": FRONT_SHOWN,
            "steps": make_steps(report),
            "csv_command": study_command(
                "report", report.result, report.store_url, ("--format", "csv")
            ),
            "failures_shown": FAILURES_SHOWN,
            "memory_bytes": memory_bytes,
            "milliseconds": milliseconds,
            "proven_rate": proven_rate,
            "size": size,
        },
        html=False,  # the filters escape what Markdown would read
        filters={"text": escape_text, "cell": escape_cell},
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def escape_text(value: str) -> str:
    """``value`` on one line, with nothing that Markdown or HTML would act on."""
    flat = " ".join(str(value).split())
    return re.sub(r"([\\`*_\[\]<])", r"\\\1", flat)


def escape_cell(value: str) -> str:
    """:func:`escape_text` for a table's cell."""
    return escape_text(value).replace("|", "\\|")
