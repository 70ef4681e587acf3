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

import argparse
import base64
import csv
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from analyzer.domain.configuration import Configuration
from analyzer.load.perf_analyzer import require_perf_analyzer
from analyzer.modelconfig.files import model_files
from analyzer.targets.triton_install import python_environment, require_triton
from analyzer.variants.inspect import inspect_model
from benchlib import real_triton
from benchlib.real_triton import ROOT, WORK, say

RESULTS = ROOT / "bench" / "results" / "peers.json"
STATE = WORK / "peers"
MODEL = WORK / "encoder.onnx"
NAME = "encoder"
LATENCY_BUDGET_MS = 100.0
PACKAGE = ["triton-model-analyzer==1.58.0", "numpy<2"]
MODES = ("quick", "optuna", "brute")
GOALS = {"fp32_ratio": 1.0, "int8_ratio": 1.8, "wall_share": 0.25}
# Of a search's wall time, what may lie beyond its --budget: imports, the last server and its run.
OUTSIDE_BUDGET_S = 5.0


def prepare_model() -> None:
    """Writes the text encoder, if it is not there."""
    if not MODEL.is_file():
        MODEL.parent.mkdir(parents=True, exist_ok=True)
        script = ROOT / "examples" / "make_text_encoder.py"
        shape = ["--layers", "4", "--hidden", "256", "--heads", "4", "--tokens", "128"]
        subprocess.run([sys.executable, str(script), str(MODEL), *shape], check=True)


def prepare_peer() -> Path:
    """Model Analyzer's program, installed into an environment of its own."""
    home = WORK / "model-analyzer"
    program = home / "bin" / "model-analyzer"
    if not program.is_file():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", *PACKAGE]
        subprocess.run(pip, check=True)
    return program


def write_repository(folder: Path) -> Path:
    """The model as a user would hand it over: fp32, one thread per instance, no batching yet.

    Preferred batch sizes or a warm-up in it would make Model Analyzer skip every smaller maximum,
    and two threads per instance (ONNX Runtime's default here) would cost it two fifths of its
    throughput, since it does not vary them.
    """
    model = inspect_model(MODEL)
    configuration = Configuration(max_batch_size=8, instance_count=1, intra_op_threads=1)
    files = model_files(model, MODEL, configuration, backend="python", name=NAME, warmup=False)
    version = folder / NAME / "1"
    version.mkdir(parents=True)
    for name, content in files.version_files.items():
        if isinstance(content, bytes):
            (version / name).write_bytes(content)
        else:
            shutil.copyfile(content, version / name)
    (folder / NAME / "config.pbtxt").write_text(files.config_text)
    return folder


def write_inputs(path: Path) -> Path:
    """perf_analyzer's JSON of valid inputs: its random token ids would break the model."""
    rows = real_triton.request_rows(MODEL)
    count = min(len(array) for array in rows.values())
    data = [
        {
            name: {
                "b64": base64.b64encode(array[number].tobytes()).decode(),
                "shape": list(array.shape[1:]),
            }
            for name, array in rows.items()
        }
        for number in range(count)
    ]
    path.write_text(json.dumps({"data": data}))
    return path


