"""Beside Triton Model Analyzer: same models, SLA, machine, real Triton; perf_analyzer decides.

    python bench/peers.py all --model perceptron       # every step below (about 20 minutes)
    python bench/peers.py model-analyzer --model …     # its quick search (about four minutes)
    python bench/peers.py ours --model …               # ours, fp32 only, and with int8 allowed
    python bench/peers.py measure --model … --rounds 3 # the three choices in turns, until each
                                                       # has so many rounds (two minutes each)
    python bench/peers.py table                        # prints it, writes bench/results/peers.json
                                                       # and the table of docs/peers.md

Model Analyzer 1.58 gets an environment of its own under ``bench/.work``. Our searches get a quarter
of its wall time, everything included, and start from nothing. A model's steps may run on different
days; ``table`` keeps what the file knows of models that were not run here. Needs ``make tools`` and
a package index; run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from benchlib import real_triton
from benchlib.command import ROOT, WORK, Command, cell, median, put_into_page, say, table
from benchlib.model_analyzer import MODES, PACKAGE, run_model_analyzer
from benchlib.models import write_convnet, write_encoder, write_perceptron

PAGE = ROOT / "docs" / "peers.md"
PEER = "model-analyzer"
OURS = {"ours-fp32": "fp32", "ours-int8": "fp32,int8"}
SIDES = (PEER, *OURS)
CLOSED, OPEN = "closed_throughput_ips", "open_edge_rps"
# At least so many times Model Analyzer's; at most this share of its time, this error of our edge.
RATIOS = {"ours-fp32": {CLOSED: 1.0, OPEN: 1.3}, "ours-int8": {CLOSED: 1.6, OPEN: 1.8}}
GOALS: dict[str, Any] = {"ratios": RATIOS, "wall_share": 0.25, "edge_error": 0.10}
# Of a search's wall time, what may lie beyond its --budget: imports, the last server and its run.
OUTSIDE_BUDGET_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model, how its file is written, and what its p99 must keep."""

    title: str
    write: Callable[[Path], Path]
    latency_budget_ms: float


MODELS = {
    "encoder": Subject(
        title="text encoder: 4 layers, hidden 256, 128 tokens",
        write=partial(write_encoder, tokens=128),
        latency_budget_ms=100.0,
    ),
    "convnet": Subject(
        title="convolutional network: six layers of 64 channels, 3 × 32 × 32",
        write=partial(write_convnet, pixels=32),
        latency_budget_ms=80.0,
    ),
    "perceptron": Subject(
        title="perceptron: 1024-2048-2048-10",
        write=partial(write_perceptron, widths=(1024, 2048, 2048, 10)),
        latency_budget_ms=60.0,
    ),
}


