"""One search on a GPU and one on the CPU of the same machine; writes bench/results/gpu.json.

    python bench/gpu.py [--budget 120s]

Needs an NVIDIA GPU, ONNX Runtime with CUDA and nvidia-ml-py (extra ``gpu``); says so and exits 1
otherwise.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results" / "gpu.json"


def search(device: str, budget: str) -> dict[str, object]:
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
    document: dict[str, object] = json.loads(done.stdout)
    return document


def main() -> None:
    """Runs both and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="120s")
    budget = parser.parse_args().budget
    from analyzer.hardware.machine import inspect_machine

    machine = inspect_machine()
    if not machine.gpus:
        sys.exit("NVML finds no NVIDIA GPU on this machine: nothing was measured.")
    results = {device: search(device, budget) for device in ("gpu", "cpu")}
    RESULTS.write_text(json.dumps({"machine": machine.hardware, "results": results}, indent=1))
    print(f"{RESULTS} written")


if __name__ == "__main__":
    main()
