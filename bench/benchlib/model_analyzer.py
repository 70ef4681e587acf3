"""Triton Model Analyzer as it runs beside us: its installation, its inputs, one search of it.

It gets an environment of its own under ``bench/.work`` (numpy < 2). Of its search all is kept that
``metrics-model-inference.csv`` tells.
"""

from __future__ import annotations

import base64
import csv
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from analyzer.domain.configuration import Configuration
from analyzer.load.perf_analyzer import require_perf_analyzer
from analyzer.modelconfig.files import model_files
from analyzer.targets.ports import free_ports
from analyzer.targets.triton_install import python_environment, require_triton
from analyzer.variants.inspect import inspect_model
from benchlib.command import ROOT, WORK
from benchlib.real_triton import request_rows

PACKAGE = ["triton-model-analyzer==1.58.0", "numpy<2"]
MODES = ("quick", "optuna", "brute")


def prepare_peer() -> Path:
    """Model Analyzer's program, installed into an environment of its own."""
    home = WORK / "model-analyzer"
    program = home / "bin" / "model-analyzer"
    if not program.is_file():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", *PACKAGE]
        subprocess.run(pip, check=True)
    return program


def write_repository(path: Path, folder: Path) -> Path:
    """The model as a user would hand it over: fp32, one thread per instance, no batching yet.

    Preferred batch sizes or a warm-up in it would make Model Analyzer skip every smaller maximum,
    and two threads per instance (ONNX Runtime's default here) would cost it two fifths of its
    throughput, since it does not vary them.
    """
    model = inspect_model(path)
    configuration = Configuration(max_batch_size=8, instance_count=1, intra_op_threads=1)
    name = path.stem
    files = model_files(model, path, configuration, backend="python", name=name, warmup=False)
    version = folder / name / "1"
    version.mkdir(parents=True)
    for file, content in files.version_files.items():
        if isinstance(content, bytes):
            (version / file).write_bytes(content)
        else:
            shutil.copyfile(content, version / file)
    (folder / name / "config.pbtxt").write_text(files.config_text)
    return folder


def write_inputs(model: Path, path: Path) -> Path:
    """perf_analyzer's JSON of valid inputs: its random token ids would break an encoder."""
    rows = request_rows(model)
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


def run_model_analyzer(
    model: Path, home: Path, *, latency_budget_ms: float, mode: str, extra: dict[str, Any]
) -> dict[str, Any]:
    """One search of Model Analyzer; its wall time, rows and best configuration.

    Args:
        model: The ONNX file.
        home: A folder for all that the search writes; emptied before.
        mode: One of :data:`MODES`.
        extra: Settings of its configuration file besides ours, or instead of them.
    """
    program = prepare_peer()
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    install, perf = require_triton(), require_perf_analyzer()
    http, grpc, metrics = free_ports(3)
    config = {
        "model_repository": str(write_repository(model, home / "models")),
        "profile_models": {
            model.stem: {
                "cpu_only": True,
                "objectives": ["perf_throughput"],
                "constraints": {"perf_latency_p99": {"max": round(latency_budget_ms)}},
                "perf_analyzer_flags": {
                    "input-data": str(write_inputs(model, home / "inputs.json"))
                },
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
    return {
        "mode": mode,
        "wall_seconds": wall_s,
        "rows": rows,
        "configurations": len({row["config"] for row in rows}),
        "chosen": chosen,
        "model_dir": str((home / "output" / chosen["config"]).relative_to(ROOT)),
    }


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
