"""What the page and Markdown have in common: their templates, and what these may show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from analyzer.domain.study import StudyResult
from analyzer.report.entries import StudyReport
from analyzer.report.gain_text import edge_text
from analyzer.report.search_facts import provenance_rows, search_rows, sla_rows
from analyzer.report.summary import summarize
from analyzer.report.trust_text import caution, trust_sentence, what_if_base
from analyzer.report.wording import (
    claim_text,
    configuration_label,
    configuration_rows,
    explanation_in_words,
    failure_label,
    percentile_name,
    rate,
    signed_percent,
)
from analyzer.resources import templates_dir


def render_template(
    name: str,
    report: StudyReport,
    own: Mapping[str, Any],
    *,
    html: bool,
    filters: Mapping[str, Callable[[str], str]] | None = None,
    finalize: Callable[[Any], Any] | None = None,
) -> str:
    """The template filled with what every page shows, and with ``own``; an unknown name raises.

    Args:
        html: Whether what is put in is escaped as HTML wants it.
        filters: That the template may use, by name.
        finalize: What is done to each value first.
    """
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates_dir()),
        autoescape=html,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finalize,
    )
    environment.filters.update(filters or {})
    explanation = explanation_in_words(report.result.explanation)
    result: StudyResult = replace(report.result, explanation=explanation)
    summary = summarize(report)
    text: str = environment.get_template(name).render(
        report=report,
        result=result,
        explanation=explanation,
        summary=summary,
        caution=caution(explanation),
        what_if_base=what_if_base(explanation),
        trust=trust_sentence(explanation),
        state=result.status if result.unfinished else result.verdict,
        configuration_rows=configuration_rows(report.shown.configuration) if report.shown else [],
        sla_rows=sla_rows(result),
        search_rows=search_rows(report, summary.conditions),
        provenance_rows=provenance_rows(result),
        tail=percentile_name(result.sla.percentile),
        label=configuration_label,
        failure_label=failure_label,
        rate=rate,
        claim_text=claim_text,
        edge_text=edge_text,
        signed_percent=signed_percent,
        **own,
    )
    return text
