"""The scheduler against Triton's rules: vectors, a real server's batches, an oracle, invariants."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.engine.fault import Fault
from analyzer.engine.policy import BatchingPolicy, QueuePolicy
from analyzer.engine.scheduler import Execution, Scheduler

US, MS = 1_000, 1_000_000


def batcher(**settings: Any) -> BatchingPolicy:
    return BatchingPolicy(**{"max_batch_size": 8, "dynamic_batching": True, **settings})


class Arrival(NamedTuple):
    at_ns: int
    batch_size: int = 1
    shape_key: str | None = None
    priority: int = 0
    timeout_us: int = 0
    input_set: str | None = None


class Ran(NamedTuple):
    start_ns: int
    tickets: tuple[int, ...]
    batch_size: int
    instance: int


def play(
    policy: BatchingPolicy,
    arrivals: Sequence[Arrival],
    service_ns: Callable[[int], int],
    *,
    requests: int = 0,
) -> tuple[list[Ran], dict[int, int]]:
    """Executions, and the time at which each rejected ticket was rejected.

    With ``requests`` the loop is closed: each reply brings the next request, like the first.
    """
    scheduler = Scheduler(policy)
    todo = list(arrivals)
    ends: list[tuple[int, int, Execution]] = []
    ran: list[Ran] = []
    rejected: dict[int, int] = {}
    ticket = 0
    while True:
        options: list[tuple[int, int]] = []
        if ends:
            options.append((ends[0][0], 0))
        if ticket < len(todo):
            options.append((todo[ticket].at_ns, 1))
        timer_ns = scheduler.next_timer_ns()
        if timer_ns is not None:
            options.append((timer_ns, 2))
        if not options:
            break
        now, kind = min(options)
        if kind == 0:
            done = heapq.heappop(ends)[2]
            scheduler.release(now, done.instance)
            new = min(len(done.tickets), requests - len(todo))
            todo += [todo[0]._replace(at_ns=now)] * new
        elif kind == 1:
            arrival = todo[ticket]
            try:
                scheduler.enqueue(
                    now,
                    ticket,
                    batch_size=arrival.batch_size,
                    shape_key=arrival.shape_key,
                    priority=arrival.priority,
                    timeout_us=arrival.timeout_us,
                    input_set=arrival.input_set,
                )
            except Fault:
                rejected[ticket] = now
            ticket += 1
        decisions = scheduler.advance(now)
        for execution in decisions.executions:
            end = now + service_ns(execution.batch_size)
            heapq.heappush(ends, (end, len(ran), execution))
            ran.append(Ran(now, execution.tickets, execution.batch_size, execution.instance))
        rejected |= dict.fromkeys(decisions.rejected, now)
    assert sum(len(one.tickets) for one in ran) + len(rejected) == len(todo)
    return ran, rejected


# Q | preferred | M | delay us | age us | inferences in P -> sent, saturated (or the wait)
VECTORS = [
    ([1] * 3, (8,), 8, 0, 0, 0, 3, False, 0),
    ([1] * 12, (8,), 8, 0, 0, 0, 8, True, 0),
    ([1] * 6, (4, 8), 8, 0, 0, 0, 4, True, 0),
    ([1] * 9, (4, 8), 8, 0, 0, 0, 8, True, 0),
    ([3, 3], (4,), 8, 0, 0, 0, 3, True, 0),
    ([3, 3, 3], (8,), 8, 0, 0, 0, 6, True, 0),
    ([1], (8,), 8, 1000, 0, 0, None, False, 1000),
    ([1] * 6, (4, 8), 8, 1000, 10, 0, 4, False, 0),
    ([1] * 6, (4,), 8, 1000, 1000, 0, 6, True, 0),
    ([3, 6], (8,), 8, 1000, 10, 0, 3, True, 0),
    ([1], (8,), 8, 1000, 0, 3, 1, False, 0),
    ([1], (4, 8), 8, 1000, 0, 4, None, False, 1000),
    ([6], (8,), 8, 0, 0, 3, 0, True, 0),
    ([6], (8,), 8, 1000, 0, 3, 0, True, 0),
    ([6], (8,), 8, 1000, 2000, 3, 0, True, 0),
]


@pytest.mark.parametrize(
    ("queue", "preferred", "limit", "delay_us", "age_us", "held", "sent", "saturated", "wait_us"),
    VECTORS,
)
def test_one_decision(
    queue: list[int],
    preferred: tuple[int, ...],
    limit: int,
    delay_us: int,
    age_us: int,
    held: int,
    sent: int | None,
    saturated: bool,
    wait_us: int,
) -> None:
    scheduler = Scheduler(
        batcher(max_batch_size=limit, preferred_batch_size=preferred, max_queue_delay_us=delay_us)
    )
    # A white-box set-up: P holds ``held`` inferences and stands in F.
    if held:
        scheduler._forming.tickets.append(100)
        scheduler._forming.size = held
        scheduler._payloads.append(scheduler._forming)
    for ticket, batch_size in enumerate(queue):
        scheduler.enqueue(0, ticket, batch_size=batch_size)
    wait_ns = scheduler._select(age_us * US)
    assert wait_ns == wait_us * US
    if sent is not None:
        assert scheduler._selected_size == sent
    assert scheduler._forming.closed == saturated


def sleep(batch_size: int) -> int:
    return 8 * MS + batch_size * MS // 2


@pytest.mark.parametrize(
    ("settings", "concurrency", "request_batch_size", "size", "share"),
    [
        ({"preferred_batch_size": (4,)}, 32, 1, 4, 0.99),
        ({"preferred_batch_size": (4,), "max_queue_delay_us": 5_000}, 32, 1, 8, 0.98),
        ({"preferred_batch_size": (4,), "max_queue_delay_us": 500_000}, 32, 1, 5, 0.99),
        ({}, 32, 1, 8, 0.99),
        ({"preferred_batch_size": (8,)}, 6, 3, 6, 0.99),
        ({"dynamic_batching": False, "instance_count": 2}, 8, 1, 1, 1.0),
    ],
)
def test_a_real_servers_batches(
    settings: dict[str, Any], concurrency: int, request_batch_size: int, size: int, share: float
) -> None:
    """What a real Triton 2.51 formed in closed loops."""
    first = [Arrival(0, request_batch_size)] * concurrency
    for sleeps in (False, True):
        policy = batcher(**settings, sleeps_through_arrivals=sleeps)
        ran, _ = play(policy, first, sleep, requests=3000)
        sizes = Counter(execution.batch_size for execution in ran)
        assert sizes[size] / len(ran) >= share


@pytest.mark.parametrize(("dynamic", "duration"), [(False, 5), (True, 3)])
def test_worked_example_of_tritons_tutorial(dynamic: bool, duration: int) -> None:
    x = 9 * MS
    sizes = [(0, 4), (0, 2), (x // 3, 2), (2 * x // 3, 6), (2 * x // 3, 2)]
    policy = batcher(dynamic_batching=dynamic)
    ran, _ = play(policy, [Arrival(t, b) for t, b in sizes], lambda _: x)
    assert ran[-1].start_ns + x == duration * x


def test_no_delay_never_waits_for_company() -> None:
    ran, _ = play(batcher(), [Arrival(5)], sleep)
    assert ran == [Ran(5, (0,), 1, 0)]


def test_delay_waits_though_all_are_idle_and_new_arrivals_do_not_restart_it() -> None:
    arrivals = [Arrival(0), Arrival(600 * US)]
    ran, _ = play(batcher(max_queue_delay_us=1000, instance_count=4), arrivals, sleep)
    assert ran == [Ran(1000 * US, (0, 1), 2, 0)]


def test_a_preferred_size_ends_the_wait() -> None:
    arrivals = [Arrival(0), Arrival(10), Arrival(20)]
    policy = batcher(max_queue_delay_us=1000, preferred_batch_size=(2, 8))
    ran, _ = play(policy, arrivals, sleep)
    assert (ran[0].start_ns, ran[0].tickets) == (10, (0, 1))


def test_payloads_grow_until_an_instance_takes_them() -> None:
    ran, _ = play(batcher(), [Arrival(0), Arrival(1), Arrival(2), Arrival(3)], lambda _: 100)
    assert [r.tickets for r in ran] == [(0,), (1, 2, 3)]


@pytest.mark.parametrize("sleeps", [False, True])
def test_a_sleeping_batcher_lets_payloads_be(sleeps: bool) -> None:
    """What a real Triton 2.51 does with a delay: arrivals do not join the payload in F."""
    policy = batcher(max_queue_delay_us=1000, sleeps_through_arrivals=sleeps)
    ran, _ = play(policy, [Arrival(0), Arrival(2 * MS), Arrival(5 * MS)], lambda _: 10 * MS)
    assert [r.tickets for r in ran] == ([(0,), (1,), (2,)] if sleeps else [(0,), (1, 2)])


def test_a_sleeping_batcher_wakes_when_the_queue_is_worth_it() -> None:
    policy = batcher(
        max_queue_delay_us=1000, sleeps_through_arrivals=True, preferred_batch_size=(4, 8)
    )
    arrivals = [Arrival(0), Arrival(2 * MS), *(Arrival(t * MS) for t in (4, 5, 6, 7, 8))]
    ran, _ = play(policy, arrivals, lambda _: 10 * MS)
    # When it looked at one request, 4 was the next preferred size: four in the queue wake it.
    assert [r.tickets for r in ran] == [(0,), (1, 2, 3, 4, 5), (6,)]


def test_a_sleeping_batcher_looks_every_half_second() -> None:
    policy = batcher(max_queue_delay_us=1000, sleeps_through_arrivals=True)
    arrivals = [Arrival(t * MS) for t in (0, 2, 5, 1900)]
    ran, _ = play(policy, arrivals, lambda _: 2000 * MS)
    assert [r.tickets for r in ran] == [(0,), (1, 2), (3,)]


def test_without_prefetching_nothing_forms_ahead() -> None:
    """A queue limit keeps requests in Q, where the preferred size is looked for at the end."""
    arrivals = [Arrival(t) for t in range(8)]
    limited = batcher(
        preferred_batch_size=(3,), default_queue_policy=QueuePolicy(max_queue_size=100)
    )
    assert not limited.prefetching
    ran, _ = play(limited, arrivals, lambda _: 100)
    assert [r.tickets for r in ran] == [(0,), (1, 2, 3), (4, 5, 6), (7,)]


def test_prefetched_payloads_are_two_per_instance() -> None:
    """With F full the tail cannot grow, and what waits in Q joins only when a slot is free."""
    scheduler = Scheduler(batcher(max_batch_size=2))
    for ticket in range(7):
        scheduler.enqueue(ticket, ticket)
        scheduler.advance(ticket)
    assert len(scheduler._payloads) == 2
    assert [p.tickets for p in scheduler._payloads] == [[1, 2], [3]]
    assert scheduler._queued == 3
    scheduler.release(10, 0)
    assert scheduler.advance(10).executions == (Execution(0, (1, 2), 2),)
    assert [p.tickets for p in scheduler._payloads] == [[3, 4], [5, 6]]
    assert scheduler._queued == 0


def test_overdue_payloads_merge_when_they_are_taken() -> None:
    policy = batcher(max_queue_delay_us=1000, preferred_batch_size=(2,))
    arrivals = [Arrival(t) for t in (0, 0, 10, 10, 20, 20)]
    ran, _ = play(policy, arrivals, lambda _: 10 * MS)
    assert [r.tickets for r in ran] == [(0, 1), (2, 3, 4, 5)]
    young, _ = play(policy, arrivals, lambda _: 900 * US)
    # Not overdue: each stays as it was, the second with the one more that a preferred size takes.
    assert [r.tickets for r in young] == [(0, 1), (2, 3, 4), (5,)]


def test_an_overdue_payload_that_is_too_large_to_merge_grows_no_more() -> None:
    """Triton marks it as executing before it looks at its size."""
    policy = batcher(
        preferred_batch_size=(4,), max_queue_delay_us=5000, sleeps_through_arrivals=True
    )
    times_ms = (0, 10, 10, 10, 30, 30, 40, 80, 80, 80, 130)
    ran, _ = play(policy, [Arrival(t * MS) for t in times_ms], lambda _: 100 * MS)
    # The last one is in a payload of its own, which is overdue as well by then.
    assert [r.tickets for r in ran] == [(0,), (1, 2, 3, 4, 5, 6, 7), (8, 9, 10)]


@pytest.mark.parametrize("sleeps", [False, True])
def test_sets_of_inputs_never_mix(sleeps: bool) -> None:
    policy = batcher(max_queue_delay_us=1000, sleeps_through_arrivals=sleeps)
    sets = ["x", "x", "xy", "xy", "x"]
    arrivals = [Arrival(t, input_set=own) for t, own in enumerate(sets)]
    ran, _ = play(policy, arrivals, lambda _: MS)
    assert [r.tickets for r in ran] == [(0, 1), (2, 3), (4,)]
    mixed = [Arrival(t, shape_key=key, input_set="x") for t, key in enumerate("aabb")]
    ran, _ = play(policy, mixed, lambda _: MS)
    assert [r.tickets for r in ran] == [(0, 1), (2, 3)]


def test_a_set_of_inputs_alone_wakes_no_batcher() -> None:
    """Triton's ``Enqueue`` asks for enforced shapes, and not for optional inputs."""
    policy = batcher(max_queue_delay_us=1000, sleeps_through_arrivals=True)
    by_shape = [Arrival(0, shape_key="a"), Arrival(300_000, shape_key="b")]
    by_set = [Arrival(0, input_set="x"), Arrival(300_000, input_set="xy")]
    first = [play(policy, arrivals, lambda _: MS)[0][0] for arrivals in (by_shape, by_set)]
    assert [(r.start_ns, r.tickets) for r in first] == [(300_000, (0,)), (1_000_000, (0,))]


