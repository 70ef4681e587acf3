"""Runs the real ``perf_analyzer`` against an endpoint, for a table beside our own numbers.

What it measures differs from ours: the mean of three windows, only requests that end inside
a window, latency from the moment of sending (``docs/triton-semantics.md``, section 4).
"""

from __future__ import annotations

import base64
import csv
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from analyzer.errors import MissingPartError, TargetError, TargetTimeoutError
from analyzer.resources import search_path, tool_homes
from analyzer.targets.address import parse_address
from analyzer.targets.endpoint import authority
from analyzer.targets.payload import PAYLOADS_MAX, RequestPool

_WINDOWS = 3  # the program's own number of windows that must agree
# The program's own rule: throughput and latency of the last three windows within 10 %.
_STABLE_RATIO = 1.1
_PASS = re.compile(r"Pass \[\d+\] throughput: ([\d.]+) infer/sec\. Avg latency: (\d+) usec")
_WINDOW_S_MIN = 0.5  # a window without a request ends in an error


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfAnalyzerInstall:
    """A program that can be run.

    Args:
        executable: The program.
        libraries: Folder for ``LD_LIBRARY_PATH``; None if the system knows what it needs.
        source: How it was found, for people.
    """

    executable: Path
    libraries: Path | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfAnalyzerResult:
    """One load level as ``perf_analyzer`` reports it; times in milliseconds.

    Args:
        concurrency: Requests kept in flight; None for an open loop.
        request_rate_rps: Requested rate; None for a closed loop.
        stable: Whether its last three windows agreed.
        send_ms, receive_ms: The client's own.
        network_ms: ``Network+Server Send/Recv``.
        queue_ms, compute_input_ms, compute_infer_ms, compute_output_ms: The server's statistics;
            None where the endpoint has none.
        latency_ms_mean: The sum of all stages.
    """

    concurrency: int | None
    request_rate_rps: float | None
    throughput_ips: float
    latency_ms_mean: float | None
    latency_ms_p50: float
    latency_ms_p90: float
    latency_ms_p95: float
    latency_ms_p99: float
    send_ms: float | None
    receive_ms: float | None
    network_ms: float | None
    queue_ms: float | None
    compute_input_ms: float | None
    compute_infer_ms: float | None
    compute_output_ms: float | None
    stable: bool


def find_perf_analyzer() -> PerfAnalyzerInstall | None:
    """The program: on the PATH, in the checkout's ``.tools``, or in the user's cache; or None."""
    on_path = shutil.which("perf_analyzer")
    if on_path:
        return PerfAnalyzerInstall(executable=Path(on_path), libraries=None, source="PATH")
    for home, source in tool_homes("perf_analyzer"):
        program = home / "bin" / "perf_analyzer"
        if program.is_file() and os.access(program, os.X_OK):
            return PerfAnalyzerInstall(executable=program, libraries=home / "lib", source=source)
    return None


def require_perf_analyzer() -> PerfAnalyzerInstall:
    """The program.

    Raises:
        MissingPartError: It is not on this machine; the hint says how to get it.
    """
    install = find_perf_analyzer()
    if install is None:
        raise MissingPartError(
            "perf_analyzer is not on this machine.",
            hint="Run `make tools`, or put it on the PATH; our own generator needs neither.",
        )
    return install


