"""The last lines that a server wrote, for the message when it fails."""

from __future__ import annotations

import re
import threading
from collections import deque
from contextlib import suppress
from typing import IO

# More than the usage text of tritonserver, which would push out the reason it is printed for.
_LINES = 600
_LINE_BYTES = 2000  # longer lines are cut
# Of a crash Triton writes the frames of its stack, without names.
_FRAME = re.compile(r"\s*\d+# ")


class ServerLog:
    """Reads what a server writes, on a thread of its own: a full pipe would block the server."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._reader: threading.Thread | None = None

    def follow(self, pipe: IO[bytes]) -> None:
        """Reads ``pipe`` to its end and closes it; forgets what was read before."""
        lines = self._lines = deque(maxlen=_LINES)

        def read() -> None:
            with pipe, suppress(ValueError, OSError):
                while line := pipe.readline(_LINE_BYTES):
                    lines.append(line.decode(errors="replace").rstrip())

        self._reader = threading.Thread(target=read, name="server-log", daemon=True)
        self._reader.start()

    def finish(self, timeout_s: float = 1.0) -> None:
        """Waits for the end of the log of a server that has ended.

        A process that the server left behind may keep the pipe open; then the reader goes on.
        """
        if self._reader is not None:
            self._reader.join(timeout_s)

    def lines(self) -> list[str]:
        """The last lines that are neither empty nor frames of a stack."""
        return [line for line in tuple(self._lines) if line.strip() and not _FRAME.match(line)]
