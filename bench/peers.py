"""Beside Triton Model Analyzer: same model, SLA, machine, real Triton; perf_analyzer decides.

    python bench/peers.py all                     # every step below (12 to 15 minutes)
    python bench/peers.py model-analyzer [--mode optuna]   # its search (quick: about four minutes)
    python bench/peers.py ours                    # ours, fp32 only, and with int8 allowed
    python bench/peers.py measure                 # both choices by perf_analyzer
    python bench/peers.py table                   # prints it, writes bench/results/peers.json

The model is a text encoder (4 layers, hidden 256, 128 tokens) in the python backend, p99 within
100 ms. Model Analyzer 1.58 gets an environment of its own under ``bench/.work``. Our searches get a
quarter of its wall time, everything included, and start from nothing. Needs ``make tools`` and a
package index; run it on a quiet machine.
"""

from __future__ import annotations

import re
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from benchlib import real_triton
from benchlib.command import ROOT, Command, cell, median, say, table
from benchlib.model_analyzer import (
    LATENCY_BUDGET_MS,
    MODEL,
    MODES,
    NAME,
    PACKAGE,
    STATE,
    TOKENS,
    run_model_analyzer,
)
from benchlib.models import write_encoder

STEPS = real_triton.Steps(STATE)
FIGURES = ("closed_throughput_ips", "open_edge_rps")
GOALS = {"fp32_ratio": 1.0, "int8_ratio": 1.8, "wall_share": 0.25}
# Of a search's wall time, what may lie beyond its --budget: imports, the last server and its run.
OUTSIDE_BUDGET_S = 5.0


def run_ours(mode: str, budget_s: float | None) -> None:
    """Our searches on the same real Triton, within a quarter of the peer's wall time."""
    write_encoder(MODEL, tokens=TOKENS)
    if budget_s is None:
        peer_s = STEPS.load(f"model-analyzer-{mode}")["wall_seconds"]
        budget_s = max(round(GOALS["wall_share"] * peer_s - OUTSIDE_BUDGET_S), 5)
    for label, precisions in (("fp32", "fp32"), ("int8", "fp32,int8")):
        options = ["--server", "triton", "--precisions", precisions, "--seed", "1"]
        found = real_triton.search(
            MODEL,
            name=f"peers-{label}",
            budget_s=budget_s,
            latency_budget_ms=LATENCY_BUDGET_MS,
            options=options,
        )
        document = found.document
        entry = real_triton.chosen(document)
        say(f"{label}: {document['verdict']} in {found.wall_seconds:.1f} s")
        save_choice(
            f"ours-{label}",
            {
                "command": " ".join(["analyze", *found.command]),
                "wall_seconds": found.wall_seconds,
                "exit_code": found.exit_code,
                "verdict": document["verdict"],
                "search": document["search"],
                "choice": entry and summary(entry),
                "baseline": document["baseline"] and summary(document["baseline"]),
                "model_dir": str((found.repository / NAME).relative_to(ROOT))
                if found.repository
                else None,
            },
        )


def summary(entry: dict[str, Any]) -> dict[str, Any]:
    """What is shown of an entry."""
    names = ("config_id", "config", "capacity_rps", "edge_rps", "edge_interval_rps", "certificate")
    return {name: entry.get(name) for name in names}


def measure(mode: str, seconds: float, only: str | None) -> None:
    """Each choice on the same real Triton under the same perf_analyzer, one after the other."""
    inputs = real_triton.request_rows(MODEL)
    for label in (f"model-analyzer-{mode}", "ours-fp32", "ours-int8"):
        if only not in (None, label):
            continue
        model_dir = STEPS.load(label).get("model_dir")
        if model_dir is None:
            say(f"{label}: nothing was recommended, so nothing is measured")
            continue
        say(label)
        prepared = named(ROOT / model_dir, STATE / "measured" / label)
        result = real_triton.measured(
            prepared, inputs, budget_ms=LATENCY_BUDGET_MS, seconds=seconds
        )
        rounds = [*STEPS.load(f"measured-{label}", []), result]
        STEPS.save(f"measured-{label}", rounds)