def test_shapes_never_mix_and_order_stays() -> None:
    keys = "aabba"
    arrivals = [Arrival(0)] + [Arrival(t + 1, 1, key) for t, key in enumerate(keys)]
    ran, _ = play(batcher(), arrivals, lambda _: 100)
    assert [r.tickets for r in ran] == [(0,), (1, 2), (3, 4), (5,)]


def test_head_of_line_closes_the_batch() -> None:
    arrivals = [Arrival(0, 8), Arrival(1, 5), Arrival(2, 4), Arrival(3, 3)]
    ran, _ = play(batcher(), arrivals, lambda _: 100)
    assert [r.tickets for r in ran] == [(0,), (1,), (2, 3)]


def test_lowest_idle_instance_takes_the_payload() -> None:
    arrivals = [Arrival(0), Arrival(1), Arrival(150), Arrival(400)]
    ran, _ = play(batcher(instance_count=3), arrivals, lambda _: 100)
    assert [r.instance for r in ran] == [0, 1, 0, 0]


def test_priorities_run_first_and_unknown_ones_are_the_default() -> None:
    policy = batcher(max_batch_size=1, priority_levels=3, default_priority_level=2)
    priorities = [2, 3, 1, 0, 9, 1]
    arrivals = [Arrival(t, priority=p) for t, p in enumerate(priorities)]
    ran, _ = play(policy, arrivals, lambda _: 100)
    assert [r.tickets[0] for r in ran] == [0, 2, 5, 3, 4, 1]


