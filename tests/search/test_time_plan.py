"""The plan of a budget on a virtual clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.errors import BudgetEndedError
from analyzer.search.time_plan import OVERRUN_SHARE, TimePlan


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def plan(budget_s: float, clock: Clock) -> TimePlan:
    return TimePlan(budget_s=budget_s, started=clock.now, clock=clock)


def test_preparation_leaves_room_for_a_proof_before_it_is_known() -> None:
    clock = Clock()
    found = plan(60.0, clock)
    assert found.preparation_left_s == pytest.approx(60 - 1 - 24)
    clock.now += 40
    assert found.preparation_left_s < 0 < found.left_s


def test_a_known_proof_replaces_the_share() -> None:
    clock = Clock()
    found = plan(300.0, clock)
    found.expect_proof(10.0)
    assert found.preparation_left_s == pytest.approx(300 - 1 - 15)
    # A proof that no budget of this size suffices for must not leave nothing to prepare it with.
    found.expect_proof(10_000.0)
    assert found.preparation_left_s == pytest.approx(300 - 1 - 180)
    assert found.budget_that_suffices_s(10_000.0) == pytest.approx(15_001)


def test_a_slow_model_shortens_the_preparation_and_a_fast_one_leaves_it() -> None:
    clock = Clock()
    found = plan(60.0, clock)
    found.expect_proof_of_at_least(10.0)
    assert found.preparation_left_s == pytest.approx(60 - 1 - 24)
    found.expect_proof_of_at_least(20.0)
    assert found.preparation_left_s == pytest.approx(60 - 1 - 30)


def test_what_was_granted_and_not_spent_is_taken_back() -> None:
    clock = Clock()
    found = plan(60.0, clock)
    clock.now += 59.0
    found.grant(15.0)
    assert found.left_s == pytest.approx(15.0)
    found.revoke()
    assert found.left_s == pytest.approx(0.0)


def test_what_is_still_to_come_of_the_preparation_counts_in_the_budget_that_suffices() -> None:
    clock = Clock()
    started = clock.now
    clock.now += 4.0
    found = TimePlan.begun(budget_s=20.0, started=started, clock=clock)
    clock.now += 13.0
    found.expect_proof(1.0)
    assert found.budget_that_suffices_s(1.0) == pytest.approx(17 + 5 + 1.5)
    # A server and its load tests, four times as slow as they may be.
    assert found.budget_that_suffices_s(1.0, stage="measurement") == pytest.approx(
        17 + 5 + 4 * 1.2 * 4 + 1.5
    )


def test_a_search_in_this_process_starts_no_workers() -> None:
    """Ray's start was counted there too: a budget that suffices was refused."""
    clock = Clock()
    started = clock.now
    clock.now += 2.0
    ray, alone = (
        TimePlan.begun(budget_s=10.0, started=started, clock=clock, starts_workers=starts)
        for starts in (True, False)
    )
    assert ray.least_s("workers") == pytest.approx(2.0 * (1.5 + 0.8 + 1.2))
    assert alone.least_s("workers") == ray.least_s("probes") == alone.least_s("probes")
    assert alone.suffices("workers") and not ray.suffices("workers")
    assert alone.left_before_s("workers") == pytest.approx(10 - 3 - 2 - 4)
    # What the command says that it takes to prove it is less, too.
    assert ray.budget_that_suffices_s(5.0, stage="workers") > alone.budget_that_suffices_s(
        5.0, stage="workers"
    )


def test_what_a_neighbour_took_of_the_start_ends_no_search() -> None:
    """A start of 7 s, 1 of them work, gave a budget of 35 s up before anything was measured."""
    clock = Clock()
    started = clock.now
    clock.now += 7.0
    found = TimePlan.begun(budget_s=35.0, started=started, clock=clock, start_cpu_s=1.0)
    assert found.least_s("workers") == pytest.approx(1.5 + 0.8 + 1.2)
    assert found.suffices("workers")
    # What suffices is still told as slow as the machine is.
    assert found.budget_that_suffices_s(1.0, stage="measurement") > 7 + 4 * 1.2 * 7


def test_a_slow_start_expects_a_slow_end() -> None:
    clock = Clock()
    started = clock.now
    clock.now += 20
    found = TimePlan.begun(budget_s=60.0, started=started, clock=clock)
    assert found.spent_s == 20
    assert found.left_s == pytest.approx(60 - 20 - 21)


def test_a_model_that_takes_long_to_read_expects_no_slow_end() -> None:
    """The download of a model of 20 s kept 21 s of the budget for the report."""
    clock = Clock()
    started = clock.now
    clock.now += 20
    found = TimePlan.begun(budget_s=60.0, started=started, clock=clock, loaded_s=1.0)
    assert found.left_s == pytest.approx(60 - 20 - 3)


@given(
    budget_s=st.floats(1.0, 3600.0),
    proof_s=st.floats(0.1, 1e5),
    steps=st.lists(st.floats(0.01, 120.0), max_size=8),
)
def test_no_deadline_lies_beyond_another(
    budget_s: float, proof_s: float, steps: list[float]
) -> None:
    clock = Clock()
    found = plan(budget_s, clock)
    found.expect_proof(proof_s)
    for taken_s in steps:
        clock.now += taken_s
        assert found.preparation_left_s < found.left_s < budget_s - found.spent_s
        assert 0 < found.overrun_s <= budget_s * (1 + OVERRUN_SHARE)


@given(budget_s=st.floats(1.0, 600.0), start_s=st.floats(0.0, 10.0), passed_s=st.floats(0.0, 900.0))
def test_no_stage_may_begin_later_than_the_next(
    budget_s: float, start_s: float, passed_s: float
) -> None:
    clock = Clock()
    started = clock.now
    clock.now += start_s
    found = TimePlan.begun(budget_s=budget_s, started=started, clock=clock)
    clock.now += passed_s
    assert found.least_s("workers") >= found.least_s("probes") >= found.least_s("measurement")
    assert found.suffices("measurement") or not found.suffices("workers")
    # What runs is cut off early enough for the end to be within 5 %, or a second.
    latest_s = found.spent_s + found.cut_in_s + found.end_s
    assert latest_s <= budget_s + max(1.0, 0.05 * budget_s)
    if not found.suffices("workers"):
        with pytest.raises(BudgetEndedError):
            found.left_before_s("workers")