def run_perf_analyzer(
    install: PerfAnalyzerInstall,
    address: str,
    model: str,
    inputs: Mapping[str, NDArray[Any]],
    *,
    batchable: bool,
    concurrency: int | None = None,
    rate_rps: float | None = None,
    request_batch_size: int = 1,
    duration_s: float = 10.0,
) -> PerfAnalyzerResult:
    """What the program reports for one load level.

    Args:
        install: The program.
        address: ``grpc://HOST:PORT`` or ``http://HOST:PORT``.
        model: The model's name there.
        inputs: Rows of input, as :class:`~analyzer.targets.payload.RequestPool` takes them; its own
            random data would break models that index tables.
        batchable: Whether the model's tensors carry a batch axis.
        concurrency: Requests kept in flight; this or ``rate_rps``.
        rate_rps: Poisson arrivals per second.
        request_batch_size: Inferences of each request.
        duration_s: Split into three windows.

    Raises:
        TargetError: It failed; its own words are told.
        TargetTimeoutError: It did not end.
    """
    assert (concurrency is None) != (rate_rps is None), "one kind of load"
    scheme, host, port = parse_address(address)
    window_s = max(duration_s / _WINDOWS, _WINDOW_S_MIN)
    with tempfile.TemporaryDirectory(prefix="tritune-perf-") as folder:
        data, report = Path(folder) / "inputs.json", Path(folder) / "report.csv"
        data.write_text(json.dumps(_input_data(inputs, batchable)), encoding="utf-8")
        command = [str(install.executable), "-m", model, "-i", scheme]
        command += ["-u", authority(host, port)]
        command += ["-b", str(request_batch_size), "--input-data", str(data), "-f", str(report)]
        command += ["--measurement-interval", str(round(window_s * 1e3)), "--async"]
        # Without windows that agree it would write no report at all; we judge that ourselves.
        command += ["--stability-percentage", "999999", "--max-trials", str(_WINDOWS), "-v"]
        if concurrency is not None:
            command += ["--concurrency-range", str(concurrency)]
        else:
            command += ["--request-rate-range", f"{rate_rps:g}"]
            command += ["--request-distribution", "poisson"]
        for name, rows in inputs.items():
            command += ["--shape", f"{name}:{','.join(str(dim) for dim in rows.shape[1:])}"]
        limit_s = 60.0 + 4 * window_s * _WINDOWS
        try:
            done = subprocess.run(
                command,
                env=os.environ
                | {"LD_LIBRARY_PATH": search_path("LD_LIBRARY_PATH", install.libraries)},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise TargetTimeoutError(
                f"perf_analyzer did not end within {limit_s:.0f} s."
            ) from error
        except OSError as error:
            raise TargetError(f"perf_analyzer cannot be started: {error.strerror}.") from error
        words = "\n".join((done.stdout + done.stderr).strip().splitlines()[-8:])
        if not report.is_file():
            raise TargetError(
                f"perf_analyzer ended with status {done.returncode} and no report:\n{words}",
                hint="Our own generator measures the same: leave out perf_analyzer.",
            )
        return parse_report(report.read_text(encoding="utf-8"), stable=_agree(done.stdout))


def parse_report(text: str, *, stable: bool = True) -> PerfAnalyzerResult:
    """The first load level of a CSV report (``-f``); its times are microseconds.

    Raises:
        TargetError: It has no row or lacks a column.
    """
    rows = list(csv.DictReader(text.splitlines()))
    if not rows:
        raise TargetError("perf_analyzer's report has no row.")
    row = rows[0]

    def ms(column: str) -> float | None:
        value = row.get(column)
        return float(value) / 1e3 if value not in (None, "") else None

    def needed(column: str) -> float:
        value = ms(column)
        if value is None:
            raise TargetError(f"perf_analyzer's report has no column {column!r}.")
        return value

    stages = {
        "send_ms": ms("Client Send"),
        "network_ms": ms("Network+Server Send/Recv"),
        "queue_ms": ms("Server Queue"),
        "compute_input_ms": ms("Server Compute Input"),
        "compute_infer_ms": ms("Server Compute Infer"),
        "compute_output_ms": ms("Server Compute Output"),
        "receive_ms": ms("Client Recv"),
    }
    known = [value for value in stages.values() if value is not None]
    return PerfAnalyzerResult(
        concurrency=int(row["Concurrency"]) if row.get("Concurrency") else None,
        request_rate_rps=float(row["Request Rate"]) if row.get("Request Rate") else None,
        throughput_ips=needed("Inferences/Second") * 1e3,
        latency_ms_mean=sum(known) if len(known) == len(stages) else None,
        latency_ms_p50=needed("p50 latency"),
        latency_ms_p90=needed("p90 latency"),
        latency_ms_p95=needed("p95 latency"),
        latency_ms_p99=needed("p99 latency"),
        stable=stable,
        **stages,
    )


def _agree(output: str) -> bool:
    """Whether the windows that the program printed (``-v``) agree."""
    passes = [(float(rate), float(latency)) for rate, latency in _PASS.findall(output)]
    columns = list(zip(*passes[-_WINDOWS:], strict=True))
    return len(passes) >= _WINDOWS and all(
        max(values) <= _STABLE_RATIO * min(values) for values in columns
    )


def _input_data(inputs: Mapping[str, NDArray[Any]], batchable: bool) -> dict[str, Any]:
    """The program's JSON of inputs: a few rows of ours, each without the batch axis."""
    pool = RequestPool(inputs, batchable=batchable)
    count = min(pool.rows, PAYLOADS_MAX)
    return {
        "data": [
            {
                name: {
                    "b64": base64.b64encode(rows[number].tobytes()).decode("ascii"),
                    "shape": list(rows.shape[1:]),
                }
                for name, rows in inputs.items()
            }
            for number in range(count)
        ]
    }
