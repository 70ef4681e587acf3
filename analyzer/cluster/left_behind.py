"""What a job that was killed leaves on a server elsewhere, which no end of its processes ends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol, runtime_checkable

from analyzer.cluster.job_results import name_of
from analyzer.measure.jobs import Job, WorkerContext


@runtime_checkable
class _Loads(Protocol):
    """Work that loads a model on a server which outlives it."""

    def unload_left(self) -> str:
        """Unloads what is left of it; why that failed, as a sentence, empty where it did not."""

    def renamed(self) -> Callable[[WorkerContext], object]:
        """The same work, whose model has another name there."""


def for_another_worker(job: Job) -> Job:
    """``job``, which was lost with its machine: that may still unload what it loaded."""
    work: object = job.run
    return job._replace(run=work.renamed()) if isinstance(work, _Loads) else job


def unload_left(job: Job) -> None:
    """Unloads the model that ``job``, which was killed, may have left loaded.

    A failure is told on the standard error: of a job that was cancelled no result comes back.
    """
    work: object = job.run
    if not isinstance(work, _Loads):
        return
    try:
        trouble = work.unload_left()
    except Exception as error:  # whatever it is, other jobs go on
        trouble = f"{name_of(job)} may have left its model loaded: {type(error).__name__}: {error}"
    if trouble:
        print(f"Note: {trouble}", file=sys.stderr)
