"""What a generator notes while it runs, and the log that comes of it."""

from __future__ import annotations

import gc
import sys
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.load_test import (
    STATUS_OK,
    STATUS_TIMEOUT,
    STATUS_UNFINISHED,
    RequestLog,
)
from analyzer.hardware.timing import Priority, set_timer_slack_ns
from analyzer.targets.target import Completion

_SWITCH_INTERVAL_S = 0.0005  # a tenth of Python's own
#: In a column of times: it has not happened; no clock shows it.
NOT_YET = -1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LoadRun:
    """One run of a generator.

    Args:
        log: Every request whose turn came.
        in_flight_mean: Mean of ``in_flight_samples``; None without any.
        in_flight_samples: Requests in flight at random instants from the first intended send to
            the last reply, int64; counted, not derived from the latencies.
        in_flight_s_mean: Mean time that a request was in flight, whatever became of it, seconds;
            None if some never came back, so that Little's law says nothing.
        aborted: The run was given up as hopeless before its schedule ended.
        concurrency: Requests kept in flight by a closed loop; None for an open one.
        wall_s: From the run's start to its end.
        sending_s: Until when requests were sent, or would have been had replies come; the end of a
            run in which nothing came back may lie far behind it.
        started_at: Seconds since the epoch.
        strays: Replies that no request waited for (unknown or answered twice): the target's fault.
        generator_priority: How the generator's thread was scheduled (``hardware.timing``).
    """

    log: RequestLog
    in_flight_mean: float | None
    in_flight_samples: NDArray[np.int64]
    in_flight_s_mean: float | None
    aborted: bool = False
    concurrency: int | None = None
    wall_s: float = 0.0
    sending_s: float = 0.0
    started_at: float = 0.0
    strays: int = 0
    generator_priority: Priority = "normal"


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keeps this process from delaying its own generator: no garbage collection, exact timers.

    Other Python threads give up the interpreter after 0.5 ms instead of 5. All is put back.
    """
    collecting = gc.isenabled()
    interval_s = sys.getswitchinterval()
    slack_ns = set_timer_slack_ns(1)
    gc.disable()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        yield
    finally:
        sys.setswitchinterval(interval_s)
        if collecting:
            gc.enable()
        set_timer_slack_ns(max(slack_ns, 1))


class Recorder:
    """Columns of times in nanoseconds from the start, by request number; grows by :meth:`add`."""

    def __init__(self) -> None:
        self.due_ns = array("q")
        self.sent_ns = array("q")
        self.done_ns = array("q")
        self.size = array("i")
        self.status = array("B")
        self.stages = tuple(array("q") for _ in range(4))
        self.answered = 0
        self.strays = 0

    @classmethod
    def prepared(cls, due_ns: NDArray[np.int64], sizes: NDArray[np.int32]) -> Recorder:
        """A recorder with all requests of a schedule, none of them sent."""
        recorder = cls()
        count = len(due_ns)
        recorder.due_ns = array("q", due_ns.tobytes())
        recorder.size = array("i", sizes.astype(np.intc).tobytes())
        recorder.sent_ns = array("q", [NOT_YET]) * count
        recorder.done_ns = array("q", [NOT_YET]) * count
        recorder.status = array("B", [STATUS_UNFINISHED]) * count
        recorder.stages = tuple(array("q", [NOT_YET]) * count for _ in range(4))
        return recorder

    def add(self, due_ns: int, size: int) -> int:
        """Adds a request that is due at ``due_ns``; returns its number."""
        number = len(self.due_ns)
        self.due_ns.append(due_ns)
        self.size.append(size)
        self.sent_ns.append(NOT_YET)
        self.done_ns.append(NOT_YET)
        self.status.append(STATUS_UNFINISHED)
        for stage in self.stages:
            stage.append(NOT_YET)
        return number

    def note(self, completions: Sequence[Completion], now_ns: int) -> int:
        """Notes replies that were received at ``now_ns``; returns how many were awaited."""
        done_ns, sent_ns, status = self.done_ns, self.sent_ns, self.status
        queue, compute_input, compute_infer, compute_output = self.stages
        count = len(done_ns)
        awaited = 0
        for number, outcome, queue_ns, input_ns, infer_ns, output_ns in completions:
            if number >= count or done_ns[number] != NOT_YET or sent_ns[number] == NOT_YET:
                self.strays += 1
                continue
            awaited += 1
            done_ns[number] = now_ns
            status[number] = outcome
            queue[number] = queue_ns
            compute_input[number] = input_ns
            compute_infer[number] = infer_ns
            compute_output[number] = output_ns
        self.answered += awaited
        return awaited

    def in_flight_s_mean(self, count: int) -> float | None:
        """Mean time in flight of the first ``count`` requests; None if one never came back."""
        done = np.array(self.done_ns[:count], np.int64)
        if count == 0 or bool((done == NOT_YET).any()):
            return None
        return float(np.mean(done - np.array(self.due_ns[:count], np.int64))) / 1e9

    def log(self, count: int, *, timeout_s: float, end_ns: int) -> RequestLog:
        """The first ``count`` requests, as they stand at ``end_ns``."""
        due = np.array(self.due_ns[:count], np.int64)
        sent = np.array(self.sent_ns[:count], np.int64)
        done = np.array(self.done_ns[:count], np.int64)
        status = np.array(self.status[:count], np.uint8)
        waited_ns = np.where(done == NOT_YET, end_ns, done) - due
        late = (waited_ns > timeout_s * 1e9) & ((status == STATUS_OK) | (done == NOT_YET))
        status[late] = STATUS_TIMEOUT
        latency = np.where(status == STATUS_OK, waited_ns / 1e9, np.inf)
        lag = np.where(sent == NOT_YET, np.nan, (sent - due) / 1e9)
        stages = []
        for column in self.stages:
            values = np.array(column[:count], np.int64)
            stages.append(np.where(values < 0, np.nan, values / 1e9).astype(np.float32))
        return RequestLog(
            intended_s=due / 1e9,
            send_lag_s=lag,
            latency_s=latency,
            batch_size=np.array(self.size[:count], np.int32),
            status=status,
            queue_s=stages[0],
            compute_input_s=stages[1],
            compute_infer_s=stages[2],
            compute_output_s=stages[3],
        )


class InFlightSampler:
    """Counts the requests in flight at instants drawn in advance.

    Uniform gaps between half and three halves of the mean, so that no rhythm of the schedule can
    fall in step with them.

    Args:
        start_ns: The first intended send.
        gap_ns: Mean gap.
        seed: Of the gaps.
    """

    def __init__(self, start_ns: int, gap_ns: int, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._gap_ns = gap_ns
        self._gaps: list[int] = []
        self.next_ns = start_ns
        self.counts = array("q")
        self._step()

    def take(self, count: int) -> None:
        """Notes ``count`` requests in flight at ``next_ns`` and moves on."""
        self.counts.append(count)
        self._step()

    def samples(self) -> NDArray[np.int64]:
        """All that was counted."""
        return np.array(self.counts, np.int64)

    def _step(self) -> None:
        if not self._gaps:
            gaps = self._rng.uniform(0.5 * self._gap_ns, 1.5 * self._gap_ns, 1024)
            self._gaps = gaps.astype(np.int64).tolist()
        self.next_ns += self._gaps.pop()
