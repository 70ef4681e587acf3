"""The heart of a run: the lease of its job is lengthened beside whatever the run does."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from analyzer.errors import StoreError
from analyzer.service.child import Child
from analyzer.service.queue import Claim, LeaseLostError, Queue

_LOG = logging.getLogger(__name__)
_BEATS = 6  # per lease: a few may fail before it runs out
# The longest step of a run, a file of gigabytes that reaches a slow disk, takes minutes; a run that
# shows no sign of life for longer hangs, and its job goes to another worker. A choice.
_HANGS_S = 900.0


class Heart:
    """Keeps the lease of a claim in a thread of its own, for as long as the context lasts.

    Args:
        lease_s: As the queue's.
    """

    def __init__(self, queue: Queue, claim: Claim, lease_s: float) -> None:
        self._queue = queue
        self._claim = claim
        self._every_s = lease_s / _BEATS
        #: Until when the job is held at least, by this machine's ``time.monotonic()``.
        self.until = claim.until
        self._child: Child | None = None
        self._lost: LeaseLostError | None = None
        self._alive_at = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="heart", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def stay(self) -> None:
        """Shows that the run goes on; called between pieces of its work.

        Raises:
            LeaseLostError: The job is no longer this worker's.
        """
        self._alive_at = time.monotonic()
        if self._lost is not None:
            raise self._lost

    @contextmanager
    def keeping(self, child: Child) -> Iterator[None]:
        """Lets the run's command live as long as the lease, too."""
        child.live_until(self.until)
        self._child = child
        try:
            yield
        finally:
            self._child = None

    def _go_on(self) -> None:
        while not self._ended.wait(self._every_s):
            if time.monotonic() - self._alive_at > _HANGS_S:
                _LOG.error("Job %s: its run hangs; its lease is let go.", self._claim.id)
                return
            try:
                self.until = self._queue.beat(self._claim)
            except StoreError as error:
                _LOG.warning("%s Trying again.", error.message)
            except LeaseLostError as error:
                self._lost = error
                return
            else:
                if (child := self._child) is not None:
                    child.live_until(self.until)
