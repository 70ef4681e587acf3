"""The simulator's events, order and figures on cases that can be worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pytest

from analyzer.engine.policy import BatchingPolicy, QueuePolicy
from analyzer.twin.service import ServiceTime
from analyzer.twin.simulator import (
    ClosedWorkload,
    OpenWorkload,
    SimulationResult,
    simulate,
)

ENGINES: list[Literal["kernel", "scheduler"]] = ["kernel", "scheduler"]


def open_ms(*arrival_ms: float, sizes: Sequence[int] = (1,)) -> OpenWorkload:
    return OpenWorkload(
        arrival_ns=np.rint(np.array(arrival_ms) * 1e6).astype(np.int64),
        batch_size=np.array(sizes, dtype=np.int64),
    )


def dynamic(**settings: Any) -> BatchingPolicy:
    return BatchingPolicy(**{"max_batch_size": 8, "dynamic_batching": True, **settings})


def starts(result: SimulationResult) -> list[tuple[float, float, int, int]]:
    """(start, end, batch size, instance) of each execution."""
    return list(
        zip(
            (result.execution_start_ns / 1e6).tolist(),
            (result.execution_end_ns / 1e6).tolist(),
            result.execution_batch_size.tolist(),
            result.execution_instance.tolist(),
            strict=True,
        )
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_completion_comes_before_an_arrival_at_the_same_instant(engine: Any) -> None:
    """The freed instance takes what waits; who arrives then is too late for that batch."""
    result = simulate(dynamic(), ServiceTime.constant(10), open_ms(0, 5, 10, 10), engine=engine)
    assert starts(result) == [(0, 10, 1, 0), (10, 20, 1, 0), (20, 30, 2, 0)]
    assert result.batch.tolist() == [0, 1, 2, 2]


@pytest.mark.parametrize("engine", ENGINES)
def test_arrival_comes_before_a_timer_at_the_same_instant(engine: Any) -> None:
    policy = dynamic(max_queue_delay_us=1000)
    result = simulate(policy, ServiceTime.constant(10), open_ms(0, 1), engine=engine)
    assert starts(result) == [(1, 11, 2, 0)]


@pytest.mark.parametrize("engine", ENGINES)
def test_successors_come_after_the_decision_that_freed_their_instance(engine: Any) -> None:
    workload = ClosedWorkload(concurrency=3, requests=7)
    result = simulate(dynamic(), ServiceTime.constant(10), workload, engine=engine)
    # 0 runs alone, 1 and 2 wait; at 10 they run together, and only then comes 3, and so on.
    assert starts(result) == [
        (0, 10, 1, 0), (10, 20, 2, 0), (20, 30, 1, 0), (30, 40, 2, 0), (40, 50, 1, 0)
    ]  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
def test_completions_at_one_instant_go_by_their_start(engine: Any) -> None:
    policy = BatchingPolicy(max_batch_size=8, instance_count=2)
    service = ServiceTime(batch_sizes=(1, 2), service_ms=(10, 5))
    sizes = [1, 2, 1, 2]
    result = simulate(policy, service, open_ms(0, 5, 6, 6, sizes=sizes), engine=engine)
    assert starts(result) == [(0, 10, 1, 0), (5, 10, 2, 1), (10, 20, 1, 0), (10, 15, 2, 1)]


@pytest.mark.parametrize("engine", ENGINES)
def test_executions_without_duration(engine: Any) -> None:
    result = simulate(dynamic(), ServiceTime.constant(0), open_ms(1, 1, 1), engine=engine)
    assert starts(result) == [(1, 1, 1, 0)] * 3
    assert result.summary()["throughput_ips"] is None


@pytest.mark.parametrize("engine", ENGINES)
def test_overhead_is_latency_but_no_busy_time(engine: Any) -> None:
    workload = ClosedWorkload(concurrency=1, requests=4)
    result = simulate(dynamic(), ServiceTime.constant(10), workload, overhead_ms=2, engine=engine)
    assert (result.arrival_ns / 1e6).tolist() == [0, 12, 24, 36]
    summary = result.summary()
    assert summary["latency_ms"]["mean"] == 12
    assert summary["makespan_ms"] == 46
    assert summary["utilization"] == pytest.approx(40 / 46)


@pytest.mark.parametrize("engine", ENGINES)
def test_full_queue_counts_as_infinitely_late(engine: Any) -> None:
    policy = dynamic(max_batch_size=1, default_queue_policy=QueuePolicy(max_queue_size=1))
    result = simulate(policy, ServiceTime.constant(10), open_ms(0, 1, 2, 3), engine=engine)
    assert result.batch.tolist() == [0, 1, -1, -1]
    summary = result.summary()
    assert summary["rejected"] == 2
    assert summary["latency_ms"]["p50"] == 19
    assert summary["latency_ms"]["p90"] is None
    assert summary["throughput_ips"] == pytest.approx(2 / 0.020)


@pytest.mark.parametrize("engine", ENGINES)
def test_interference_counts_those_busy_at_the_start(engine: Any) -> None:
    policy = BatchingPolicy(max_batch_size=1, instance_count=3)
    service = ServiceTime(batch_sizes=(1,), service_ms=(10,), interference=(1.0, 1.5, 2.0))
    result = simulate(policy, service, open_ms(0, 1, 12), engine=engine)
    assert starts(result) == [(0, 10, 1, 0), (1, 16, 1, 1), (12, 27, 1, 0)]


def test_summary() -> None:
    result = simulate(
        BatchingPolicy(max_batch_size=4), ServiceTime.constant(10), open_ms(5, 5, 40, sizes=(2,))
    )
    assert result.summary() == {
        "throughput_ips": pytest.approx(6 / 0.045),
        "latency_ms": {"mean": pytest.approx(40 / 3), "p50": 10, "p90": 20, "p95": 20, "p99": 20},
        "queue_ms_mean": pytest.approx(10 / 3),
        "batches": 3,
        "batch_size_mean": 2,
        "makespan_ms": 45,
        "utilization": pytest.approx(30 / 45),
        "requests": 3,
        "rejected": 0,
    }


def test_percentile_is_the_nearest_rank() -> None:
    policy = BatchingPolicy(max_batch_size=1)
    result = simulate(policy, ServiceTime.constant(1), open_ms(*[0] * 200))
    told = result.summary()["latency_ms"]
    assert (told["p50"], told["p90"], told["p95"], told["p99"]) == (100, 180, 190, 198)


def test_same_seed_same_noise() -> None:
    service = ServiceTime(batch_sizes=(1,), service_ms=(1,), distribution="exponential")
    workload = ClosedWorkload(concurrency=2, requests=100)
    first, again, other = (
        simulate(dynamic(), service, workload, seed=seed).execution_end_ns for seed in (1, 1, 2)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_policies_that_the_kernel_lacks_run_on_the_scheduler() -> None:
    policy = dynamic(max_batch_size=1, default_queue_policy=QueuePolicy(default_timeout_us=5_000))
    result = simulate(policy, ServiceTime.constant(10), open_ms(*[0] * 12_000))
    assert result.summary()["rejected"] == 11_999
