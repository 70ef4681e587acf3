"""Runs probes: service times by batch size, busy instances and threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from analyzer.domain.configuration import Execution
from analyzer.errors import TargetCrashError, TargetTimeoutError
from analyzer.resources import child_environment
from analyzer.twin.probes import Probe, ProbeResult

# A process that probes is held to hang so long after it should have ended: imports, sessions, and
# an execution that cannot be ended.
GRACE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedModel:
    """A file whose executions are timed, and how.

    Args:
        execution: How the backend executes it.
        accelerator_options: The accelerator's parameters under Triton's names.
        size_bytes: Of the file with its weights.
    """

    path: Path
    backend: str
    execution: Execution
    accelerator_options: dict[str, str]
    size_bytes: int
    probes: tuple[Probe, ...]


def run_probes(
    models: Sequence[ProbedModel],
    *,
    device: str,
    batchable: bool,
    inputs_path: Path,
    batch_ms_max: float,
    seconds_max: float,
) -> list[list[ProbeResult]]:
    """Runs the probes of all ``models`` in one process; no other load may run meanwhile.

    They take turns, so that all see the same conditions.

    Args:
        batch_ms_max: Larger batches are skipped once a batch takes longer than this.
        seconds_max: After this no further execution starts.

    Returns:
        The results of each model, without the probes that the time did not suffice for; a model
        that runs one row and fails at a larger batch says so in the results of those batches.

    Raises:
        TargetCrashError: The process ended before its time; its last log lines are in the message.
        TargetTimeoutError: It took much longer than ``seconds_max``.
    """
    spec = {
        "models": [asdict(model) | {"path": str(model.path)} for model in models],
        "device": device,
        "batchable": batchable,
        "inputs_path": str(inputs_path),
        "batch_ms_max": batch_ms_max,
        "seconds_max": seconds_max,
        "parent_pid": os.getpid(),
    }
    names = ", ".join(model.path.name for model in models)
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "analyzer.measure.probe_main"],
            input=json.dumps(spec),
            capture_output=True,
            text=True,
            timeout=seconds_max + GRACE_S,
            check=False,
            env=child_environment(),
        )
    except subprocess.TimeoutExpired as error:
        raise TargetTimeoutError(
            f"The probes of {names} took longer than {seconds_max + GRACE_S:.0f} s.",
            hint="Give the search more time with --budget.",
        ) from error
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    failed = next((record for record in records if "error" in record), None)
    if failed is not None or done.returncode != 0:
        words = failed["error"] if failed else done.stderr.strip()[-500:] or "no message"
        raise TargetCrashError(
            f"The probes of {names} ended with exit code {done.returncode}: {words}",
            hint=failed["hint"] if failed else "",
        )
    results: list[list[ProbeResult]] = [[] for _ in models]
    for record in records:
        result = ProbeResult(
            probe=models[record["model"]].probes[record["probe"]],
            samples_ms=tuple(record["samples_ms"]),
            limit_ms=batch_ms_max if record["skipped"] else None,
            rounds=tuple((start, mean) for start, mean in record["rounds"]),
            failed=record["failed"],
            changed_ms=tuple(record["changed_ms"]),
        )
        results[record["model"]].append(result)
    return results
