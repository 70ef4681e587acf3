"""What the load generator costs, and how late it sends.

    python bench/generator.py [--seconds 5] [--repeats 5] [--json]

Against the null target in its own process (closed loop: requests per second; open loop at 2,000/s:
send lag), and at 2,000/s against an embedded server whose model keeps every core busy, with the
generator first in line and as an ordinary thread, alternating. Writes
``bench/results/generator.json``. It is a timing: nothing else may run on the machine.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from analyzer.domain.configuration import Configuration
from analyzer.engine.tensor_file import write_tensors
from analyzer.hardware.machine import inspect_machine
from analyzer.hardware.sampler import ResourceSampler
from analyzer.load import generator
from analyzer.load.generator import LoadRun, run_closed_loop, run_open_loop
from analyzer.targets.embedded import EmbeddedTarget
from analyzer.targets.embedded_spec import EmbeddedSpec, FileModel
from analyzer.targets.null import NullTarget
from benchlib.command import Command, alternate
from benchlib.models import write_perceptron

RATE_RPS = 2_000
CLOSED_GOAL_RPS = 15_000
LAG_GOAL_MS = 1.0
WIDTH, DEPTH = 1024, 48


def main() -> int:
    command = Command("generator", __doc__, timing=True)
    command.argument("--seconds", type=float, default=5.0)
    command.argument("--repeats", type=int, default=5)
    options = command.start()
    document = {
        "goals": {"closed_rps_min": CLOSED_GOAL_RPS, "lag_ms_p99_max": LAG_GOAL_MS},
        "null_closed": [null_closed(concurrency, options) for concurrency in (1, 8, 64)],
        "null_open": [null_open(seed, options) for seed in range(options.repeats)],
        "busy_open": busy_open(options),
    }
    return command.finish(options, document, summary)


def null_closed(concurrency: int, options: argparse.Namespace) -> dict[str, Any]:
    """Requests per second of a closed loop without a server: each run, and the median."""
    rates = []
    for _ in range(options.repeats):
        with NullTarget().connect() as connection:
            run = run_closed_loop(connection, concurrency, requests=100_000)
        rates.append(len(run.log) / run.wall_s)
    return {"concurrency": concurrency, "rps": rates, "rps_median": float(np.median(rates))}


def null_open(seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """The lag of an open loop without a server."""
    with NullTarget().connect() as connection:
        return lag(open_loop(connection, seed, options.seconds))


def busy_open(options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """The lag while a model is busy on every core, both ways in turn."""
    ordinary = mock.patch.object(generator, "first_in_line", lambda: nullcontext("normal"))

    def run(seed: int, thread: AbstractContextManager[Any]) -> dict[str, Any]:
        with target.connect() as connection, ResourceSampler(target.pids) as sampler, thread:
            found = open_loop(connection, seed, options.seconds)
        return {"server_cpu": sampler.result().cpu_utilization, **lag(found)}

    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedTarget(busy_spec(Path(folder), inspect_machine().cores)) as target,
    ):
        sides = {
            "first_in_line": lambda seed: run(seed, nullcontext()),
            "ordinary": lambda seed: run(seed, ordinary),
        }
        return alternate(sides, options.repeats)


def open_loop(connection: Any, seed: int, seconds: float) -> LoadRun:
    count = int(RATE_RPS * seconds)
    arrivals_s = np.cumsum(np.random.default_rng(seed).exponential(1 / RATE_RPS, count))
    return run_open_loop(connection, arrivals_s, timeout_s=10, drain_s=0.5)


def lag(run: LoadRun) -> dict[str, Any]:
    names = ("p50", "p99", "p999", "max")
    values = np.percentile(run.log.send_lag_s * 1e3, (50, 99, 99.9, 100))
    return {
        "priority": run.generator_priority,
        "lag_ms": {name: float(value) for name, value in zip(names, values, strict=True)},
        "latency_ms_p50": float(np.median(run.log.latency_s)) * 1e3,
    }


def busy_spec(folder: Path, cores: int) -> EmbeddedSpec:
    """A stack of matrix products (0.1 GFLOP an inference) that no two cores finish in time."""
    write_perceptron(folder / "busy.onnx", [WIDTH] * (DEPTH + 1), relu=False)
    rows = np.random.default_rng(0).normal(size=(64, WIDTH)).astype(np.float32)
    write_tensors(folder / "rows.npz", {"x": rows})
    return EmbeddedSpec(
        name="busy",
        model=FileModel(path=str(folder / "busy.onnx")),
        configuration=Configuration(
            max_batch_size=64, dynamic_batching=True, instance_count=cores, intra_op_threads=1
        ),
        batchable=True,
        inputs_path=str(folder / "rows.npz"),
    )


def summary(document: dict[str, Any]) -> str:
    """The results in a few lines."""
    lines = [f"machine: {document['machine']['hardware']}"]
    lines += [
        f"null target, closed loop of {row['concurrency']}: {row['rps_median']:,.0f}/s"
        f" (goal {CLOSED_GOAL_RPS:,})"
        for row in document["null_closed"]
    ]
    rows = {"null target": document["null_open"]}
    for thread, runs in document["busy_open"].items():
        rows[f"every core busy, {thread} ({runs[0]['priority']})"] = runs
    for name, runs in rows.items():
        p99 = [run["lag_ms"]["p99"] for run in runs]
        lines.append(
            f"{name}, {RATE_RPS:,}/s: lag p99 median {np.median(p99):.3f} ms,"
            f" worst {max(p99):.3f} ms (goal {LAG_GOAL_MS})"
        )
    busy = [run["server_cpu"] for runs in document["busy_open"].values() for run in runs]
    lines.append(f"cores the busy model used: {np.mean(busy):.0%}")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
