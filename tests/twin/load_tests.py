"""Load tests of one configuration, for tests of what they say of the machine's speed."""

from __future__ import annotations

from collections.abc import Sequence

from analyzer.domain.load_test import (
    Conditions,
    ExecutionTimes,
    LatencySummary,
    LoadTest,
    Validity,
)


def load_test(
    trace: Sequence[float],
    *,
    kind: str = "edge",
    mean_ms: float = 2.0,
    work_us: tuple[float, ...] = (),
) -> LoadTest:
    return LoadTest(
        kind=kind,
        offered_rps=100.0,
        achieved_rps=100.0,
        throughput_ips=100.0,
        requests=1000,
        over_budget=0,
        errors=0,
        duration_s=10.0,
        latency_ms=LatencySummary(),
        executions=(ExecutionTimes(batch_size=1, count=1000, mean_ms=mean_ms),),
        slowness=tuple(trace),
        validity=Validity(valid=True),
        conditions=Conditions(seconds=10.0, work_us=work_us) if work_us else None,
    )
