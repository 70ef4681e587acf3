"""The report as Markdown, for a pull request or a wiki."""

from __future__ import annotations

import re
from typing import Any

from analyzer.report.facts import answer_facts, flatten, promise_rows, search_rows
from analyzer.report.wording import (
    config_label,
    config_rows,
    milliseconds,
    percentile_name,
    rate,
    signed_percent,
    size,
)
from analyzer.resources import templates_dir

FRONT_SHOWN = 25


def render_markdown(document: dict[str, Any]) -> str:
    """The document as Markdown with GitHub's tables; ends with a newline."""
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
    answer = answer_facts(document)
    text: str = environment.get_template("report.md.j2").render(
        document=document,
        answer=answer,
        config_rows=config_rows(answer.entry["config"]) if answer.entry else [],
        promise_rows=promise_rows(document),
        search_rows=search_rows(document),
        provenance_rows=flatten(document["provenance"]),
        front_shown=FRONT_SHOWN,
        tail=percentile_name(document["sla"]["percentile"]),
        label=config_label,
        rate=rate,
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
