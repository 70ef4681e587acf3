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

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchlib import real_triton
from benchlib.real_triton import ROOT, WORK, Arbiter, best, say, served

RESULTS = ROOT / "bench" / "results" / "servers.json"
STATE = WORK / "servers"
LOSS_MAX = 0.05
SIDES = ("embedded", "triton")


def write_encoder(path: Path) -> None:
    """A text encoder: 4 layers, hidden 256, 256 tokens."""
    script = ROOT / "examples" / "make_text_encoder.py"
    shape = ["--layers", "4", "--hidden", "256", "--heads", "4", "--tokens", "256"]
    subprocess.run([sys.executable, str(script), str(path), *shape], check=True)


def write_convnet(path: Path) -> None:
    """A convolutional network over 3 × 64 × 64 images: a stem, five 3 × 3 layers, a head."""
    from onnx import NodeProto, TensorProto, helper, numpy_helper, save

    rng = np.random.default_rng(0)
    weights: list[TensorProto] = []
    nodes: list[NodeProto] = []

    def weight(name: str, *dims: int) -> str:
        scale = np.float32(np.sqrt(2 / np.prod(dims[1:])))
        array = rng.standard_normal(dims, np.float32) * scale
        weights.append(numpy_helper.from_array(array, name))
        return name

    value, channels = "image", 3
    for number in range(6):
        convolved = f"layer{number}.convolved"
        inputs = [value, weight(f"layer{number}.weight", 64, channels, 3, 3)]
        nodes.append(helper.make_node("Conv", inputs, [convolved], pads=[1, 1, 1, 1]))
        value, channels = f"layer{number}.out", 64
        nodes.append(helper.make_node("Relu", [convolved], [value]))
    nodes.append(helper.make_node("GlobalAveragePool", [value], ["pooled"]))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["features"]))
    head = weight("head.weight", 10, 64)
    nodes.append(helper.make_node("Gemm", ["features", head], ["logits"], transB=1))
    _save(path, nodes, weights, ("image", [3, 64, 64]), ("logits", [10]), helper, save)


def write_mlp(path: Path) -> None:
    """A wide perceptron: 1024-4096-4096-1024, whose weights outweigh its arithmetic at batch 1."""
    from onnx import helper, numpy_helper, save

    rng = np.random.default_rng(0)
    weights, nodes, value = [], [], "features"
    widths = (1024, 4096, 4096, 1024)
    for number, (width_in, width_out) in enumerate(pairwise(widths)):
        array = rng.standard_normal((width_in, width_out), np.float32) * np.float32(width_in**-0.5)
        weights.append(numpy_helper.from_array(array, f"weight{number}"))
        product = f"product{number}"
        nodes.append(helper.make_node("MatMul", [value, f"weight{number}"], [product]))
        value = f"out{number}" if number < len(widths) - 2 else "answer"
        nodes.append(helper.make_node("Relu", [product], [value]))
    _save(path, nodes, weights, ("features", [1024]), ("answer", [1024]), helper, save)


def _save(
    path: Path,
    nodes: list[Any],
    weights: list[Any],
    taken: tuple[str, list[int]],
    given: tuple[str, list[int]],
    helper: Any,
    save: Callable[..., None],
) -> None:
    """Writes a graph of one FP32 input and output with a dynamic batch axis."""
    tensors = [
        helper.make_tensor_value_info(name, 1, ["batch", *dims]) for name, dims in (taken, given)
    ]
    graph = helper.make_graph(nodes, path.stem, tensors[:1], tensors[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    save(model, str(path))


# Name -> how the model is written, and the latency budget in milliseconds.
MODELS: dict[str, tuple[Callable[[Path], None], float]] = {
    "encoder": (write_encoder, 200.0),
    "convnet": (write_convnet, 250.0),
    "mlp": (write_mlp, 100.0),
}


def run(name: str, *, budget_s: float, seconds: float, verify_s: float) -> None:
    """Both searches of one model, both choices on the real Triton, and the claim verified."""
    write, latency_budget_ms = MODELS[name]
    model = WORK / "servers" / "models" / f"{name}.onnx"
    if not model.is_file():
        model.parent.mkdir(parents=True, exist_ok=True)
        write(model)
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
    save(name, result)
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
        save(name, result)
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
    save(name, result)


def save(name: str, result: dict[str, Any]) -> None:
    """Keeps what is known of a model."""
    STATE.mkdir(parents=True, exist_ok=True)
    (STATE / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")


def table() -> dict[str, Any]:
    """Collects the models into one result and writes it."""
    models = {}
    for name in MODELS:
        path = STATE / f"{name}.json"
        if path.is_file():
            models[name] = json.loads(path.read_text())
    for entry in models.values():
        edges = [entry["sides"][side].get("on_triton", {}).get("open_edge_rps") for side in SIDES]
        entry["loss"] = 1 - edges[0] / edges[1] if all(edges) else None
    result = {
        "bench": "servers",
        "machine": real_triton.machine(),
        "goal_loss_max": LOSS_MAX,
        "models": models,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1).replace(str(ROOT) + os.sep, "") + "\n")
    return result


def show(result: dict[str, Any]) -> None:
    """Prints the table as Markdown."""
    print(
        "| model | p99 within | searched on | choice | certified there | on Triton (perf_analyzer) "
        "| loss | verify on Triton |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, entry in result["models"].items():
        for side in SIDES:
            found = entry["sides"][side]
            recommended = found["choice"]
            edge = found.get("on_triton", {}).get("open_edge_rps")
            embedded = side == "embedded"
            cells = [
                name if embedded else "",
                f"{entry['latency_budget_ms']:g} ms" if embedded else "",
                side,
                describe(recommended["config"]) if recommended else found["verdict"],
                f"{recommended['capacity_rps']:.1f}/s"
                if recommended and recommended["capacity_rps"]
                else found["verdict"],
                f"{edge:.1f}/s" if edge else "none",
                f"{entry['loss']:.1%}" if embedded and entry["loss"] is not None else "",
                entry.get("verify", {}).get("verdict", "none") if embedded else "",
            ]
            print(f"| {' | '.join(cells)} |")


def describe(config: dict[str, Any]) -> str:
    """A configuration in a few words."""
    name = config["precision"] + (f" {config['quantization']}" if config["quantization"] else "")
    batching = "no batching"
    if config["dynamic_batching"]:
        batching = f"batch ≤ {config['max_batch_size']}, {config['max_queue_delay_us'] / 1e3:g} ms"
    threads = config["intra_op_threads"]
    return f"{name}, {batching}, {config['instance_count']} × {threads} threads"


def main() -> None:
    """Runs what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=("all", "run", "table"), nargs="?", default="all")
    parser.add_argument("--model", choices=list(MODELS), action="append")
    parser.add_argument("--budget", type=float, default=55.0, help="seconds of each search")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each perf_analyzer run")
    parser.add_argument("--verify", type=float, default=40.0, help="seconds of analyze verify")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.step != "table":
        for name in arguments.model or MODELS:
            run(
                name,
                budget_s=arguments.budget,
                seconds=arguments.seconds,
                verify_s=arguments.verify,
            )
    if arguments.step != "run":
        result = table()
        print(json.dumps(result)) if arguments.json else show(result)


if __name__ == "__main__":
    main()
