"""The process that probes one variant: times executions by batch size, threads and busy instances.

Reads a JSON document from standard input::

    {"model_path", "backend", "device", "batchable", "inputs_path", "batch_ms_max", "parent_pid",
     "probes": [{"threads", "busy", "batch", "seconds"}, …]}

and writes one JSON line per probe to standard output, in order, with ``samples_ms`` (milliseconds
of each execution while exactly ``busy`` instances were at work), ``skipped`` where a smaller batch
already took longer than ``batch_ms_max``. A line with ``error`` ends the stream.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.errors import AnalyzerError
from analyzer.hardware.lifetime import die_with_parent
from analyzer.runtime.base import Runtime, Tensors
from analyzer.runtime.open import open_runtime

_EXECUTIONS_MIN = 4


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
        return {name: rows[0] for name, rows in pool.items()}
    return {name: np.resize(rows, (size, *rows.shape[1:])) for name, rows in pool.items()}


def _time_executions(runtimes: list[Runtime], inputs: Tensors, seconds: float) -> list[float]:
    """Milliseconds of the executions that ran while every instance was at work."""
    for runtime in runtimes:
        runtime.run(inputs)
    barrier = threading.Barrier(len(runtimes))
    spans: list[list[tuple[float, float]]] = [[] for _ in runtimes]
    failures: list[Exception] = []

    def loop(index: int) -> None:
        try:
            barrier.wait()
            deadline = time.perf_counter() + seconds
            while time.perf_counter() < deadline or len(spans[index]) < _EXECUTIONS_MIN:
                begin = time.perf_counter()
                runtimes[index].run(inputs)
                spans[index].append((begin, time.perf_counter()))
        except Exception as error:
            failures.append(error)
            barrier.abort()

    threads = [threading.Thread(target=loop, args=(i,), daemon=True) for i in range(len(runtimes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    # The first execution still meets cold caches; the last ones of a slower instance run alone.
    together_until = min(own[-1][1] for own in spans)
    return [(end - begin) * 1e3 for own in spans for begin, end in own[1:] if end <= together_until]


def main() -> None:
    """Runs the probes of standard input."""
    spec = json.load(sys.stdin)
    die_with_parent(parent_pid=spec["parent_pid"])
    with np.load(spec["inputs_path"]) as file:
        pool = {name: file[name] for name in file.files}
    instances = _Instances(spec)
    slow: dict[tuple[int, int], int] = {}
    try:
        for probe in spec["probes"]:
            key = (probe["threads"], probe["busy"])
            record = dict(probe, samples_ms=[], skipped=False)
            if probe["batch"] > slow.get(key, probe["batch"]):
                record["skipped"] = True
            else:
                runtimes = instances.take(probe["threads"], probe["busy"])
                inputs = _batch(pool, probe["batch"], spec["batchable"])
                samples = _time_executions(runtimes, inputs, probe["seconds"])
                record["samples_ms"] = [round(value, 5) for value in samples[:400]]
                if samples and float(np.median(samples)) > spec["batch_ms_max"]:
                    slow[key] = probe["batch"]
            print(json.dumps(record), flush=True)
    except AnalyzerError as error:
        print(json.dumps({"error": error.message, "hint": error.hint}), flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