def test_full_queue_refuses_per_level() -> None:
    policy = batcher(
        max_batch_size=1,
        priority_levels=2,
        default_priority_level=1,
        default_queue_policy=QueuePolicy(max_queue_size=1),
        priority_queue_policy=((2, QueuePolicy(max_queue_size=2)),),
    )
    arrivals = [Arrival(t, priority=p) for t, p in enumerate([1, 1, 1, 2, 2, 2])]
    ran, rejected = play(policy, arrivals, lambda _: 100)
    assert rejected == {2: 2, 5: 5}
    assert [r.tickets for r in ran] == [(0,), (1,), (3,), (4,)]


def test_rejects_when_it_looks_or_sweeps() -> None:
    """While no instance is idle nobody looks; the sweep comes every 500 ms."""
    policy = batcher(max_batch_size=1, default_queue_policy=QueuePolicy(default_timeout_us=10_000))
    arrivals = [Arrival(0), Arrival(1 * MS)]
    _, rejected = play(policy, arrivals, lambda _: 300 * MS)
    assert rejected == {1: 300 * MS}
    _, rejected = play(policy, arrivals, lambda _: 900 * MS)
    assert rejected == {1: 501 * MS}


def test_rejects_at_the_timeout_while_waiting_for_company() -> None:
    policy = batcher(
        max_queue_delay_us=50_000, default_queue_policy=QueuePolicy(default_timeout_us=10_000)
    )
    ran, rejected = play(policy, [Arrival(0)], sleep)
    assert (ran, rejected) == ([], {0: 10 * MS})


