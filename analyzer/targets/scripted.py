"""A target with a scripted delay, in this process: what a generator must see is known."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from analyzer.domain.measurement import STATUS_OK
from analyzer.engine.counters import ServerStatistics
from analyzer.targets.target import Completion

Delay = Callable[[int, int], float]


def constant_delay(seconds: float) -> Delay:
    """Every request takes ``seconds``, from being sent."""
    return lambda request, batch_size: seconds


class ScriptedTarget:
    """Answers request ``r`` with ``b`` inferences ``delay(r, b)`` seconds after it was sent.

    Args:
        delay: Seconds; ``inf`` for a request that is never answered. Requests do not wait for each
            other.
        status: The status of a request's reply; by default all succeed.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, delay: Delay, *, status: Callable[[int], int] | None = None) -> None:
        self.delay = delay
        self.status = status or (lambda request: STATUS_OK)
        self._served: dict[int, int] = {}
        self._failed = 0
        self._infer_ns = 0

    def __enter__(self) -> ScriptedTarget:
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
        """Each request that succeeded is an execution of its own that took its delay."""
        requests = sum(self._served.values())
        return ServerStatistics(
            inference_count=sum(size * count for size, count in self._served.items()),
            execution_count=requests,
            success_count=requests,
            success_ns=self._infer_ns,
            fail_count=self._failed,
            compute_infer_ns=self._infer_ns,
            batches=tuple(sorted(self._served.items())),
        )

    @contextmanager
    def connect(self) -> Iterator[ScriptedConnection]:
        """A new connection."""
        yield ScriptedConnection(self)

    def count(self, batch_size: int, infer_ns: int, status: int) -> None:
        """Adds a reply to the counters."""
        if status != STATUS_OK:
            self._failed += 1
            return
        self._served[batch_size] = self._served.get(batch_size, 0) + 1
        self._infer_ns += infer_ns


class ScriptedConnection:
    """Holds the replies back until they are due."""

    def __init__(self, target: ScriptedTarget) -> None:
        self._target = target
        self._due: list[tuple[float, int, int, int]] = []

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
