"""The results of jobs: the one place where values, exceptions and deaths become them."""

from __future__ import annotations

from analyzer.errors import AnalyzerError, TargetMemoryError, TargetTimeoutError
from analyzer.measure.jobs import Job, JobResult


def as_analyzer_error(error: BaseException, job_name: str) -> AnalyzerError:
    """The error itself if it is one of ours; otherwise ours around it, with it as the cause."""
    if isinstance(error, AnalyzerError):
        return error
    ours: AnalyzerError
    if isinstance(error, MemoryError):
        ours = TargetMemoryError(
            f"{job_name} ran out of memory: {error}.".replace(": .", "."),
            hint="Fewer instances or a smaller batch need less.",
        )
    else:
        ours = AnalyzerError(
            f"{job_name} failed: {type(error).__name__}: {error}",
            hint="This is a fault of the program; -v shows where it happened.",
        )
    ours.__cause__ = error
    return ours


def name_of(job: Job) -> str:
    """How messages call a job."""
    return f"The job {job.label or job.job_id}"


def succeeded(job: Job, value: object, *, seconds: float, worker_id: str) -> JobResult:
    """The result of a job that returned ``value``."""
    return JobResult(
        job_id=job.job_id, value=value, error=None, lost=False, seconds=seconds, worker_id=worker_id
    )


def timed_out(job: Job, *, seconds: float, worker_id: str, gone: bool = True) -> JobResult:
    """The result of a job that was killed past its time limit."""
    rest = "and was killed" if gone else "and could not be ended completely"
    error = TargetTimeoutError(
        f"{name_of(job)} took more than {job.timeout_s:g} s {rest}.",
        hint="The server or the model hangs under this configuration, or needs more time to start.",
    )
    return JobResult(
        job_id=job.job_id, value=None, error=error, lost=True, seconds=seconds, worker_id=worker_id
    )


def failed(
    job: Job, error: BaseException, *, seconds: float, worker_id: str, lost: bool = False
) -> JobResult:
    """The result of a job that raised, or whose process died."""
    return JobResult(
        job_id=job.job_id,
        value=None,
        error=as_analyzer_error(error, name_of(job)),
        lost=lost,
        seconds=seconds,
        worker_id=worker_id,
    )
