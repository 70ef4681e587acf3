"""Peaks and means of a target's memory, CPU, GPU and power while it is under load."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from analyzer.domain.load_test import ResourceUse
from analyzer.hardware.gpu_meter import GpuMeter
from analyzer.hardware.gpus import GpuIdentity, open_handle
from analyzer.hardware.machine import busy_seconds, core_seconds_max
from analyzer.hardware.nvml import nvml_session
from analyzer.hardware.processes import (
    cpu_seconds,
    reset_peak,
    resident_bytes,
    resident_bytes_peak,
    with_children,
)

_CHILDREN_EVERY = 10  # samples between two looks for new children


class ResourceSampler:
    """Samples from ``with`` until its end, on a thread of its own.

    The peak of one process comes from the kernel, which misses nothing; that of several is the
    highest sum that was sampled, since their own peaks need not coincide.

    Args:
        pids: The target's processes; their children count too. Empty for a target elsewhere.
        gpu: The GPU that the target runs on; None for none.
        gpu_base_bytes: What was in use on the GPU before the target started, under the exclusive
            lease. Needed where NVML does not tell the memory of single processes.
        interval_s: Between two samples.
        nvml: Stands in for the module ``pynvml`` (tests).
    """

    def __init__(
        self,
        pids: Sequence[int],
        *,
        gpu: GpuIdentity | None = None,
        gpu_base_bytes: int | None = None,
        interval_s: float = 0.1,
        nvml: Any | None = None,
    ) -> None:
        self._roots = tuple(pids)
        self._interval_s = interval_s
        self._gpu = GpuMeter(gpu, gpu_base_bytes, nvml) if gpu is not None else None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pids: tuple[int, ...] = ()
        self._exact = False
        self._memory_peak = 0
        self._cpu_start: dict[int, float] = {}
        self._cpu_last: dict[int, float] = {}
        self._start_s = self._end_s = 0.0
        self._busy_start_s: float | None = None
        self._own_start_s = 0.0
        self._other_s: float | None = None

    def __enter__(self) -> ResourceSampler:
        self._pids = with_children(self._roots)
        # The kernel takes a while to reset a large peak: what that costs is used in this time.
        self._start_s = self._end_s = time.monotonic()
        self._cpu_start = {pid: cpu_seconds(pid) for pid in self._pids}
        self._cpu_last = dict(self._cpu_start)
        self._exact = len(self._pids) == 1 and reset_peak(self._pids[0])
        self._busy_start_s, self._own_start_s = busy_seconds(), time.process_time()
        if self._gpu is not None:
            self._gpu.open()
        self._sample()
        self._thread = threading.Thread(target=self._run, name="resource-sampler", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._refresh()
        self._sample()
        self._end_s = time.monotonic()
        self._other_s = self._others_s()
        if self._exact and len(self._pids) == 1:
            self._memory_peak = max(self._memory_peak, resident_bytes_peak(self._pids[0]) or 0)
        if self._gpu is not None:
            self._gpu.close()

    def result(self) -> ResourceUse:
        """What was seen; complete after the ``with`` block."""
        elapsed_s = self._end_s - self._start_s
        cores_s = elapsed_s * core_seconds_max()

        def share(used_s: float | None) -> float | None:
            if used_s is None or not self._cpu_last or cores_s <= 0:
                return None
            return min(max(used_s / cores_s, 0.0), 1.0)

        gpu = self._gpu.result() if self._gpu is not None else ResourceUse()
        return replace(
            gpu,
            memory_bytes_peak=self._memory_peak or None,
            cpu_utilization=share(self._used_s()),
            other_utilization=share(self._other_s),
        )

    def _used_s(self) -> float:
        """CPU time of the target's processes."""
        return sum(last - self._cpu_start.get(p, 0.0) for p, last in self._cpu_last.items())

    def _others_s(self) -> float | None:
        """CPU time of all programs but the target and this one; None where it is unknown."""
        busy_s = busy_seconds()
        if busy_s is None or self._busy_start_s is None:
            return None
        own_s = time.process_time() - self._own_start_s
        return busy_s - self._busy_start_s - own_s - self._used_s()

    def _run(self) -> None:
        count = 0
        while not self._stop.wait(self._interval_s):
            count += 1
            if count % _CHILDREN_EVERY == 0:
                self._refresh()
            self._sample()

    def _refresh(self) -> None:
        """Looks for children that came or went, and at the CPU time of all."""
        living = with_children(self._roots)
        if living:
            self._pids = living
        for pid in living:
            self._cpu_last[pid] = max(cpu_seconds(pid), self._cpu_last.get(pid, 0.0))

    def _sample(self) -> None:
        # One process's peak is the kernel's business; while it runs there is nothing to do.
        if self._pids and not (self._exact and len(self._pids) == 1 and self._memory_peak):
            self._memory_peak = max(self._memory_peak, sum(map(resident_bytes, self._pids)))
        if self._gpu is not None:
            self._gpu.sample(self._pids)


def gpu_used_bytes(gpu: GpuIdentity, *, nvml: Any | None = None) -> int | None:
    """Memory in use on the GPU now, all processes together; None where NVML does not tell."""
    with nvml_session(nvml) as library:
        handle = open_handle(library, gpu) if library is not None else None
        if library is None or handle is None:
            return None
        try:
            return int(library.nvmlDeviceGetMemoryInfo(handle).used)
        except library.NVMLError:
            return None
