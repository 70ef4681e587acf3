"""Sends requests by a schedule (open loop) or one for each reply (closed loop), on one thread.

Not here: the schedule itself (``domain.workload``), what a run is worth (``stats``), and any
waiting that blocks a send. Latency counts from the intended send time, so that a server which
stalls, or a generator which is late, cannot hide it.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.load_test import STATUS_OK
from analyzer.hardware.timing import first_in_line
from analyzer.load.record import NOT_YET, InFlightSampler, LoadRun, Recorder, undisturbed
from analyzer.targets.target import Connection

__all__ = ["AbortRule", "LoadRun", "run_closed_loop", "run_open_loop"]

_BURST = 64  # sends between two looks at the replies, when the schedule is behind
_LEAD_NS = 1_000_000  # before the first request, so that setting up does not make it late
# Between two counts of the requests in flight; 10,000 counts are more than Little's law needs.
_SAMPLE_GAP_NS_MIN = 1_000_000
_SAMPLES_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortRule:
    """When a run is given up: more than ``over_max`` requests are over budget.

    A request is judged once, when its budget is up.

    Args:
        over_max: The most that may be over budget.
        skip_s: Requests due earlier do not count (warm-up).
        check_s: Time between two looks.
    """

    over_max: int
    skip_s: float = 0.0
    check_s: float = 0.05

    @classmethod
    def hopeless(cls, requests: int, miss_rate_max: float, *, factor: float = 2.0) -> AbortRule:
        """Gives up when ``factor`` times what a run of ``requests`` may miss is over budget.

        With factor 1 the percentile cannot hold any more; with 2 not even if half of the misses
        were warm-up. At least 10 misses are always let pass.
        """
        allowed = math.floor(requests * miss_rate_max + 1e-9)
        return cls(over_max=max(math.floor(factor * allowed), 10))


def run_open_loop(
    connection: Connection,
    arrivals_s: NDArray[np.float64],
    batch_size: int | NDArray[np.integer] = 1,
    *,
    timeout_s: float,
    drain_s: float,
    budget_s: float | None = None,
    stop: AbortRule | None = None,
    sample_seed: int = 0,
) -> LoadRun:
    """Sends every request when it is due and returns what became of them.

    Args:
        connection: A connection that carries nothing else.
        arrivals_s: Intended send times in seconds from the start, ascending, at least one.
        batch_size: Inferences of each request.
        timeout_s: A reply that takes longer counts as a time-out.
        drain_s: How long to wait for replies after the last send.
        budget_s: The latency budget, for ``stop``.
        stop: When to give up; None for never. The log of a run that was given up holds the
            requests that were due by then.
        sample_seed: Seed of the instants at which requests in flight are counted.

    Raises:
        TargetCrashError, TargetMemoryError: The target went away.
    """
    count = len(arrivals_s)
    assert count > 0
    due_ns = np.round(np.asarray(arrivals_s, np.float64) * 1e9).astype(np.int64)
    sizes = np.broadcast_to(np.asarray(batch_size, np.int32), (count,))
    connection.prepare(np.unique(np.asarray(batch_size, np.int32)).tolist())
    recorder = Recorder.prepared(due_ns, sizes)
    watch = None
    if stop is not None:
        assert budget_s is not None, "an abort rule needs a budget"
        watch = _BudgetWatch(recorder, stop, budget_s)
    gap_ns = max(_SAMPLE_GAP_NS_MIN, int(due_ns[-1] - due_ns[0]) // _SAMPLES_MAX)
    sampler = InFlightSampler(int(due_ns[0]), gap_ns, sample_seed)
    with undisturbed(), first_in_line() as priority:
        run = _open_loop(connection, recorder, sampler, watch, timeout_s, drain_s)
    return replace(run, generator_priority=priority)


def _open_loop(
    connection: Connection,
    recorder: Recorder,
    sampler: InFlightSampler,
    watch: _BudgetWatch | None,
    timeout_s: float,
    drain_s: float,
) -> LoadRun:
    clock = time.perf_counter_ns
    send, receive, note = connection.send, connection.receive, recorder.note
    due, sent, sizes = recorder.due_ns.tolist(), recorder.sent_ns, recorder.size.tolist()
    count = len(due)
    deadline_ns = due[-1] + int(min(drain_s, timeout_s) * 1e9)
    number = 0
    aborted = False
    started_at = time.time()
    start_ns = clock() + _LEAD_NS
    while True:
        now_ns = clock() - start_ns
        burst_end = min(number + _BURST, count)
        while number < burst_end and due[number] <= now_ns:
            send(number, sizes[number])
            now_ns = clock() - start_ns
            sent[number] = now_ns
            number += 1
        until_ns = due[number] if number < count else deadline_ns
        if watch is not None and watch.next_ns < until_ns:
            until_ns = watch.next_ns
        replies = receive((until_ns - now_ns) / 1e9 if until_ns > now_ns else 0.0)
        now_ns = clock() - start_ns
        while sampler.next_ns <= now_ns:
            # Nothing came back since the last look, so this was the number at that instant.
            sampler.take(bisect_right(due, sampler.next_ns) - recorder.answered)
        if replies:
            note(replies, now_ns)
        if number == count and (recorder.answered == count or now_ns >= deadline_ns):
            break
        if watch is not None and now_ns >= watch.next_ns and watch.hopeless(now_ns):
            aborted = True
            count = number
            break
    sending_ns = due[count - 1] if count else 0
    return _finished(
        recorder, sampler, count, timeout_s, now_ns, sending_ns, started_at, aborted=aborted
    )


def run_closed_loop(
    connection: Connection,
    concurrency: int,
    batch_size: int = 1,
    *,
    duration_s: float | None = None,
    requests: int | None = None,
    timeout_s: float = 30.0,
    sample_seed: int = 0,
) -> LoadRun:
    """Keeps ``concurrency`` requests in flight, for a time or until a number were sent.

    A request is intended to be sent when the reply before it was received, or timed out while
    later requests were answered: a server that is only slow gets no more of them. All that is in
    flight at the end is awaited.

    Args:
        connection: A connection that carries nothing else.
        duration_s: How long requests are sent, seconds.
        requests: How many are sent at most. One of the two is needed.
        timeout_s: A reply that takes longer counts as a time-out; the run ends when nothing has
            come for so long.

    Raises:
        TargetCrashError, TargetMemoryError: The target went away.
    """
    assert concurrency >= 1
    assert duration_s is not None or requests is not None
    connection.prepare((batch_size,))
    limit = requests if requests is not None else 1 << 62
    end_ns = int(duration_s * 1e9) if duration_s is not None else 1 << 62
    recorder = Recorder()
    sampler = InFlightSampler(0, 2 * _SAMPLE_GAP_NS_MIN, sample_seed)
    clock = time.perf_counter_ns
    send, receive, note, add = connection.send, connection.receive, recorder.note, recorder.add
    timeout_ns = int(timeout_s * 1e9)
    wanted = min(concurrency, limit)
    started_at = time.time()
    with undisturbed():
        start_ns = clock()
        heard_ns = now_ns = 0
        # All before the oldest were answered, or are given up: these are the lost ones.
        sent = oldest = newest = 0  # newest: of those that were answered
        lost: set[int] = set()
        due_ns, done_ns = recorder.due_ns, recorder.done_ns
        while True:
            for _ in range(wanted):
                number = add(now_ns, batch_size)
                send(number, batch_size)
                recorder.sent_ns[number] = clock() - start_ns
            sent += wanted
            awaited_ns = due_ns[oldest] if oldest < newest else heard_ns
            replies = receive(max(awaited_ns + timeout_ns - now_ns, 0) / 1e9)
            now_ns = clock() - start_ns
            while sampler.next_ns <= now_ns:
                sampler.take(sent - recorder.answered - len(lost))
            wanted = 0
            if replies:
                heard_ns = now_ns
                wanted = note(replies, now_ns)
                newest = max(newest, replies[-1][0])
                if lost:
                    found = lost.intersection(reply[0] for reply in replies)
                    wanted -= len(found)
                    lost -= found
            elif now_ns - heard_ns >= timeout_ns:
                break
            while oldest < sent and (
                done_ns[oldest] != NOT_YET
                or (oldest < newest and due_ns[oldest] + timeout_ns <= now_ns)
            ):
                if done_ns[oldest] == NOT_YET:
                    lost.add(oldest)
                    wanted += 1
                oldest += 1
            wanted = min(wanted, limit - sent) if now_ns < end_ns else 0
            if not wanted and oldest == sent:
                break
    sending_ns = min(end_ns, now_ns)
    return _finished(
        recorder, sampler, sent, timeout_s, now_ns, sending_ns, started_at, concurrency=concurrency
    )


def _finished(
    recorder: Recorder,
    sampler: InFlightSampler,
    count: int,
    timeout_s: float,
    end_ns: int,
    sending_ns: int,
    started_at: float,
    *,
    aborted: bool = False,
    concurrency: int | None = None,
) -> LoadRun:
    samples = sampler.samples()
    return LoadRun(
        log=recorder.log(count, timeout_s=timeout_s, end_ns=end_ns),
        in_flight_mean=float(np.mean(samples)) if len(samples) else None,
        in_flight_samples=samples,
        in_flight_s_mean=recorder.in_flight_s_mean(count),
        aborted=aborted,
        concurrency=concurrency,
        wall_s=end_ns / 1e9,
        sending_s=sending_ns / 1e9,
        started_at=started_at,
        strays=recorder.strays,
    )


class _BudgetWatch:
    """Counts requests over budget as the run goes: each is judged once, when its budget is up."""

    def __init__(self, recorder: Recorder, rule: AbortRule, budget_s: float) -> None:
        self._recorder = recorder
        self._budget_ns = int(budget_s * 1e9)
        self._check_ns = int(rule.check_s * 1e9)
        self._due = np.frombuffer(recorder.due_ns, np.int64)
        self._done = np.frombuffer(recorder.done_ns, np.int64)
        self._status = np.frombuffer(recorder.status, np.uint8)
        self._judged = int(np.searchsorted(self._due, int(rule.skip_s * 1e9)))
        self._limit = rule.over_max
        self._over = 0
        self.next_ns = self._check_ns

    def hopeless(self, now_ns: int) -> bool:
        """Whether to give up at ``now_ns``."""
        self.next_ns = now_ns + self._check_ns
        first = self._judged
        last = max(first, int(np.searchsorted(self._due, now_ns - self._budget_ns)))
        done = self._done[first:last]
        late = (done == -1) | (done - self._due[first:last] > self._budget_ns)
        failed = self._status[first:last] != STATUS_OK
        self._over += int(np.count_nonzero(late | failed))
        self._judged = last
        return self._over > self._limit
