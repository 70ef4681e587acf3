"""How fast the twin is, and how right its edges are.

    python bench/twin.py [--requests 2000000] [--long 8000000] [--check 40] [--json]

Simulated requests per second and core, compiled and through the scheduler itself; the edges of a
space of 720 configurations on all cores, and for a random part of them whether the long-run
fraction over budget is on the right sides of the allowed one 2 % below and above the edge.
Compilation is timed apart. Writes ``bench/results/twin.json``. It is a timing: nothing else may run
on the machine.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from analyzer.domain.workload import Poisson
from analyzer.engine.policy import BatchingPolicy
from analyzer.hardware.machine import usable_cores
from analyzer.twin.arrivals import UnitArrivals
from analyzer.twin.server_model import ServerModel, edges
from analyzer.twin.service import ServiceTime
from analyzer.twin.simulator import OpenWorkload, simulate
from benchlib.command import Command

BUDGETS_MS = (25.0, 50.0, 200.0)
OVERHEAD_MS = 0.3


def space() -> list[ServerModel]:
    """720 configurations: six variants, six batch sizes, four instance counts, five delays.

    The variants are a model of a few milliseconds on a CPU at several precisions and threads: a
    fixed part and a part per item, instances that disturb each other, noise of 8 %.
    """
    variants = ((4.0, 2.0), (2.2, 1.1), (1.5, 0.7), (5.0, 0.8), (3.0, 0.4), (1.0, 1.5))
    return [
        ServerModel(
            policy=BatchingPolicy(
                max_batch_size=limit,
                dynamic_batching=limit > 1,
                max_queue_delay_us=delay_us if limit > 1 else 0,
                instance_count=instances,
            ),
            service=ServiceTime(
                batch_sizes=(1, 2, 8, 32),
                service_ms=tuple(fixed + per_item * b for b in (1, 2, 8, 32)),
                distribution="lognormal",
                cv=0.08,
                interference=(1.0, 1.3, 1.9, 2.6),
            ),
            overhead_ms=OVERHEAD_MS,
        )
        for fixed, per_item in variants
        for limit in (1, 2, 4, 8, 16, 32)
        for instances in (1, 2, 3, 4)
        for delay_us in (0, 200, 1_000, 3_000, 10_000)
    ]


def speed(requests: int) -> dict[str, dict[str, float]]:
    """Simulated requests per second on one core, median of five, by case and engine."""
    service = ServiceTime(batch_sizes=(1, 11), service_ms=(4.4, 8.4))
    gaps = np.random.default_rng(0).exponential(1e9, requests)
    cases = {
        "no batching, load 0.9": (205.0, BatchingPolicy(max_batch_size=1)),
        "batches of 2.6": (500.0, BatchingPolicy(max_batch_size=32, dynamic_batching=True)),
        "delay 2 ms, two instances": (
            500.0,
            BatchingPolicy(
                max_batch_size=32, dynamic_batching=True, max_queue_delay_us=2000, instance_count=2
            ),
        ),
        "preferred 16, delay 50 ms": (
            1200.0,
            BatchingPolicy(
                max_batch_size=32,
                dynamic_batching=True,
                preferred_batch_size=(16,),
                max_queue_delay_us=50_000,
            ),
        ),
    }
    result: dict[str, dict[str, float]] = {}
    for name, (rate_rps, policy) in cases.items():
        arrival_ns = np.cumsum(gaps / rate_rps).astype(np.int64)
        result[name] = {}
        for engine, count in (("kernel", requests), ("scheduler", min(requests, 20_000))):
            workload = OpenWorkload(arrival_ns=arrival_ns[:count], batch_size=np.array([1]))
            seconds = []
            for _ in range(5):
                started = time.perf_counter()
                simulate(policy, service, workload, engine=engine)  # type: ignore[arg-type]
                seconds.append(time.perf_counter() - started)
            result[name][f"{engine}_requests_per_s"] = count / float(np.median(seconds))
    return result


def screening(budget_ms: float, check: int, long_requests: int) -> dict[str, Any]:
    """Seconds for the whole space, and how many of ``check`` edges a long run confirms."""
    candidates = space()
    started = time.perf_counter()
    arrivals = UnitArrivals.draw(Poisson(), seed=1)
    found = edges(candidates, arrivals, budget_ms=budget_ms, cores=usable_cores())
    seconds = time.perf_counter() - started
    judge = UnitArrivals.draw(Poisson(), seed=2, count=long_requests)
    feasible = [index for index, rate in enumerate(found) if rate is not None]
    chosen = np.random.default_rng(3).permutation(feasible)[:check].tolist()
    confirmed = 0
    for index in chosen:
        candidate, rate = candidates[index], found[index]
        assert rate is not None
        below, above = (
            candidate.miss_rate(judge, rate * factor, budget_ms=budget_ms, requests=long_requests)
            for factor in (0.98, 1.02)
        )
        confirmed += below <= 0.01 <= above
    return {
        "budget_ms": budget_ms,
        "configurations": len(candidates),
        "feasible": len(feasible),
        "seconds": seconds,
        "checked": len(chosen),
        "within_2_percent": confirmed,
    }


def main() -> int:
    command = Command("twin", __doc__, timing=True)
    command.argument("--requests", type=int, default=2_000_000)
    command.argument("--long", type=int, default=8_000_000, help="requests of a checking run")
    command.argument("--check", type=int, default=40, help="edges that are checked, by budget")
    options = command.start()
    started = time.perf_counter()
    ServerModel(
        policy=BatchingPolicy(max_batch_size=2, dynamic_batching=True),
        service=ServiceTime.constant(1.0),
    ).edge(UnitArrivals.draw(Poisson(), count=2000), budget_ms=10.0)
    document = {
        "first_use_s": time.perf_counter() - started,
        "speed": speed(options.requests),
        "screening": [screening(budget, options.check, options.long) for budget in BUDGETS_MS],
    }
    return command.finish(options, document, shown)


def shown(document: dict[str, Any]) -> str:
    """The figures in a few lines."""
    lines = [f"first use (compilation or cache): {document['first_use_s']:.1f} s"]
    for name, row in document["speed"].items():
        kernel, scheduler = row["kernel_requests_per_s"], row["scheduler_requests_per_s"]
        lines.append(
            f"{name:<28} {kernel / 1e6:6.1f} M requests/s, scheduler {scheduler / 1e3:5.0f} k/s"
        )
    lines += [
        f"{row['configurations']} configurations at {row['budget_ms']:g} ms: "
        f"{row['seconds']:.1f} s, {row['within_2_percent']} of {row['checked']} checked edges "
        f"within 2 % ({row['feasible']} feasible)"
        for row in document["screening"]
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
