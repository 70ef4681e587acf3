"""The process that probes variants: times executions by batch size, threads and busy instances.

Reads a JSON document from standard input::

    {"models": [{"path", "backend", "execution", "accelerator_options", "size_bytes",
     "probes": [{"threads", "busy", "batch", "seconds", "on_gpu"}, …]}, …], "device", "batchable",
     "inputs_path", "batch_ms_max", "seconds_max", "parent_pid"}

and writes one JSON line per probe to standard output, with the numbers of ``model`` and ``probe``
and ``samples_ms`` (milliseconds of each execution while exactly ``busy`` instances were at work);
``rounds`` has the begin of each round, seconds since 1970, with its mean, milliseconds;
on a GPU ``changed_ms`` has the executions right after one of another batch size, which is where
ONNX Runtime plans convolutions anew, but for those that met the batch size for the first time;
``skipped`` where a smaller batch already took longer than ``batch_ms_max``; ``failed`` has why the
model does not run the batch, or a smaller one than that, though it runs one row. Probes that
``seconds_max`` did not suffice for have no line. A line with ``error`` ends the stream.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.domain.configuration import Execution
from analyzer.engine.runtimes.base import Runtime, Tensors
from analyzer.engine.runtimes.open import open_runtime
from analyzer.engine.tensor_file import read_tensors
from analyzer.errors import AnalyzerError
from analyzer.hardware.lifetime import die_with_parent
from analyzer.twin.probes import EXECUTIONS_FEW

# Executions of an instance in a round that count, at least.
_EXECUTIONS_MIN = 2
# Rounds of a probe: at least so many, and one for so many seconds of it.
_ROUNDS = 3
_ROUND_S = 0.06
_ROUND_THREADS_S = 0.15  # with threads inside an operator, which have to wake up first
# Long enough for the kernel to move threads that start together to cores of their own.
_SETTLE_S = 0.04
# A probe of few executions whose rounds differ by more than this from what its neighbours took in
# the same turns has as many rounds once more: something else took a core in one of them.
_DISTURBED_FACTOR = 1.5
# Samples of one probe: more would only make the records longer.
_SAMPLES_MAX = 400
# Models up to this size, all together, are open at the same time and take turns.
_BYTES_TOGETHER_MAX = 1 << 30


class _Instances:
    """Sessions of the models, made when a probe needs them."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec = spec
        self._open: dict[tuple[int, int], list[Runtime]] = {}

    def take(self, model: int, threads: int, count: int) -> list[Runtime]:
        runtimes = self._open.setdefault((model, threads), [])
        own = self._spec["models"][model]
        while len(runtimes) < count:
            runtimes.append(
                open_runtime(
                    Path(own["path"]),
                    backend=own["backend"],
                    device=self._spec["device"],
                    intra_op_threads=threads,
                    execution=Execution(**own["execution"]),
                    accelerator_options=own["accelerator_options"],
                )
            )
        return runtimes[:count]

    def close(self) -> None:
        """Frees all of them, which would keep their memory and their thread pools."""
        for runtimes in self._open.values():
            for runtime in runtimes:
                runtime.close()
        self._open = {}


