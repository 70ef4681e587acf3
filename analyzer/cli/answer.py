"""What a search ends with: the answer on standard output, the report, the repository."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from analyzer.cli.facts import format_of, render_report, write_report
from analyzer.errors import AnalyzerError

if TYPE_CHECKING:
    from analyzer.cli.search_run import SearchOptions
    from analyzer.domain.study import StudyResult


def tell(options: SearchOptions, facts: StudyResult) -> str:
    """Prints the answer, writes the report, exports the winner; returns the verdict."""
    from analyzer.report.document import build_document, render_json
    from analyzer.report.terminal import render_terminal

    document = build_document(facts)
    if not options.as_json:
        click.echo(render_terminal(document))
    try:
        lines = _write(options, facts, document)
    except AnalyzerError as error:
        # Minutes of measuring must not end in a folder that filled up meanwhile.
        raise type(error)(
            error.message,
            hint=f"{error.hint} The study {facts.name} is stored: analyze report and analyze "
            "export start from it.".strip(),
        ) from error
    if options.as_json:
        click.echo(render_json(document), nl=False)
    for line in () if options.as_json else lines:
        click.echo(line)
    return facts.verdict


def _write(options: SearchOptions, facts: StudyResult, document: dict[str, Any]) -> list[str]:
    """Writes the report and the repository that were asked for; a line about each."""
    lines = []
    if options.report_file is not None:
        kind = format_of(options.report_file, None)
        write_report(options.report_file, render_report(facts, kind))
        lines.append(f"report      {options.report_file}")
    if options.export_dir is not None and facts.verdict == "found":
        from analyzer.cli.export import export_study

        result = export_study(facts, options.export_dir, document=document, force=options.force)
        for note in () if options.quiet else result.notes:
            click.echo(f"Note: {note}", err=True)
        lines.append(f"repository  {result.path}")
    return lines
