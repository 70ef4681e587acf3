"""A server in virtual time: policy + service times + workload -> what happens to each request."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.load_test import ExecutionTimes
from analyzer.engine.fault import Fault
from analyzer.engine.policy import BatchingPolicy
from analyzer.engine.scheduler import Scheduler
from analyzer.stats.percentiles import nearest_rank_sorted
from analyzer.twin.service import ServiceTime

#: Below this many requests the plain scheduler is done before the compiled one is loaded.
_KERNEL_REQUESTS_MIN = 10_000

Engine = Literal["auto", "kernel", "scheduler"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpenWorkload:
    """Requests that come whatever the server does.

    Args:
        arrival_ns: Arrival times, int64 [n], ascending, nanoseconds.
        batch_size: Inferences of each request, int64 [n], or [1] if all are equal.
    """

    arrival_ns: NDArray[np.int64]
    batch_size: NDArray[np.int64]

    def __post_init__(self) -> None:
        assert len(self.arrival_ns) >= 1
        assert len(self.batch_size) in (1, len(self.arrival_ns)), len(self.batch_size)
        assert self.batch_size.min() >= 1

    @property
    def requests(self) -> int:
        """How many requests there are."""
        return len(self.arrival_ns)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedWorkload:
    """Clients that each keep one request in flight, from 0 on, until all have been sent.

    Args:
        concurrency: Requests in flight.
        requests: Requests in all.
        batch_size: Inferences of each.
    """

    concurrency: int
    requests: int
    batch_size: int = 1

    def __post_init__(self) -> None:
        assert min(self.concurrency, self.requests, self.batch_size) >= 1, self


Workload = OpenWorkload | ClosedWorkload


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulationResult:
    """What happened: n requests in the order of arrival, m executions in the order of their starts.

    Args:
        arrival_ns: int64 [n].
        request_batch_size: Inferences of each request, int64 [n].
        batch: The execution of each request, int64 [n]; -1 where the queue was full.
        execution_start_ns: int64 [m].
        execution_end_ns: int64 [m].
        execution_batch_size: Inferences of each execution, int64 [m].
        execution_instance: int64 [m].
        overhead_ns: Time outside the server that each request's latency includes.
        instance_count: Instances there were.
    """

    arrival_ns: NDArray[np.int64]
    request_batch_size: NDArray[np.int64]
    batch: NDArray[np.int64]
    execution_start_ns: NDArray[np.int64]
    execution_end_ns: NDArray[np.int64]
    execution_batch_size: NDArray[np.int64]
    execution_instance: NDArray[np.int64]
    overhead_ns: int
    instance_count: int

    @property
    def served(self) -> NDArray[np.bool_]:
        """Which requests were executed, bool [n]."""
        return self.batch >= 0

    @property
    def start_ns(self) -> NDArray[np.int64]:
        """Start of each request's execution, int64 [n]; meaningless where not served."""
        return self.execution_start_ns[self.batch]

    @property
    def end_ns(self) -> NDArray[np.int64]:
        """End of each request's execution, without overhead, int64 [n]; as ``start_ns``."""
        return self.execution_end_ns[self.batch]

    def latency_ms(self) -> NDArray[np.float64]:
        """Latency of each request with overhead, float64 [n]; infinite where not served."""
        latency = (self.end_ns - self.arrival_ns + self.overhead_ns) / 1e6
        return np.where(self.served, latency, np.inf)

    def execution_times(self) -> tuple[ExecutionTimes, ...]:
        """Mean execution times by batch size, ascending, as a server tells them."""
        spent_ms = (self.execution_end_ns - self.execution_start_ns) / 1e6
        counts = np.bincount(self.execution_batch_size)
        total_ms = np.bincount(self.execution_batch_size, weights=spent_ms)
        return tuple(
            ExecutionTimes(
                batch_size=int(size),
                count=int(counts[size]),
                mean_ms=float(total_ms[size] / counts[size]),
            )
            for size in np.flatnonzero(counts)
        )

    def summary(self) -> dict[str, Any]:
        """The contract's figures, JSON-ready; None where a figure is not defined.

        Mean latency and queue time are those of the requests served.
        """
        served = self.served
        latency = self.latency_ms()
        ordered = np.sort(latency)
        makespan_ns = int(self.execution_end_ns.max() - self.arrival_ns[0])
        busy_ns = int((self.execution_end_ns - self.execution_start_ns).sum())
        inferences = int(self.request_batch_size[served].sum())
        batches = len(self.execution_start_ns)
        queue_ns = (self.start_ns - self.arrival_ns)[served]
        return {
            "throughput_ips": inferences / makespan_ns * 1e9 if makespan_ns else None,
            "latency_ms": {
                "mean": float(latency[served].mean()),
                **{f"p{p}": nearest_rank_sorted(ordered, p) for p in (50, 90, 95, 99)},
            },
            "queue_ms_mean": float(queue_ns.mean()) / 1e6,
            "batches": batches,
            "batch_size_mean": inferences / batches,
            "makespan_ms": makespan_ns / 1e6,
            "utilization": busy_ns / (self.instance_count * makespan_ns) if makespan_ns else None,
            "requests": len(self.arrival_ns),
            "rejected": int(len(served) - served.sum()),
        }