class _Changes:
    """Which runs change the batch size of a session, to one that it met before."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        self._met: set[tuple[int, int]] = set()

    def to(self, session: Runtime, batch: int) -> bool:
        """Notes a run of ``batch``; whether it is such a change."""
        last, again = self._last.get(id(session), batch), (id(session), batch) in self._met
        self._last[id(session)] = batch
        self._met.add((id(session), batch))
        return last != batch and again


def _batch(pool: dict[str, np.ndarray[Any, Any]], size: int, batchable: bool) -> Tensors:
    if not batchable:
        return {name: rows[0, ...] for name, rows in pool.items()}
    return {name: np.resize(rows, (size, *rows.shape[1:])) for name, rows in pool.items()}


def _time_executions(
    runtimes: list[Runtime],
    inputs: Tensors,
    seconds: float,
    threads: int,
    firsts_ms: list[float],
    left_out: int,
) -> list[float]:
    """Milliseconds of the executions that ran while every instance was at work.

    ``firsts_ms`` gets the first execution of each instance; of those after it ``left_out`` do not
    count.
    """
    for runtime in runtimes:
        began = time.perf_counter()
        until = began + _SETTLE_S
        runtime.run(inputs)
        firsts_ms.append((time.perf_counter() - began) * 1e3)
        while threads != 1 and time.perf_counter() < until:
            runtime.run(inputs)
    barrier = threading.Barrier(len(runtimes))
    spans: list[list[tuple[float, float]]] = [[] for _ in runtimes]
    failures: list[Exception] = []
    least = left_out + _EXECUTIONS_MIN

    def loop(index: int) -> None:
        try:
            barrier.wait()
            # Threads that start together share a core until the kernel has moved one of them.
            settled = time.perf_counter() + (_SETTLE_S if len(runtimes) > 1 else 0.0)
            while time.perf_counter() < settled:
                runtimes[index].run(inputs)
            deadline = time.perf_counter() + seconds
            while time.perf_counter() < deadline or len(spans[index]) < least:
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
    # The last ones of a slower instance run alone.
    together_until = min(own[-1][1] for own in spans)
    counted = [span for own in spans for span in own[left_out:]]
    return [(end - begin) * 1e3 for begin, end in counted if end <= together_until]


def _groups(models: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The probes that take turns: those of one thread count, of all models if memory suffices."""
    together = sum(model["size_bytes"] for model in models) <= _BYTES_TOGETHER_MAX
    groups: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for number, model in enumerate(models):
        for index, probe in enumerate(model["probes"]):
            # ONNX Runtime's own choice of threads (0) comes last, as in the plan of the probes.
            place = (0 if together else number, probe["threads"] or 1 << 30)
            record = probe | {"model": number, "probe": index, "samples_ms": [], "rounds": []}
            record |= {"skipped": False, "failed": "", "changed_ms": []}
            groups.setdefault(place, []).append(record)
    for records in groups.values():
        if records[0]["on_gpu"]:
            # Where sessions take long to start, the last model's turn might never come.
            records.sort(key=lambda record: (record["probe"], record["model"]))
    return [groups[place] for place in sorted(groups)]


