"""Errors as stored failures."""

from __future__ import annotations

import pickle

import pytest

from analyzer.domain.configuration import Configuration
from analyzer.errors import (
    AnalyzerError,
    BuildError,
    BuildTimeoutError,
    ModelError,
    TargetCrashError,
    TargetMemoryError,
    TargetStartError,
    TargetTimeoutError,
)
from analyzer.measure.failures import as_failure


@pytest.mark.parametrize(
    ("error", "lost", "reason"),
    [
        (TargetMemoryError("m"), False, "out_of_memory"),
        (TargetMemoryError("m"), True, "out_of_memory"),
        (TargetTimeoutError("m"), True, "timeout"),
        (TargetCrashError("m"), False, "crash"),
        (TargetCrashError("m"), True, "worker_lost"),
        (TargetStartError("m"), False, "start"),
        (BuildError("m"), False, "build"),
        (BuildTimeoutError("m"), False, "budget"),
        (ModelError("m"), False, "model"),
    ],
)
def test_each_error_has_its_reason(error: AnalyzerError, lost: bool, reason: str) -> None:
    failure = as_failure(Configuration(), error, stage="load", lost=lost)
    assert failure.reason == reason
    assert failure.stage == ("worker" if lost else "load")


def test_what_was_spent_and_said_is_kept() -> None:
    error = TargetCrashError("It went away.", hint="Look at its log.")
    failure = as_failure(Configuration(), error, stage="load", load_test_seconds=2.5)
    assert (failure.message, failure.hint) == ("It went away.", "Look at its log.")
    assert failure.load_test_seconds == 2.5


def test_where_an_error_came_up_is_its_own_affair_and_crosses_processes() -> None:
    error = TargetMemoryError("It ran out of memory.", hint="Use less.")
    error.stage = "start"
    told = pickle.loads(pickle.dumps(error)).reworded("Before, 79 of 80 GiB were in use.", "Wait.")
    assert isinstance(told, TargetMemoryError)
    failure = as_failure(Configuration(), told, stage="build")
    assert (failure.stage, failure.message, failure.hint) == (
        "start", "Before, 79 of 80 GiB were in use.", "Wait.",
    )  # fmt: skip
    assert as_failure(Configuration(), told, stage="build", lost=True).stage == "worker"