def write_server_script(path: Path) -> Path:
    """A tritonserver whose python backend finds this environment's ONNX Runtime.

    Only the server may see it: Model Analyzer itself needs another numpy.
    """
    environment = python_environment(require_triton())
    names = ("PYTHONPATH", "PATH", "LD_LIBRARY_PATH")
    lines = [f"export {name}='{environment[name]}'" for name in names]
    path.write_text(
        "\n".join(["#!/bin/sh", *lines, f'exec "{require_triton().executable}" "$@"\n'])
    )
    path.chmod(0o755)
    return path


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens to at this moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def run_model_analyzer(mode: str, extra: dict[str, Any]) -> dict[str, Any]:
    """One search of Model Analyzer; its wall time, rows and best configuration."""
    prepare_model()
    program = prepare_peer()
    home = STATE / mode
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    install, perf = require_triton(), require_perf_analyzer()
    http, grpc, metrics = free_ports(3)
    config = {
        "model_repository": str(write_repository(home / "models")),
        "profile_models": {
            NAME: {
                "cpu_only": True,
                "objectives": ["perf_throughput"],
                "constraints": {"perf_latency_p99": {"max": round(LATENCY_BUDGET_MS)}},
                "perf_analyzer_flags": {"input-data": str(write_inputs(home / "inputs.json"))},
            }
        },
        "run_config_search_mode": mode,
        "output_model_repository_path": str(home / "output"),
        "override_output_model_repository": True,
        "checkpoint_directory": str(home / "checkpoints"),
        "export_path": str(home / "export"),
        "client_protocol": "grpc",
        "triton_launch_mode": "local",
        "triton_server_path": str(write_server_script(home / "tritonserver")),
        "triton_server_flags": {
            "backend-directory": str(install.backend_dir),
            "allow-gpu-metrics": "false",
        },
        "triton_http_endpoint": f"localhost:{http}",
        "triton_grpc_endpoint": f"localhost:{grpc}",
        "triton_metrics_url": f"http://localhost:{metrics}/metrics",
        "triton_output_path": str(home / "triton.log"),
        "perf_analyzer_path": str(perf.executable),
        # The generator shares the two cores: the default of 80 % would end its runs.
        "perf_analyzer_cpu_util": 400,
        "skip_summary_reports": False,  # it writes no table without them
        "skip_detailed_reports": True,
        **extra,
    }
    path = home / "config.yaml"
    path.write_text(yaml.safe_dump(config))
    environment = dict(os.environ)
    if perf.libraries is not None:
        environment["LD_LIBRARY_PATH"] = str(perf.libraries)
    start = time.monotonic()
    with (home / "log.txt").open("w") as log:
        done = subprocess.run(
            [str(program), "profile", "-v", "-f", str(path)],
            env=environment,
            cwd=home,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        )
    wall_s = time.monotonic() - start
    written = home / "export" / "results" / "metrics-model-inference.csv"
    if not written.is_file():
        tail = (home / "log.txt").read_text()[-3000:]
        raise SystemExit(f"Model Analyzer ended with {done.returncode}:\n{tail}")
    rows = read_rows(written)
    kept = [row for row in rows if row["satisfies"]]
    if not kept:
        raise SystemExit(f"Model Analyzer found nothing within the SLA: {rows}")
    chosen = max(kept, key=lambda row: float(row["throughput_ips"]))
    result = {
        "mode": mode,
        "wall_seconds": wall_s,
        "rows": rows,
        "configurations": len({row["config"] for row in rows}),
        "chosen": chosen,
        "model_dir": str((home / "output" / chosen["config"]).relative_to(ROOT)),
    }
    save_choice(f"model-analyzer-{mode}", result)
    return result


def read_rows(path: Path) -> list[dict[str, Any]]:
    """What Model Analyzer measured, a row per configuration and load."""
    with path.open(newline="") as file:
        table = list(csv.DictReader(file))
    rows = []
    for row in table:
        values = {re.sub(r"[^a-z0-9]+", "_", key.lower()).strip("_"): row[key] for key in row}
        rows.append(
            {
                "config": Path(values["model_config_path"]).name,
                "concurrency": int(values["concurrency"]),
                "instances": values["instance_group"],
                "max_batch_size": int(values["max_batch_size"]),
                "satisfies": values["satisfies_constraints"].strip().lower() in ("yes", "true"),
                "throughput_ips": float(values["throughput_infer_sec"]),
                "latency_ms_p99": float(values["p99_latency_ms"]),
            }
        )
    return rows


def run_ours(mode: str, budget_s: float | None) -> None:
    """Our searches on the same real Triton, within a quarter of the peer's wall time."""
    prepare_model()
    if budget_s is None:
        peer_s = load(f"model-analyzer-{mode}")["wall_seconds"]
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
        model_dir = load(label).get("model_dir")
        if model_dir is None:
            say(f"{label}: nothing was recommended, so nothing is measured")
            continue
        say(label)
        prepared = named(ROOT / model_dir, STATE / "measured" / label)
        result = real_triton.measured(
            prepared, inputs, budget_ms=LATENCY_BUDGET_MS, seconds=seconds
        )
        rounds = [*load(f"measured-{label}", []), result]
        save(f"measured-{label}", rounds)


def named(source: Path, destination: Path) -> Path:
    """A copy of a model's folder under one name, whatever the search called it."""
    shutil.rmtree(destination, ignore_errors=True)
    shutil.copytree(source, destination / NAME)
    config = destination / NAME / "config.pbtxt"
    config.write_text(re.sub(r'(?m)^name: ".*"', f'name: "{NAME}"', config.read_text()))
    return destination / NAME


def save(name: str, value: Any) -> None:
    """Keeps a step's result for the next."""
    STATE.mkdir(parents=True, exist_ok=True)
    (STATE / f"{name}.json").write_text(json.dumps(value, indent=1) + "\n")


