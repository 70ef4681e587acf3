"""One process of :mod:`analyzer.load.fleet`: hears its job and its start, sends its share."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.errors import AnalyzerError, TargetCrashError
from analyzer.hardware.lifetime import die_with_parent
from analyzer.load.fleet import write_log
from analyzer.load.generator import run_open_loop
from analyzer.targets.endpoint import open_endpoint
from analyzer.targets.payload import RequestPool


def main() -> int:
    """Runs the job on standard input; 1 if it failed, which standard output tells."""
    die_with_parent(parent_pid=int(sys.argv[1]))
    job = json.loads(sys.stdin.readline())
    try:
        _tell(state="done", **_run(job))
    except AnalyzerError as error:
        crash = isinstance(error, TargetCrashError)
        _tell(state="failed", error=error.message, hint=error.hint, crash=crash)
        return 1
    return 0


def _run(job: dict[str, Any]) -> dict[str, Any]:
    folder, number = Path(job["folder"]), int(job["number"])
    with np.load(folder / "inputs.npz") as file:
        pool = RequestPool(dict(file), batchable=job["batchable"])
    share = slice(number, None, int(job["processes"]))
    with np.load(folder / "schedule.npz") as file:
        arrivals_s, sizes = file["arrivals_s"][share], file["sizes"][share]
    endpoint = open_endpoint(job["address"])
    try:
        with endpoint.connect(job["model"], pool) as connection:
            _tell(state="ready")
            # The clock is the machine's, the same in every process.
            wait_s = (int(sys.stdin.readline()) - time.perf_counter_ns()) / 1e9
            time.sleep(max(wait_s, 0.0))
            run = run_open_loop(
                connection,
                arrivals_s,
                sizes,
                timeout_s=job["timeout_s"],
                drain_s=job["drain_s"],
                sample_seed=job["sample_seed"],
            )
    finally:
        endpoint.close()
    write_log(folder / f"run{number}.npz", run.log)
    return {
        "started_at": run.started_at,
        "wall_s": run.wall_s,
        "in_flight_mean": run.in_flight_mean,
        "in_flight_s_mean": run.in_flight_s_mean,
        "strays": run.strays,
        "priority": run.generator_priority,
    }


def _tell(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
