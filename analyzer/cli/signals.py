"""SIGTERM is Ctrl-C: what was measured is stored, the servers are ended, the exit code is 130."""

from __future__ import annotations

import signal
from types import FrameType


def _raise_interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def take_sigterm() -> None:
    """Makes SIGTERM raise KeyboardInterrupt; on the main thread only.

    Called again once Ray is up: its core installs a handler of its own, which prints a stack trace
    and kills the process at once.
    """
    signal.signal(signal.SIGTERM, _raise_interrupt)
