"""What is told where a first proof is tried beyond the budget."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from analyzer.search.study import _overrun, _tell_gain


def overrun(*, left_s: float, missing_s: float) -> tuple[list[str], list[float]]:
    """What is told, and the seconds of the attempt, of a budget of 40 s that may take 50 s.

    The attempt takes two seconds more than it was expected to.
    """
    told: list[str] = []
    attempts: list[float] = []
    plan = SimpleNamespace(
        left_s=left_s,
        overrun_s=left_s + 10.0,
        grant=lambda seconds: None,
        revoke=lambda: None,
    )

    def complete(seconds: float) -> None:
        attempts.append(seconds)
        plan.left_s -= missing_s + 3.0

    context: Any = SimpleNamespace(
        plan=plan,
        server_start_s=1.0,
        log=SimpleNamespace(warn=told.append),
        progress=SimpleNamespace(warn=told.append),
    )
    measuring: Any = SimpleNamespace(missing_s=missing_s, complete=complete)
    _overrun(context, measuring)
    return told, attempts


def test_an_attempt_beyond_the_budget_is_told_as_an_attempt() -> None:
    # It may end without a proof, and before the budget does.
    (before, note), attempts = overrun(left_s=5.0, missing_s=5.0)
    assert attempts == [14.0], "a PASS ends it sooner"
    assert "tries to complete a first proof" in before
    assert "about 2 s beyond --budget, 10 s at most." in before
    assert note == "A run to complete a first proof took 3 s beyond --budget."


def test_nothing_is_told_where_nothing_is_tried() -> None:
    assert overrun(left_s=20.0, missing_s=5.0) == ([], [])
    assert overrun(left_s=1.0, missing_s=50.0) == ([], [])


@pytest.mark.parametrize(
    ("left_s", "known", "beyond"),
    [
        (-1.0, "", "5 s"),
        (-7.0, "", ""),
        (-1.0, "measured", ""),
        (-1.0, "budget", "5 s"),
        (-1.0, "crash", ""),
    ],
)
def test_a_late_proof_s_gain_is_measured_beyond_the_budget(
    left_s: float, known: str, beyond: str
) -> None:
    """Also where it had no time in an earlier run of the study; not where it cannot be."""
    notes: list[str] = []
    granted: list[float] = []
    calls: list[str] = []
    plan = SimpleNamespace(
        beyond_s=10.0, left_s=left_s, grant=granted.append, revoke=lambda: calls.append("revoked")
    )
    context: Any = SimpleNamespace(
        plan=plan,
        baseline=SimpleNamespace(config_id="b"),
        log=SimpleNamespace(
            latest={"b": known} if known else {},
            measurement=lambda config_id: known if known == "measured" else None,
            failed=lambda config_id: known == "crash",
            warn=notes.append,
        ),
    )
    measuring: Any = SimpleNamespace(
        baseline_s=4.0, measure_baseline=lambda: calls.append("measured")
    )
    _tell_gain(context, measuring)
    if beyond:
        assert granted == [5.0] and calls == ["measured", "revoked"]
        assert notes[0].endswith(f"beyond --budget: about {beyond}.")
    else:
        assert not notes and not granted and not calls
