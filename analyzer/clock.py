"""Monotonic time as a protocol: real, and virtual for simulations and tests."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic time in integer nanoseconds."""

    def now_ns(self) -> int:
        """The current time; only differences mean anything."""


class RealClock:
    """The machine's monotonic clock."""

    def now_ns(self) -> int:
        return time.monotonic_ns()


class VirtualClock:
    """A clock that moves only when it is told to."""

    def __init__(self, now_ns: int = 0) -> None:
        self._now_ns = now_ns

    def now_ns(self) -> int:
        return self._now_ns

    def advance_to(self, now_ns: int) -> None:
        """Moves forward to ``now_ns``; going back is an error of the caller."""
        assert now_ns >= self._now_ns, (now_ns, self._now_ns)
        self._now_ns = now_ns
