"""The answer for a terminal: plain text in at most 25 lines."""

from __future__ import annotations

import textwrap
from typing import Any

from analyzer.report.facts import answer_facts, gain_sentence
from analyzer.report.wording import config_label, number, rate

LINES_MAX = 25
_WIDTH = 96
_INDENT = 16


def render_terminal(document: dict[str, Any]) -> str:
    """The answer first, then what it rests on; ends without a newline."""
    answer = answer_facts(document)
    lines = [*textwrap.wrap(f"{document['study']}: {answer.title}.", _WIDTH), ""]
    if document["recommendation"] is None:
        lines += _block("closest", answer.subtitle.removeprefix("Closest: "))
        for sentence in answer.misses:
            lines += _block("", sentence)
    else:
        entry = document["recommendation"]
        lines += _block("configuration", f"{entry['config_id']}: {answer.subtitle}")
    wanted = {
        "certificate": "proof",
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
    for name, value in (*answer.proof, *answer.measured, *answer.cost):
        if name in wanted:
            lines += _block(wanted[name], value)[:2]
    baseline = document["baseline"]
    if baseline is not None:
        text = f"{rate(baseline['capacity_rps'])} certified ({config_label(baseline['config'])})"
        gain = f"; {gain_sentence(document)}" if document["recommendation"] else ""
        lines += _block("baseline", text + gain)[:2]
    search = document["search"]
    done = (
        f"{search['evaluated_live']:,} measured, {search['evaluated_twin']:,} simulated, "
        f"{search['failed']:,} failed in {number(search['wall_seconds'])} s"
    )
    lines += _block("search", f"{done}; {search['bound']}" if search["bound"] else done)[:2]
    for sentence in answer.advice:
        lines += _block("next", sentence)[:2]
    for warning in document.get("warnings", ()):
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
