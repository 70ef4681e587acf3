"""Brings results from instance threads to the event loop, many with one wake-up."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import Any


class ReplyBridge:
    """Sets futures of one loop from other threads.

    Waking a loop costs a system call; the results of a whole batch share one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._results: deque[tuple[asyncio.Future[Any], Any]] = deque()
        self._woken = False

    def post(self, future: asyncio.Future[Any], result: Any) -> None:
        """Sets ``future`` to ``result`` on its loop, soon; from any thread."""
        self._results.append((future, result))
        if not self._woken:
            # A race here costs one more wake-up, never a result: the flag is cleared before the
            # queue is emptied.
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._woken = False
        results = self._results
        while results:
            future, result = results.popleft()
            if not future.done():
                future.set_result(result)