def simulate(
    policy: BatchingPolicy,
    service: ServiceTime,
    workload: Workload,
    *,
    overhead_ms: float = 0.0,
    seed: int | np.random.SeedSequence = 0,
    engine: Engine = "auto",
) -> SimulationResult:
    """Runs ``workload`` to its end in virtual time.

    At one instant ends of executions come first (in the order of their starts), then arrivals (in
    their order), then timers; the scheduler decides after each. Time is in whole nanoseconds.

    Args:
        overhead_ms: Spent after an execution and before a closed client's next request; part of
            the latency, not of the instance's time. A request that finds the queue full costs a
            closed client only this.
        seed: Of the service times' noise.
        engine: The compiled kernel and the scheduler itself give the same; ``auto`` takes the
            kernel for long runs of policies that it knows.
    """
    requests = workload.requests
    noise = service.draw_noise(requests, np.random.default_rng(seed))
    prepared = Prepared.of(policy, service, overhead_ms)
    if isinstance(workload, OpenWorkload):
        arrival_ns, issued = workload.arrival_ns, requests
        sizes = workload.batch_size
    else:
        issued = min(workload.concurrency, requests)
        arrival_ns = np.zeros(requests, dtype=np.int64)
        sizes = np.array([workload.batch_size], dtype=np.int64)
    assert int(sizes.max()) <= policy.batch_limit, (int(sizes.max()), policy.batch_limit)
    if engine == "auto":
        long = requests >= _KERNEL_REQUESTS_MIN
        engine = "kernel" if long and prepared.kernel_knows_it else "scheduler"
    if engine == "kernel":
        batch, executions = prepared.run_kernel(arrival_ns, sizes, issued, noise)
    else:
        batch, executions = _run_scheduler(prepared, arrival_ns, sizes, issued, noise)
    return SimulationResult(
        arrival_ns=arrival_ns,
        request_batch_size=np.broadcast_to(sizes, arrival_ns.shape),
        batch=batch,
        execution_start_ns=executions[0],
        execution_end_ns=executions[1],
        execution_batch_size=executions[2],
        execution_instance=executions[3],
        overhead_ns=prepared.overhead_ns,
        instance_count=policy.instance_count,
    )


