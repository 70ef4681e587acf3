"""The answer for a terminal: plain text in at most 25 lines."""

from __future__ import annotations

import textwrap

from analyzer.report.commands import study_command
from analyzer.report.entries import StudyReport
from analyzer.report.gain_text import rate_text
from analyzer.report.search_facts import left_out_and_failed, time_text, variants
from analyzer.report.summary import summarize
from analyzer.report.wording import configuration_label

# What fits a terminal without scrolling.
LINES_MAX = 25
_WIDTH = 96
_INDENT = 16

# Rows of the summary that are shown, by their name there; what a reader can do without is not.
_SHOWN = {
    "certificate": "certificate",
    "requests": "requests",
    "requests at kept rates": "requests",
    "over budget": "over budget",
    "estimated edge": "edge",
    "latency": "latency",
    "memory, peak": "memory",
    "accuracy": "accuracy",
    "machines": "machines",
    "cost per hour": "cost per hour",
    "a million inferences": "per million",
    "rests on": "rests on",
}


def render_terminal(report: StudyReport) -> str:
    """The answer first, then what it rests on; ends without a newline.

    The command to go on with is the last line, whole, so that it can be copied.
    """
    result, shown, summary = report.result, report.shown, summarize(report)
    lines = [*textwrap.wrap(f"{result.name}: {summary.title}.", _WIDTH), ""]
    told = report.recommendation or result.unfinished
    label = "configuration" if told else "closest"
    what = summary.subtitle.removeprefix("Closest: ")
    lines += _block(label, f"{shown.configuration.config_id}: {what}" if shown else what)
    for sentence in summary.misses:
        lines += _block("", sentence)
    for name, value in (*summary.certificate, *summary.measured, *summary.cost):
        if name in _SHOWN:
            lines += _block(_SHOWN[name], value, most=2)
    for name, value in summary.types:
        lines += _block("instance type", f"{name}: {value}", most=2)
    baseline = report.baseline
    if baseline is not None:
        rate = rate_text(baseline.measurement)
        text = f"{rate} ({configuration_label(baseline.configuration)})"
        lines += _block("baseline", f"{text}; {summary.gain}" if summary.gain else text, most=3)
    elif shown is not None:
        lines += _block("baseline", "not measured")
    command = [f"  {summary.command}"] if summary.command else []
    for number, sentence in enumerate(summary.advice):
        # The command that the first sentence means comes last.
        text = sentence.removesuffix(":") + (" (below)." if command and number == 0 else "")
        lines += _block("next", text, most=3)
    search = result.search
    left_out, failed = left_out_and_failed(report)
    parts = [f"{search.evaluated_live:,} measured"]
    parts += [f"{search.evaluated_twin:,} predicted"] if search.evaluated_twin is not None else []
    parts += [f"{variants(left_out)} left out"] if left_out else []
    parts += [f"{failed:,} failed"] if failed else []
    done = ", ".join(parts)
    done += f" in {time_text(search)}" if search.wall_seconds is not None else ""
    lines += _block("search", f"{done}; {search.bound}" if search.bound else done, most=3)
    if summary.conditions:
        lines += _block("machine", summary.conditions, most=2)
    for note in summary.notes:
        lines += _block("note", note, most=2)
    most = LINES_MAX - len(command)
    if len(lines) > most:
        left = len(lines) - most + 1
        whole = study_command("report", result, report.store_url, ("--format", "md"))
        lines = [*lines[: most - 1], f"  … {left} more lines: {whole}"]
    return "\n".join(lines + command)


def _block(label: str, text: str, *, most: int | None = None) -> list[str]:
    """The lines of one fact, ``most`` of them; that there was more shows at the end."""
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=f"  {label:<{_INDENT - 2}}",
        subsequent_indent=" " * _INDENT,
        break_on_hyphens=False,
        max_lines=most,
        placeholder=" …",
    )
