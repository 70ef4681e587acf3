"""The scheduler and its virtual clock as one compiled loop over arrays.

The same policy as :class:`analyzer.engine.scheduler.Scheduler` without priorities, time-outs and
shapes; property tests hold the two equal, event by event. Importing this module imports Numba:
import it lazily.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

_NEVER = np.int64(2**63 - 1)
#: Triton's batcher looks again this often while it finds no request.
_NAP_NS = np.int64(500_000_000)


def _compile(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` compiled at its first call, without the GIL, cached on disk where that can be.

    Numba caches beside the module, or in the user's cache folder where that is read-only. Where
    neither can be written it raises, and the function is compiled anew in each process.
    """
    try:
        return numba.njit(cache=True, nogil=True)(function)  # type: ignore[no-any-return]
    except RuntimeError:
        return numba.njit(nogil=True)(function)  # type: ignore[no-any-return]


def _run(
    arrival_ns: NDArray[np.int64],
    sizes: NDArray[np.int64],
    issued: int,
    overhead_ns: int,
    dynamic: bool,
    limit: int,
    preferred: NDArray[np.bool_],
    preferred_max: int,
    delay_ns: int,
    instances: int,
    slots: int,
    queue_limit: int,
    sleeps: bool,
    table_ns: NDArray[np.float64],
    change_ns: NDArray[np.float64],
    noise: NDArray[np.float64],
    noise_ns: float,
    steady_ns: NDArray[np.float64],
    batch_of: NDArray[np.int64],
    batch_start: NDArray[np.int64],
    batch_end: NDArray[np.int64],
    batch_size: NDArray[np.int64],
    batch_instance: NDArray[np.int64],
) -> int:
    """Runs all requests; the number of executions.

    Args:
        arrival_ns: Arrival times [n], ascending. The first ``issued`` are given; the others are
            filled in: a closed client's next request follows its reply by ``overhead_ns``.
        sizes: Inferences of each request, [n], or [1] if all are equal.
        slots: How many payloads may wait in F; 0 for the mode without prefetching.
        sleeps: The policy's ``sleeps_through_arrivals``.
        table_ns: As ``ServiceTime.table_ns``.
        change_ns: What another batch size than the instance's last costs, [limit + 1].
        noise_ns: As ``ServiceTime.noise_ms``, nanoseconds.
        steady_ns: As ``ServiceTime.steady_ms``, nanoseconds, [limit + 1].
        batch_of: Out: number of each request's execution, -1 if the queue was full, [n].
        batch_start: Out, as the following: one entry per execution, [n].
    """
    n = arrival_ns.shape[0]
    same_size = sizes.shape[0] == 1
    noises = noise.shape[0]
    closed_loop = issued < n
    # Requests in the order of admission; Q is the range [q_head, admitted) of them.
    admission = np.empty(n if queue_limit > 0 else 1, np.int64)
    admitted = 0
    q_head = 0
    # F: payload j holds the admitted from f_first[j] to the first of the next, or to q_head.
    ring = max(slots, 1) + 2
    f_first = np.empty(ring, np.int64)
    f_size = np.empty(ring, np.int64)
    f_head = 0
    f_count = 0
    held = 0  # inferences in P while P stands at the end of F and may grow; else 0
    seen = 0  # requests of Q that the last look selected and left, and their inferences
    seen_size = 0
    # The batcher's thread, which sleeps only with ``sleeps``; see Scheduler._wake.
    awake = True
    wake = _NEVER
    empty_at = np.int64(0)
    next_preferred = 0
    queued_size = 0
    stale = False  # P is closed

    free_at = np.full(instances, _NEVER, np.int64)  # _NEVER: idle
    running = np.zeros(instances, np.int64)
    last_size = np.zeros(instances, np.int64)
    busy = 0
    next_end = _NEVER
    next_instance = 0
    arrived = 0
    batches = 0
    timer = _NEVER

    while True:
        next_arrival = arrival_ns[arrived] if arrived < issued else _NEVER
        if next_end <= next_arrival and next_end <= timer:
            if next_end == _NEVER:
                break
            now = next_end
            done = running[next_instance]
            free_at[next_instance] = _NEVER
            busy -= 1
            awake = True
            if closed_loop:
                replies = batch_size[done] // sizes[0]
                while replies > 0 and issued < n:
                    arrival_ns[issued] = now + overhead_ns
                    issued += 1
                    replies -= 1
            next_end = _NEVER
            for i in range(instances):
                if free_at[i] < next_end or (
                    free_at[i] == next_end
                    and next_end != _NEVER
                    and running[i] < running[next_instance]
                ):
                    next_end = free_at[i]
                    next_instance = i
        elif next_arrival <= timer:
            now = next_arrival
            before = admitted
            if queue_limit > 0:
                if admitted - q_head >= queue_limit:
                    batch_of[arrived] = -1
                    if closed_loop and issued < n:
                        arrival_ns[issued] = now + overhead_ns
                        issued += 1
                else:
                    admission[admitted] = arrived
                    admitted += 1
            else:
                admitted += 1
            if sleeps and admitted > before:
                queued_size += sizes[0] if same_size else sizes[arrived]
                slot = f_count < slots if slots > 0 else busy < instances
                if slot and (stale or queued_size >= next_preferred):
                    awake = True
                elif before == q_head and not awake and wake == _NEVER:
                    wake = empty_at + ((now - empty_at) // _NAP_NS + 1) * _NAP_NS
            arrived += 1
        else:
            now = timer
        timer = _NEVER
        if now >= wake or not sleeps:
            awake = True

        while True:
            # Idle instances take from F.
            while busy < instances and (f_count > 0 or (not dynamic and q_head < admitted)):
                if dynamic:
                    first = f_first[f_head]
                    size = f_size[f_head]
                    f_head = (f_head + 1) % ring
                    f_count -= 1
                    if delay_ns > 0 and limit > 1:
                        while f_count > 0:
                            other = f_first[f_head]
                            oldest = admission[other] if queue_limit > 0 else other
                            if now - arrival_ns[oldest] <= delay_ns:
                                break
                            if size + f_size[f_head] > limit:
                                if f_count == 1 and held > 0:  # P, which grows no more
                                    stale = True
                                    held = 0
                                    seen = 0
                                    seen_size = 0
                                break
                            size += f_size[f_head]
                            f_head = (f_head + 1) % ring
                            f_count -= 1
                    if f_count == 0:
                        stale = stale or held > 0
                        held = 0
                        seen = 0
                        seen_size = 0
                        last = q_head
                    else:
                        last = f_first[f_head]
                else:
                    first = q_head
                    size = sizes[0] if same_size else sizes[first]
                    q_head += 1
                    last = q_head
                target = 0
                while free_at[target] != _NEVER:
                    target += 1
                busy += 1
                awake = True
                time_ns = table_ns[busy, size]
                if size != last_size[target]:
                    time_ns += change_ns[size]
                    last_size[target] = size
                more = noise[batches % noises] - 1.0
                part_ns = min(time_ns - steady_ns[size], noise_ns)
                end = now + np.int64(time_ns + more * part_ns + 0.5)
                for i in range(first, last):
                    batch_of[admission[i] if queue_limit > 0 else i] = batches
                batch_start[batches] = now
                batch_end[batches] = end
                batch_size[batches] = size
                batch_instance[batches] = target
                free_at[target] = end
                running[target] = batches
                batches += 1
                if end < next_end:
                    next_end = end
                    next_instance = target

            # The batcher.
            if not dynamic or q_head >= admitted:
                if awake:
                    empty_at = now
                awake = False
                wake = _NEVER
                break
            if not awake:
                timer = wake
                break
            wake = _NEVER
            if stale:
                next_preferred = 0
                stale = False
            if f_count >= slots if slots > 0 else busy >= instances:
                awake = False
                break
            count = seen
            size = seen_size
            marked = 0
            marked_size = 0
            closed = False
            send_now = False
            while q_head + count < admitted:
                if same_size:
                    own = sizes[0]
                else:
                    i = q_head + count
                    own = sizes[admission[i] if queue_limit > 0 else i]
                if held + size > 0:
                    total = held + size + own
                    if total > preferred_max and marked_size == 0:
                        marked = count
                        marked_size = size
                        closed = True
                    if total > limit:
                        send_now = True
                        break
                size += own
                count += 1
                if preferred[held + size]:
                    marked = count
                    marked_size = size
            age = np.int64(0)
            if count > 0:
                age = now - arrival_ns[admission[q_head] if queue_limit > 0 else q_head]
            exceeded = delay_ns > 0 and age >= delay_ns
            if marked_size > 0 and not exceeded:
                closed = closed or delay_ns == 0
                count = marked
                size = marked_size
            elif count > 0:
                if send_now or held + size >= preferred_max:
                    closed = True
                elif not exceeded and delay_ns > 0:
                    next_preferred = held + size + 1
                    while next_preferred < preferred_max and not preferred[next_preferred]:
                        next_preferred += 1
                    next_preferred -= held
                    wait = (delay_ns - age) // 1000 * 1000
                    joins = held > 0 and not closed and not preferred[held]
                    if wait > 0 and not joins:
                        timer = now + wait
                        wake = timer
                        awake = False
                        seen = count
                        seen_size = size
                        break
            seen = 0
            seen_size = 0
            if count > 0:
                if held == 0:
                    tail = (f_head + f_count) % ring
                    f_first[tail] = q_head
                    f_size[tail] = size
                    f_count += 1
                else:
                    f_size[(f_head + f_count - 1) % ring] += size
                q_head += count
                queued_size -= size
            stale = closed
            held = 0 if closed else held + size
    return batches


def _count_over(
    arrival_ns: NDArray[np.int64],
    batch_of: NDArray[np.int64],
    batch_end: NDArray[np.int64],
    limit_ns: int,
    first: int,
    blocks: NDArray[np.int64],
) -> None:
    """Counts requests that ended later than ``limit_ns`` after arriving, or were not served.

    Args:
        first: Requests before this index are left out.
        blocks: Out: the counts of equally long runs of requests [k]; up to k - 1 requests at the
            end are left over.
    """
    length = (arrival_ns.shape[0] - first) // blocks.shape[0]
    at = first
    for block in range(blocks.shape[0]):
        over = 0
        for i in range(at, at + length):
            batch = batch_of[i]
            if batch < 0 or batch_end[batch] - arrival_ns[i] > limit_ns:
                over += 1
        blocks[block] = over
        at += length


run = _compile(_run)
count_over = _compile(_count_over)