def _run_group(
    records: list[dict[str, Any]],
    instances: _Instances,
    pool: dict[str, np.ndarray[Any, Any]],
    spec: dict[str, Any],
    deadline: float,
) -> None:
    """Probes of one thread count, in rounds: a machine's speed drifts over tenths of a second.

    Thus each probe runs under the same conditions as its neighbours, whose ratios count. Sessions
    with several threads stay at it for longer: theirs find their cores only after a while, and
    until then two of them share one.
    """
    seconds = max(record["seconds"] for record in records)
    on_gpu = records[0]["on_gpu"]
    # The threads that may share a core at first: none inside an operator on a GPU.
    threads = 1 if on_gpu else records[0]["threads"]
    changes = _Changes()
    if threads != 1:
        rounds = max(1, round(seconds / _ROUND_THREADS_S))
    else:
        rounds = max(_ROUNDS, round(seconds / _ROUND_S))
    slow: dict[tuple[int, int], int] = {}
    # The smallest batch that a model does not run, and why.
    failing: dict[int, tuple[int, str]] = {}
    # What one inference takes, of the largest batch so far.
    alone_s: dict[tuple[int, int], float] = {}
    # Milliseconds in the mean of each probe's rounds, by their turn.
    means: list[dict[int, float]] = [{} for _ in records]
    for turn in range(2 * rounds):
        for record, by_turn in zip(records, means, strict=True):
            if time.monotonic() > deadline:
                return
            busy, batch = record["busy"], record["batch"]
            fails_from, why = failing.get(record["model"], (math.inf, ""))
            if batch >= fails_from:
                record["failed"] = why
                continue
            few = len(record["samples_ms"]) < EXECUTIONS_FEW
            if turn >= rounds and not (few and _disturbed(by_turn, means)):
                continue
            if batch > slow.get((record["model"], busy), batch):
                record["skipped"] = not record["samples_ms"]
                continue
            # Further executions of a slow batch would add little.
            if turn < rounds and sum(record["samples_ms"]) >= 1e3 * record["seconds"] * busy:
                continue
            # Instances that start together meet each other's first execution, and one on a GPU
            # what ONNX Runtime sets up for a new thread.
            left_out = int(busy > 1 or on_gpu)
            # What a round executes at least, should a batch save nothing.
            least = 1 + left_out + _EXECUTIONS_MIN
            least_s = least * batch * alone_s.get((record["model"], busy), 0.0)
            if time.monotonic() + least_s > deadline:
                continue
            runtimes = instances.take(record["model"], record["threads"], busy)
            inputs = _batch(pool, batch, spec["batchable"])
            began_s = time.time()
            changed = [changes.to(runtime, batch) for runtime in runtimes]
            firsts_ms: list[float] = []
            try:
                samples = _time_executions(
                    runtimes, inputs, record["seconds"] / rounds, threads, firsts_ms, left_out
                )
            except AnalyzerError as error:
                if batch == 1:
                    raise
                record["failed"] = error.message
                failing[record["model"]] = batch, error.message
                continue
            if on_gpu:
                pairs = zip(firsts_ms, changed, strict=True)
                record["changed_ms"] += [round(ms, 5) for ms, new in pairs if new]
            if samples:
                by_turn[turn] = float(np.mean(samples))
                record["rounds"].append([round(began_s, 3), round(by_turn[turn], 5)])
                alone_s[record["model"], busy] = float(np.median(samples)) / batch / 1e3
            kept = samples[:: math.ceil(len(samples) * rounds / _SAMPLES_MAX) or 1]
            record["samples_ms"] += [round(value, 5) for value in kept]
            if samples and float(np.median(samples)) > spec["batch_ms_max"]:
                slow[record["model"], busy] = batch


def _disturbed(own: dict[int, float], means: list[dict[int, float]]) -> bool:
    """Whether a probe's rounds contradict what its neighbours' say of the same turns.

    A machine that is slow in a whole turn is so for all of them, and their ratios are what counts.

    Args:
        own: The mean of each of its rounds by turn, milliseconds.
        means: The same of all probes, itself included.
    """
    others = [_scaled(other) for other in means if other is not own]
    paces = [
        mean / float(np.median([other[turn] for other in others if turn in other] or [1.0]))
        for turn, mean in _scaled(own).items()
    ]
    return len(paces) > 1 and max(paces) > _DISTURBED_FACTOR * min(paces)


def _scaled(means: dict[int, float]) -> dict[int, float]:
    """Each over the mean of all; nothing of a single one, which tells of no change."""
    usual = sum(means.values()) / max(len(means), 1)
    return {turn: mean / usual for turn, mean in means.items()} if len(means) > 1 else {}


def main() -> None:
    """Runs the probes of standard input."""
    spec = json.load(sys.stdin)
    die_with_parent(parent_pid=spec["parent_pid"])
    pool = read_tensors(Path(spec["inputs_path"]))
    instances = _Instances(spec)
    deadline = time.monotonic() + spec["seconds_max"]
    try:
        for records in _groups(spec["models"]):
            _run_group(records, instances, pool, spec, deadline)
            instances.close()
            for record in records:
                if record["samples_ms"] or record["skipped"] or record["failed"]:
                    print(json.dumps(record), flush=True)
    except AnalyzerError as error:
        print(json.dumps({"error": error.message, "hint": error.hint}), flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
