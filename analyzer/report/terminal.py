"""The answer for a terminal: plain text in at most 25 lines."""

from __future__ import annotations

import textwrap

from analyzer.report.entries import StudyReport
from analyzer.report.summary import gain_sentence, summarize
from analyzer.report.wording import configuration_label, number, rate

LINES_MAX = 25
_WIDTH = 96
_INDENT = 16


def render_terminal(report: StudyReport) -> str:
    """The answer first, then what it rests on; ends without a newline."""
    result, best, summary = report.result, report.recommendation, summarize(report)
    lines = [*textwrap.wrap(f"{result.name}: {summary.title}.", _WIDTH), ""]
    if best is None:
        lines += _block("closest", summary.subtitle.removeprefix("Closest: "))
        for sentence in summary.misses:
            lines += _block("", sentence)
    else:
        config_id = best.configuration.config_id
        lines += _block("configuration", f"{config_id}: {summary.subtitle}")
    wanted = {
        "certificate": "certificate",
        "requests": "requests",
        "over budget": "over budget",
        "estimated edge": "edge",
        "latency": "latency",
        "memory, peak": "memory",
        "accuracy": "accuracy",
        "machines": "machines",
        "cost per hour": "cost per hour",
        "a million inferences": "per million",
    }
    for name, value in (*summary.certificate, *summary.measured, *summary.cost):
        if name in wanted:
            lines += _block(wanted[name], value)[:2]
    baseline = report.baseline
    if baseline is not None:
        text = f"{rate(baseline.measurement.capacity_rps)} certified "
        text += f"({configuration_label(baseline.configuration)})"
        gain = f"; {gain_sentence(report)}" if best is not None else ""
        lines += _block("baseline", text + gain)[:2]
    search = result.search
    done = (
        f"{search.evaluated_live:,} measured, {search.evaluated_twin:,} simulated, "
        f"{search.failed:,} failed in {number(search.wall_seconds)} s"
    )
    lines += _block("search", f"{done}; {search.bound}" if search.bound else done)[:2]
    for sentence in summary.advice:
        lines += _block("next", sentence)[:2]
    for warning in result.warnings:
        lines += _block("note", warning)[:2]
    if len(lines) > LINES_MAX:
        left = len(lines) - LINES_MAX + 1
        lines = [*lines[: LINES_MAX - 1], f"  … {left} more lines: analyze report"]
    return "\n".join(lines)


def _block(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=f"  {label:<{_INDENT - 2}}",
        subsequent_indent=" " * _INDENT,
        break_on_hyphens=False,
    )
