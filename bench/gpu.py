"""Ten minutes on a GPU: what only a GPU can show, most valuable first.

    make gpu-proof                      all steps that have no result yet, at most ten minutes
    python bench/gpu.py [STEP …] [--seconds 600] [--again]     some steps; those done as well

Each step runs in a process of its own and leaves ``bench/results/gpu/STEP.json``, also where it
fails, with the reason in words; the next goes on. A later call leaves out the steps that are done,
and tries the others again. After every step the table of ``docs/gpu.md`` is written from the files.

    machine    GPUs, driver, CUDA and libraries
    copies     TensorRT's instances over CuPy: allocations, streams, page-locked memory, errors
    lost       an illegal address, in a process that ends with it
    provider   ONNX Runtime on CUDA: cuDNN's search at batches 1 to 64, bound tensors, CUDA graphs
    nvml       NVML's windows and energy counter, idle and busy
    search     a whole search on the GPU and one on the CPU (--executor in-process)
    landscape  instances × batch × precision, into bench/tables/gpu_landscape.csv
    tests      the tests marked gpu
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analyzer.errors import AnalyzerError, MissingPartError
from benchlib.command import RESULTS, ROOT, Command, put_into_page, say, write_json
from benchlib.gpu_page import page_table, sentence

SIDES = ("gpu", "cpu")
TABLE = ROOT / "bench" / "tables" / "gpu_landscape.csv"
PAGE = ROOT / "docs" / "gpu.md"
# Of the step copies, where its figures do not matter.
QUICK: dict[str, Any] = {"row": 1000, "seconds": 0.01}
_TABLE = "TRITUNE_GPU_TABLE"  # tells the step's process
_QUICK = "TRITUNE_GPU_QUICK"
# Of a step's time, what its process needs beside the measuring.
_STEP_OVERHEAD_S = 15.0
# A search spends up to a quarter more than its budget where that completes a first proof.
_SPENT_OF_BUDGET_MAX = 1.25


def machine(seconds: float) -> dict[str, Any]:
    """What is here, as ``analyze doctor`` tells it."""
    from analyzer.hardware.gpus import driver_cuda_version, first_gpu

    gpu = first_gpu()
    told = _analyze("doctor", "--json", seconds=seconds)
    return {
        "gpu": gpu.name,
        "uuid": gpu.uuid,
        "driver": gpu.driver,
        "driver_cuda": driver_cuda_version(),
        "parts": json.loads(told.stdout)["parts"],
    }


def copies(seconds: float) -> dict[str, Any]:
    from benchlib import gpu_copies

    return gpu_copies.copies(**(QUICK if os.environ.get(_QUICK) else {}))


def lost(seconds: float) -> dict[str, Any]:
    from benchlib import gpu_copies

    return gpu_copies.lost()


def provider(seconds: float) -> dict[str, Any]:
    from benchlib import gpu_provider

    return gpu_provider.provider()


def nvml(seconds: float) -> dict[str, Any]:
    from benchlib import gpu_provider

    return gpu_provider.nvml()


def search(seconds: float) -> dict[str, Any]:
    """The documents of a search of the digits example on the GPU and on the CPU."""
    each_s = (seconds - _STEP_OVERHEAD_S) / len(SIDES)
    return {device: _search(device, each_s) for device in SIDES}


def _search(device: str, seconds: float) -> dict[str, Any]:
    budget_s = max(seconds / _SPENT_OF_BUDGET_MAX, 10.0)
    with tempfile.TemporaryDirectory() as folder:
        done = _analyze(
            "search", str(ROOT / "examples" / "digits.onnx"), "--device", device, "--json",
            "--executor", "in-process", "--latency-budget", "20ms", "--budget", f"{budget_s:.0f}s",
            "--calibration-data", str(ROOT / "examples" / "digits.npz"),
            "--store", f"sqlite:///{folder}/results.db", seconds=seconds + _STEP_OVERHEAD_S,
        )  # fmt: skip
    document: dict[str, Any] = json.loads(done.stdout)
    if "error" in document:
        raise AnalyzerError(document["error"]["message"], hint=document["error"]["hint"])
    return document


def landscape(seconds: float) -> dict[str, Any]:
    from benchlib import gpu_landscape

    table = Path(os.environ.get(_TABLE, TABLE))
    return gpu_landscape.landscape(table, until_s=seconds - _STEP_OVERHEAD_S)


def tests(seconds: float) -> dict[str, Any]:
    """The tests marked ``gpu`` without the search, which is a step; the end of what pytest says."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-k", "not whole_search",
         "tests/test_gpu.py"],
        cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip
    lines = (done.stdout or done.stderr).strip().splitlines()
    last = lines[-1] if lines else ""
    if done.returncode != 0:
        raise AnalyzerError(f"pytest ended with exit code {done.returncode}: {last}")
    if " passed" not in last:
        raise MissingPartError(f"Not one of the tests marked gpu ran: {'; '.join(lines[-5:])}")
    return {"said": lines[-20:]}


