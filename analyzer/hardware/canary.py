"""A witness of the machine: records stalls and speed beside the load tests, and between them.

A process of its own sleeps for some milliseconds, notes how late it woke up and how long a fixed
piece of work took on the CPU. Late wake-ups are stalls, which no configuration can help; the work's
time tells the speed, which clouds change by a factor of two for seconds. At the shorter period it
takes some 0.6 % of one core, at the longer one 0.4 %.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import tempfile
import time
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.load_test import STALLS_KEPT, Conditions
from analyzer.hardware.canary_main import SAMPLE
from analyzer.resources import child_environment

# Often enough to see stalls of 20 ms, seldom enough to take no capacity: beside one load test, and
# over a whole study, where it runs beside the other.
PERIOD_NS = 10_000_000
STUDY_PERIOD_NS = 20_000_000
# 20 minutes, or 40; older samples are overwritten.
_SAMPLES = 120_000
# A wake-up later than this is a stall. Below it lie the delays that a busy scheduler gives a
# process without real-time priority.
_STALL_MS_MIN = 20.0
_SECOND_NS = 1_000_000_000
_END_S = 5.0  # the kernel ends a killed process in moments


class Canary:
    """Samples the machine from entering to leaving; a context manager. Not thread-safe.

    Args:
        period_ns: Between samples. A stall is seen shorter by half of it on average.
    """

    def __init__(self, *, period_ns: int = PERIOD_NS) -> None:
        self._period_ns = period_ns
        self._process: subprocess.Popen[bytes] | None = None
        self._ring: mmap.mmap | None = None
        self._started_ns = 0

    def __enter__(self) -> Self:
        with tempfile.TemporaryFile() as file:
            file.truncate(_SAMPLES * SAMPLE.size)
            self._ring = mmap.mmap(file.fileno(), _SAMPLES * SAMPLE.size)
            self._started_ns = time.monotonic_ns()
            command = [sys.executable, "-P", "-m", "analyzer.hardware.canary_main"]
            numbers = (file.fileno(), _SAMPLES, self._period_ns, os.getpid())
            self._process = subprocess.Popen(
                [*command, *map(str, numbers)],
                pass_fds=(file.fileno(),),
                env=child_environment(),
                stdin=subprocess.DEVNULL,
                # A terminal's Ctrl-C is for the command, which ends this process itself.
                start_new_session=True,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(_END_S)

    @property
    def pid(self) -> int:
        """Of the process that samples."""
        assert self._process is not None, "not entered"
        return self._process.pid

    def since(self, start_ns: int | None = None) -> Conditions | None:
        """What the machine was like from ``start_ns`` (CLOCK_MONOTONIC) on; None without samples.

        Args:
            start_ns: None for all that was seen.
        """
        assert self._ring is not None, "not entered"
        copy = np.frombuffer(bytes(self._ring), dtype=np.int64).reshape(-1, 3)
        first_ns = self._started_ns if start_ns is None else start_ns
        return conditions_of(copy[copy[:, 0] >= first_ns], period_ns=self._period_ns)


def conditions_of(samples: NDArray[np.int64], *, period_ns: int = PERIOD_NS) -> Conditions | None:
    """The summary of samples.

    Args:
        samples: Rows of due time, lateness and work, nanoseconds, shape (n, 3), any order.
    """
    if len(samples) == 0:
        return None
    ordered = samples[np.argsort(samples[:, 0])]
    late_ms = ordered[:, 1] / 1e6
    stalls = np.sort(late_ms[late_ms >= _STALL_MS_MIN])[::-1]
    since_ns = ordered[:, 0] - ordered[0, 0]
    # Less than half a second at the end belongs to the one before: a load test ends with moments of
    # an idle machine, in which the work takes longer.
    whole = max(round(since_ns[-1] / _SECOND_NS), 1) - 1
    bins = np.minimum(since_ns // _SECOND_NS, whole)
    seconds = np.split(ordered[:, 2], np.flatnonzero(np.diff(bins)) + 1)
    return Conditions(
        seconds=float(since_ns[-1] + ordered[-1, 1] + period_ns) / 1e9,
        stalls_ms=tuple(round(float(stall), 1) for stall in stalls[:STALLS_KEPT]),
        stalls_cut=len(stalls[STALLS_KEPT:]),
        work_us=tuple(round(float(np.median(each)) / 1e3, 3) for each in seconds),
    )
