"""The seam between the search and the machines: jobs that run under an exclusive lease.

The search (which submits) and the cluster (which runs) are neighbours and see each other only
through this module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol, Self

from analyzer.domain.configuration import DeviceKind
from analyzer.errors import AnalyzerError
from analyzer.hardware.gpus import GpuIdentity


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """What a job sees of the worker that runs it.

    Args:
        worker_id: Names the lease; stays the same when a fresh process takes it over.
        device: What the lease is for.
        gpu: The leased GPU, which CUDA sees as device 0; None on a CPU.
        cores: CPU cores that belong to the lease.
        cache_dir: A folder on the worker's machine, made before the job runs, for variants and
            engines; it outlives the study.
        node: The machine's name.
    """

    worker_id: str
    device: DeviceKind
    gpu: GpuIdentity | None
    cores: int
    cache_dir: Path
    node: str


class Job(NamedTuple):
    """Work for one worker.

    ``run`` goes to another process: it, what it closes over and what it returns can be pickled
    (lambdas and closures too). Past ``timeout_s`` it is killed with every process it started.
    """

    job_id: str
    run: Callable[[WorkerContext], object]
    timeout_s: float
    label: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """How a job ended: ``value``, or ``error`` with None as the value.

    Args:
        error: What ``run`` raised (an AnalyzerError as itself, any other wrapped with its cause
            named), TargetTimeoutError past the time limit, TargetCrashError or TargetMemoryError if
            its process died.
        lost: The process that ran it was killed or died; nothing of it runs any more.
        seconds: From its start on the worker to its end.
    """

    job_id: str
    value: object | None
    error: AnalyzerError | None
    lost: bool
    seconds: float
    worker_id: str


class Executor(Protocol):
    """Runs jobs, each alone on its lease, in the order in which they were submitted.

    Used by one thread; a context manager that leaves no process behind.
    """

    @property
    def workers(self) -> int:
        """How many jobs run at the same time; waits for the workers where they still start.

        Raises:
            AnalyzerError: They could not be started.
        """

    def ready(self, timeout_s: float) -> bool:
        """Whether the workers are there, which is waited for so long.

        Raises:
            AnalyzerError: They could not be started.
        """

    @property
    def local(self) -> WorkerContext | None:
        """What the one worker of this machine will see, where it shares our file system.

        What measures nothing (a build) may run in this process with it, while the workers start.
        None where that would gain nothing.
        """

    def submit(self, job: Job) -> None:
        """Queues a job; returns at once.

        Raises:
            AnalyzerError: The workers could not be started, where that is known already.
        """

    def next_result(self, timeout_s: float) -> JobResult | None:
        """The next job that ended, in the order of ending; None after ``timeout_s`` without one.

        Every job submitted comes back once, unless :meth:`cancel_all` took it.

        Raises:
            AnalyzerError: The workers could not be started.
        """

    def cancel_all(self) -> None:
        """Forgets what waits, kills what runs, and returns when its processes are gone.

        No result of these jobs comes back. Jobs may be submitted afterwards.
        """

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """As :meth:`cancel_all`; then ends the workers."""
