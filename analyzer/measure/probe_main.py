"""The process that probes one variant: times executions by batch size, threads and busy instances.

Reads a JSON document from standard input::

    {"model_path", "backend", "device", "batchable", "inputs_path", "batch_ms_max", "parent_pid",
     "probes": [{"threads", "busy", "batch", "seconds"}, …]}

and writes one JSON line per probe to standard output, in order, with ``samples_ms`` (milliseconds
of each execution while exactly ``busy`` instances were at work), ``skipped`` where a smaller batch
already took longer than ``batch_ms_max``. A line with ``error`` ends the stream.
"""

from __future__ import annotations

import itertools
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.engine.runtimes.base import Runtime, Tensors
from analyzer.engine.runtimes.open import open_runtime
from analyzer.errors import AnalyzerError
from analyzer.hardware.lifetime import die_with_parent

# Executions of an instance in a round, the first of which does not count.
_EXECUTIONS_MIN = 3
# Rounds of a probe: at least so many, and one for so many seconds of it.
_ROUNDS = 3
_ROUND_S = 0.06
_ROUND_THREADS_S = 0.15
# Long enough for the kernel to move threads that start together to cores of their own.
_SETTLE_S = 0.04
# Samples of one probe: more would only make the records longer.
_SAMPLES_MAX = 400


class _Instances:
    """Sessions of the variant, made when a probe needs them, by thread count."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._open: dict[int, list[Runtime]] = {}

    def take(self, threads: int, count: int) -> list[Runtime]:
        if threads not in self._open:
            # Sessions of another thread count would keep their memory and their thread pools.
            for runtimes in self._open.values():
                for runtime in runtimes:
                    runtime.close()
            self._open = {threads: []}
        runtimes = self._open[threads]
        while len(runtimes) < count:
            runtimes.append(
                open_runtime(
                    Path(self._spec["model_path"]),
                    backend=self._spec["backend"],
                    device=self._spec["device"],
                    intra_op_threads=threads,
                )
            )
        return runtimes[:count]


def _batch(pool: dict[str, np.ndarray[Any, Any]], size: int, batchable: bool) -> Tensors:
    if not batchable:
        return {name: rows[0, ...] for name, rows in pool.items()}
    return {name: np.resize(rows, (size, *rows.shape[1:])) for name, rows in pool.items()}


def _time_executions(
    runtimes: list[Runtime], inputs: Tensors, seconds: float, threads: int
) -> list[float]:
    """Milliseconds of the executions that ran while every instance was at work."""
    for runtime in runtimes:
        until = time.perf_counter() + _SETTLE_S
        runtime.run(inputs)
        while threads != 1 and time.perf_counter() < until:
            runtime.run(inputs)
    barrier = threading.Barrier(len(runtimes))
    spans: list[list[tuple[float, float]]] = [[] for _ in runtimes]
    failures: list[Exception] = []

    def loop(index: int) -> None:
        try:
            barrier.wait()
            # Threads that start together share a core until the kernel has moved one of them.
            settled = time.perf_counter() + (_SETTLE_S if len(runtimes) > 1 else 0.0)
            while time.perf_counter() < settled:
                runtimes[index].run(inputs)
            deadline = time.perf_counter() + seconds
            while time.perf_counter() < deadline or len(spans[index]) < _EXECUTIONS_MIN:
                begin = time.perf_counter()
                runtimes[index].run(inputs)
                spans[index].append((begin, time.perf_counter()))
        except Exception as error:
            failures.append(error)
            barrier.abort()

    loops = [threading.Thread(target=loop, args=(i,), daemon=True) for i in range(len(runtimes))]
    for thread in loops:
        thread.start()
    for thread in loops:
        thread.join()
    if failures:
        raise failures[0]
    # The first execution still meets cold caches; the last ones of a slower instance run alone.
    together_until = min(own[-1][1] for own in spans)
    return [(end - begin) * 1e3 for own in spans for begin, end in own[1:] if end <= together_until]


def _run_group(
    probes: list[dict[str, Any]],
    instances: _Instances,
    pool: dict[str, np.ndarray[Any, Any]],
    spec: dict[str, Any],
) -> list[dict[str, Any]]:
    """Probes of one thread count, in rounds: a machine's speed drifts over tenths of a second.

    Thus each probe runs under the same conditions as its neighbours, whose ratios count. Sessions
    with several threads stay at it for longer: theirs find their cores only after a while, and
    until then two of them share one.
    """
    seconds = max(probe["seconds"] for probe in probes)
    if probes[0]["threads"] != 1:
        rounds = max(1, round(seconds / _ROUND_THREADS_S))
    else:
        rounds = max(_ROUNDS, round(seconds / _ROUND_S))
    slow: dict[int, int] = {}
    records = [dict(probe, samples_ms=[], skipped=False) for probe in probes]
    for _ in range(rounds):
        for record in records:
            busy, batch = record["busy"], record["batch"]
            if batch > slow.get(busy, batch):
                record["skipped"] = not record["samples_ms"]
                continue
            # Further executions of a slow batch would add little.
            if sum(record["samples_ms"]) >= 1e3 * record["seconds"] * busy:
                continue
            runtimes = instances.take(record["threads"], busy)
            inputs = _batch(pool, batch, spec["batchable"])
            samples = _time_executions(
                runtimes, inputs, record["seconds"] / rounds, record["threads"]
            )
            kept = samples[: _SAMPLES_MAX // rounds]
            record["samples_ms"] += [round(value, 5) for value in kept]
            if samples and float(np.median(samples)) > spec["batch_ms_max"]:
                slow[busy] = batch
    return records


def main() -> None:
    """Runs the probes of standard input."""
    spec = json.load(sys.stdin)
    die_with_parent(parent_pid=spec["parent_pid"])
    with np.load(spec["inputs_path"]) as file:
        pool = {name: file[name] for name in file.files}
    instances = _Instances(spec)
    try:
        # Sessions are kept for one thread count at a time.
        for _, group in itertools.groupby(spec["probes"], key=lambda probe: probe["threads"]):
            for record in _run_group(list(group), instances, pool, spec):
                print(json.dumps(record), flush=True)
    except AnalyzerError as error:
        print(json.dumps({"error": error.message, "hint": error.hint}), flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
