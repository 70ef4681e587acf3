"""Our closed loop and perf_analyzer at the same concurrency on a real Triton.

    python bench/generators.py [--seconds 4] [--rounds 2]

Over gRPC and HTTP, on python-backend models that sleep 5 to 10 ms, with and without batching. The
two alternate. Goal: throughput within 3 % on valid runs. Writes ``bench/results/generators.json``
and the table in ``docs/generators.md``. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.domain.configuration import Configuration
from analyzer.load.generator import run_closed_loop
from analyzer.load.perf_analyzer import (
    PerfAnalyzerInstall,
    require_perf_analyzer,
    run_perf_analyzer,
)
from analyzer.load.summarize import summarize
from analyzer.targets.endpoint_target import EndpointTarget
from analyzer.targets.triton_install import require_triton
from analyzer.targets.triton_server import TritonServer
from benchlib.command import ROOT, Command, alternate, cell, put_into_page, table
from benchlib.scripted_triton import Script, inputs, triton_target

GOAL = 0.03
TRIES = 3
#: Model, its script, its configuration, and the concurrencies.
MODELS = (
    (
        "5 ms, off, 2 instances",
        Script(fixed_ms=5.0, item_ms=0.0),
        Configuration(backend="python", max_batch_size=1, instance_count=2),
        (1, 4),
    ),
    (
        "6 ms + 0.5 ms per item, max 8",
        Script(fixed_ms=6.0, item_ms=0.5),
        Configuration(backend="python", max_batch_size=8, dynamic_batching=True),
        (4, 32),
    ),
)


def ours(target: EndpointTarget, concurrency: int, seconds: float) -> dict[str, Any] | None:
    """Throughput of our closed loop, the first half second left out; None if never valid."""
    for attempt in range(TRIES):
        with target.connect() as connection:
            run_closed_loop(connection, concurrency, duration_s=0.5)
            test = summarize(
                run_closed_loop(connection, concurrency, duration_s=seconds),
                kind="measure",
                warmup=0,
            )
        if test.validity.valid and not test.errors:
            return {
                "throughput_ips": test.throughput_ips,
                "latency_ms_p50": test.latency_ms.p50,
                "latency_ms_p99": test.latency_ms.p99,
                "invalid_before": attempt,
            }
    return None


def theirs(
    install: PerfAnalyzerInstall, target: EndpointTarget, concurrency: int, seconds: float
) -> dict[str, Any] | None:
    """Throughput that perf_analyzer reports; None if its windows never agreed."""
    for attempt in range(TRIES):
        result = run_perf_analyzer(
            install,
            target.endpoint.address,
            target.model,
            inputs(),
            batchable=True,
            concurrency=concurrency,
            duration_s=seconds,
        )
        if result.stable:
            return {
                "throughput_ips": result.throughput_ips,
                "latency_ms_p50": result.latency_ms_p50,
                "latency_ms_p99": result.latency_ms_p99,
                "invalid_before": attempt,
            }
    return None


def level(
    install: PerfAnalyzerInstall,
    target: EndpointTarget,
    concurrency: int,
    options: argparse.Namespace,
) -> dict[str, Any]:
    """One concurrency with both, in turn."""
    sides = {
        "ours": lambda number: ours(target, concurrency, options.seconds),
        "perf_analyzer": lambda number: theirs(install, target, concurrency, options.seconds),
    }
    runs = alternate(sides, options.rounds)
    medians = {
        name: float(np.median([run["throughput_ips"] for run in found if run is not None]))
        for name, found in runs.items()
        if any(run is not None for run in found)
    }
    difference = medians["ours"] / medians["perf_analyzer"] - 1 if len(medians) == 2 else None
    return {"throughput_ips": medians, "difference": difference, "runs": runs}


def page_table(document: dict[str, Any]) -> str:
    """Every run as a Markdown table."""

    def runs(found: list[dict[str, Any] | None], key: str) -> str:
        return ", ".join("invalid" if run is None else f"{run[key]:.1f}" for run in found)

    titles = ("model", "protocol", "concurrency", "ours, items/s", "perf_analyzer, items/s",
              "difference", "p99 ms, ours", "p99 ms, perf_analyzer")  # fmt: skip
    rows = []
    for row in document["levels"]:
        mine, other = row["runs"]["ours"], row["runs"]["perf_analyzer"]
        rows.append(
            (row["model"], row["protocol"], str(row["concurrency"]),
             runs(mine, "throughput_ips"), runs(other, "throughput_ips"),
             cell(row["difference"], "+.1%"),
             runs(mine, "latency_ms_p99"), runs(other, "latency_ms_p99"))
        )  # fmt: skip
    return table(titles, rows)


def main() -> int:
    command = Command("generators", __doc__, timing=True)
    command.argument("--seconds", type=float, default=4.0)
    command.argument("--rounds", type=int, default=2)
    page = ROOT / "docs" / "generators.md"
    command.argument("--page", type=Path, default=page, help="for the table")
    options = command.start()
    install, perf = require_triton(), require_perf_analyzer()
    levels: list[dict[str, Any]] = []
    with TritonServer(install) as server:
        for (label, script, configuration, concurrencies), protocol in product(
            MODELS, ("grpc", "http")
        ):
            name = f"model{len(levels)}"
            with triton_target(server, name, configuration, script, protocol=protocol) as target:
                levels += [
                    {
                        "model": label,
                        "script": asdict(script),
                        "configuration": configuration.to_dict(),
                        "protocol": protocol,
                        "concurrency": concurrency,
                        **level(perf, target, concurrency, options),
                    }
                    for concurrency in concurrencies
                ]
    document = {
        "triton": install.version,
        "seconds": options.seconds,
        "goal": GOAL,
        "levels": levels,
    }
    put_into_page(options.page, "generators", page_table(document))
    return command.finish(options, document, page_table)


if __name__ == "__main__":
    raise SystemExit(main())