def named(source: Path, destination: Path) -> Path:
    """A copy of a model's folder under one name, whatever the search called it."""
    shutil.rmtree(destination, ignore_errors=True)
    shutil.copytree(source, destination / NAME)
    config = destination / NAME / "config.pbtxt"
    config.write_text(re.sub(r'(?m)^name: ".*"', f'name: "{NAME}"', config.read_text()))
    return destination / NAME


def save_choice(label: str, value: Any) -> None:
    """Keeps what a search chose; measurements of an earlier choice are forgotten."""
    STEPS.forget(f"measured-{label}")
    STEPS.save(label, value)


def collect(mode: str) -> dict[str, Any]:
    """Every step's results, each side beside Model Analyzer's."""
    peer = STEPS.load(f"model-analyzer-{mode}")
    sides: dict[str, Any] = {}
    for label in (f"model-analyzer-{mode}", "ours-fp32", "ours-int8"):
        step = {key: value for key, value in STEPS.load(label).items() if key != "model_dir"}
        rounds = STEPS.load(f"measured-{label}", [])
        step["rounds"] = rounds
        for key in FIGURES:
            step[key] = median(found[key] for found in rounds)
        step["wall_share"] = step["wall_seconds"] / peer["wall_seconds"]
        sides[label] = step
    base = sides[f"model-analyzer-{mode}"]
    for step in sides.values():
        for key in FIGURES:
            step[f"{key}_ratio"] = step[key] / base[key] if step[key] and base[key] else None
    return {
        "model": f"text encoder: 4 layers, hidden 256, {TOKENS} tokens, python backend",
        "latency_budget_ms": LATENCY_BUDGET_MS,
        "percentile": 99,
        "mode": mode,
        "versions": {
            "triton-model-analyzer": PACKAGE[0].split("==")[1],
            "tritune": metadata.version("tritune"),
            **real_triton.versions(),
        },
        "goals": GOALS,
        "sides": sides,
    }


def shown(document: dict[str, Any]) -> str:
    """The sides as a Markdown table."""
    titles = ("search", "verdict", "wall time", "share", "closed loop, infer/s", "ratio",
              "Poisson, requests/s", "ratio")  # fmt: skip
    rows = []
    for label, side in document["sides"].items():
        row = [label, side.get("verdict", ""), f"{side['wall_seconds']:.0f} s",
               f"{side['wall_share']:.2f}"]  # fmt: skip
        for key in FIGURES:
            row += [cell(side[key], ".0f"), cell(side[f"{key}_ratio"], ".2f")]
        rows.append(row)
    return table(titles, rows)


def main() -> int:
    command = Command("peers", __doc__, timing=True, offline=("table",))
    steps = ("all", "model-analyzer", "ours", "measure", "table")
    command.argument("step", choices=steps, nargs="?", default="all")
    command.argument("--mode", choices=MODES, default="quick", help="Model Analyzer's search")
    command.argument("--set", action="append", default=[], metavar="KEY=YAML", help="its options")
    command.argument("--budget", type=float, help="seconds, instead of a quarter of its time")
    command.argument("--seconds", type=float, default=6.0, help="of each perf_analyzer run")
    command.argument("--only", help="measure this side alone")
    options = command.start()
    if options.step in ("all", "model-analyzer"):
        pairs = (setting.split("=", 1) for setting in options.set)
        extra = {key: yaml.safe_load(value) for key, value in pairs}
        found = run_model_analyzer(options.mode, extra)
        save_choice(f"model-analyzer-{options.mode}", found)
        say(f"Model Analyzer: {found['wall_seconds']:.0f} s, {found['chosen']}")
    if options.step in ("all", "ours"):
        run_ours(options.mode, options.budget)
    if options.step in ("all", "measure"):
        measure(options.mode, options.seconds, options.only)
    if options.step not in ("all", "table"):
        return 0
    return command.finish(options, collect(options.mode), shown)


if __name__ == "__main__":
    raise SystemExit(main())
