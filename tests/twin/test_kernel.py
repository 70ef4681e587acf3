"""The compiled kernel against the scheduler under a virtual clock: equal, event by event."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.engine.policy import BatchingPolicy, QueuePolicy
from analyzer.twin.service import ServiceTime
from analyzer.twin.simulator import ClosedWorkload, OpenWorkload, Workload, simulate


@st.composite
def cases(draw: st.DrawFn) -> tuple[BatchingPolicy, ServiceTime, Workload, float, int]:
    limit = draw(st.integers(1, 12))
    dynamic = draw(st.integers(0, 5)) > 0
    settings: dict[str, Any] = {}
    if dynamic:
        settings = {
            "preferred_batch_size": tuple(sorted(draw(st.sets(st.integers(1, limit), max_size=3)))),
            "max_queue_delay_us": draw(st.sampled_from([0, 0, 1, 100, 1000, 5000])),
            "default_queue_policy": QueuePolicy(
                max_queue_size=draw(st.sampled_from([0, 0, 0, 1, 3, 10]))
            ),
            "sleeps_through_arrivals": draw(st.booleans()),
        }
    policy = BatchingPolicy(
        max_batch_size=limit,
        dynamic_batching=dynamic,
        instance_count=draw(st.integers(1, 4)),
        **settings,
    )
    service = ServiceTime(
        batch_sizes=(1, limit + 1),
        service_ms=(
            draw(st.sampled_from([0.0, 1.0, 2.5])),
            draw(st.sampled_from([1.0, 4.0, 1200.0])),
        ),
        distribution=draw(st.sampled_from(["deterministic", "exponential"])),
        noise_ms=draw(st.sampled_from([np.inf, 2.0])),
        steady_ms=draw(st.sampled_from([(), (0.0, 3.0), (1.0, 1.0)])),
        interference=(1.0, 1.3),
        change_ms=draw(st.sampled_from([(), (0.0, 0.0), (3.0, 7.0)])),
    )
    requests = draw(st.integers(1, 150))
    if draw(st.booleans()):
        # Ties on purpose: gaps that are multiples of what executions take.
        gap_ns = draw(st.sampled_from([100_000, 500_000, 1_000_000, 1_234_567]))
        seed = draw(st.integers(0, 10_000))
        rng = np.random.default_rng(seed)
        sizes = rng.integers(1, limit + 1, requests) if draw(st.booleans()) else np.array([1])
        workload: Workload = OpenWorkload(
            arrival_ns=np.cumsum(rng.integers(0, 4, requests) * gap_ns),
            batch_size=sizes.astype(np.int64),
        )
    else:
        workload = ClosedWorkload(
            concurrency=draw(st.integers(1, 40)),
            requests=requests,
            batch_size=draw(st.integers(1, limit)),
        )
    return policy, service, workload, draw(st.sampled_from([0.0, 0.5, 1.0])), requests


@settings(max_examples=400, deadline=None)
@given(cases())
def test_kernel_equals_scheduler(
    case: tuple[BatchingPolicy, ServiceTime, Workload, float, int],
) -> None:
    policy, service, workload, overhead_ms, seed = case
    kernel, scheduler = (
        simulate(policy, service, workload, overhead_ms=overhead_ms, seed=seed, engine=engine)
        for engine in ("kernel", "scheduler")
    )
    for name in (
        "arrival_ns",
        "batch",
        "execution_start_ns",
        "execution_end_ns",
        "execution_batch_size",
        "execution_instance",
    ):
        assert np.array_equal(getattr(kernel, name), getattr(scheduler, name)), name


def test_compiles_where_nothing_can_be_cached(monkeypatch: Any) -> None:
    import numba

    from analyzer.twin import kernel

    real = numba.njit

    def njit(*args: Any, cache: bool = False, **options: Any) -> Any:
        if cache:
            raise RuntimeError("cannot cache function: no locator available for file")
        return real(*args, **options)

    monkeypatch.setattr(numba, "njit", njit)
    count = kernel._compile(lambda x: x + 1)
    assert count(1) == 2
