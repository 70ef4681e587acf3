"""A job's states as a machine: what may follow what, and what each change does to the attempt.

Pure: it takes a :class:`Lifecycle` and gives the next one. ``queue`` and ``jobs`` store what it
says, in the transaction in which they read the job.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

# Lost leases after which a job is given up: a job that ends its worker each time must not end
# every worker of a team.
LOSSES_MAX = 2


class State(StrEnum):
    """Where a job is; the contract's names."""

    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    PAUSING = "PAUSING"
    PAUSED = "PAUSED"
    CANCELLING = "CANCELLING"
    CANCELLED = "CANCELLED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


class Change(StrEnum):
    """What can happen to a job.

    ``CLAIM``: a worker takes it. ``SUCCEED``, ``FAIL``: its run ended so. ``STOP``: its run ended
    because it was asked to (pause or cancel). ``RELEASE``: its worker gives it back (it shuts
    down). ``LOSE``: its worker's lease ran out. ``PAUSE``, ``RESUME``, ``CANCEL``: a user asks.
    """

    CLAIM = "claim"
    SUCCEED = "succeed"
    FAIL = "fail"
    STOP = "stop"
    RELEASE = "release"
    LOSE = "lose"
    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"


TERMINAL = frozenset({State.CANCELLED, State.SUCCEEDED, State.FAILED})
#: A worker holds a job in one of these, by a lease.
HELD = frozenset({State.RUNNING, State.PAUSING, State.CANCELLING})

_NEXT: dict[State, dict[Change, State]] = {
    State.QUEUED: {
        Change.CLAIM: State.RUNNING,
        Change.PAUSE: State.PAUSED,
        Change.CANCEL: State.CANCELLED,
    },
    State.RUNNING: {
        Change.SUCCEED: State.SUCCEEDED,
        Change.FAIL: State.FAILED,
        Change.RELEASE: State.QUEUED,
        Change.LOSE: State.QUEUED,
        Change.PAUSE: State.PAUSING,
        Change.CANCEL: State.CANCELLING,
    },
    State.PAUSING: {
        # It ended before it noticed.
        Change.SUCCEED: State.SUCCEEDED,
        Change.FAIL: State.FAILED,
        Change.STOP: State.PAUSED,
        Change.RELEASE: State.PAUSED,
        Change.LOSE: State.PAUSED,
        Change.CANCEL: State.CANCELLING,
    },
    State.PAUSED: {Change.RESUME: State.QUEUED, Change.CANCEL: State.CANCELLED},
    # Whatever becomes of the run: who cancels a job wants no result of it.
    State.CANCELLING: {
        Change.SUCCEED: State.CANCELLED,
        Change.FAIL: State.CANCELLED,
        Change.STOP: State.CANCELLED,
        Change.RELEASE: State.CANCELLED,
        Change.LOSE: State.CANCELLED,
    },
    State.CANCELLED: {},
    State.SUCCEEDED: {},
    State.FAILED: {},
}


class NotAllowed(Exception):
    """The change is not possible in this state."""

    def __init__(self, state: State, change: Change) -> None:
        super().__init__(f"A job that is {state} cannot {change}.")
        self.state = state
        self.change = change


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """Where a job is.

    Args:
        attempt: Number of the run that it is in or waits for, from 1. It grows whenever the job is
            queued again, so no two claims share it: what a worker writes is fenced by it.
        losses: How often a worker's lease ran out while it measured.
    """

    state: State = State.QUEUED
    attempt: int = 1
    losses: int = 0


def changes(state: State) -> frozenset[Change]:
    """What may happen to a job in ``state``."""
    return frozenset(_NEXT[state])


def apply(job: Lifecycle, change: Change) -> Lifecycle:
    """The job after ``change``.

    Raises:
        NotAllowed: It cannot happen in the job's state.
    """
    following = _NEXT[job.state].get(change)
    if following is None:
        raise NotAllowed(job.state, change)
    losses = job.losses + (change is Change.LOSE)
    if change is Change.LOSE and following is State.QUEUED and losses > LOSSES_MAX:
        return replace(job, state=State.FAILED, losses=losses)
    again = following is State.QUEUED
    return Lifecycle(state=following, attempt=job.attempt + again, losses=losses)
