"""The executor that runs jobs on a thread of this process: for tests and machines without Ray."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from analyzer.cluster import job_results, processes
from analyzer.cluster.job_queue import JobQueue
from analyzer.cluster.left_behind import unload_left
from analyzer.domain.configuration import DeviceKind
from analyzer.errors import TargetTimeoutError
from analyzer.hardware.gpus import GpuIdentity, cuda_environment, first_gpu
from analyzer.hardware.machine import usable_cores
from analyzer.measure.jobs import Job, JobResult, WorkerContext

# The kernel ends a killed process in moments; beyond this it hangs in a driver.
_KILL_TIMEOUT_S = 10.0
_POLL_S = 0.05  # how late a cancellation is seen; short against any job


class _StopJob(BaseException):
    """Raised inside a job's thread to end it; no ``except Exception`` of the job keeps it."""


class _Run:
    """One job on a thread of its own."""

    def __init__(self, job: Job, context: WorkerContext, found: set[psutil.Process]) -> None:
        self.job = job
        self.before = found
        self.started = time.monotonic()
        self.value: object | None = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(
            target=self._main, args=(context,), name=f"job {job.job_id}", daemon=True
        )

    def _main(self, context: WorkerContext) -> None:
        try:
            self.value = self.job.run(context)
        except BaseException as error:  # the one boundary: it becomes the job's result
            self.error = error

    def interrupt(self) -> None:
        """Asks the thread to end at its next Python instruction."""
        if self.thread.ident is not None and self.thread.is_alive():
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self.thread.ident), ctypes.py_object(_StopJob)
            )


class InProcessExecutor:
    """One worker in this process.

    A job that hangs is ended by killing the processes that this program started meanwhile (there is
    no telling whose they are) and by an exception in the job's thread.
    A thread that does not end even then (it is stuck in compiled code) keeps the lease: later jobs
    come back as timed out instead of being measured beside it. A job that crashes its process
    crashes the program: that is what the Ray executor is for.

    Args:
        device: What the lease is for.
        cache_dir: See :class:`WorkerContext`; made here.
        cores: CPU cores of the lease; None for all that this process may use.
        gpu: See :class:`WorkerContext`; None for the first that this process may use.
        kill_timeout_s: How long ending a job may take.
    """

    def __init__(
        self,
        *,
        device: DeviceKind,
        cache_dir: Path,
        cores: int | None = None,
        gpu: GpuIdentity | None = None,
        kill_timeout_s: float = _KILL_TIMEOUT_S,
    ) -> None:
        cache_dir.mkdir(parents=True, exist_ok=True)
        self._context = WorkerContext(
            worker_id="in-process",
            device=device,
            gpu=(gpu or first_gpu()) if device == "gpu" else None,
            cores=cores or usable_cores(),
            cache_dir=cache_dir,
            node=socket.gethostname(),
        )
        self._kill_timeout_s = kill_timeout_s
        self._mark = uuid.uuid4().hex
        self._before: dict[str, str | None] = {}
        self._queue = JobQueue()
        self._stuck: _Run | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel_all()
        if self._thread is not None:
            self._queue.close(1)
            self._thread.join(self._kill_timeout_s)
            self._thread = None
        if os.environ.get(processes.MARK) == self._mark:
            for name, before in self._before.items():
                if before is None:
                    del os.environ[name]
                else:
                    os.environ[name] = before

    @property
    def workers(self) -> int:
        return 1

    def ready(self, timeout_s: float) -> bool:
        return True

    @property
    def local(self) -> None:
        return None

    def submit(self, job: Job) -> None:
        if self._thread is None:
            # What jobs start inherits these: the mark, and the leased GPU as the only one.
            own = {processes.MARK: self._mark}
            if self._context.gpu is not None:
                own |= cuda_environment(self._context.gpu)
            self._before = {name: os.environ.get(name) for name in own}
            os.environ.update(own)
            self._thread = threading.Thread(
                target=self._work, name="in-process worker", daemon=True
            )
            self._thread.start()
        self._queue.put(job)

    def next_result(self, timeout_s: float) -> JobResult | None:
        return self._queue.next_result(timeout_s)

    def cancel_all(self) -> None:
        # The worker sees the cancellation and ends the running job within its own limits.
        self._queue.cancel(lambda: None, timeout_s=3 * self._kill_timeout_s)

    def _work(self) -> None:
        while (job := self._queue.take()) is not None:
            self._queue.finish(self._run(job))

    def _run(self, job: Job) -> JobResult:
        worker_id = self._context.worker_id
        if self._stuck is not None and not self._wait(self._stuck, job.timeout_s):
            return job_results.failed(
                job,
                TargetTimeoutError(
                    f"{job_results.name_of(job)} was not started: "
                    f"{job_results.name_of(self._stuck.job)} hangs and cannot be ended inside "
                    "this process.",
                    hint="Use the Ray executor, whose workers are processes that can be killed.",
                ),
                seconds=0.0,
                worker_id=worker_id,
            )
        self._stuck = None
        run = _Run(job, self._context, self._processes())
        run.thread.start()
        ended = self._wait(run, job.timeout_s)
        seconds = time.monotonic() - run.started
        if not ended:
            gone = self._end(run)
            unload_left(job)  # the exceptions that end the thread end its own unloading, too
            return job_results.timed_out(job, seconds=seconds, worker_id=worker_id, gone=gone)
        if run.error is not None:
            return job_results.failed(job, run.error, seconds=seconds, worker_id=worker_id)
        return job_results.succeeded(job, run.value, seconds=seconds, worker_id=worker_id)

    def _wait(self, run: _Run, timeout_s: float) -> bool:
        """Whether the thread ended by itself before the limit and before a cancellation."""
        deadline = time.monotonic() + timeout_s
        while run.thread.is_alive():
            left_s = deadline - time.monotonic()
            if left_s <= 0 or self._queue.cancelled.is_set():
                return False
            run.thread.join(min(left_s, _POLL_S))
        return True

    def _end(self, run: _Run) -> bool:
        """Kills the job's processes and ends its thread; whether both are gone."""
        deadline = time.monotonic() + self._kill_timeout_s
        gone = processes.kill_until_gone(
            lambda: self._processes() - run.before, timeout_s=self._kill_timeout_s
        )
        # Losing its server usually ends the job; it is interrupted only if that does not.
        run.thread.join(0.5)
        while run.thread.is_alive() and time.monotonic() < deadline:
            run.interrupt()
            run.thread.join(0.2)
            gone = processes.kill_until_gone(
                lambda: self._processes() - run.before, timeout_s=self._kill_timeout_s
            )
        if run.thread.is_alive():
            self._stuck = run
            return False
        return gone

    def _processes(self) -> set[psutil.Process]:
        """What this program has started and what that has started, orphans included."""
        return processes.descendants(os.getpid()) | processes.marked(self._mark)
