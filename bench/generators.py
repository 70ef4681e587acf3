"""Our closed loop and perf_analyzer at the same concurrency on a real Triton.

    python bench/generators.py [--seconds 4] [--rounds 2]

Over gRPC and HTTP, on python-backend models that sleep 5 to 10 ms, with and without batching. The
two alternate. Goal: throughput within 3 % on valid runs. Writes ``bench/results/generators.json``
and the table in ``docs/generators.md``. Run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.domain.configuration import Configuration
from analyzer.hardware.machine import inspect_machine
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
from benchlib.scripted_triton import Script, inputs, triton_target

RESULTS = Path(__file__).parent / "results" / "generators.json"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "generators.md"
MARKS = ("<!-- table: bench/generators.py -->", "<!-- end -->")
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
                kind="comparison",
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
    runs: dict[str, list[dict[str, Any] | None]] = {"ours": [], "perf_analyzer": []}
    for _ in range(options.rounds):
        runs["ours"].append(ours(target, concurrency, options.seconds))
        runs["perf_analyzer"].append(theirs(install, target, concurrency, options.seconds))
    medians = {
        name: float(np.median([run["throughput_ips"] for run in found if run is not None]))
        for name, found in runs.items()
        if any(run is not None for run in found)
    }
    difference = medians["ours"] / medians["perf_analyzer"] - 1 if len(medians) == 2 else None
    return {"throughput_ips": medians, "difference": difference, "runs": runs}


def write_page(document: dict[str, Any]) -> None:
    """Puts the table into the page, between its marks."""

    def cell(runs: list[dict[str, Any] | None], key: str) -> str:
        return ", ".join("invalid" if run is None else f"{run[key]:.1f}" for run in runs)

    titles = ("model", "protocol", "concurrency", "ours, items/s", "perf_analyzer, items/s",
              "difference", "p99 ms, ours", "p99 ms, perf_analyzer")  # fmt: skip
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for row in document["levels"]:
        mine, other = row["runs"]["ours"], row["runs"]["perf_analyzer"]
        difference = "–" if row["difference"] is None else f"{row['difference']:+.1%}"
        lines.append(
            f"| {row['model']} | {row['protocol']} | {row['concurrency']} |"
            f" {cell(mine, 'throughput_ips')} | {cell(other, 'throughput_ips')} | {difference} |"
            f" {cell(mine, 'latency_ms_p99')} | {cell(other, 'latency_ms_p99')} |"
        )
    head, _, rest = PAGE.read_text(encoding="utf-8").partition(MARKS[0])
    _, _, tail = rest.partition(MARKS[1])
    body = "\n".join(lines)
    PAGE.write_text(f"{head}{MARKS[0]}\n{body}\n{MARKS[1]}{tail}", encoding="utf-8")
    print(body)


def main() -> int:
    """Measures, writes the results and the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    install, perf = require_triton(), require_perf_analyzer()
    levels: list[dict[str, Any]] = []
    with TritonServer(install) as server:
        for label, script, configuration, concurrencies in MODELS:
            for protocol in ("grpc", "http"):
                name = f"model{len(levels)}"
                with triton_target(
                    server, name, configuration, script, protocol=protocol
                ) as target:
                    for concurrency in concurrencies:
                        found = level(perf, target, concurrency, options)
                        levels.append(
                            {
                                "model": label,
                                "script": asdict(script),
                                "configuration": configuration.to_dict(),
                                "protocol": protocol,
                                "concurrency": concurrency,
                                **found,
                            }
                        )
    document = {
        "bench": "generators",
        "machine": inspect_machine().hardware,
        "triton": install.version,
        "load_average": os.getloadavg()[0],
        "seconds": options.seconds,
        "goal": GOAL,
        "levels": levels,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    write_page(document)
    return 0


if __name__ == "__main__":
    sys.exit(main())
