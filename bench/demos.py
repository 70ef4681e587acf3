"""The demo's search again and again: with empty caches, with warm ones, beside a busy neighbour.

    python bench/demos.py [--runs 20] [--only cold|warm|neighbour] [--budget 60]

Each run is a whole command (``analyze examples/digits.onnx --latency-budget 50ms --budget 60s``
with the example's data), as a user starts it. *Cold*: no variants, probes or compiled simulator are
there. *Warm*: all of them are. *Neighbour*: warm, while another process keeps one core busy in
bursts of 0.1 to 10 s, half of the time. Goals: all cold and warm runs found, 19 of 20 beside the
neighbour; at most 75 s; certified share of the edge at least 0.6 in the median.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchlib.command import ROOT, Command, cell, median, say, table

KINDS = ("cold", "warm", "neighbour")
# Bursts and pauses of the same lengths: busy half of the time.
NEIGHBOUR = """
import math, random, time
while True:
    length = math.exp(random.uniform(math.log(0.1), math.log(10.0)))
    until = time.monotonic() + length
    while time.monotonic() < until:
        pass
    time.sleep(length)
"""


@contextmanager
def neighbour() -> Iterator[None]:
    """A process that keeps one core busy in bursts."""
    process = subprocess.Popen([sys.executable, "-c", NEIGHBOUR])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def run_demo(folder: Path, budget_s: float, seed: int) -> dict[str, Any]:
    """One command; its caches and its database lie in ``folder``."""
    environment = os.environ | {
        "XDG_CACHE_HOME": str(folder),
        "NUMBA_CACHE_DIR": str(folder / "numba"),
    }
    command = [
        sys.executable, "-m", "analyzer.cli.main", "examples/digits.onnx",
        "--latency-budget", "50ms", "--budget", f"{budget_s:g}s", "--seed", str(seed),
        "--calibration-data", "examples/digits.npz", "--json", "-q",
        "--store", f"sqlite:///{folder / f'results-{seed}.db'}",
    ]  # fmt: skip
    began = time.monotonic()
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    seconds = time.monotonic() - began
    document = json.loads(done.stdout) if done.stdout.startswith("{") else {}
    entry, baseline = document.get("recommendation") or {}, document.get("baseline") or {}
    capacity, edge = entry.get("capacity_rps"), entry.get("edge_rps")
    return {
        "exit_code": done.returncode,
        "verdict": document.get("verdict"),
        "seconds": seconds,
        "config_id": entry.get("config_id"),
        "capacity_rps": capacity,
        "edge_rps": edge,
        "certified_share": capacity / edge if capacity and edge else None,
        "baseline_edge_rps": baseline.get("edge_rps"),
        "baseline_capacity_rps": baseline.get("capacity_rps"),
        "speedup": document.get("speedup"),
        "speedup_basis": document.get("speedup_basis"),
        "message": done.stderr[-500:] if done.returncode not in (0, 4) else "",
    }


def run_kind(kind: str, runs: int, budget_s: float) -> list[dict[str, Any]]:
    """``runs`` demos of one kind."""
    found = []
    with tempfile.TemporaryDirectory() as warm:
        if kind != "cold":
            run_demo(Path(warm), budget_s, 10_000)
        for number in range(runs):
            with tempfile.TemporaryDirectory() as cold:
                folder = Path(cold if kind == "cold" else warm)
                if kind == "neighbour":
                    with neighbour():
                        result = run_demo(folder, budget_s, number)
                else:
                    result = run_demo(folder, budget_s, number)
            say(f"{kind} {number + 1}/{runs}: {result['verdict']} in {result['seconds']:.0f} s")
            found.append(result)
    return found


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """How many were found, how long they took, and what they proved."""
    return {
        "runs": len(runs),
        "found": sum(run["verdict"] == "found" for run in runs),
        "with_gain": sum(run["speedup"] is not None for run in runs),
        "seconds_median": median(run["seconds"] for run in runs),
        "seconds_max": max(run["seconds"] for run in runs),
        "certified_share_median": median(run["certified_share"] for run in runs),
        "capacity_rps_median": median(run["capacity_rps"] for run in runs),
        "edge_rps_median": median(run["edge_rps"] for run in runs),
        "speedup_median": median(run["speedup"] for run in runs),
    }


def _shown(document: dict[str, Any]) -> str:
    rows = [
        [
            kind,
            f"{s['found']}/{s['runs']}",
            f"{s['with_gain']}/{s['runs']}",
            cell(s["seconds_median"], ".0f"),
            cell(s["seconds_max"], ".0f"),
            cell(s["certified_share_median"], ".2f"),
            cell(s["capacity_rps_median"], ",.0f"),
            cell(s["edge_rps_median"], ",.0f"),
            cell(s["speedup_median"], ".2f"),
        ]
        for kind, s in document["summary"].items()
    ]
    titles = [
        "caches", "found", "gain told", "s median", "s max", "certified share", "certified 1/s",
        "edge 1/s", "gain",
    ]  # fmt: skip
    return table(titles, rows)


def main() -> int:
    """Runs the bench; returns the exit code."""
    command = Command("demos", __doc__, timing=True)
    command.argument("--runs", type=int, default=20, metavar="N", help="of each kind")
    command.argument("--only", choices=KINDS)
    command.argument("--budget", type=float, default=60.0, metavar="SECONDS")
    options = command.start()
    kinds = [options.only] if options.only else list(KINDS)
    runs = {kind: run_kind(kind, options.runs, options.budget) for kind in kinds}
    summaries = {kind: summary(found) for kind, found in runs.items()}
    return command.finish(options, {"summary": summaries, "runs": runs}, _shown)


if __name__ == "__main__":
    raise SystemExit(main())
