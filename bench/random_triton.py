"""Searches of models that are drawn at random on a real Triton, judged by perf_analyzer.

    python bench/random_triton.py [--models 6] [--seed 1] [--budget 60] [--again]

The models are those of ``random_models.py``. Each is searched with ``--server triton`` and empty
caches, its choice exported, and the exported folder served by a Triton of its own; perf_analyzer
sends Poisson arrivals at the certified rate, and finds the edge. Goals: the claim holds, and our
edge is within 10 % of perf_analyzer's; of an edge that is open above the lower end is told. Runs
are kept in ``bench/.work/random_triton`` until ``--again``. About three minutes a model; needs
``make tools``.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from benchlib import real_triton
from benchlib.command import WORK, Command, cell, say, table
from benchlib.drawn_models import Drawn, add_options, each_model

STEPS = real_triton.Steps(WORK / "random_triton")


def run(drawn: Drawn, *, seed: int, budget_s: float, seconds: float) -> dict[str, Any]:
    """One search, and what perf_analyzer says of its choice.

    Args:
        seconds: Of each run of perf_analyzer.
    """
    found = real_triton.search(
        drawn.path,
        name=f"random-triton-{seed}",
        budget_s=budget_s,
        latency_budget_ms=drawn.budget_ms,
        options=["--server", "triton", "--seed", str(seed), *drawn.options],
    )
    entry = real_triton.chosen(found.document) or {}
    low, high = entry.get("edge_interval_rps") or (None, None)
    told: dict[str, Any] = {
        "verdict": found.document["verdict"],
        "seconds": found.wall_seconds,
        "config": entry.get("config"),
        "capacity_rps": entry.get("capacity_rps"),
        "edge_rps": entry.get("edge_rps"),
        "edge_interval_rps": [low, high],
    }
    start_rps = entry.get("edge_rps") or low
    if found.repository is None or not start_rps:
        return told
    inputs = real_triton.request_rows(drawn.path)
    folder = found.repository / drawn.path.stem
    with real_triton.served(folder) as address:
        arbiter = real_triton.Arbiter(
            address, folder.name, inputs, budget_ms=drawn.budget_ms, seconds=seconds
        )
        capacity_rps = told["capacity_rps"]
        claim = arbiter.at(rate_rps=capacity_rps) if capacity_rps else None
        levels = arbiter.open(start_rps)
    edge_rps = real_triton.best(levels, lambda level: level.throughput_ips)
    return told | {
        "claim": claim and asdict(claim),
        "levels": [asdict(level) for level in levels],
        "perf_analyzer_edge_rps": edge_rps,
        "edge_error": start_rps / edge_rps - 1 if edge_rps else None,
    }


def shown(document: dict[str, Any]) -> str:
    """The table of all runs."""
    rows = [
        [
            found["model"],
            cell(found["inference_ms"], ".3g"),
            cell(found["budget_ms"], "g"),
            found["verdict"],
            cell(found["seconds"], ".0f"),
            cell(found["capacity_rps"], ",.0f"),
            ("" if found["edge_rps"] else "≥ ")
            + cell(found["edge_rps"] or found["edge_interval_rps"][0], ",.0f"),
            cell(found.get("perf_analyzer_edge_rps"), ",.0f"),
            cell(found.get("edge_error"), "+.0%"),
            {True: "kept", False: "not kept", None: "–"}[(found.get("claim") or {}).get("kept")],
        ]
        for found in document["runs"]
    ]
    titles = [
        "model", "inference ms", "budget ms", "verdict", "s", "certified 1/s", "edge 1/s",
        "perf_analyzer's", "error", "claim",
    ]  # fmt: skip
    return table(titles, rows)


def main() -> int:
    """Runs the bench; returns the exit code."""
    command = Command("random_triton", __doc__, timing=True)
    add_options(command, models=6)
    command.argument("--seconds", type=float, default=4.0, help="of each perf_analyzer run")
    options = command.start()

    def judged(drawn: Drawn, seed: int) -> dict[str, Any]:
        say(f"{drawn.path.stem}: {drawn.inference_ms:.3g} ms, p99 within {drawn.budget_ms:g} ms")
        return run(drawn, seed=seed, budget_s=options.budget, seconds=options.seconds)

    return command.finish(options, {"runs": list(each_model(options, STEPS, judged))}, shown)


if __name__ == "__main__":
    raise SystemExit(main())