def test_delayed_requests_come_after_the_live() -> None:
    policy = batcher(
        max_batch_size=1,
        default_queue_policy=QueuePolicy(timeout_action="DELAY", default_timeout_us=50_000),
    )
    arrivals = [Arrival(0), Arrival(1 * MS), Arrival(70 * MS)]
    ran, rejected = play(policy, arrivals, lambda _: 80 * MS)
    assert [r.tickets for r in ran] == [(0,), (2,), (1,)]
    assert not rejected


def test_a_request_that_expired_before_its_delay_ended_is_waited_for_no_more() -> None:
    policy = batcher(
        max_queue_delay_us=50_000,
        default_queue_policy=QueuePolicy(timeout_action="DELAY", default_timeout_us=10_000),
    )
    scheduler = Scheduler(policy)
    scheduler.enqueue(0, 0)
    scheduler.advance(0)
    assert scheduler.next_timer_ns() == 10 * MS
    scheduler.advance(10 * MS)
    assert scheduler.next_timer_ns() == 50 * MS
    assert scheduler.advance(50 * MS).executions == (Execution(0, (0,), 1),)


@pytest.mark.parametrize(("asked_us", "used_us"), [(0, 50), (20, 20), (70, 50)])
def test_override_only_shortens(asked_us: int, used_us: int) -> None:
    policy = QueuePolicy(default_timeout_us=50, allow_timeout_override=True)
    assert policy.timeout_us(asked_us) == used_us
    assert QueuePolicy(allow_timeout_override=True).timeout_us(asked_us) == 0
    assert QueuePolicy(default_timeout_us=50).timeout_us(asked_us) == 50


