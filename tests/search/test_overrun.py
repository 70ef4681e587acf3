"""What is told where a first proof is tried beyond the budget."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from analyzer.search.study import _overrun


def overrun(*, left_s: float, missing_s: float) -> tuple[list[str], list[float]]:
    """The notes, and the seconds of the attempt, of a budget of 40 s that may take 50 s."""
    notes: list[str] = []
    attempts: list[float] = []
    plan = SimpleNamespace(
        budget_s=40.0,
        left_s=left_s,
        overrun_s=left_s + 10.0,
        grant=lambda seconds: None,
        revoke=lambda: None,
    )
    context: Any = SimpleNamespace(
        plan=plan, server_start_s=1.0, log=SimpleNamespace(warn=notes.append)
    )
    measuring: Any = SimpleNamespace(missing_s=missing_s, complete=attempts.append)
    _overrun(context, measuring)
    return notes, attempts


def test_an_attempt_beyond_the_budget_is_told_as_an_attempt() -> None:
    # It may end without a proof, and before the budget does.
    notes, attempts = overrun(left_s=5.0, missing_s=5.0)
    assert attempts == [10.0], "twice what is missing"
    (note,) = notes
    assert "tries to complete a first proof" in note and "may take up to 6 s beyond" in note
    assert "are spent" not in note


def test_where_little_is_missing_a_tenth_of_the_budget_is_given() -> None:
    assert overrun(left_s=0.5, missing_s=0.2)[1] == [4.0]
    assert overrun(left_s=0.5, missing_s=6.0)[1] == [9.5], "no more than may be spent"


def test_nothing_is_told_where_nothing_is_tried() -> None:
    assert overrun(left_s=20.0, missing_s=5.0) == ([], [])
    assert overrun(left_s=1.0, missing_s=50.0) == ([], [])