class Bench:
    """The steps of one model, and the folder of their results."""

    def __init__(self, name: str) -> None:
        self.name, self.subject = name, MODELS[name]
        self.home = WORK / "peers" / name
        self.steps = real_triton.Steps(self.home)
        self.budget_ms = self.subject.latency_budget_ms

    def model(self) -> Path:
        """Its ONNX file, the same at each call."""
        return self.subject.write(self.home / f"{self.name}.onnx")

    def model_analyzer(self, mode: str, extra: dict[str, Any]) -> None:
        """Model Analyzer's search."""
        found = run_model_analyzer(
            self.model(),
            self.home / PEER,
            latency_budget_ms=self.budget_ms,
            mode=mode,
            extra=extra,
        )
        self.save_choice(PEER, found)
        say(f"Model Analyzer: {found['wall_seconds']:.0f} s, {found['chosen']}")

    def ours(self, label: str, budget_s: float | None) -> None:
        """One of our searches, within a quarter of the peer's wall time."""
        if budget_s is None:
            peer_s = self.steps.load(PEER)["wall_seconds"]
            budget_s = max(round(GOALS["wall_share"] * peer_s - OUTSIDE_BUDGET_S), 5)
        found = real_triton.search(
            self.model(),
            name=f"peers-{self.name}-{label}",
            budget_s=budget_s,
            latency_budget_ms=self.budget_ms,
            options=["--server", "triton", "--precisions", OURS[label], "--seed", "1"],
        )
        document, folder = found.document, found.repository
        entry = real_triton.chosen(document)
        say(f"{label}: {document['verdict']} in {found.wall_seconds:.1f} s")
        self.save_choice(
            label,
            {
                "command": " ".join(["analyze", *found.command]),
                "wall_seconds": found.wall_seconds,
                "exit_code": found.exit_code,
                "verdict": document["verdict"],
                "search": document["search"],
                "choice": entry and summary(entry),
                "baseline": document["baseline"] and summary(document["baseline"]),
                "model_dir": folder and str((folder / self.name).relative_to(ROOT)),
            },
        )

    def measure(self, rounds: int, seconds: float) -> None:
        """Rounds of the three choices in turns, each by the same perf_analyzer."""
        inputs = real_triton.request_rows(self.model())
        start = self.steps.load(PEER)["chosen"]["concurrency"]
        for number in range(rounds):
            for label in SIDES:
                done = self.steps.load(f"measured-{label}", [])
                model_dir = self.steps.load(label).get("model_dir")
                if len(done) > number or model_dir is None:
                    continue
                say(f"{self.name}, round {number + 1}: {label}")
                folder = named(ROOT / model_dir, self.home / "measured" / label / self.name)
                result = real_triton.measured(
                    folder,
                    inputs,
                    budget_ms=self.budget_ms,
                    seconds=seconds,
                    start=start,
                    before=done[-1] if done else None,
                )
                self.steps.save(f"measured-{label}", [*done, result])

    def save_choice(self, label: str, value: Any) -> None:
        """Keeps what a search chose; measurements of an earlier choice are forgotten."""
        self.steps.forget(f"measured-{label}")
        self.steps.save(label, value)

    def result(self) -> dict[str, Any] | None:
        """Every step's results, ours beside Model Analyzer's; None before all searches."""
        steps = {label: self.steps.load(label, {}) for label in SIDES}
        if not all(steps.values()):
            return None
        for label, step in steps.items():
            step.pop("model_dir", None)
            step["wall_share"] = step["wall_seconds"] / steps[PEER]["wall_seconds"]
            step["rounds"] = self.steps.load(f"measured-{label}", [])
            for key in (CLOSED, OPEN):
                step[key] = median(found[key] for found in step["rounds"])
                base = steps[PEER][key]
                step[f"{key}_ratio"] = step[key] / base if step[key] and base else None
            claimed = (step.get("choice") or {}).get("edge_rps")
            step["edge_error"] = claimed / step[OPEN] - 1 if claimed and step[OPEN] else None
        return {
            "model": f"{self.subject.title}; python backend",
            "latency_budget_ms": self.budget_ms,
            "percentile": 99,
            "versions": {
                "triton-model-analyzer": PACKAGE[0].split("==")[1],
                "tritune": metadata.version("tritune"),
                **real_triton.versions(),
            },
            "sides": steps,
        }


def summary(entry: dict[str, Any]) -> dict[str, Any]:
    """What is shown of an entry."""
    names = ("config_id", "config", "capacity_rps", "edge_rps", "edge_interval_rps", "certificate",
             "predicted")  # fmt: skip
    return {name: entry.get(name) for name in names}


def named(source: Path, destination: Path) -> Path:
    """A copy of a model's folder under one name, whatever the search called it."""
    shutil.rmtree(destination, ignore_errors=True)
    shutil.copytree(source, destination)
    config = destination / "config.pbtxt"
    text = re.sub(r'(?m)^name: ".*"', f'name: "{destination.name}"', config.read_text())
    config.write_text(text)
    return destination


def collect(command: Command, out: Path) -> dict[str, Any]:
    """The models that were run here, and those that the file of results knows."""
    models = json.loads(out.read_text()).get("models", {}) if out.is_file() else {}
    for name in MODELS:
        if found := Bench(name).result():
            models[name] = {"machine": command.machine()} | found
    return {"goals": GOALS, "models": {name: models[name] for name in MODELS if name in models}}


def shown(document: dict[str, Any]) -> str:
    """The sides of each model as a Markdown table; a goal that is missed is marked."""
    titles = ("model", "search", "verdict", "wall time", "share", "choice", "closed loop, infer/s",
              "ratio", "Poisson, requests/s", "ratio", "our own edge", "error")  # fmt: skip
    rows = []
    for name, model in document["models"].items():
        for label, side in model["sides"].items():
            rows.append(
                [
                    f"{name}, p99 ≤ {model['latency_budget_ms']:g} ms" if label == PEER else "",
                    label,
                    side.get("verdict", "–"),
                    f"{side['wall_seconds']:.0f} s",
                    judged(side["wall_share"], label != PEER, GOALS["wall_share"], most=True),
                    choice_of(side),
                    *ratio_cells(label, side, CLOSED),
                    *ratio_cells(label, side, OPEN),
                    *edge_cells(label, side),
                ]
            )
    return table(titles, rows)