def test_cancel_takes_from_the_queue_only() -> None:
    scheduler = Scheduler(batcher(max_queue_delay_us=1000))
    for ticket in range(2):
        scheduler.enqueue(ticket, ticket)
        scheduler.advance(ticket)
    assert scheduler.cancel(0)
    assert not scheduler.cancel(0)
    timer_ns = scheduler.next_timer_ns()
    assert timer_ns is not None
    # The one that is left is the younger: its own delay counts.
    assert scheduler.advance(timer_ns).executions == ()
    timer_ns = scheduler.next_timer_ns()
    assert timer_ns == 1 + 1000 * US
    assert scheduler.advance(timer_ns).executions == (Execution(0, (1,), 1),)
    assert not scheduler.cancel(1)


class Oracle:
    """The rules written down a second time, as plainly as can be: lists, and no memory of looks."""

    def __init__(self, policy: BatchingPolicy) -> None:
        self.policy = policy
        self.queue: list[tuple[int, Arrival]] = []
        self.payloads: list[dict[str, Any]] = []
        self.current: dict[str, Any] = self.fresh()
        self.idle = set(range(policy.instance_count))
        self.timer: int | None = None
        self.asleep = False
        self.nap: tuple[str, int] = ("empty", 0)  # what it waits for, and since or until when
        self.worth = 0

    def fresh(self) -> dict[str, Any]:
        return {"items": [], "saturated": False, "taken": False, "barred": False}

    def size(self, items: list[tuple[int, Arrival]]) -> int:
        return sum(arrival.batch_size for _, arrival in items)

    def arrive(self, now: int, item: tuple[int, Arrival]) -> None:
        """Queues a request; the batcher sleeps on unless there is room and it is worth it."""
        self.queue.append(item)
        limited = self.policy.default_queue_policy.max_queue_size > 0
        if self.idle if limited else len(self.payloads) < 2 * self.policy.instance_count:
            ended = self.current["saturated"] or self.current["taken"]
            if ended or item[1].shape_key is not None or self.size(self.queue) >= self.worth:
                self.asleep = False

    def decide(self, now: int) -> int | None:
        """Moves requests into the current payload; or returns how long to wait; -1: stuck."""
        policy, current = self.policy, self.current
        preferred = set(policy.preferred_batch_size or (policy.max_batch_size,))
        delay = policy.max_queue_delay_us * 1000
        held = self.size(current["items"])
        chosen: list[tuple[int, Arrival]] = []
        mark: list[tuple[int, Arrival]] = []
        send_now = False
        for item in self.queue:
            together = current["items"] + chosen
            if together:
                total = self.size([*together, item])
                if total > max(preferred) and not mark:
                    mark = list(chosen)
                    current["saturated"] = True
                if total > policy.max_batch_size:
                    send_now = True
                    break
                if item[1].shape_key != together[0][1].shape_key:
                    send_now = current["barred"] = True
                    break
            chosen.append(item)
            if held + self.size(chosen) in preferred:
                mark = list(chosen)
        age = now - min((a.at_ns for _, a in chosen), default=now)
        overdue = delay > 0 and age >= delay
        if mark and not overdue:
            if delay == 0:
                current["saturated"] = True
            chosen = mark
        elif not chosen:
            return None if current["saturated"] else -1
        elif send_now or held + self.size(chosen) >= max(preferred):
            current["saturated"] = True
        elif overdue or delay == 0 or self.joins(held, self.size(chosen)):
            pass
        elif (delay - age) // 1000 > 0:
            return (delay - age) // 1000 * 1000
        if not current["items"]:
            self.payloads.append(current)
        current["items"] += chosen
        self.queue = self.queue[len(chosen) :]
        return None

    def joins(self, held: int, chosen: int) -> bool:
        """Whether what was chosen joins at once; notes how large a queue is worth the next look."""
        preferred = set(self.policy.preferred_batch_size or (self.policy.max_batch_size,))
        self.worth = min(size for size in preferred if size > held + chosen) - held
        return held > 0 and not self.current["saturated"] and held not in preferred

    def advance(self, now: int) -> list[Execution]:
        executions = self.dispatch(now)
        if not self.policy.sleeps_through_arrivals:
            return executions
        if self.asleep and self.queue and self.timer is None and self.nap[0] == "empty":
            self.timer = self.nap[1] + 500 * MS
            while self.timer <= now:
                self.timer += 500 * MS
            self.nap = ("until", self.timer)
        if self.asleep and self.nap[0] == "until":
            self.timer = self.nap[1]
        return executions

    def dispatch(self, now: int) -> list[Execution]:
        policy, executions = self.policy, []
        self.timer = None
        if not policy.sleeps_through_arrivals or (self.nap[0] == "until" and now >= self.nap[1]):
            self.asleep = False
        while True:
            while self.payloads and self.idle:
                head = self.payloads.pop(0)
                head["taken"] = True
                delay = policy.max_queue_delay_us * 1000
                while delay and policy.max_batch_size > 1 and self.payloads and not head["barred"]:
                    other = self.payloads[0]
                    oldest = min(a.at_ns for _, a in other["items"])
                    if other["barred"] or now - oldest <= delay:
                        break
                    other["taken"] = True
                    if (
                        self.size(head["items"] + other["items"]) > policy.max_batch_size
                        or head["items"][0][1].shape_key != other["items"][0][1].shape_key
                    ):
                        break
                    head["items"] += self.payloads.pop(0)["items"]
                instance = min(self.idle)
                self.idle.remove(instance)
                self.asleep = False
                tickets = tuple(ticket for ticket, _ in head["items"])
                executions.append(Execution(instance, tickets, self.size(head["items"])))
            if not self.queue:
                if not self.asleep:
                    self.nap = ("empty", now)
                self.asleep = True
                return executions
            if self.asleep:
                return executions
            if self.current["saturated"] or self.current["taken"]:
                self.current = self.fresh()
                self.worth = 0
            limited = policy.default_queue_policy.max_queue_size > 0
            if not (self.idle if limited else len(self.payloads) < 2 * policy.instance_count):
                self.asleep, self.nap = True, ("slot", now)
                return executions
            wait = self.decide(now)
            if wait is not None:
                self.timer = now + wait if wait > 0 else None
                if wait > 0:
                    self.asleep, self.nap = True, ("until", now + wait)
                return executions


