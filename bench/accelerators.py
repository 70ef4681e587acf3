"""OpenVINO on the CPU beside ONNX Runtime's own kernels, on three models.

    python bench/accelerators.py [--only digits|convnet|encoder] [--budget 120] [--rounds 3]

For each model one ``analyze search`` over fp32 and static int8, each with and without the
accelerator ``openvino``, measures all of them in one run. Its best OpenVINO configuration is
exported, and loaded by ``analyze serve`` and, as a python model, by a real Triton, whose answers
are held against ONNX Runtime's own kernels. Then the best configurations with and without it are
measured in turns (A B A B), by a closed loop, since a machine's speed drifts. Needs ``make
tools``: all processes import the ONNX Runtime of ``.tools/openvino``, which has both. ``--only``
keeps what the file of results has of the other models.
"""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.domain.configuration import Configuration
from analyzer.domain.load_test import STATUS_OK
from analyzer.domain.model import ModelInfo
from analyzer.engine.runtimes.onnxruntime_ import OrtRuntime
from analyzer.engine.tensor_file import write_tensors
from analyzer.errors import AnalyzerError
from analyzer.load.generator import run_closed_loop
from analyzer.modelconfig.render import configuration_from_config
from analyzer.modelconfig.text import read_config
from analyzer.targets.http_endpoint import HttpEndpoint
from analyzer.targets.open import open_target
from analyzer.targets.triton_install import find_triton
from analyzer.targets.triton_server import TritonServer
from analyzer.variants.inputs import load_calibration, synthetic_inputs
from analyzer.variants.inspect import inspect_model
from benchlib.command import (
    ROOT,
    WORK,
    Command,
    alternate,
    cell,
    median,
    put_into_page,
    say,
    table,
)
from benchlib.models import write_convnet, write_encoder
from benchlib.own_server import own_server

OPENVINO = ROOT / ".tools" / "openvino"
FOLDER = WORK / "accelerators"
PAGE = ROOT / "docs" / "accelerators.md"
SPACE = """
name: accelerators
device: cpu
parameters:
  precision: [fp32, int8]
  quantization: {choices: [static], when: {precision: int8}}
  accelerator: [none, openvino]
  intra_op_threads: [cores]
  dynamic_batching: [true]
  max_batch_size: [8]
"""
# Latency budgets that two cores can keep, and rows that a request is made of.
BUDGETS = {"digits": "50ms", "convnet": "200ms", "encoder": "100ms"}
CLOSED_LOOP = 8
CLOSED_SECONDS = 3.0
ROWS = 8
# Of the largest answer: kernels add in different orders, and int8 ones round differently.
AGREEMENT = {"fp32": 1e-3, "int8": 0.1}


def model_file(name: str) -> Path:
    """The model of that name, written if it is not there."""
    if name == "digits":
        return ROOT / "examples" / "digits.onnx"
    path = FOLDER / f"{name}.onnx"
    return write_convnet(path) if name == "convnet" else write_encoder(path, tokens=32)


def analyze(*words: str) -> str:
    """What ``analyze`` prints to stdout; its progress goes to ours.

    Raises:
        AnalyzerError: It ended with a code that is no verdict.
    """
    command = [sys.executable, "-m", "analyzer.cli.main", *words]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 3, 4):
        raise AnalyzerError(f"{' '.join(words[:2])} ended with exit code {done.returncode}.")
    return done.stdout


