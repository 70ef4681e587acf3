"""A target that answers at once, in this process: what is left is the generator's own cost."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from analyzer.targets.local import LocalTarget
from analyzer.targets.target import Completion


class NullTarget(LocalTarget):
    """Answers every request at once."""

    @contextmanager
    def connect(self) -> Iterator[NullConnection]:
        """A new connection."""
        yield NullConnection(self)


class NullConnection:
    """Has the reply of a request as soon as it is sent."""

    failure = ""

    def __init__(self, target: NullTarget) -> None:
        self._count = target.count
        self._replies: list[Completion] = []

    def prepare(self, batch_sizes: Iterable[int]) -> None:
        """Nothing: requests have no content."""

    def send(self, request: int, batch_size: int) -> None:
        """Takes a request; its reply waits for the next :meth:`receive`."""
        self._count(batch_size)
        self._replies.append(Completion(request, 0, 0, 0, 0, 0))

    def receive(self, timeout_s: float) -> Sequence[Completion]:
        """The replies since the last time; sleeps for ``timeout_s`` if there are none."""
        replies = self._replies
        if replies:
            self._replies = []
        elif timeout_s > 0:
            time.sleep(timeout_s)
        return replies