def play_oracle(
    policy: BatchingPolicy, arrivals: Sequence[Arrival], service_ns: Callable[[int], int]
) -> list[Ran]:
    oracle = Oracle(policy)
    limit = policy.default_queue_policy.max_queue_size
    ends: list[tuple[int, int, int]] = []
    ran: list[Ran] = []
    index = 0
    while True:
        times = [(end, 0) for end, _, _ in ends]
        times += [(arrivals[index].at_ns, 1)] if index < len(arrivals) else []
        times += [(oracle.timer, 2)] if oracle.timer is not None else []
        if not times:
            return ran
        now, kind = min(times)
        if kind == 0:
            ends.sort()
            oracle.idle.add(ends.pop(0)[2])
            oracle.asleep = False
        elif kind == 1:
            if not limit or len(oracle.queue) < limit:
                oracle.arrive(now, (index, arrivals[index]))
            index += 1
        for execution in oracle.advance(now):
            ends.append((now + service_ns(execution.batch_size), len(ran), execution.instance))
            ran.append(Ran(now, execution.tickets, execution.batch_size, execution.instance))


@st.composite
def policies(draw: st.DrawFn) -> BatchingPolicy:
    limit = draw(st.integers(1, 10))
    return BatchingPolicy(
        max_batch_size=limit,
        dynamic_batching=True,
        preferred_batch_size=tuple(sorted(draw(st.sets(st.integers(1, limit), max_size=3)))),
        max_queue_delay_us=draw(st.sampled_from([0, 0, 1, 10, 100])),
        instance_count=draw(st.integers(1, 3)),
        default_queue_policy=QueuePolicy(max_queue_size=draw(st.sampled_from([0, 0, 1, 4]))),
        sleeps_through_arrivals=draw(st.booleans()),
    )


