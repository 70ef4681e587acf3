"""The queues of an executor: jobs that wait, results that come back, and a count of both."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from analyzer.measure.jobs import Job, JobResult


class JobQueue:
    """A queue of jobs and one of results between one consumer and any number of worker threads.

    A worker ends each job that it took with :meth:`finish` or :meth:`put_back`. Thread-safe.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[JobResult] = queue.SimpleQueue()
        self._idle = threading.Condition()
        self._unfinished = 0
        # How often everything was cancelled, now and when a worker's thread took its job.
        self._cancellations = 0
        self._taken = threading.local()
        self.cancelled = threading.Event()

    def put(self, job: Job) -> None:
        """Queues a job."""
        with self._idle:
            self._unfinished += 1
        self._jobs.put(job)

    def take(self) -> Job | None:
        """The next job, waiting for it; None when this worker shall end."""
        while (job := self._jobs.get()) is not None:
            self._taken.cancellations = self._cancellations
            if not self.cancelled.is_set():
                return job
            self._count_down()
        return None

    def put_back(self, job: Job) -> None:
        """Returns a job that was taken, for another worker, unless it was cancelled meanwhile."""
        if self._is_wanted():
            self._jobs.put(job)
        else:
            self._count_down()

    def finish(self, result: JobResult) -> None:
        """Hands a result over, unless the job was cancelled meanwhile, however long ago."""
        if self._is_wanted():
            self._results.put(result)
        self._count_down()

    def _is_wanted(self) -> bool:
        """Whether nothing was cancelled since this thread took its job."""
        now = self._cancellations
        return bool(getattr(self._taken, "cancellations", now) == now)

    def next_result(self, timeout_s: float) -> JobResult | None:
        """The next result; None after ``timeout_s``."""
        try:
            return self._results.get(timeout=max(timeout_s, 0.0))
        except queue.Empty:
            return None

    def cancel(self, kill: Callable[[], None], *, timeout_s: float) -> bool:
        """Forgets waiting jobs and results, and waits for workers that ``kill`` has interrupted.

        Returns:
            Whether no job is left after at most ``timeout_s``.
        """
        self._cancellations += 1
        self.cancelled.set()
        try:
            self._forget()
            kill()
            deadline = time.monotonic() + timeout_s
            with self._idle:
                while self._unfinished and (left_s := deadline - time.monotonic()) > 0:
                    self._idle.wait(left_s)
                idle = self._unfinished == 0
            while self.next_result(0.0) is not None:
                pass
            return idle
        finally:
            self.cancelled.clear()

    def _forget(self) -> None:
        """Takes out what waits: no worker may be there yet that would."""
        ends = 0
        with suppress(queue.Empty):
            while True:
                if self._jobs.get_nowait() is None:
                    ends += 1
                else:
                    self._count_down()
        self.close(ends)

    def close(self, workers: int) -> None:
        """Ends that many workers, once every job queued before is taken."""
        for _ in range(workers):
            self._jobs.put(None)

    def _count_down(self) -> None:
        with self._idle:
            self._unfinished -= 1
            self._idle.notify_all()