Executions = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Prepared:
    """A policy and its service times as the plain arrays that both engines read.

    Args:
        table_ns: Mean time by busy instances and batch size, as ``ServiceTime.table_ns``.
        change_ns: What another batch size than the instance's last one costs, float64 [limit + 1].
        noise_ns: As ``ServiceTime.noise_ms``.
        steady_ns: As ``ServiceTime.steady_ms``, by batch size, float64 [limit + 1].
    """

    policy: BatchingPolicy
    overhead_ns: int
    table_ns: NDArray[np.float64]
    change_ns: NDArray[np.float64]
    noise_ns: float
    steady_ns: NDArray[np.float64]
    preferred: NDArray[np.bool_]

    @classmethod
    def of(cls, policy: BatchingPolicy, service: ServiceTime, overhead_ms: float) -> Prepared:
        """The arrays for ``policy`` and ``service``."""
        preferred = np.zeros(policy.batch_limit + 1, dtype=np.bool_)
        preferred[list(policy.preferred)] = True
        return cls(
            policy=policy,
            overhead_ns=round(overhead_ms * 1e6),
            table_ns=service.table_ns(policy.instance_count, policy.batch_limit),
            change_ns=service.changes_ms(np.arange(policy.batch_limit + 1)) * 1e6,
            noise_ns=service.noise_ms * 1e6,
            steady_ns=service.steadied_ms(np.arange(policy.batch_limit + 1)) * 1e6,
            preferred=preferred,
        )

    @property
    def kernel_knows_it(self) -> bool:
        """Whether the policy is free of priorities and time-outs, which only the scheduler has."""
        policy = self.policy
        return not policy.dynamic_batching or (
            not policy.priority_levels and not policy.default_queue_policy.default_timeout_us
        )

    def run_kernel(
        self,
        arrival_ns: NDArray[np.int64],
        sizes: NDArray[np.int64],
        issued: int,
        noise: NDArray[np.float64],
        workspace: NDArray[np.int64] | None = None,
    ) -> tuple[NDArray[np.int64], Executions]:
        """The compiled run: execution of each request, and the executions' four columns.

        ``arrival_ns`` is filled in from index ``issued`` on. Releases the GIL.

        Args:
            workspace: Memory for the result, int64 [5, at least n]; None takes new memory.
        """
        from analyzer.twin import kernel

        policy = self.policy
        assert self.kernel_knows_it, policy
        n = len(arrival_ns)
        if workspace is None:
            workspace = np.empty((5, n), dtype=np.int64)
        batch_of, *executions = (row[:n] for row in workspace)
        count = kernel.run(
            arrival_ns,
            sizes,
            issued,
            self.overhead_ns,
            policy.dynamic_batching,
            policy.batch_limit,
            self.preferred,
            max(policy.preferred),
            policy.max_queue_delay_us * 1000,
            policy.instance_count,
            2 * policy.instance_count if policy.prefetching else 0,
            policy.default_queue_policy.max_queue_size if policy.dynamic_batching else 0,
            policy.sleeps_through_arrivals,
            self.table_ns,
            self.change_ns,
            noise,
            self.noise_ns,
            self.steady_ns,
            batch_of,
            *executions,
        )
        start, end, size, instance = (column[:count] for column in executions)
        return batch_of, (start, end, size, instance)


def _run_scheduler(
    prepared: Prepared,
    arrival_ns: NDArray[np.int64],
    sizes: NDArray[np.int64],
    issued: int,
    noise: NDArray[np.float64],
) -> tuple[NDArray[np.int64], Executions]:
    """The scheduler itself under a virtual clock; the same results as ``Prepared.run_kernel``.

    Requests that expire in the queue count as those that found it full.
    """
    scheduler = Scheduler(prepared.policy)
    n = len(arrival_ns)
    arrivals = [int(t) for t in arrival_ns[:issued]]
    batch_sizes = [int(b) for b in np.broadcast_to(sizes, (n,))]
    batch_of = np.full(n, -1, dtype=np.int64)
    ends: list[tuple[int, int, int, tuple[int, ...]]] = []  # (end, batch, instance, tickets)
    rows: list[tuple[int, int, int, int]] = []
    last_size = [0] * prepared.policy.instance_count
    arrived = busy = 0
    while True:
        now: int | None = ends[0][0] if ends else None
        event = "end"
        if arrived < len(arrivals) and (now is None or arrivals[arrived] < now):
            now, event = arrivals[arrived], "arrival"
        timer_ns = scheduler.next_timer_ns()
        if timer_ns is not None and (now is None or timer_ns < now):
            now, event = timer_ns, "timer"
        if now is None:
            break
        replies = 0
        if event == "end":
            _, _, instance, tickets = heapq.heappop(ends)
            scheduler.release(now, instance)
            busy -= 1
            replies = len(tickets)
        elif event == "arrival":
            try:
                scheduler.enqueue(now, arrived, batch_size=batch_sizes[arrived])
            except Fault:  # its queue is full
                replies = 1
            arrived += 1
        decisions = scheduler.advance(now)
        for execution in decisions.executions:
            busy += 1
            number = len(rows)
            time_ns = prepared.table_ns[busy, execution.batch_size]
            if execution.batch_size != last_size[execution.instance]:
                time_ns += prepared.change_ns[execution.batch_size]
                last_size[execution.instance] = execution.batch_size
            more = noise[number % len(noise)] - 1.0
            part_ns = min(time_ns - prepared.steady_ns[execution.batch_size], prepared.noise_ns)
            end = now + int(time_ns + more * part_ns + 0.5)
            rows.append((now, end, execution.batch_size, execution.instance))
            batch_of[list(execution.tickets)] = number
            heapq.heappush(ends, (end, number, execution.instance, execution.tickets))
        replies += len(decisions.rejected)
        arrivals += [now + prepared.overhead_ns] * min(replies, n - len(arrivals))
    arrival_ns[:] = arrivals
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    return batch_of, (table[:, 0], table[:, 1], table[:, 2], table[:, 3])