def choice_of(side: dict[str, Any]) -> str:
    """What a side serves, in words."""
    if chosen := side.get("chosen"):
        return f"fp32, batch ≤ {chosen['max_batch_size']}, {chosen['instances'].split(':')[0]} × 1"
    if not side["choice"]:
        return "–"
    config = side["choice"]["config"]
    words = [part for part in (config["precision"], config["quantization"]) if part]
    batch = f"batch ≤ {config['max_batch_size']}" if config["dynamic_batching"] else "no batching"
    if config["max_queue_delay_us"]:
        batch += f" ({config['max_queue_delay_us'] / 1e3:g} ms)"
    threads = config["intra_op_threads"] or "default"
    return f"{' '.join(words)}, {batch}, {config['instance_count']} × {threads}"


def ratio_cells(label: str, side: dict[str, Any], key: str) -> tuple[str, str]:
    """A figure with the range of its rounds, and its ratio to Model Analyzer's."""
    values = [found[key] for found in side["rounds"] if found[key] is not None]
    figure = cell(side[key], ",.0f")
    if len(values) > 1:
        figure += f" ({min(values):,.0f} to {max(values):,.0f})"
    goal = RATIOS.get(label, {}).get(key, 0.0)
    return figure, judged(side[f"{key}_ratio"], label != PEER, goal)


def edge_cells(label: str, side: dict[str, Any]) -> tuple[str, str]:
    """Our own edge, and how far it is from what perf_analyzer found."""
    if label == PEER:
        return "–", "–"
    choice = side["choice"] or {}
    low, high = choice.get("edge_interval_rps") or (None, None)
    claim = f"{cell(choice.get('edge_rps'), ',.0f')} ({cell(low, ',.0f')} to {cell(high, ',.0f')})"
    error = side["edge_error"]
    missed = error is None or abs(error) > GOALS["edge_error"]
    return claim, cell(error, "+.0%") + (" **missed**" if missed else " met")


def judged(value: float | None, has_goal: bool, goal: float, *, most: bool = False) -> str:
    """A figure to two digits, and whether it is on the right side of its goal."""
    if not has_goal:
        return cell(value, ".2f")
    met = value is not None and (value <= goal if most else value >= goal)
    return f"{cell(value, '.2f')} {'met' if met else '**missed**'}"


def run(options: argparse.Namespace) -> None:
    """The steps that were asked for, of each model that was."""
    for name in [options.model] if options.model else MODELS:
        bench = Bench(name)
        if options.step in ("all", "model-analyzer"):
            pairs = (setting.split("=", 1) for setting in options.set)
            extra = {key: yaml.safe_load(value) for key, value in pairs}
            bench.model_analyzer(options.mode, extra)
        if options.step in ("all", "ours"):
            for label in [options.only] if options.only else OURS:
                bench.ours(label, options.budget)
        if options.step in ("all", "measure"):
            bench.measure(options.rounds, options.seconds)


def main() -> int:
    command = Command("peers", __doc__, timing=True, offline=("table",))
    steps = ("all", "model-analyzer", "ours", "measure", "table")
    command.argument("step", choices=steps, nargs="?", default="all")
    command.argument("--model", choices=tuple(MODELS), help="this one alone")
    command.argument("--mode", choices=MODES, default="quick", help="Model Analyzer's search")
    command.argument("--set", action="append", default=[], metavar="KEY=YAML", help="its options")
    command.argument("--budget", type=float, help="seconds, instead of a quarter of its time")
    command.argument("--only", choices=tuple(OURS), help="search for this side of ours alone")
    command.argument("--rounds", type=int, default=3, help="that each choice shall have in the end")
    command.argument("--page", type=Path, default=PAGE, help="the page that gets the table")
    command.argument("--seconds", type=float, default=6.0, help="of each perf_analyzer run")
    options = command.start()
    if options.step != "table":
        run(options)
    if options.step not in ("all", "table"):
        return 0
    document = collect(command, options.out)
    put_into_page(options.page, "peers", shown(document))
    return command.finish(options, document, shown)


if __name__ == "__main__":
    raise SystemExit(main())
