"""Whole searches as a user starts them, their claims measured again, and what many came to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchlib.command import ROOT, cell, median

TITLES = (
    "found", "gain told", "with a lower end", "s median", "s max", "certified share",
    "certified 1/s", "edge 1/s", "gain", "claims again",
)  # fmt: skip
"""Of the columns of :func:`summary_row`."""


def analyze(folder: Path, store: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """One command as a user starts it; its caches lie in ``folder``, its database in ``store``."""
    environment = os.environ | {
        "XDG_CACHE_HOME": str(folder),
        "NUMBA_CACHE_DIR": str(folder / "numba"),
    }
    command = [sys.executable, "-m", "analyzer.cli.main", *words, "--json"]
    command += ["--store", f"sqlite:///{store}"]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def document_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What a command printed; empty where it printed no document."""
    return json.loads(done.stdout) if done.stdout.startswith("{") else {}


def search_once(
    folder: Path, promise: Sequence[str], budget_s: float, seed: int, verify_s: float = 0.0
) -> dict[str, Any]:
    """One search, and its claim measured again for ``verify_s`` seconds.

    Args:
        folder: Of its caches and its database, which holds the probes.
        promise: The model's file, its latency budget, its data: the command's words.
    """
    folder.mkdir(parents=True, exist_ok=True)
    store = folder / "results.db"
    words = [*promise, "--budget", f"{budget_s:g}s", "--seed", str(seed)]
    began = time.monotonic()
    done = analyze(folder, store, *words)
    seconds = time.monotonic() - began
    document = document_of(done)
    verdict = None
    if verify_s and document.get("verdict") == "found":
        again = analyze(folder, store, "verify", "--budget", f"{verify_s:g}s")
        verdict = document_of(again).get("verdict") or again.stderr[-500:]
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
        "speedup_interval": document.get("speedup_interval"),
        "verified": verdict,
        # How a run went that found nothing.
        "log": done.stderr[-3000:] if document.get("verdict") != "found" else "",
    }


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """How many were found, how long they took, and what they proved.

    Gains with a lower end are those that tell more than what the recommendation gains at most.
    """
    return {
        "runs": len(runs),
        "found": sum(run["verdict"] == "found" for run in runs),
        "with_gain": sum(run["speedup"] is not None for run in runs),
        "with_least_gain": sum(
            (run.get("speedup_interval") or [None])[0] is not None for run in runs
        ),
        "seconds_median": median(run["seconds"] for run in runs),
        "seconds_max": max(run["seconds"] for run in runs),
        "certified_share_median": median(run["certified_share"] for run in runs),
        "capacity_rps_median": median(run["capacity_rps"] for run in runs),
        "edge_rps_median": median(run["edge_rps"] for run in runs),
        "speedup_median": median(run["speedup"] for run in runs),
        "verified": dict(Counter(run["verified"] for run in runs if run["verified"])),
    }


def summary_row(found: dict[str, Any]) -> list[str]:
    """A summary's cells."""
    return [
        f"{found['found']}/{found['runs']}",
        f"{found['with_gain']}/{found['runs']}",
        cell(found.get("with_least_gain"), ",.0f"),
        cell(found["seconds_median"], ".0f"),
        cell(found["seconds_max"], ".0f"),
        cell(found["certified_share_median"], ".2f"),
        cell(found["capacity_rps_median"], ",.0f"),
        cell(found["edge_rps_median"], ",.0f"),
        cell(found["speedup_median"], ".2f"),
        ", ".join(f"{count} {verdict}" for verdict, count in found["verified"].items()) or "–",
    ]
