"""Triton's batch formation as a pure state machine: time is an input, decisions are the output.

The rules are Triton's (``dynamic_batch_scheduler.cc``, ``scheduler_utils.cc``,
``instance_queue.cc``, ``rate_limiter.cc``): requests wait in a priority queue *Q*; the batcher
moves them into the *forming payload* P, which stands in the FIFO *F* and keeps growing until it is
saturated or an idle instance takes the head of F.

Triton's threads race. Here every event (an arrival, the end of an execution, a timer) is followed
by :meth:`Scheduler.advance`, in which idle instances take from F first and the batcher runs
afterwards, until neither can do anything more. Of several idle instances the one with the lowest
index takes the payload; Triton leaves that to the operating system's wake-up order.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable, Iterator
from typing import NamedTuple

from analyzer.engine.fault import QUEUE_FULL, Fault
from analyzer.engine.policy import BatchingPolicy

#: Triton's batcher looks for expired requests this often while it waits for an idle instance.
_SWEEP_NS = 500_000_000


class Execution(NamedTuple):
    """A batch that starts now.

    Args:
        instance: Index of the instance, from 0; busy until it is released.
        tickets: Its requests, in the order in which they were queued.
        batch_size: Inferences: the sum of the requests' batch sizes.
    """

    instance: int
    tickets: tuple[int, ...]
    batch_size: int


class Decisions(NamedTuple):
    """What follows from one event.

    Args:
        executions: Batches that start now, in order.
        rejected: Tickets whose time in the queue expired.
    """

    executions: tuple[Execution, ...]
    rejected: tuple[int, ...]


_NOTHING = Decisions((), ())


class _Request:
    __slots__ = ("batch_size", "deadline_ns", "enqueued_ns", "shape_key", "ticket")

    def __init__(
        self, ticket: int, batch_size: int, enqueued_ns: int, deadline_ns: int, shape_key: Hashable
    ) -> None:
        self.ticket = ticket
        self.batch_size = batch_size
        self.enqueued_ns = enqueued_ns
        self.deadline_ns = deadline_ns  # 0: never
        self.shape_key = shape_key


class _Payload:
    __slots__ = ("barred", "closed", "oldest_ns", "shape_key", "size", "tickets")

    def __init__(self) -> None:
        self.tickets: list[int] = []
        self.size = 0
        self.oldest_ns = 0
        self.shape_key: Hashable = None
        self.closed = False  # saturated, or taken by an instance: it grows no more
        self.barred = False  # met a request of another shape: is not merged when it is taken


class _Level:
    """The queue of one priority: live requests, and behind them the expired that are kept."""

    __slots__ = ("delayed", "live", "policy")

    def __init__(self, policy: BatchingPolicy, level: int) -> None:
        self.policy = policy.queue_policy(level)
        self.live: deque[_Request] = deque()
        self.delayed: deque[_Request] = deque()

    def __len__(self) -> int:
        return len(self.live) + len(self.delayed)


class Scheduler:
    """Batch formation and dispatch of one model. Not thread-safe; times never go back.

    After each :meth:`enqueue` or :meth:`release`, and when the time of :meth:`next_timer_ns` has
    come, the owner calls :meth:`advance` and carries out what it returns.
    """

    def __init__(self, policy: BatchingPolicy) -> None:
        self._policy = policy
        self._limit = policy.batch_limit
        self._preferred = policy.preferred
        self._preferred_max = max(self._preferred)
        self._delay_ns = policy.max_queue_delay_us * 1000 if policy.dynamic_batching else 0
        self._slots = 2 * policy.instance_count if policy.prefetching else 0
        self._timed = policy.default_queue_policy.default_timeout_us > 0 or any(
            own.default_timeout_us for _, own in policy.priority_queue_policy
        )
        self._levels: dict[int, _Level] = {}
        if not policy.priority_levels:
            self._levels[0] = _Level(policy, 0)
        self._queued = 0  # requests in Q
        self._payloads: deque[_Payload] = deque()  # F
        self._forming = _Payload()  # P
        self._idle = list(range(policy.instance_count))  # a heap
        self._timer_ns: int | None = None
        self._sweep_ns: int | None = None
        self._rejected: list[int] = []
        # The batcher's thread: whether it runs, and if it sleeps, what wakes it.
        self._awake = True
        self._wake_ns: int | None = None  # the end of its sleep while Q holds something
        self._idle_ns = 0  # when it last found Q empty
        self._next_preferred = 0  # inferences in Q that an arrival must bring about to wake it
        self._queued_size = 0  # inferences in Q
        # What the last decision looked at without sending it; see _select.
        self._selected = 0
        self._selected_size = 0

    def next_timer_ns(self) -> int | None:
        """When :meth:`advance` must be called though nothing else happens; None: not at all."""
        return self._timer_ns

    def enqueue(
        self,
        now_ns: int,
        ticket: int,
        *,
        batch_size: int = 1,
        priority: int = 0,
        timeout_us: int = 0,
        shape_key: Hashable = None,
        input_set: Hashable = None,
    ) -> None:
        """Puts a request into the queue; :meth:`advance` decides what becomes of it.

        Args:
            now_ns: The time, nanoseconds.
            ticket: The owner's name for the request, unique among those not finished.
            batch_size: Its inferences, at most the maximum batch size (the caller has checked).
            priority: Its level; 0 or one that does not exist means the default.
            timeout_us: Its own time-out, which counts only where the policy allows it.
            shape_key: Requests with different keys never share an execution, and one with a key
                makes the batcher look at once, as in Triton.
            input_set: The inputs that it brings, of a model where some are optional: requests with
                different ones never share an execution either; the batcher may sleep on.

        Raises:
            Fault: The queue of its level is full; the request is not in it.
        """
        assert 1 <= batch_size <= self._limit, batch_size
        policy = self._policy
        if not policy.dynamic_batching:
            payload = _Payload()
            payload.tickets.append(ticket)
            payload.size = batch_size
            payload.closed = True
            self._payloads.append(payload)
            return
        level = self._level(priority)
        queue_policy = level.policy
        if queue_policy.max_queue_size and len(level) >= queue_policy.max_queue_size:
            raise Fault("unavailable", QUEUE_FULL)
        timeout = queue_policy.timeout_us(timeout_us) if not policy.prefetching else 0
        deadline_ns = now_ns + timeout * 1000 if timeout else 0
        key = shape_key if input_set is None else (input_set, shape_key)
        level.live.append(_Request(ticket, batch_size, now_ns, deadline_ns, key))
        self._queued += 1
        self._queued_size += batch_size
        self._wake(now_ns, shape_key)
        if not self._slots:
            # A more urgent request may stand before those already looked at.
            self._selected = 0

    def release(self, now_ns: int, instance: int) -> None:
        """Marks ``instance`` idle: its execution has ended."""
        assert 0 <= instance < self._policy.instance_count, instance
        assert instance not in self._idle, instance
        heapq.heappush(self._idle, instance)
        self._awake = True

    def cancel(self, ticket: int) -> bool:
        """Takes a request out of the queue; False if it is not (or no longer) there.

        A request that already stands in a payload runs.
        """
        for level in self._levels.values():
            for queue in (level.live, level.delayed):
                for request in queue:
                    if request.ticket == ticket:
                        queue.remove(request)
                        self._queued -= 1
                        self._queued_size -= request.batch_size
                        self._selected = 0
                        return True
        return False

    def advance(self, now_ns: int) -> Decisions:
        """Everything that follows from the events so far, at ``now_ns``."""
        executions: list[Execution] = []
        self._timer_ns = None
        due = self._wake_ns is not None and now_ns >= self._wake_ns
        if due or not self._policy.sleeps_through_arrivals:
            self._awake = True
        while True:
            while self._payloads and self._idle:
                executions.append(self._take(now_ns))
                self._awake = True
            if not self._queued:
                self._sweep_ns = self._wake_ns = None
                if self._awake:
                    self._idle_ns = now_ns
                self._awake = False
                break
            if not self._awake:
                self._timer_ns = self._wake_ns
                break
            self._wake_ns = None
            if self._forming.closed:
                self._forming = _Payload()
                self._selected = self._next_preferred = 0
            if not (len(self._payloads) < self._slots if self._slots else self._idle):
                self._wait_for_slot(now_ns)
                self._awake = bool(self._timer_ns)
                break
            self._sweep_ns = None
            wait_ns = self._select(now_ns)
            if wait_ns:
                self._timer_ns = self._wake_ns = now_ns + wait_ns
                self._awake = False
                break
            if self._selected:
                self._send()
            elif not self._forming.closed:
                # All that waited has expired, or the next request's shape differs from that of a
                # payload which stays open until an instance takes it.
                break
        if not executions and not self._rejected:
            return _NOTHING
        decisions = Decisions(tuple(executions), tuple(self._rejected))
        self._rejected.clear()
        return decisions

    def _wake(self, now_ns: int, shape_key: Hashable) -> None:
        """Wakes the batcher for an arrival, or lets it sleep on (``sleeps_through_arrivals``).

        This is the condition of Triton's ``Enqueue``. The figure that it holds the queue against is
        the one from the batcher's last look with a delay, until a payload is begun anew.
        """
        slot = len(self._payloads) < self._slots if self._slots else bool(self._idle)
        grown = self._queued_size >= self._next_preferred
        if slot and (shape_key is not None or self._forming.closed or grown):
            self._awake = True
        elif self._queued == 1 and not self._awake and self._wake_ns is None:
            # It found Q empty, and looks again every half second.
            naps = (now_ns - self._idle_ns) // _SWEEP_NS + 1
            self._wake_ns = self._idle_ns + naps * _SWEEP_NS

    def _level(self, priority: int) -> _Level:
        levels = self._policy.priority_levels
        if not levels:
            return self._levels[0]
        if not 1 <= priority <= levels:
            priority = self._policy.default_priority_level
        level = self._levels.get(priority)
        if level is None:
            level = _Level(self._policy, priority)
            self._levels[priority] = level
            self._levels = dict(sorted(self._levels.items()))
        return level

    def _take(self, now_ns: int) -> Execution:
        """The head of F on the first idle instance, with what it absorbs."""
        payload = self._payloads.popleft()
        payload.closed = True
        if self._delay_ns and self._limit > 1 and not payload.barred:
            while self._payloads:
                head = self._payloads[0]
                if head.barred or now_ns - head.oldest_ns <= self._delay_ns:
                    break
                # It grows no more, also where it is not merged: Triton marks it as executing first.
                head.closed = True
                too_large = payload.size + head.size > self._limit
                if too_large or head.shape_key != payload.shape_key:
                    break
                payload.tickets += head.tickets
                payload.size += head.size
                self._payloads.popleft()
        return Execution(heapq.heappop(self._idle), tuple(payload.tickets), payload.size)

    def _wait_for_slot(self, now_ns: int) -> None:
        """Sweeps out the expired every half second while no instance is idle."""
        if self._slots:
            return
        if self._sweep_ns is None:
            self._sweep_ns = now_ns + _SWEEP_NS
        elif now_ns >= self._sweep_ns:
            self._sweep_ns = now_ns + _SWEEP_NS
            for level in self._levels.values():
                if level.policy.timeout_action == "REJECT":
                    live = [r for r in level.live if not 0 < r.deadline_ns <= now_ns]
                    self._queued -= len(level.live) - len(live)
                    self._queued_size -= sum(r.batch_size for r in level.live)
                    self._queued_size += sum(r.batch_size for r in live)
                    self._rejected += [r.ticket for r in level.live if 0 < r.deadline_ns <= now_ns]
                    level.live = deque(live)
            if not self._queued:
                self._sweep_ns = None
        if self._timed:
            self._timer_ns = self._sweep_ns

    def _candidates(self, now_ns: int) -> Iterator[_Request]:
        """The queue in order, most urgent level first; the expired leave as they are met."""
        if self._slots:
            live = self._levels[0].live
            for index in range(self._selected, len(live)):
                yield live[index]
            return
        for level in self._levels.values():
            index = 0
            while index < len(level.live):
                request = level.live[index]
                if 0 < request.deadline_ns <= now_ns:
                    del level.live[index]
                    if level.policy.timeout_action == "DELAY":
                        request.deadline_ns = 0  # it expires once
                        level.delayed.append(request)
                    else:
                        self._rejected.append(request.ticket)
                        self._queued -= 1
                        self._queued_size -= request.batch_size
                else:
                    yield request
                    index += 1
            yield from level.delayed

    def _select(self, now_ns: int) -> int:
        """Triton's ``GetDynamicBatch``: how many requests of Q go into P now, or how long to wait.

        Sets ``_selected`` and ``_selected_size`` and may close P. Triton looks at the queue from
        its front each time. Where neither priorities nor time-outs can change what it saw before,
        the look goes on where the last one ended: the outcome is the same, since what was seen
        then held no mark and did not end the look.

        Returns:
            0: send what is selected (if anything); otherwise nanoseconds to wait.
        """
        payload = self._forming
        held = payload.size
        limit, preferred, preferred_max = self._limit, self._preferred, self._preferred_max
        resumed = self._slots and self._selected
        if not resumed:
            self._selected = self._selected_size = 0
        count, size = self._selected, self._selected_size
        marked = marked_size = 0
        send_now = False
        oldest_ns: int | None = self._levels[0].live[0].enqueued_ns if resumed else None
        closest_ns = 0
        for request in self._candidates(now_ns):
            batch_size = request.batch_size
            if held + size == 0:
                payload.shape_key = request.shape_key
            else:
                total = held + size + batch_size
                if total > preferred_max and not marked_size:
                    marked, marked_size = count, size
                    payload.closed = True
                if total > limit:
                    send_now = True
                    break
                if request.shape_key != payload.shape_key:
                    payload.barred = True
                    send_now = True
                    break
            size += batch_size
            count += 1
            if oldest_ns is None or request.enqueued_ns < oldest_ns:
                oldest_ns = request.enqueued_ns
            if request.deadline_ns and (not closest_ns or request.deadline_ns < closest_ns):
                closest_ns = request.deadline_ns
            if held + size in preferred:
                marked, marked_size = count, size

        delay_ns = self._delay_ns
        age_ns = now_ns - oldest_ns if oldest_ns is not None else 0
        exceeded = delay_ns != 0 and age_ns >= delay_ns
        if marked_size and not exceeded:
            if delay_ns == 0:
                payload.closed = True
            self._selected, self._selected_size = marked, marked_size
            return 0
        self._selected, self._selected_size = count, size
        if not count:
            return 0
        if send_now or held + size >= preferred_max:
            payload.closed = True
            return 0
        if exceeded or delay_ns == 0:
            return 0
        self._next_preferred = min((p for p in preferred if p > held + size), default=0) - held
        if held and not payload.closed and held not in preferred:
            return 0
        # Triton sleeps whole microseconds; with less than one left it sends.
        wait_ns = (delay_ns - age_ns) // 1000 * 1000
        return min(wait_ns, closest_ns - now_ns) if closest_ns else wait_ns

    def _send(self) -> None:
        """Moves the selected requests into P, and P into F if it is new."""
        payload = self._forming
        if not payload.tickets:
            self._payloads.append(payload)
        remaining = self._selected
        for level in self._levels.values():
            for queue in (level.live, level.delayed):
                while remaining and queue:
                    request = queue.popleft()
                    if not payload.tickets or request.enqueued_ns < payload.oldest_ns:
                        payload.oldest_ns = request.enqueued_ns
                    payload.tickets.append(request.ticket)
                    remaining -= 1
        payload.size += self._selected_size
        self._queued_size -= self._selected_size
        self._queued -= self._selected
        self._selected = 0
