"""A target that answers at once, in this process: what is left is the generator's own cost."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from analyzer.engine.counters import ServerStatistics
from analyzer.targets.target import Completion


class NullTarget:
    """Answers every request at once."""

    notes: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._served: dict[int, int] = {}

    def __enter__(self) -> NullTarget:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def pids(self) -> tuple[int, ...]:
        """None: it is this process."""
        return ()

    def alive(self) -> bool:
        """Always."""
        return True

    def statistics(self) -> ServerStatistics:
        """Each request is an execution of its own that takes no time."""
        requests = sum(self._served.values())
        return ServerStatistics(
            inference_count=sum(size * count for size, count in self._served.items()),
            execution_count=requests,
            success_count=requests,
            batches=tuple(sorted(self._served.items())),
        )

    @contextmanager
    def connect(self) -> Iterator[NullConnection]:
        """A new connection."""
        yield NullConnection(self._served)


class NullConnection:
    """Has the reply of a request as soon as it is sent."""

    def __init__(self, served: dict[int, int]) -> None:
        self._served = served
        self._replies: list[Completion] = []

    def send(self, request: int, batch_size: int) -> None:
        """Takes a request; its reply waits for the next :meth:`receive`."""
        self._served[batch_size] = self._served.get(batch_size, 0) + 1
        self._replies.append(Completion(request, 0, 0, 0, 0, 0))

    def receive(self, timeout_s: float) -> Sequence[Completion]:
        """The replies since the last time; sleeps for ``timeout_s`` if there are none."""
        replies = self._replies
        if replies:
            self._replies = []
        elif timeout_s > 0:
            time.sleep(timeout_s)
        return replies
