"""Runs probes: service times by batch size, busy instances and threads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from analyzer.errors import TargetCrashError, TargetTimeoutError
from analyzer.resources import child_environment
from analyzer.twin.probes import Probe, ProbeResult


def run_probes(
    *,
    model_path: Path,
    backend: str,
    device: str,
    batchable: bool,
    inputs_path: Path,
    probes: Sequence[Probe],
    batch_ms_max: float,
    timeout_s: float,
) -> list[ProbeResult]:
    """Runs ``probes`` in a process of their own; no other load may run meanwhile.

    Args:
        batch_ms_max: Larger batches are skipped once a batch takes longer than this.

    Raises:
        TargetCrashError: The process ended before its time; its last log lines are in the message.
        TargetTimeoutError: It took longer than ``timeout_s``.
    """
    spec = {
        "model_path": str(model_path),
        "backend": backend,
        "device": device,
        "batchable": batchable,
        "inputs_path": str(inputs_path),
        "batch_ms_max": batch_ms_max,
        "parent_pid": os.getpid(),
        "probes": [asdict(probe) for probe in probes],
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "analyzer.measure.probe_main"],
            input=json.dumps(spec),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env=child_environment(),
        )
    except subprocess.TimeoutExpired as error:
        raise TargetTimeoutError(
            f"The probes of {model_path.name} took longer than {timeout_s:.0f} s.",
            hint="Give the search more time with --budget.",
        ) from error
    records = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    failed = next((record for record in records if "error" in record), None)
    if failed is not None or done.returncode != 0:
        words = failed["error"] if failed else done.stderr.strip()[-500:] or "no message"
        raise TargetCrashError(
            f"The probes of {model_path.name} ended with exit code {done.returncode}: {words}",
            hint=failed["hint"] if failed else "",
        )
    return [
        ProbeResult(probe=probe, samples_ms=tuple(record["samples_ms"]))
        for probe, record in zip(probes, records, strict=True)
    ]
