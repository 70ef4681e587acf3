"""A target with a scripted delay, in this process: what a generator must see is known."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from analyzer.domain.load_test import STATUS_OK
from analyzer.targets.local import LocalTarget
from analyzer.targets.target import Completion

Delay = Callable[[int, int], float]


def constant_delay(seconds: float) -> Delay:
    """Every request takes ``seconds``, from being sent."""
    return lambda request, batch_size: seconds


class ScriptedTarget(LocalTarget):
    """Answers request ``r`` with ``b`` inferences ``delay(r, b)`` seconds after it was sent.

    Args:
        delay: Seconds; ``inf`` for a request that is never answered. Requests do not wait for each
            other.
        status: The status of a request's reply; by default all succeed.
        failure: What its connections tell of why requests failed.
    """

    def __init__(
        self, delay: Delay, *, status: Callable[[int], int] | None = None, failure: str = ""
    ) -> None:
        super().__init__()
        self.delay = delay
        self.failure = failure
        self.status = status or (lambda request: STATUS_OK)

    @contextmanager
    def connect(self) -> Iterator[ScriptedConnection]:
        """A new connection."""
        yield ScriptedConnection(self)


class ScriptedConnection:
    """Holds the replies back until they are due."""

    def __init__(self, target: ScriptedTarget) -> None:
        self._target = target
        self.failure = target.failure
        self._due: list[tuple[float, int, int, int]] = []

    def prepare(self, batch_sizes: Iterable[int]) -> None:
        """Nothing: requests have no content."""

    def send(self, request: int, batch_size: int) -> None:
        """Takes a request; its reply comes after its delay."""
        delay_s = self._target.delay(request, batch_size)
        if delay_s != float("inf"):
            due_s = time.perf_counter() + delay_s
            heapq.heappush(self._due, (due_s, request, batch_size, int(delay_s * 1e9)))

    def receive(self, timeout_s: float) -> Sequence[Completion]:
        """The replies that are due, or that become due within ``timeout_s``."""
        now_s = time.perf_counter()
        wait_s = min(self._due[0][0] - now_s, timeout_s) if self._due else timeout_s
        if wait_s > 0:
            time.sleep(wait_s)
            now_s = time.perf_counter()
        replies = []
        while self._due and self._due[0][0] <= now_s:
            _, request, batch_size, infer_ns = heapq.heappop(self._due)
            status = self._target.status(request)
            self._target.count(batch_size, infer_ns, status)
            replies.append(Completion(request, status, 0, 0, infer_ns, 0))
        return replies
