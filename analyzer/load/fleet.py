"""An open loop split over several processes, for rates at which one would send late.

Every process has a connection of its own and every P-th arrival of the schedule. They start at one
instant; what their starts still differ by is put into the intended times of the merged log.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.measurement import RequestLog
from analyzer.errors import AnalyzerError, TargetCrashError, TargetError, TargetTimeoutError
from analyzer.load.record import LoadRun
from analyzer.targets.endpoint_target import EndpointTarget

#: Between the order to start and the start, so that every process has heard it.
_LEAD_S = 0.05
_READY_S = 60.0
_GRACE_S = 30.0
_ROOT = Path(__file__).resolve().parents[2]
_COLUMNS = (
    "intended_s",
    "send_lag_s",
    "latency_s",
    "batch_size",
    "status",
    "queue_s",
    "compute_input_s",
    "compute_infer_s",
    "compute_output_s",
)


def run_open_loop_fleet(
    target: EndpointTarget,
    arrivals_s: NDArray[np.float64],
    batch_size: int | NDArray[np.integer] = 1,
    *,
    processes: int,
    timeout_s: float,
    drain_s: float,
) -> LoadRun:
    """Sends a schedule from ``processes`` processes; returns one run, as :func:`run_open_loop`.

    ``in_flight_mean`` is the sum of the processes' own means over their common window, and
    ``in_flight_samples`` is empty, since they count at instants of their own. The worst of the
    processes' priorities is told. There is no abort rule.

    Args:
        target: An endpoint, which every process can reach.
        arrivals_s: Intended send times in seconds from the start, ascending, at least one.
        batch_size: Inferences of each request.
        processes: How many; no more than there are arrivals are started.
        timeout_s: A reply that takes longer counts as a time-out.
        drain_s: How long to wait for replies after the last send.

    Raises:
        TargetCrashError: The target went away.
        TargetError, TargetTimeoutError: A process of the generator failed.
    """
    count = len(arrivals_s)
    assert count > 0 and processes >= 1
    processes = min(processes, count)
    sizes = np.broadcast_to(np.asarray(batch_size, np.int32), (count,))
    with tempfile.TemporaryDirectory(prefix="tritune-fleet-") as name:
        folder = Path(name)
        inputs: dict[str, Any] = dict(target.pool.inputs)
        np.savez(folder / "inputs.npz", **inputs)
        np.savez(folder / "schedule.npz", arrivals_s=arrivals_s, sizes=sizes)
        workers: list[_Worker] = []
        try:
            for number in range(processes):
                job = {
                    "folder": name,
                    "number": number,
                    "processes": processes,
                    "address": target.endpoint.address,
                    "model": target.model,
                    "batchable": target.pool.batchable,
                    "timeout_s": timeout_s,
                    "drain_s": drain_s,
                    "sample_seed": number,
                }
                workers.append(_Worker(job))
            ready_by = time.monotonic() + _READY_S
            for worker in workers:
                worker.hear("ready", ready_by)
            start_ns = time.perf_counter_ns() + int(_LEAD_S * 1e9)
            for worker in workers:
                worker.tell(str(start_ns))
            limit_s = float(arrivals_s[-1]) + min(drain_s, timeout_s) + _GRACE_S
            done_by = time.monotonic() + limit_s
            told = [worker.hear("done", done_by) for worker in workers]
        finally:
            for worker in workers:
                worker.end()
        logs = [_read_log(folder / f"run{number}.npz") for number in range(processes)]
    return _merged(logs, told)


class _Worker:
    """One process, spoken to by lines of JSON."""

    def __init__(self, job: dict[str, Any]) -> None:
        paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "analyzer.load.fleet_worker", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            text=True,
            start_new_session=True,  # Ctrl-C is for us; we end it when we are done
        )
        self.tell(json.dumps(job))

    def tell(self, line: str) -> None:
        """Sends a line; one that is gone is noticed by :meth:`hear`."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def hear(self, state: str, deadline: float) -> dict[str, Any]:
        """The next message, which has to say ``state``.

        Raises:
            TargetCrashError, TargetError: It says that it failed, or says nothing and ends.
            TargetTimeoutError: It says nothing until ``deadline``.
        """
        assert self._process.stdout is not None
        wait_s = max(deadline - time.monotonic(), 0.0)
        if not select.select([self._process.stdout], [], [], wait_s)[0]:
            raise TargetTimeoutError(f"A process of the load generator was not {state} in time.")
        line = self._process.stdout.readline()
        message: dict[str, Any] = json.loads(line) if line else {}
        if message.get("state") == state:
            return message
        if "error" not in message:
            status = self._process.wait(_GRACE_S)
            raise TargetError(f"A process of the load generator ended with status {status}.")
        kind: type[AnalyzerError] = TargetCrashError if message["crash"] else TargetError
        raise kind(message["error"], hint=message["hint"])

    def end(self) -> None:
        """Ends the process, which has nothing to lose any more."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
            return
        self._process.kill()
        self._process.wait(_GRACE_S)


def write_log(path: Path, log: RequestLog) -> None:
    """Writes a log's columns, for the process that merges them."""
    np.savez(path, **{name: getattr(log, name) for name in _COLUMNS})


def _read_log(path: Path) -> RequestLog:
    with np.load(path) as columns:
        return RequestLog(**{name: columns[name] for name in _COLUMNS})


def _merged(logs: list[RequestLog], told: list[dict[str, Any]]) -> LoadRun:
    """One run of several, whose starts may differ by what ``started_at`` tells."""
    first_at = min(float(t["started_at"]) for t in told)
    offsets_s = [float(t["started_at"]) - first_at for t in told]
    intended_s = np.concatenate(
        [log.intended_s + offset_s for log, offset_s in zip(logs, offsets_s, strict=True)]
    )
    order = np.argsort(intended_s, kind="stable")
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(log, name) for log in logs])[order] for name in _COLUMNS[1:]
    }
    wall_s = max(t["wall_s"] + offset_s for t, offset_s in zip(told, offsets_s, strict=True))
    # A process has no requests in flight outside its own window.
    window_s = wall_s - float(intended_s.min())
    in_flight = sum(
        (t["in_flight_mean"] or 0.0) * (t["wall_s"] - float(log.intended_s[0]))
        for log, t in zip(logs, told, strict=True)
    )
    waits = [t["in_flight_s_mean"] for t in told]
    mean_s = None
    if None not in waits:
        weights = [len(log) for log in logs]
        mean_s = float(np.average(np.array(waits, np.float64), weights=weights))
    priorities = {str(t["priority"]) for t in told}
    return LoadRun(
        log=RequestLog(intended_s=intended_s[order], **columns),
        in_flight_mean=in_flight / window_s if window_s > 0 else None,
        in_flight_samples=np.zeros(0, np.int64),
        in_flight_s_mean=mean_s,
        wall_s=wall_s,
        started_at=first_at,
        strays=sum(int(t["strays"]) for t in told),
        generator_priority=told[0]["priority"] if len(priorities) == 1 else "normal",
    )
