"""The one place where an exception becomes a stored failure (a lost worker: the executor)."""

from __future__ import annotations

from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import OUT_OF_TIME, Failure
from analyzer.errors import (
    AnalyzerError,
    BuildError,
    BuildTimeoutError,
    TargetCrashError,
    TargetMemoryError,
    TargetStartError,
    TargetTimeoutError,
)

_REASONS: tuple[tuple[type[AnalyzerError], str], ...] = (
    (TargetMemoryError, "out_of_memory"),
    (TargetTimeoutError, "timeout"),
    (TargetCrashError, "crash"),
    (TargetStartError, "start"),
    (BuildTimeoutError, OUT_OF_TIME),
    (BuildError, "build"),
)


def as_failure(
    configuration: Configuration,
    error: AnalyzerError,
    *,
    stage: str,
    load_test_seconds: float = 0.0,
    lost: bool = False,
) -> Failure:
    """The record of ``error``; ``lost`` says that the worker died with it.

    Args:
        stage: Where it was caught; the error's own stands, if it has one.
    """
    reason = next((name for kind, name in _REASONS if isinstance(error, kind)), error.code)
    if lost and reason not in ("out_of_memory", "timeout"):
        reason = "worker_lost"
    return Failure(
        configuration=configuration,
        stage="worker" if lost else error.stage or stage,
        reason=reason,
        message=error.message,
        hint=error.hint,
        load_test_seconds=load_test_seconds,
    )
