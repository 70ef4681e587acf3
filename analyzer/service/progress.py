"""What a command says on standard error, as events: phases, details, and the log as it is."""

from __future__ import annotations

import re
from typing import Any

Event = tuple[str, dict[str, Any]]

# As ``cli/progress.py`` writes them where there is no terminal.
_PHASE = re.compile(r"\[ *([0-9.]+)s\] (.*) \(about ([0-9]+) s\)")
_DETAIL = re.compile(r" {9}(\S.*)")
# What colours a terminal's text, as ONNX Runtime's errors have it; and the beginning of one.
_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_ESCAPE_BEGUN = re.compile(r"\x1b(?:\[[0-?]{0,32}[ -/]{0,32})?\Z")
_TEXT_MAX = 500  # characters of a phase or a detail; no command writes longer ones
TAIL_MAX = 4000
"""Characters of the log's end that is kept apart: a screenful or two."""


def storable(text: str) -> str:
    """``text`` without what PostgreSQL's text cannot hold: the null and halves of characters."""
    return text.replace("\x00", "�").encode("utf-8", "replace").decode()


class LogReader:
    """Turns pieces of standard error into events.

    Args:
        bytes_left: How much of the log is still kept.
    """

    def __init__(self, bytes_left: int) -> None:
        self._left = bytes_left
        self._line = ""
        self._begun = ""
        #: The end of all that was said.
        self.tail = ""

    def feed(self, text: str) -> list[Event]:
        """The events of ``text``, without its colours; what is not whole yet waits for its end."""
        text = self._begun + storable(text)
        begun = _ESCAPE_BEGUN.search(text)
        self._begun = begun[0] if begun else ""
        text = _ESCAPE.sub("", text.removesuffix(self._begun))
        if not text:
            return []
        self.tail = (self.tail + text)[-TAIL_MAX:]
        found: list[Event] = []
        if self._left > 0:
            kept = text[: self._left]
            self._left -= len(kept)
            if self._left <= 0:
                kept += "\n[The log is longer than this service keeps.]\n"
            found.append(("log", {"text": kept}))
        *lines, self._line = (self._line + text).split("\n")
        self._line = self._line[-_TEXT_MAX:]
        for line in lines:
            if phase := _PHASE.fullmatch(line):
                found.append(
                    ("phase", {"phase": phase[2][:_TEXT_MAX], "expected_s": float(phase[3])})
                )
            elif detail := _DETAIL.fullmatch(line):
                found.append(("detail", {"detail": detail[1][:_TEXT_MAX]}))
        return found


def last_line(text: str) -> str:
    """The last line that is not empty; an empty text without one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
