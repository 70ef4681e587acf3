"""Our generator and perf_analyzer as clients of one served model: a run at one rate."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.workload import Poisson, draw_arrivals_s
from analyzer.load.generator import run_closed_loop, run_open_loop
from analyzer.load.perf_analyzer import PerfAnalyzerInstall, run_perf_analyzer
from analyzer.load.record import LoadRun
from analyzer.load.summarize import summarize
from analyzer.targets.endpoint_target import EndpointTarget
from benchlib.client_time import ClientTime

# Takes a share of each millisecond of one core.
_BUSY = """
import sys, time
share, at = float(sys.argv[1]), time.perf_counter()
while True:
    while time.perf_counter() < at + share * 1e-3:
        pass
    at = max(at + 1e-3, time.perf_counter())
    time.sleep(max(at - time.perf_counter(), 0.0))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One run of a client at one rate.

    Args:
        cpu_ms: Processor time of the client's process per request; None if it was not seen.
        send_lag_ms_p99: How late requests went out; None for perf_analyzer, which does not tell.
    """

    achieved_rps: float
    latency_ms_p50: float | None
    latency_ms_p99: float | None
    send_lag_ms_p99: float | None = None
    cpu_ms: float | None = None


Client = Callable[[float, float, int], Sent]


def ours(target: EndpointTarget, rate_rps: float, seconds: float, seed: int) -> Sent:
    """A run of our generator, after half a second that warms up server and connection."""
    arrivals_s = draw_arrivals_s(
        Poisson(),
        rate_rps=rate_rps,
        count=math.ceil(rate_rps * seconds),
        rng=np.random.default_rng(seed),
    )
    with target.connect() as connection:
        run_closed_loop(connection, 4, duration_s=0.5)
        before_s = time.process_time()
        run: LoadRun = run_open_loop(connection, arrivals_s, timeout_s=10.0, drain_s=10.0)
        cpu_s = time.process_time() - before_s
    test = summarize(run, kind="measure", offered_rps=rate_rps, warmup=0)
    return Sent(
        achieved_rps=test.achieved_rps,
        latency_ms_p50=test.latency_ms.p50,
        latency_ms_p99=test.latency_ms.p99,
        send_lag_ms_p99=test.send_lag_ms_p99,
        cpu_ms=cpu_s / len(run.log) * 1e3,
    )


def as_busy(
    target: EndpointTarget, extra_ms: float, rate_rps: float, seconds: float, seed: int
) -> Sent:
    """As :func:`ours`, while a process takes ``extra_ms`` of processor time for each request."""
    share = f"{rate_rps * extra_ms * 1e-3:g}"
    process = subprocess.Popen([sys.executable, "-c", _BUSY, share])
    try:
        return ours(target, rate_rps, seconds, seed)
    finally:
        process.kill()
        process.wait()


def theirs(
    install: PerfAnalyzerInstall,
    target: EndpointTarget,
    inputs: Mapping[str, NDArray[Any]],
    rate_rps: float,
    seconds: float,
    seed: int,
) -> Sent:
    """A run of perf_analyzer, which draws its own arrivals."""
    with ClientTime(target) as watch:
        found = run_perf_analyzer(
            install,
            target.endpoint.address,
            target.model,
            inputs,
            batchable=True,
            rate_rps=rate_rps,
            duration_s=seconds,
        )
    return Sent(
        achieved_rps=found.throughput_ips,
        latency_ms_p50=found.latency_ms_p50,
        latency_ms_p99=found.latency_ms_p99,
        cpu_ms=watch.cpu_ms,
    )