def save_choice(label: str, value: Any) -> None:
    """Keeps what a search chose; measurements of an earlier choice are forgotten."""
    (STATE / f"measured-{label}.json").unlink(missing_ok=True)
    save(label, value)


def load(name: str, default: Any = None) -> Any:
    """A step's result.

    Raises:
        SystemExit: The step has not run.
    """
    path = STATE / f"{name}.json"
    if path.is_file():
        return json.loads(path.read_text())
    if default is None:
        raise SystemExit(f"Nothing is known of {name}: run the earlier steps first.")
    return default


def median(values: list[float | None]) -> float | None:
    """The middle of the values that are there."""
    known = sorted(value for value in values if value is not None)
    return known[len(known) // 2] if known else None


def table(mode: str) -> dict[str, Any]:
    """Collects every step into one result and writes it."""
    peer = load(f"model-analyzer-{mode}")
    sides: dict[str, Any] = {}
    for label in (f"model-analyzer-{mode}", "ours-fp32", "ours-int8"):
        step = {key: value for key, value in load(label).items() if key != "model_dir"}
        rounds = load(f"measured-{label}", [])
        step["rounds"] = rounds
        step["closed_throughput_ips"] = median([r["closed_throughput_ips"] for r in rounds])
        step["open_edge_rps"] = median([r["open_edge_rps"] for r in rounds])
        step["wall_share"] = step["wall_seconds"] / peer["wall_seconds"]
        sides[label] = step
    base = sides[f"model-analyzer-{mode}"]
    for step in sides.values():
        for key in ("closed_throughput_ips", "open_edge_rps"):
            step[f"{key}_ratio"] = step[key] / base[key] if step[key] and base[key] else None
    result = {
        "bench": "peers",
        "model": "text encoder: 4 layers, hidden 256, 128 tokens, python backend",
        "latency_budget_ms": LATENCY_BUDGET_MS,
        "percentile": 99,
        "mode": mode,
        "machine": real_triton.machine(),
        "versions": {"triton-model-analyzer": PACKAGE[0].split("==")[1], "tritune": own_version()},
        "goals": GOALS,
        "sides": sides,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1).replace(str(ROOT) + os.sep, "") + "\n")
    return result


def own_version() -> str:
    """The version of this program."""
    try:
        return metadata.version("tritune")
    except metadata.PackageNotFoundError:
        return "checkout"


def show(result: dict[str, Any]) -> None:
    """Prints the table as Markdown."""

    def cell(value: float | None, form: str) -> str:
        return format(value, form) if value is not None else "none"

    print("| search | verdict | wall time | share | closed loop | ratio | Poisson | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for label, side in result["sides"].items():
        cells = [
            label,
            side.get("verdict", ""),
            f"{side['wall_seconds']:.0f} s",
            f"{side['wall_share']:.2f}",
            f"{cell(side['closed_throughput_ips'], '.0f')} infer/s",
            cell(side["closed_throughput_ips_ratio"], ".2f"),
            f"{cell(side['open_edge_rps'], '.0f')}/s",
            cell(side["open_edge_rps_ratio"], ".2f"),
        ]
        print(f"| {' | '.join(cells)} |")


def main() -> None:
    """Runs the steps that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    steps = ("all", "model-analyzer", "ours", "measure", "table")
    parser.add_argument("step", choices=steps, nargs="?", default="all")
    parser.add_argument("--mode", choices=MODES, default="quick", help="Model Analyzer's search")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=YAML", help="its options"
    )
    parser.add_argument("--budget", type=float, help="seconds, instead of a quarter of its time")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each perf_analyzer run")
    parser.add_argument("--only", help="measure this side alone")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    everything = arguments.step == "all"
    if everything or arguments.step == "model-analyzer":
        extra = {
            key: yaml.safe_load(value) for key, value in (s.split("=", 1) for s in arguments.set)
        }
        found = run_model_analyzer(arguments.mode, extra)
        say(f"Model Analyzer: {found['wall_seconds']:.0f} s, {found['chosen']}")
    if everything or arguments.step == "ours":
        run_ours(arguments.mode, arguments.budget)
    if everything or arguments.step == "measure":
        measure(arguments.mode, arguments.seconds, arguments.only)
    if everything or arguments.step == "table":
        result = table(arguments.mode)
        print(json.dumps(result)) if arguments.json else show(result)


if __name__ == "__main__":
    main()
