"""One search on a GPU and one on the CPU of the same machine; writes bench/results/gpu.json.

    python bench/gpu.py [--budget 120s]

Needs an NVIDIA GPU, ONNX Runtime with CUDA and nvidia-ml-py (extra ``gpu``); says so and exits 1
otherwise.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from typing import Any

from analyzer.hardware.machine import inspect_machine
from benchlib.command import ROOT, Command, cell

SIDES = ("gpu", "cpu")


def search(device: str, budget: str) -> dict[str, Any]:
    """The result document of a search of the digits example on ``device``."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "analyzer.cli.main", "search",
             str(ROOT / "examples" / "digits.onnx"), "--device", device, "--json",
             "--calibration-data", str(ROOT / "examples" / "digits.npz"),
             "--latency-budget", "20ms", "--budget", budget, "--store",
             f"sqlite:///{folder}/results.db"],
            capture_output=True, text=True, cwd=ROOT, check=False,
        )  # fmt: skip
    if not done.stdout:
        sys.exit(f"The search on the {device} printed nothing:\n{done.stderr[-2000:]}")
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def main() -> int:
    command = Command("gpu", __doc__, timing=True)
    command.argument("--budget", default="120s")
    options = command.start()
    if not inspect_machine().gpus:
        sys.exit("NVML finds no NVIDIA GPU on this machine: nothing was measured.")
    results = {device: search(device, options.budget) for device in SIDES}
    return command.finish(options, {"results": results}, shown)


def shown(document: dict[str, Any]) -> str:
    """Verdict and certified rate on each device."""
    lines = []
    for device, found in document["results"].items():
        best = found["recommendation"]
        rate = cell(best and best["capacity_rps"], ".0f")
        lines.append(f"{device}: {found['verdict']}, {rate}/s certified")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