def search(name: str, budget_s: float, folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One study: its document, and what was measured of each configuration."""
    space, store = folder / "space.yaml", f"sqlite:///{folder / 'results.db'}"
    space.write_text(SPACE)
    words = ["search", str(model_file(name)), "--latency-budget", BUDGETS[name], "--json"]
    words += ["--budget", f"{budget_s:g}s", "--space", str(space), "--store", store]
    words += ["--precisions", "fp32,int8", "--study", name, "--seed", "1"]
    if name == "digits":
        words += ["--calibration-data", str(ROOT / "examples" / "digits.npz")]
    document = json.loads(analyze(*words))
    rows = analyze("report", name, "--store", store, "--format", "csv")
    return document, [row for row in csv.DictReader(io.StringIO(rows)) if row["config_id"]]


def best(rows: list[dict[str, Any]], accelerator: str) -> dict[str, Any] | None:
    """The measured configuration with that accelerator (empty for none) and the highest edge.

    Where an edge was not bracketed, the highest rate that kept the budget counts. A search that
    expects nothing of a side measures the baseline alone there.
    """
    found = [
        row for row in rows if row["accelerator"] == accelerator and row["state"] == "measured"
    ]
    return max(found, key=edge_of, default=None)


def edge_of(row: dict[str, Any]) -> float:
    """The edge of a row, or its lower end."""
    return float(row["edge_rps"] or row["edge_low_rps"] or 0.0)


def export(name: str, config_id: str, folder: Path, backend: str) -> tuple[Path, Configuration]:
    """A repository with that configuration, and what its config.pbtxt says."""
    repository = folder / f"{backend}-{config_id}"
    words = ["export", name, "--store", f"sqlite:///{folder / 'results.db'}", "--json"]
    analyze(*words, "--repository", str(repository), "--config", config_id, "--backend", backend)
    return repository, configuration_from_config(read_config(repository / name / "config.pbtxt"))


def rows_of(name: str, model: ModelInfo) -> dict[str, Any]:
    """Inputs of a few requests."""
    if name == "digits":
        found = load_calibration(ROOT / "examples" / "digits.npz", model).inputs
    else:
        found = synthetic_inputs(model, ROWS, 0)
    return {key: array[:ROWS] for key, array in found.items()}


def difference(address: str, name: str, model: ModelInfo, rows: dict[str, Any]) -> float:
    """The largest difference to ONNX Runtime's own kernels at fp32, over the largest answer."""
    from tritonclient import grpc as client

    want = OrtRuntime(model.path).run(rows)
    with client.InferenceServerClient(address) as asking:
        tensors = []
        for tensor in model.inputs:
            array = rows[tensor.name]
            tensors.append(client.InferInput(tensor.name, list(array.shape), tensor.datatype))
            tensors[-1].set_data_from_numpy(np.ascontiguousarray(array))
        answer = asking.infer(name, tensors)
    return max(
        float(np.abs(answer.as_numpy(key) - value).max() / max(np.abs(value).max(), 1e-9))
        for key, value in want.items()
    )


def load(name: str, model: ModelInfo, config_id: str, folder: Path) -> dict[str, Any]:
    """Loads the export of a configuration in our server and in a real Triton, and asks both."""
    rows = rows_of(name, model)
    repository, told = export(name, config_id, folder, "onnxruntime")
    with own_server(repository, "--exit-on-error") as server:
        ours = difference(server.grpc, name, model, rows)
    found = {"written": told.accelerator, "limit": AGREEMENT[told.precision], "embedded": ours}
    install = find_triton()
    if install is None:
        return found | {"triton": None}
    repository, _ = export(name, config_id, folder, "python")
    with TritonServer(install) as server:
        (repository / name).rename(server.repository / name)
        HttpEndpoint("127.0.0.1", server.http_port).load(name, None, {})
        return found | {"triton": difference(server.grpc_address, name, model, rows)}


def in_turns(
    name: str, model: ModelInfo, chosen: dict[str, str], folder: Path, rounds: int
) -> dict[str, Any]:
    """Inferences per second of each configuration in a closed loop, and their milliseconds.

    Where the search measured none without the accelerator, the side ``default`` is the exported
    configuration itself without it, on the same file.
    """
    inputs = folder / "inputs.npz"
    write_tensors(inputs, rows_of(name, model))

    def measure(side: str) -> tuple[float, float]:
        repository, configuration = exports[side]
        with (
            open_target(
                "embedded",
                model=model,
                model_path=repository / name / "1" / "model.onnx",
                inputs_path=inputs,
                configuration=configuration,
            ) as target,
            target.connect() as connection,
        ):
            run_closed_loop(connection, CLOSED_LOOP, duration_s=0.5)
            done = run_closed_loop(connection, CLOSED_LOOP, duration_s=CLOSED_SECONDS)
        good = done.log.status == STATUS_OK
        return float(good.sum()) / done.wall_s, float(np.median(done.log.latency_s[good]) * 1e3)

    exports = {
        side: export(name, config_id, folder, "onnxruntime") for side, config_id in chosen.items()
    }
    if "default" not in exports:
        repository, configuration = exports["openvino"]
        exports["default"] = (repository, replace(configuration, accelerator=None))
    sides = {side: lambda _, own=side: measure(own) for side in sorted(exports)}
    return {
        side: {"ips": [ips for ips, _ in runs], "latency_ms_p50": [ms for _, ms in runs]}
        for side, runs in alternate(sides, rounds).items()
    }


def run(name: str, budget_s: float, rounds: int) -> dict[str, Any]:
    """Everything about one model."""
    say(f"{name}: searching")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        document, rows = search(name, budget_s, folder)
        kept = [
            "config_id", "role", "precision", "quantization", "accelerator", "state",
            "instance_count", "edge_rps", "edge_low_rps", "edge_high_rps", "latency_ms_p99",
        ]  # fmt: skip
        found: dict[str, Any] = {
            "latency_budget": BUDGETS[name],
            "verdict": document["verdict"],
            "libraries": document["provenance"]["libraries"],
            "recommended": (document["recommendation"] or {}).get("config_id"),
            "outcomes": [{key: row[key] for key in kept} for row in rows],
        }
        default, openvino = best(rows, ""), best(rows, "openvino")
        if openvino is None:
            return found
        model = inspect_model(model_file(name), name=name)
        say(f"{name}: loading {openvino['config_id']}")
        found["loaded"] = load(name, model, openvino["config_id"], folder)
        say(f"{name}: in turns")
        chosen = {"openvino": openvino["config_id"]}
        if default is not None:
            chosen["default"] = default["config_id"]
        found["compared"] = chosen
        found["in_turns"] = in_turns(name, model, chosen, folder, rounds)
        return found


def _shown(document: dict[str, Any]) -> str:
    """A row for each model."""
    titles = ["model", "verdict", "edge default 1/s", "edge OpenVINO 1/s", "in turns default 1/s",
              "in turns OpenVINO 1/s", "difference embedded", "difference Triton"]  # fmt: skip
    lines = []
    for name, found in document["models"].items():
        edges = [best(found["outcomes"], side) for side in ("", "openvino")]
        turns, loaded = found.get("in_turns", {}), found.get("loaded", {})
        lines.append(
            [
                name,
                found["verdict"],
                *(cell(edge_of(row) if row else None, ".1f") for row in edges),
                *(cell(median(turns.get(side, {}).get("ips", [])), ".1f")
                  for side in ("default", "openvino")),
                *(cell(loaded.get(side), ".1e") for side in ("embedded", "triton")),
            ]
        )  # fmt: skip
    return table(titles, lines)


def main() -> int:
    """Runs the bench; returns the exit code."""
    command = Command("accelerators", __doc__, timing=True)
    command.argument("--only", choices=list(BUDGETS))
    command.argument("--budget", type=float, default=120.0, metavar="SECONDS", help="of a search")
    command.argument("--rounds", type=int, default=3, metavar="N")
    command.argument("--page", type=Path, default=PAGE, help="whose table is written")
    options = command.start()
    if not (OPENVINO / "onnxruntime").is_dir():
        say("There is no ONNX Runtime with OpenVINO in .tools: run make tools.")
        return 2
    # For every child; this process compares with its own ONNX Runtime.
    paths = (str(OPENVINO), str(ROOT), os.environ.get("PYTHONPATH"))
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    names = [options.only] if options.only else list(BUDGETS)
    models: dict[str, Any] = {}
    if options.only and options.out.is_file():
        models = json.loads(options.out.read_text(encoding="utf-8"))["models"]
    models |= {name: run(name, options.budget, options.rounds) for name in names}
    document = {"models": models}
    put_into_page(options.page, "accelerators", _shown(document))
    return command.finish(options, document, _shown)


if __name__ == "__main__":
    raise SystemExit(main())
