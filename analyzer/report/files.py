"""A study's report in each format, and the file that it is written to."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from analyzer.domain.study import StudyResult
from analyzer.errors import UsageError
from analyzer.report.document import build_document, render_json
from analyzer.report.entries import make_report

REPORT_FORMATS = ("html", "md", "csv", "json")


def format_of(
    path: Path,
    chosen: str | None,
    *,
    hint: str = "End the file in .html, .md, .csv or .json, or give --format.",
) -> str:
    """The report's format: ``chosen``, else from the file's ending.

    Raises:
        UsageError: The ending names no format, or ``path`` is a folder.
    """
    if chosen:
        return chosen
    if path.is_dir():
        raise UsageError(
            f"{path} is a folder, and the report is a file.",
            hint=f"Name a file in it, like {path / 'report.html'}.",
        )
    ending = path.suffix.lower().lstrip(".")
    names = {"htm": "html", "markdown": "md"}
    found = names.get(ending, ending)
    if found not in REPORT_FORMATS:
        raise UsageError(
            f"{path}: {path.suffix} names no report format."
            if path.suffix
            else f"{path} has no ending, which would name the report's format.",
            hint=hint,
        )
    return found


def render_report(result: StudyResult, kind: str, *, store_url: str | None = None) -> str:
    """The report of a study as ``html``, ``md``, ``csv`` or ``json``.

    Args:
        store_url: As :attr:`StudyReport.store_url`.
    """
    if kind == "csv":  # the outcomes as they are: nothing is derived that takes long
        from analyzer.report.csv import render_csv

        return render_csv(result)
    report = make_report(result, store_url=store_url)
    if kind == "json":
        return render_json(build_document(report))
    if kind == "md":
        from analyzer.report.markdown import render_markdown

        return render_markdown(report)
    from analyzer.modelconfig.render import render_config
    from analyzer.report.html import render_html

    best = report.recommendation
    pbtxt = render_config(result.model, best.configuration) if best is not None else None
    return render_html(report, config_pbtxt=pbtxt)


def write_report(path: Path, text: str) -> None:
    """Writes ``text`` to ``path`` in one step: the whole file or nothing.

    Raises:
        UsageError: It cannot be written.
    """
    temporary = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise UsageError(
            f"The report {path} cannot be written: {error.strerror}.",
            hint="Choose another file with -o; the study itself is stored.",
        ) from error
