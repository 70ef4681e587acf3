"""Progress on stderr: a bar with what is being done and how long it will take."""

from __future__ import annotations

import os
import sys
import threading
import time
from types import TracebackType
from typing import Self

from analyzer.cli.streams import say

# Of a terminal that does not tell its width; of one that tells less than can be read.
_COLUMNS, _COLUMNS_MIN = 80, 20


class ConsoleProgress:
    """Phases of a run: on a terminal one line that is rewritten, elsewhere one line a phase.

    Used as a context manager; a thread moves the bar while a phase takes its time.
    """

    _WIDTH = 24

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._phase = ""
        self._detail = ""
        self._began = time.monotonic()
        self._started = self._began
        self._expected_s = 0.0
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if self._terminal and not self._quiet:
            self._thread = threading.Thread(target=self._run, daemon=True, name="progress")
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._write("\r\x1b[K")

    def phase(self, name: str, expected_s: float) -> None:
        """A new phase begins and is expected to take so long."""
        with self._lock:
            self._phase, self._detail = name, ""
            self._began, self._expected_s = time.monotonic(), expected_s
        if not self._terminal and not self._quiet:
            elapsed = self._began - self._started
            self._write(f"[{elapsed:5.1f}s] {name} (about {max(expected_s, 0):.0f} s)\n")

    def detail(self, text: str) -> None:
        """What is being done now."""
        with self._lock:
            self._detail = text
        if not self._terminal and not self._quiet:
            self._write(f"         {text}\n")

    def warn(self, text: str) -> None:
        """A sentence that qualifies the result."""
        if not self._quiet:
            self._write(("\r\x1b[K" if self._thread is not None else "") + f"Note: {text}\n")

    def _run(self) -> None:
        while not self._stop.wait(0.5):
            with self._lock:
                elapsed = time.monotonic() - self._began
                share = min(elapsed / self._expected_s, 1.0) if self._expected_s > 0 else 0.0
                done = round(share * self._WIDTH)
                left = max(self._expected_s - elapsed, 0.0)
                bar = "━" * done + "╌" * (self._WIDTH - done)
                line = f"{bar} {self._phase}, {left:.0f} s left  {self._detail}"
            self._write(f"\r\x1b[K{line[: _columns()]}")

    def _write(self, text: str) -> None:
        say(text, newline=False)


def _columns() -> int:
    """Characters of a line that does not wrap: some terminals do so after their last column."""
    try:
        found = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        found = 0
    return max((found or _COLUMNS) - 1, _COLUMNS_MIN)


def make_progress(*, quiet: bool) -> ConsoleProgress:
    """Progress for a command."""
    return ConsoleProgress(quiet=quiet)