@st.composite
def traces(draw: st.DrawFn, limit: int) -> list[Arrival]:
    rows = draw(
        st.lists(
            st.tuples(
                st.sampled_from([0, 0, 300, 1 * US, 7 * US, 50 * US, 333 * US]),
                st.integers(1, limit),
                st.sampled_from([None, None, None, "b"]),
            ),
            min_size=1,
            max_size=40,
        )
    )
    now = 0
    arrivals = []
    for gap, batch_size, key in rows:
        now += gap
        arrivals.append(Arrival(now, batch_size, key))
    return arrivals


def affine(batch_size: int) -> int:
    return 20 * US + batch_size * 3 * US


@settings(max_examples=300, deadline=None)
@given(st.data(), policies())
def test_equals_the_rules_written_down_twice(data: st.DataObject, policy: BatchingPolicy) -> None:
    arrivals = data.draw(traces(policy.batch_limit))
    assert play(policy, arrivals, affine)[0] == play_oracle(policy, arrivals, affine)


@settings(max_examples=200, deadline=None)
@given(st.data(), policies())
def test_invariants(data: st.DataObject, policy: BatchingPolicy) -> None:
    arrivals = data.draw(traces(policy.batch_limit))
    ran, rejected = play(policy, arrivals, affine)
    tickets = [ticket for execution in ran for ticket in execution.tickets]
    # Each once, in the order of arrival.
    assert tickets == [t for t in range(len(arrivals)) if t not in rejected]
    busy_until = [0] * policy.instance_count
    for execution in ran:
        members = [arrivals[ticket] for ticket in execution.tickets]
        assert execution.batch_size == sum(m.batch_size for m in members) <= policy.batch_limit
        assert len({m.shape_key for m in members}) == 1
        assert execution.start_ns >= max(m.at_ns for m in members)
        assert execution.start_ns >= busy_until[execution.instance]
        if policy.max_queue_delay_us == 0:
            # Nothing waits while an instance is idle.
            idle_since = min(busy_until)
            assert execution.start_ns == max(idle_since, min(m.at_ns for m in members))
        busy_until[execution.instance] = execution.start_ns + affine(execution.batch_size)


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(["REJECT", "DELAY"]), st.integers(0, 3))
def test_no_request_is_lost_with_priorities_and_timeouts(
    data: st.DataObject, action: Any, levels: int
) -> None:
    policy = batcher(
        max_batch_size=4,
        max_queue_delay_us=data.draw(st.sampled_from([0, 30])),
        sleeps_through_arrivals=data.draw(st.booleans()),
        instance_count=data.draw(st.integers(1, 2)),
        priority_levels=levels,
        default_priority_level=min(levels, 1),
        default_queue_policy=QueuePolicy(
            timeout_action=action,
            default_timeout_us=data.draw(st.sampled_from([0, 20, 60])),
            allow_timeout_override=True,
            max_queue_size=data.draw(st.sampled_from([0, 3])),
        ),
    )
    arrivals = [
        arrival._replace(priority=index % 5, timeout_us=7 * (index % 4))
        for index, arrival in enumerate(data.draw(traces(4)))
    ]
    ran, rejected = play(policy, arrivals, affine)
    tickets = [ticket for execution in ran for ticket in execution.tickets]
    assert sorted([*tickets, *rejected]) == list(range(len(arrivals)))
