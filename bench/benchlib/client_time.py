"""Processor time that perf_analyzer takes per request, watched from outside."""

from __future__ import annotations

import math
import threading
import time

import psutil

from analyzer.targets.endpoint_target import EndpointTarget

_SAMPLE_S = 0.1
# From the first answer on: perf_analyzer's own start must not count.
_SETTLED_S = 1.0


class ClientTime:
    """Reads a child process's time and the server's count of requests while the child runs."""

    def __init__(self, target: EndpointTarget) -> None:
        self._target = target
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="client-cpu")
        self._seen: list[tuple[float, int]] = []

    def __enter__(self) -> ClientTime:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def cpu_ms(self) -> float | None:
        """Per request, from when the load had settled to the last sample."""
        if len(self._seen) < 2:
            return None
        (cpu_s, requests), (cpu_end_s, requests_end) = self._seen[0], self._seen[-1]
        answered = requests_end - requests
        return (cpu_end_s - cpu_s) / answered * 1e3 if answered else None

    def _sample(self) -> None:
        child: psutil.Process | None = None
        begun = math.inf
        while not self._over.wait(_SAMPLE_S):
            try:
                if child is None:
                    here = psutil.Process().children()
                    child = next((one for one in here if one.name() == "perf_analyzer"), None)
                    first = self._target.statistics()
                    continue
                spent = child.cpu_times()
            except psutil.Error:
                return
            counted = self._target.statistics()
            assert counted is not None and first is not None, "Triton has counters"
            if begun == math.inf and counted.success_count > first.success_count:
                begun = time.monotonic()
            if time.monotonic() > begun + _SETTLED_S:
                self._seen.append((spent.user + spent.system, counted.success_count))