def _analyze(*words: str, seconds: float | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "analyzer.cli.main", *words]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False
    )
    if not done.stdout:
        raise AnalyzerError(f"analyze {words[0]} printed nothing: {done.stderr[-400:]}")
    return done


@dataclass(frozen=True, slots=True)
class Step:
    """What runs, and for how long at most, seconds."""

    run: Callable[[float], dict[str, Any]]
    seconds: float


# Most valuable first. Together ten minutes.
STEPS = {
    "machine": Step(machine, 20.0),
    "copies": Step(copies, 70.0),
    "lost": Step(lost, 20.0),
    "provider": Step(provider, 110.0),
    "nvml": Step(nvml, 30.0),
    "search": Step(search, 130.0),
    "landscape": Step(landscape, 150.0),
    "tests": Step(tests, 70.0),
}


def child(name: str, seconds: float, out: Path) -> int:
    """Runs one step in this process and writes what came of it."""
    began = time.perf_counter()
    record: dict[str, Any] = {"step": name, "state": "done"}
    try:
        record["results"] = STEPS[name].run(seconds)
    except Exception as error:
        record["state"] = "missing" if isinstance(error, MissingPartError) else "failed"
        said = error.message if isinstance(error, AnalyzerError) else repr(error)
        record |= {"said": said[:1000], "hint": getattr(error, "hint", "")}
    write_json(out, record | {"seconds": round(time.perf_counter() - began, 1)})
    return 0


def run_step(name: str, seconds: float, out: Path) -> dict[str, Any]:
    """Runs one step in a process of its own; its record, which is written whatever happens."""
    out.unlink(missing_ok=True)
    command = [
        sys.executable,
        __file__,
        name,
        "--child",
        f"{seconds:.0f}",
        "--out",
        str(out),
        "--anyway",
    ]
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        start_new_session=True, env=os.environ | {"PYTHONPATH": paths},
    ) as process:  # fmt: skip
        try:
            _, errors = process.communicate(timeout=seconds)
            said = f"its process ended with exit code {process.returncode}: {errors[-400:]}"
        except subprocess.TimeoutExpired:
            # With what it started: a search or a server would disturb the next step.
            os.killpg(process.pid, signal.SIGKILL)
            said = f"it was not done within {seconds:.0f} s"
    if not out.is_file():
        write_json(out, {"step": name, "state": "failed", "said": said, "seconds": seconds})
    record: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return record


def main() -> int:
    command = Command("gpu", __doc__, timing=True)
    command.argument("steps", nargs="*", metavar="STEP", help="some of them; default all")
    command.argument("--seconds", type=float, default=600.0, help="for all steps together")
    command.argument("--again", action="store_true", help="steps that are done as well")
    command.argument("--folder", type=Path, default=RESULTS / "gpu", help="of the steps' results")
    command.argument("--page", type=Path, default=PAGE, help="whose table is written")
    command.argument("--table", type=Path, default=TABLE, help="of the step landscape")
    command.argument("--quick", action="store_true", help="small copies, to try this program")
    command.argument("--child", type=float, metavar="SECONDS", help="run one step in this process")
    options = command.start()
    wanted = options.steps or list(STEPS)
    if unknown := [name for name in wanted if name not in STEPS]:
        say(f"There is no step {unknown[0]}; there are: {', '.join(STEPS)}.")
        return 2
    if options.child is not None:
        return child(wanted[0], options.child, options.out)
    os.environ[_TABLE] = str(options.table)
    if options.quick:
        os.environ[_QUICK] = "1"
    end = time.monotonic() + options.seconds
    for name in wanted:
        out = options.folder / f"{name}.json"
        if not options.again and _state(out) == "done":
            say(f"{name}: done before")
            continue
        left = end - time.monotonic()
        if left < _STEP_OVERHEAD_S:
            say(f"{name}: left for the next call, {max(left, 0.0):.0f} s remain")
            continue
        record = run_step(name, min(STEPS[name].seconds, left), out)
        say(f"{name}: {sentence(record)}")
        put_into_page(options.page, "gpu", page_table(_records(options.folder)))
    return command.finish(options, {"steps": _records(options.folder)}, _shown)


def _state(path: Path) -> str | None:
    if not path.is_file():
        return None
    return str(json.loads(path.read_text(encoding="utf-8"))["state"])


def _records(folder: Path) -> dict[str, Any]:
    """The record of each step that has run, in the steps' order."""
    found = {}
    for name in STEPS:
        path = folder / f"{name}.json"
        if path.is_file():
            found[name] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _shown(document: dict[str, Any]) -> str:
    return page_table(document["steps"])


if __name__ == "__main__":
    raise SystemExit(main())
