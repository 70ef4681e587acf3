"""Searches on the embedded server against searches on a real Triton: what does the choice lose?

    python bench/servers.py all                    # three models, about five minutes each
    python bench/servers.py run --model encoder    # encoder, convnet or mlp
    python bench/servers.py table                  # prints it, writes bench/results/servers.json

Per model one search with ``--server embedded`` and one with ``--server triton`` (same SLA, budget,
seed; each from nothing). Both choices are exported for the python backend and loaded by
perf_analyzer on the same real Triton (Poisson arrivals, the highest rate that keeps p99), then
``analyze verify --server triton`` repeats the embedded search's claim there. Goal: the embedded
choice loses at most 5 %, and its claim holds. Needs ``make tools``; run it on a quiet machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from analyzer.domain.configuration import Configuration
from analyzer.report.wording import configuration_label
from benchlib import real_triton
from benchlib.command import WORK, Command, cell, say, table
from benchlib.models import write_convnet, write_encoder, write_perceptron
from benchlib.real_triton import Arbiter, best, served

STEPS = real_triton.Steps(WORK / "servers")
LOSS_MAX = 0.05
SIDES = ("embedded", "triton")
# Name -> how the model is written, and the latency budget in milliseconds.
MODELS: dict[str, tuple[Callable[[Path], Path], float]] = {
    "encoder": (partial(write_encoder, tokens=256), 200.0),
    "convnet": (write_convnet, 250.0),
    # Its weights outweigh its arithmetic at batch 1.
    "mlp": (partial(write_perceptron, widths=(1024, 4096, 4096, 1024)), 100.0),
}


def run(name: str, *, budget_s: float, seconds: float, verify_s: float) -> None:
    """Both searches of one model, both choices on the real Triton, and the claim verified."""
    write, latency_budget_ms = MODELS[name]
    model = write(WORK / "servers" / "models" / f"{name}.onnx")
    result: dict[str, Any] = {"model": name, "latency_budget_ms": latency_budget_ms, "sides": {}}
    folders: dict[str, Path] = {}
    for server in SIDES:
        found = real_triton.search(
            model,
            name=f"servers-{name}-{server}",
            budget_s=budget_s,
            latency_budget_ms=latency_budget_ms,
            options=["--server", server, "--precisions", "fp32,int8", "--seed", "1"],
        )
        document = found.document
        entry = real_triton.chosen(document)
        say(f"{name}, {server}: {document['verdict']} in {found.wall_seconds:.0f} s")
        keep = ("config_id", "config", "capacity_rps", "edge_rps", "edge_interval_rps")
        result["sides"][server] = {
            "command": " ".join(["analyze", *found.command]),
            "wall_seconds": found.wall_seconds,
            "verdict": document["verdict"],
            "search": document["search"],
            "choice": entry and {key: entry.get(key) for key in keep},
        }
        if found.repository is not None:
            folders[server] = found.repository / document["model"]["name"]
    STEPS.save(name, result)
    inputs = real_triton.request_rows(model)
    measured: dict[str, dict[str, Any]] = {}
    for server, folder in folders.items():
        side = result["sides"][server]
        own = side["choice"]["config_id"]
        if own not in measured:
            guess_rps = max(
                s["choice"]["edge_rps"] or s["choice"]["capacity_rps"]
                for s in result["sides"].values()
                if s["choice"]
            )
            say(f"{name}: {server}'s choice {own} on the real Triton")
            with served(folder) as address:
                arbiter = Arbiter(
                    address, folder.name, inputs, budget_ms=latency_budget_ms, seconds=seconds
                )
                levels = arbiter.open(guess_rps)
            measured[own] = {
                "open_edge_rps": best(levels, lambda level: level.rate_rps or 0.0),
                "levels": [asdict(level) for level in levels],
            }
        side["on_triton"] = measured[own]
        STEPS.save(name, result)
    if result["sides"]["embedded"]["verdict"] == "found":
        verified = real_triton.verify(
            f"servers-{name}-embedded", server="triton", budget_s=verify_s
        )
        result["verify"] = {
            "verdict": verified["verdict"],
            "rate_rps": verified["claim"]["rate_rps"],
            "latency_ms": verified["measured"]["latency_ms"],
            "certificate": verified["measured"]["certificate"],
        }
    STEPS.save(name, result)


def collect() -> dict[str, Any]:
    """The models that were run, each with what the embedded choice loses."""
    models = {name: found for name in MODELS if (found := STEPS.load(name, {}))}
    for entry in models.values():
        edges = [entry["sides"][side].get("on_triton", {}).get("open_edge_rps") for side in SIDES]
        entry["loss"] = 1 - edges[0] / edges[1] if all(edges) else None
    return {"versions": real_triton.versions(), "goal_loss_max": LOSS_MAX, "models": models}


def shown(document: dict[str, Any]) -> str:
    """The models as a Markdown table."""
    titles = ("model", "p99 within", "searched on", "choice", "certified there",
              "on Triton (perf_analyzer)", "loss", "verify on Triton")  # fmt: skip
    rows = []
    for name, entry in document["models"].items():
        for side in SIDES:
            found = entry["sides"][side]
            choice, verdict = found["choice"], found["verdict"]
            capacity_rps = choice and choice["capacity_rps"]
            label = verdict
            if choice:
                label = configuration_label(Configuration.from_dict(choice["config"]))
            edge_rps = found.get("on_triton", {}).get("open_edge_rps")
            shared = ["", "", "", ""]
            if side == "embedded":
                budget = f"{entry['latency_budget_ms']:g} ms"
                verified = entry.get("verify", {}).get("verdict", "none")
                shared = [name, budget, cell(entry["loss"], ".1%"), verified]
            rows.append(
                [*shared[:2], side, label,
                 f"{capacity_rps:.1f}/s" if capacity_rps else verdict,
                 f"{edge_rps:.1f}/s" if edge_rps else "none", *shared[2:]]
            )  # fmt: skip
    return table(titles, rows)


def main() -> int:
    command = Command("servers", __doc__, timing=True, offline=("table",))
    command.argument("step", choices=("all", "run", "table"), nargs="?", default="all")
    command.argument("--model", choices=list(MODELS), action="append")
    command.argument("--budget", type=float, default=55.0, help="seconds of each search")
    command.argument("--seconds", type=float, default=8.0, help="of each perf_analyzer run")
    command.argument("--verify", type=float, default=40.0, help="seconds of analyze verify")
    options = command.start()
    if options.step != "table":
        for name in options.model or MODELS:
            run(name, budget_s=options.budget, seconds=options.seconds, verify_s=options.verify)
    if options.step == "run":
        return 0
    return command.finish(options, collect(), shown)


if __name__ == "__main__":
    raise SystemExit(main())
