"""What a job has in the database for its worker: artifacts, trials, room for its log."""

from __future__ import annotations

from sqlalchemy import Connection, delete, func, select, update

from analyzer.service.content import Staged, let_go
from analyzer.service.folder import STUDY
from analyzer.service.limits import ServiceLimits
from analyzer.service.queue import Claim, Queue
from analyzer.service.rows import upsert
from analyzer.service.schema import ARTIFACTS, JOBS, TRIALS


def artifact(queue: Queue, claim: Claim, name: str, *, of: str | None = None) -> str | None:
    """SHA-256 of the artifact of that name; None where there is none.

    Args:
        of: The id of another job of the project, whose it is; None for the claim's own.

    Raises:
        LeaseLostError: The job is no longer this worker's.
    """
    with queue.writing(claim) as connection:
        found: str | None = connection.execute(
            select(ARTIFACTS.c.sha256)
            .join(JOBS, JOBS.c.number == ARTIFACTS.c.job)
            .where(
                JOBS.c.id == (of or claim.id),
                JOBS.c.project == claim.project,
                ARTIFACTS.c.name == name,
            )
        ).scalar_one_or_none()
    return found


def note_artifact(connection: Connection, claim: Claim, name: str, staged: Staged) -> None:
    """Notes a file that the job has left, in the transaction that keeps it."""
    own = ARTIFACTS.c.job == claim.number, ARTIFACTS.c.name == name
    let_go(
        connection,
        select(ARTIFACTS.c.sha256).where(*own, ARTIFACTS.c.sha256 != staged.sha256),
    )
    values = {"sha256": staged.sha256, "size_bytes": staged.size_bytes}
    upsert(
        connection,
        ARTIFACTS,
        {"job": claim.number, "name": name, **values},
        update=tuple(values),
    )
    _sum_up(connection, claim)


def stay_with(connection: Connection, claim: Claim, kind: str) -> None:
    """Lets a job that any worker could measure go on, once measured, with that kind of device."""
    own = JOBS.c.number == claim.number, JOBS.c.device == "auto"
    connection.execute(update(JOBS).where(*own).values(device=kind))


def forget_artifacts(connection: Connection, claim: Claim) -> None:
    """Removes what a job has left but its study: that of a run that was given up is no answer."""
    given_up = ARTIFACTS.c.job == claim.number, ARTIFACTS.c.name != STUDY
    let_go(connection, select(ARTIFACTS.c.sha256).where(*given_up))
    connection.execute(delete(ARTIFACTS).where(*given_up))
    _sum_up(connection, claim)


def _sum_up(connection: Connection, claim: Claim) -> None:
    left = select(func.coalesce(func.sum(ARTIFACTS.c.size_bytes), 0)).where(
        ARTIFACTS.c.job == claim.number
    )
    connection.execute(
        update(JOBS).where(JOBS.c.number == claim.number).values(left_bytes=left.scalar_subquery())
    )


def stored_trials(queue: Queue, claim: Claim) -> int:
    """How many trials of the job are stored.

    Raises:
        LeaseLostError: The job is no longer this worker's.
    """
    with queue.writing(claim) as connection:
        count = select(func.count()).where(TRIALS.c.job == claim.number)
        return int(connection.execute(count).scalar_one())


def log_left(queue: Queue, claim: Claim, limits: ServiceLimits) -> int:
    """Bytes of the log that are still kept.

    Raises:
        LeaseLostError: The job is no longer this worker's.
    """
    with queue.writing(claim) as connection:
        used: int = connection.execute(
            select(JOBS.c.log_bytes).where(JOBS.c.number == claim.number)
        ).scalar_one()
    return limits.log_bytes_max - used
