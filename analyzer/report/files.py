"""A study's report in each format, and the file that it is written to."""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from analyzer.domain.study import StudyResult
from analyzer.errors import UsageError
from analyzer.report.document import build_document, render_json
from analyzer.report.entries import make_report

REPORT_FORMATS = ("html", "md", "csv", "json")
_WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def format_of(
    path: Path,
    chosen: str | None,
    *,
    hint: str = "End the file in .html, .md, .csv or .json, or give --format.",
) -> str:
    """The report's format: ``chosen``, else from the file's ending.

    Raises:
        UsageError: The ending names no format, or ``path`` is a folder or no name.
    """
    if str(path) == "-":
        raise UsageError(
            "'-' is no name of a report's file.",
            hint="analyze report --format md, csv or json prints it without -o; -o /dev/stdout "
            "prints a page.",
        )
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


def check_replaceable(path: Path) -> None:
    """Raises UsageError where ``path`` is a file that is not to be written, even by root."""
    if path.is_file() and not (path.stat().st_mode & _WRITABLE and os.access(path, os.W_OK)):
        raise UsageError(
            f"The report {path} cannot be written: the file is read-only.",
            hint="Choose another file, or make it writable (chmod u+w).",
        )


def write_report(path: Path, text: str) -> None:
    """Writes ``text`` to ``path``: the whole file in one step, or nothing.

    A link stays one, and its target is written. A pipe or a device is written to.

    Raises:
        UsageError: It cannot be written.
    """
    check_replaceable(path)
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
        else:
            _replace(Path(os.path.realpath(path)), text)
    except OSError as error:
        raise UsageError(
            f"The report {path} cannot be written: {error.strerror}.",
            hint="Choose another file; the study itself is stored.",
        ) from error


def _replace(file: Path, text: str) -> None:
    """Replaces a regular file, whose permissions stay, or makes it."""
    temporary = file.with_name(f".{file.name}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
        if file.exists():
            shutil.copymode(file, temporary)
        temporary.replace(file)
    except OSError:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
