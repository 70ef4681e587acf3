"""What a search ends with: the answer on standard output, the report, the repository."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analyzer.cli.export import export_with_evidence
from analyzer.cli.search_options import SearchOptions
from analyzer.cli.streams import answer
from analyzer.errors import AnalyzerError

if TYPE_CHECKING:
    from analyzer.domain.study import StudyResult


def deliver(options: SearchOptions, result: StudyResult) -> str:
    """Prints the answer, writes the report, exports the winner; returns the verdict."""
    from analyzer.report.document import build_document, render_json
    from analyzer.report.entries import make_report
    from analyzer.report.terminal import render_terminal

    report = make_report(result)
    if not options.as_json:
        answer(render_terminal(report))
    try:
        lines = _write(options, result)
    except AnalyzerError as error:
        # Minutes of measuring must not end in a folder that filled up meanwhile.
        stored = (
            f"The study {result.name} is stored: analyze report and analyze export start from it."
        )
        raise error.reworded(error.message, f"{error.hint} {stored}".strip()) from error
    if options.as_json:
        answer(render_json(build_document(report)), newline=False)
    for line in () if options.as_json else lines:
        answer(line)
    return result.verdict


def _write(options: SearchOptions, result: StudyResult) -> list[str]:
    """Writes the report and the repository that were asked for; a line about each."""
    from analyzer.report.files import format_of, render_report, write_report

    lines = []
    if options.report_file is not None:
        kind = format_of(options.report_file, None)
        write_report(options.report_file, render_report(result, kind))
        lines.append(f"report      {options.report_file}")
    if options.export_dir is not None and result.recommended_id is not None:
        done = export_with_evidence(
            result, options.export_dir, force=options.force, quiet=options.quiet
        )
        lines.append(f"repository  {done.path}")
    return lines
