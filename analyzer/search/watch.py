"""Watches the machine over a whole search, so that stalls between load tests count too."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Protocol, Self

from analyzer.domain.load_test import Conditions


class Witness(Protocol):
    """What samples the machine: a :class:`~analyzer.hardware.canary.Canary`."""

    def since(self, start_ns: int | None = None) -> Conditions | None:
        """What the machine was like from ``start_ns`` (CLOCK_MONOTONIC) on."""


class StudyWatch:
    """Stretches of watched time, one after the other without a gap; a context manager.

    Args:
        witness: Starts to sample; None where nobody does (in virtual time, or where another machine
            is measured).
    """

    def __init__(
        self, witness: Callable[[], AbstractContextManager[Witness]] | None = None
    ) -> None:
        self._start = witness
        self._witness: Witness | None = None
        self._stack = ExitStack()
        self._since_ns = 0
        self.error = ""

    def __enter__(self) -> Self:
        if self._start is not None:
            try:
                self._witness = self._stack.enter_context(self._start())
            except OSError as error:
                self.error = f"Nothing watched the machine between load tests: {error}."
        self._since_ns = time.monotonic_ns()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._witness = None
        self._stack.close()

    def so_far(self) -> Conditions | None:
        """The stretch that began with the last :meth:`take`; None where nobody watches."""
        return self._witness.since(self._since_ns) if self._witness is not None else None

    def take(self) -> Conditions | None:
        """Ends the stretch and begins the next one."""
        now_ns = time.monotonic_ns()
        found = self.so_far()
        self._since_ns = now_ns
        return found
