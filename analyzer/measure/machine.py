"""Measures the machine without any model, in seconds: what the twin supposes of it.

Nothing else should run meanwhile: what does is measured as the machine's own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.configuration import Configuration
from analyzer.domain.sla import Sla
from analyzer.domain.workload import Poisson
from analyzer.errors import TargetCrashError
from analyzer.hardware.canary import Canary
from analyzer.hardware.processes import cpu_seconds, running_s
from analyzer.measure.live_session import LiveSession
from analyzer.measure.plan import STREAM_MEASURE, LoadPlan
from analyzer.resources import child_environment
from analyzer.targets.embedded import EmbeddedTarget
from analyzer.targets.embedded_spec import EmbeddedSpec, NullModel
from analyzer.twin.machine_constants import MachineConstants
from analyzer.twin.variation import windows

Floats = NDArray[np.float64]
Pieces = list[tuple[float, float]]
"""(start, seconds; time, milliseconds) of each piece of work."""

# Numbers of busy cores beside one and all of them, rounds of each, and the length of a round. The
# speed drifts over tenths of a second, so that neighbours in time are compared.
_BETWEEN = 2
_ROUNDS = 6
_ROUND_S = 0.15
# All cores are watched for so long: 120 windows of a twentieth of a second.
_WATCH_S = 6.0
# Requests at a light load for what a request takes, and at a busier one for its CPU time, which
# the kernel counts in hundredths of a second.
_LIGHT_RPS, _LIGHT_S = 150.0, 1.5
_BUSY_RPS, _BUSY_S = 1000.0, 2.0
_IDLE_S = 1.0
_START_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCost:
    """What an embedded server without a model takes.

    Args:
        overhead_ms: Of a request's latency at light load, milliseconds.
        host_ms: CPU time of server and generator per request, milliseconds.
    """

    overhead_ms: float
    host_ms: float


def measure_machine(
    *,
    cores: int,
    on_phase: Callable[[str, float], None] = lambda what, seconds: None,
    now: Callable[[], float] = time.time,
) -> MachineConstants:
    """Everything of :class:`MachineConstants`, in 15 to 20 seconds.

    Args:
        cores: That a search may use.
        on_phase: Told what comes next, and about how many seconds it takes.

    Raises:
        TargetError: The server or a process that computes failed.
    """
    on_phase("watching the idle machine", _IDLE_S + 0.5)
    wake_ms, witness_share = _idle()
    on_phase("timing the server without a model", _LIGHT_S + _BUSY_S + 1.0)
    cost = server_cost()
    with ExitStack() as stack:
        spinners = [stack.enter_context(_Spinner()) for _ in range(cores)]
        levels = busy_levels(cores)
        on_phase("computing on 1 to all cores", len(levels) * _ROUNDS * _ROUND_S)
        rounds = [(k, _together(spinners[:k], _ROUND_S)) for _ in range(_ROUNDS) for k in levels]
        on_phase("watching all cores compute", _WATCH_S)
        watched = _together(spinners, _WATCH_S)
    return MachineConstants(
        overhead_ms=cost.overhead_ms,
        host_ms=cost.host_ms,
        interference=interference_of(rounds),
        slowness=tuple(round(float(v), 3) for v in np.nan_to_num(series_of(watched))),
        wake_ms_p99=wake_ms,
        witness_share=witness_share,
        measured_at=now(),
    )


def busy_levels(cores: int) -> list[int]:
    """Numbers of busy cores to compare: one, all, and at most two between."""
    between = np.geomspace(1, cores, _BETWEEN + 2)
    return sorted({round(float(k)) for k in between})


def interference_of(
    rounds: Sequence[tuple[int, Sequence[Pieces]]],
) -> tuple[tuple[int, float], ...]:
    """How much longer work takes beside others, from rounds in turn of 1 and more busy cores.

    A round is held against the nearest earlier one of a single busy core; of these ratios of
    medians the median counts. At least 1.
    """
    alone = 0.0
    ratios: dict[int, list[float]] = {}
    for busy, processes in rounds:
        typical = float(np.median([ms for pieces in processes for _, ms in pieces[1:]]))
        if busy == 1:
            alone = typical
        elif alone > 0:
            ratios.setdefault(busy, []).append(typical / alone)
    return tuple((k, max(1.0, float(np.median(found)))) for k, found in sorted(ratios.items()))


def series_of(processes: Sequence[Pieces]) -> Floats:
    """Slowness by window of all processes together, each over its own usual time, shape (k,)."""
    starts = np.array([start for pieces in processes for start, _ in pieces])
    times = np.concatenate([_relative(pieces) for pieces in processes])
    return windows(starts, times)


def _relative(pieces: Pieces) -> Floats:
    times = np.array([ms for _, ms in pieces])
    found: Floats = times / np.median(times)
    return found


def server_cost() -> ServerCost:
    """Overhead and CPU time per request of an embedded server whose model takes no time."""
    spec = EmbeddedSpec(
        name="calibration",
        model=NullModel(),
        configuration=Configuration(max_batch_size=1, intra_op_threads=1).canonical(),
        batchable=True,
    )
    # No request is late: only times are looked at.
    plan = LoadPlan(sla=Sla(latency_budget_ms=1e3), arrivals=Poisson(), seed=0)
    with EmbeddedTarget(spec) as target, LiveSession(target, plan, budgeted=False) as session:
        session.warm_up(concurrency=2)
        light = session.run(
            _LIGHT_RPS, _LIGHT_S, kind="measure", stream=STREAM_MEASURE, abort=False
        )
        before_s = _cpu_s(target.pids)
        busy = session.run(_BUSY_RPS, _BUSY_S, kind="measure", stream=STREAM_MEASURE, abort=False)
        spent_s = _cpu_s(target.pids) - before_s
    return ServerCost(
        overhead_ms=light.breakdown_ms.overhead or 0.0,
        host_ms=spent_s * 1e3 / max(busy.requests, 1),
    )


def _cpu_s(pids: Sequence[int]) -> float:
    return time.process_time() + sum(map(cpu_seconds, pids))


def _idle() -> tuple[float, float]:
    """How late this thread wakes up on an idle machine (p99, ms), and the witness's share."""
    with Canary() as canary:
        time.sleep(0.5)  # until it has started
        late_ms = []
        pid, began = canary.pid, time.monotonic()
        before_s = running_s(pid)
        while time.monotonic() - began < _IDLE_S:
            due = time.monotonic() + 0.005
            time.sleep(0.005)
            late_ms.append((time.monotonic() - due) * 1e3)
        share = (running_s(pid) - before_s) / (time.monotonic() - began)
    return float(np.quantile(late_ms, 0.99)), share


class _Spinner:
    """A process of ``spin_main``; a context manager."""

    def __enter__(self) -> _Spinner:
        single = {f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "OMP", "MKL")}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "analyzer.measure.spin_main", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**child_environment(), **single},
        )
        self._read()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate(timeout=_START_S)

    def begin(self, seconds: float) -> None:
        """Starts to compute."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()

    def pieces(self) -> Pieces:
        """What it timed, once it is done."""
        return [(start, ms) for start, ms in json.loads(self._read())]

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise TargetCrashError(
                "A process that computes for the calibration ended.",
                hint="Run it again with -v.",
            )
        return line


def _together(spinners: Sequence[_Spinner], seconds: float) -> list[Pieces]:
    for spinner in spinners:
        spinner.begin(seconds)
    return [spinner.pieces() for spinner in spinners]
