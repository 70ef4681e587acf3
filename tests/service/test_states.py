"""The machine of a job's states: what is possible, what is final, what the attempt does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.service.states import (
    HELD,
    LOSSES_MAX,
    TERMINAL,
    Change,
    Lifecycle,
    NotAllowed,
    State,
    apply,
    changes,
)

WISHES = st.lists(st.sampled_from(Change), max_size=40)


def walk(wishes: list[Change]) -> list[tuple[Lifecycle, Change, Lifecycle]]:
    """The changes of ``wishes`` that are possible, one after the other, from a new job."""
    job, done = Lifecycle(), []
    for change in wishes:
        if change in changes(job.state):
            after = apply(job, change)
            done.append((job, change, after))
            job = after
    return done


@given(WISHES)
def test_no_two_claims_share_an_attempt(wishes: list[Change]) -> None:
    claims = [after.attempt for _, change, after in walk(wishes) if change is Change.CLAIM]
    assert len(set(claims)) == len(claims)
    assert claims == sorted(claims)


@given(WISHES)
def test_a_worker_that_lost_its_job_cannot_be_taken_for_the_next_one(wishes: list[Change]) -> None:
    for before, _, after in walk(wishes):
        if before.state in HELD and after.state is State.QUEUED:
            assert after.attempt == before.attempt + 1
        if before.state in HELD and after.state in HELD:
            assert after.attempt == before.attempt


@given(WISHES)
def test_lost_leases_are_counted_and_end_the_job(wishes: list[Change]) -> None:
    for before, change, after in walk(wishes):
        assert after.losses == before.losses + (change is Change.LOSE)
        if after.state is State.QUEUED and change is Change.LOSE:
            assert after.losses <= LOSSES_MAX
        if after.state is State.FAILED:
            assert change in (Change.FAIL, Change.LOSE), "nothing says why"


@given(st.sampled_from(State), st.sampled_from(Change))
def test_a_terminal_state_is_final(state: State, change: Change) -> None:
    if state in TERMINAL:
        with pytest.raises(NotAllowed):
            apply(Lifecycle(state), change)


@pytest.mark.parametrize("state", sorted(set(State) - TERMINAL))
def test_every_job_can_be_cancelled_and_then_ends(state: State) -> None:
    job = Lifecycle(state)
    if state is not State.CANCELLING:
        job = apply(job, Change.CANCEL)
    if job.state is State.CANCELLING:
        # Whatever becomes of the run.
        assert {apply(job, change).state for change in changes(job.state)} == {State.CANCELLED}
    else:
        assert job.state is State.CANCELLED


def test_a_queued_job_is_never_lost() -> None:
    with pytest.raises(NotAllowed, match=r"QUEUED cannot lose"):
        apply(Lifecycle(), Change.LOSE)


def test_a_paused_job_whose_worker_goes_away_is_paused_all_the_same() -> None:
    job = apply(apply(Lifecycle(), Change.CLAIM), Change.PAUSE)
    assert apply(job, Change.LOSE).state is State.PAUSED
    assert apply(apply(job, Change.STOP), Change.RESUME) == Lifecycle(State.QUEUED, attempt=2)


def test_a_job_that_ends_its_worker_each_time_fails() -> None:
    job = Lifecycle()
    for _ in range(LOSSES_MAX + 1):
        job = apply(apply(job, Change.CLAIM), Change.LOSE)
    assert job.state is State.FAILED


def test_a_job_that_was_lost_while_it_was_paused_can_be_resumed() -> None:
    """It failed with the resume, without a reason."""
    job = Lifecycle()
    for _ in range(LOSSES_MAX + 1):
        job = apply(apply(apply(job, Change.CLAIM), Change.PAUSE), Change.LOSE)
        assert job.state is State.PAUSED
        job = apply(job, Change.RESUME)
        assert job.state is State.QUEUED
    assert apply(apply(job, Change.CLAIM), Change.LOSE).state is State.FAILED
