"""What Ray's idle daemons cost the tail: an open loop with and without them, alternating.

    python bench/ray_cost.py [--seconds 10] [--repeats 5] [--json]

Poisson arrivals at 500/s against the null target, first alone, then beside a local Ray with one
idle worker, as during a search; the same arrivals in each pair. Also the CPU of Ray's processes.
Writes ``bench/results/ray_cost.json``. It is a timing: nothing else may run on the machine.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from analyzer.cluster.processes import descendants
from analyzer.cluster.ray_executor import RayExecutor
from analyzer.load.generator import run_open_loop
from analyzer.measure.jobs import Job
from analyzer.targets.null import NullTarget
from benchlib.command import Command, median

RATE_RPS = 500
SETTLE_S = 3.0


def main() -> int:
    command = Command("ray_cost", __doc__, timing=True)
    command.argument("--seconds", type=float, default=10.0)
    command.argument("--repeats", type=int, default=5)
    options = command.start()
    pairs = [pair(seed, options.seconds) for seed in range(options.repeats)]
    document = {
        "rate_rps": RATE_RPS,
        "seconds": options.seconds,
        "pairs": pairs,
        "latency_p99_ratio_median": median(
            one["with_ray"]["p99"] / one["alone"]["p99"] for one in pairs
        ),
        "ray_cpu_cores_median": median(one["ray_cpu_cores"] for one in pairs),
    }
    return command.finish(options, document, summary)


def pair(seed: int, seconds: float) -> dict[str, Any]:
    """One run alone and one beside Ray, with its start and end, in seconds."""
    alone = run(seed, seconds)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        with RayExecutor(device="cpu", cache_dir=Path(folder)) as executor:
            executor.submit(Job("ready", lambda context: context.worker_id, 60.0))
            assert executor.next_result(60.0) is not None
            start_s = time.perf_counter() - start
            time.sleep(SETTLE_S)
            daemons = descendants(os.getpid())
            before, since = cpu_s(daemons), time.perf_counter()
            beside = run(seed, seconds)
            cores = (cpu_s(daemons) - before) / (time.perf_counter() - since)
            end = time.perf_counter()
        end_s = time.perf_counter() - end
    return {
        "alone": alone,
        "with_ray": beside,
        "ray_cpu_cores": cores,
        "ray_start_seconds": start_s,
        "ray_end_seconds": end_s,
    }


def run(seed: int, seconds: float) -> dict[str, float]:
    """Percentiles of the latency from the intended send time, in milliseconds."""
    gaps_s = np.random.default_rng(seed).exponential(1 / RATE_RPS, int(RATE_RPS * seconds))
    with NullTarget().connect() as connection:
        log = run_open_loop(connection, np.cumsum(gaps_s), timeout_s=10, drain_s=0.5).log
    values = np.percentile(log.latency_s * 1e3, (50, 99, 99.9))
    return dict(zip(("p50", "p99", "p999"), map(float, values), strict=True))


def cpu_s(processes: set[psutil.Process]) -> float:
    """CPU seconds that the processes have used so far."""
    return sum(sum(process.cpu_times()[:2]) for process in processes if process.is_running())


def summary(document: dict[str, Any]) -> str:
    """The figures for people."""
    ratio, cores = document["latency_p99_ratio_median"], document["ray_cpu_cores_median"]
    return (
        f"p99 beside Ray / alone: {ratio:.2f} (median of {len(document['pairs'])} pairs); "
        f"Ray's processes take {cores:.3f} of a core"
    )


if __name__ == "__main__":
    raise SystemExit(main())
