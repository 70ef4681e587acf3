"""What runs on a worker's machine: the body of the Ray actor, and the end of its process tree.

Of Ray it uses the name of the leased GPU alone; a remote machine needs this package installed,
since Ray sends the class by its name.
"""

from __future__ import annotations

import os
import pickle
import socket
import traceback
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple

import psutil

import analyzer
from analyzer.cluster import job_results, processes
from analyzer.errors import AnalyzerError
from analyzer.hardware.gpus import GpuIdentity, cuda_environment, find_gpu
from analyzer.hardware.memory_kills import MemoryKills
from analyzer.measure.jobs import WorkerContext


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProcess:
    """The process of a worker; together these survive the reuse of its number."""

    pid: int
    created_at: float
    node: str
    version: str
    oom_kills: int


class PackedResult(NamedTuple):
    """How a job ended inside the worker: a pickled value, or an error with its traceback."""

    kind: Literal["value", "error"]
    value: bytes
    error: AnalyzerError | None
    trace: str


class Worker:
    """Runs one job at a time in a process of its own.

    Args:
        mark: What the processes that jobs start are found by.
        context: What jobs see; ``gpu`` and ``node`` are filled in here.
        environment: Variables to set, or (None) to remove, before the first job.
    """

    def __init__(
        self, mark: str, context: WorkerContext, environment: dict[str, str | None]
    ) -> None:
        os.environ[processes.MARK] = mark
        for name, value in environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        gpu = _leased_gpu() if context.device == "gpu" else None
        if gpu is not None:
            # What jobs start inherits it: CUDA there sees the leased GPU alone, as device 0.
            os.environ.update(cuda_environment(gpu))
        self._context = WorkerContext(
            worker_id=context.worker_id,
            device=context.device,
            gpu=gpu,
            cores=context.cores,
            cache_dir=context.cache_dir,
            node=socket.gethostname(),
        )

    def identify(self) -> WorkerProcess:
        """Shows that the worker lives, and which process it is."""
        own = psutil.Process()
        return WorkerProcess(
            pid=own.pid,
            created_at=own.create_time(),
            node=self._context.node,
            version=analyzer.__version__,
            oom_kills=MemoryKills.until_now().machine,
        )

    def load_libraries(self) -> None:
        """Imports what jobs need: the first one would take a second for it, most of it idle now."""
        import analyzer.measure.tasks  # noqa: F401

    def run(self, packed: bytes, job_name: str) -> PackedResult:
        """Runs a pickled job; whatever it raises is part of the result."""
        from ray import cloudpickle

        try:
            self._context.cache_dir.mkdir(parents=True, exist_ok=True)
            value = pickle.loads(packed)(self._context)
            return PackedResult("value", cloudpickle.dumps(value), None, "")
        except BaseException as error:  # the one boundary: it becomes the job's result
            ours = job_results.as_analyzer_error(error, job_name)
            return PackedResult("error", b"", ours, traceback.format_exc())


def _leased_gpu() -> GpuIdentity | None:
    """The GPU that Ray gave to this process, which it names by number or UUID (MIG too)."""
    import ray

    leased = ray.get_runtime_context().get_accelerator_ids()["GPU"]
    return find_gpu(str(leased[0])) if leased else None


class TreeEnd(NamedTuple):
    """Whether nothing of a worker is left, and the machine's count of kills for want of memory."""

    gone: bool
    oom_kills: int


def end_tree(mark: str, pid: int, created_at: float, timeout_s: float) -> TreeEnd:
    """Kills a worker's process and all that it started, on this machine, until they are gone."""

    def root() -> set[psutil.Process]:
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            # Tolerant, since the creation time is rounded to the kernel's ticks.
            if abs(process.create_time() - created_at) < 1.0 and processes.lives(process):
                return {process}
        return set()

    seen: set[psutil.Process] = set()

    def left() -> set[psutil.Process]:
        # Those below a marked process too: once their parent is dead nothing leads to them.
        found = root() | processes.marked(mark) | processes.in_group(pid)
        seen.update(*(processes.descendants(process.pid) for process in found))
        return found | {process for process in seen if processes.lives(process)}

    gone = processes.kill_until_gone(left, timeout_s=timeout_s)
    return TreeEnd(gone, MemoryKills.until_now().machine)
