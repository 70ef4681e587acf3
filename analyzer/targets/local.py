"""What the targets in this process share: nothing to start, and counters of their own."""

from __future__ import annotations

from typing import Self

from analyzer.domain.load_test import STATUS_OK
from analyzer.engine.counters import ServerStatistics


class LocalTarget:
    """A target in this process; each request that succeeds is an execution of its own."""

    notes: tuple[str, ...] = ()

    def __init__(self) -> None:
        self._served: dict[int, int] = {}
        self._failed = 0
        self._infer_ns = 0

    def __enter__(self) -> Self:
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

    def why_gone(self) -> str:
        """Empty."""
        return ""

    def count(self, batch_size: int, infer_ns: int = 0, status: int = STATUS_OK) -> None:
        """Adds a reply to the counters."""
        if status != STATUS_OK:
            self._failed += 1
            return
        self._served[batch_size] = self._served.get(batch_size, 0) + 1
        self._infer_ns += infer_ns

    def statistics(self) -> ServerStatistics:
        """The counters; a reply's whole time is the model's."""
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
