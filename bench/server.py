"""What the embedded server itself costs per request: a model that takes no time.

    python bench/server.py [--seconds 3] [--repeats 3] [--json]

CPU of the server's process (all its threads, from the kernel's accounting in nanoseconds) per
request, in open loops and at its closed-loop limit, and how long it takes to start. Writes
``bench/results/server.json``. It is a timing: nothing else may run on the machine.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.domain.configuration import Configuration
from analyzer.load.generator import LoadRun, run_closed_loop, run_open_loop
from analyzer.load.summarize import statistics_between
from analyzer.targets.embedded import EmbeddedTarget
from analyzer.targets.embedded_spec import EmbeddedSpec, NullModel
from benchlib.command import Command, cell, median, table

CPU_GOAL_US = 60.0
RATES_RPS = (500, 2_000, 5_000)
CONCURRENCY = 64
CONFIGURATIONS = {
    "no batching, 1 instance": Configuration(max_batch_size=1),
    "dynamic batching, 1 instance": Configuration(max_batch_size=8, dynamic_batching=True),
    "dynamic batching, 2 instances": Configuration(
        max_batch_size=8, dynamic_batching=True, instance_count=2
    ),
    "delay of 1 ms, 1 instance": Configuration(
        max_batch_size=32, dynamic_batching=True, max_queue_delay_us=1_000
    ),
}


def main() -> int:
    command = Command("server", __doc__, timing=True)
    command.argument("--seconds", type=float, default=3.0)
    command.argument("--repeats", type=int, default=3)
    options = command.start()
    runs = [
        run
        for name, configuration in CONFIGURATIONS.items()
        for run in measure(name, configuration, options)
    ]
    goals = {"cpu_us_per_request_max": CPU_GOAL_US}
    return command.finish(options, {"goals": goals, "runs": runs}, shown)


def measure(
    name: str, configuration: Configuration, options: argparse.Namespace
) -> list[dict[str, Any]]:
    """Every load on one server."""
    spec = EmbeddedSpec(name="null", model=NullModel(), configuration=configuration, batchable=True)
    rows = []
    begin = time.perf_counter()
    with EmbeddedTarget(spec) as target:
        start_s = time.perf_counter() - begin
        for rate in (*RATES_RPS, None):
            for seed in range(options.repeats):
                before, cpu_ns = target.statistics(), process_cpu_ns(target.pids[0])
                with target.connect() as connection:
                    run = load(connection, rate, seed, options.seconds)
                used_ns = process_cpu_ns(target.pids[0]) - cpu_ns
                counted = statistics_between(before, target.statistics())
                assert counted is not None
                rows.append(
                    {
                        "configuration": name,
                        "offered_rps": rate,
                        "achieved_rps": len(run.log) / run.wall_s,
                        "cpu_us_per_request": used_ns / 1e3 / len(run.log),
                        "batch_size_mean": counted.inference_count / counted.execution_count,
                        "latency_ms_p50": float(np.median(run.log.latency_s)) * 1e3,
                        "latency_ms_p99": float(np.percentile(run.log.latency_s, 99)) * 1e3,
                        "start_s": start_s,
                        "seed": seed,
                    }
                )
    return rows


def load(connection: Any, rate_rps: int | None, seed: int, seconds: float) -> LoadRun:
    if rate_rps is None:
        return run_closed_loop(connection, CONCURRENCY, duration_s=seconds)
    gaps = np.random.default_rng(seed).exponential(1 / rate_rps, int(rate_rps * seconds))
    return run_open_loop(connection, np.cumsum(gaps), timeout_s=10, drain_s=10)


def process_cpu_ns(pid: int) -> int:
    """CPU time of all threads of a process that ends none, nanoseconds."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks)


def shown(document: dict[str, Any]) -> str:
    """The medians as a Markdown table."""
    groups: dict[tuple[str, int | None], list[dict[str, Any]]] = {}
    for run in document["runs"]:
        groups.setdefault((run["configuration"], run["offered_rps"]), []).append(run)
    columns = {
        "cpu_us_per_request": ".1f",
        "batch_size_mean": ".2f",
        "latency_ms_p50": ".3f",
        "latency_ms_p99": ".3f",
    }
    rows = []
    for (name, rate), runs in groups.items():
        reached = cell(median(run["achieved_rps"] for run in runs), ",.0f")
        offered = f"{rate:,}/s" if rate else f"{CONCURRENCY} at once: {reached}/s"
        cells = (cell(median(run[key] for run in runs), spec) for key, spec in columns.items())
        rows.append([name, offered, *cells])
    titles = ("configuration", "load", "CPU µs per request", "batch", "p50 ms", "p99 ms")
    return f"{document['machine']['hardware']}; goal: {CPU_GOAL_US:.0f} µs\n{table(titles, rows)}"


if __name__ == "__main__":
    raise SystemExit(main())
