"""How workers get jobs and write about them: claims, leases, and the fence.

A claim is one transaction (``FOR UPDATE SKIP LOCKED`` on PostgreSQL, ``BEGIN IMMEDIATE`` on
SQLite) that takes the oldest job for the worker's device and the device itself. Both are leased by
the database's clock. Whatever a worker writes is fenced: the transaction first locks the job's row
and sees that the attempt is still its own, and its lease good; a worker that slept past its lease
writes nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, or_, select, update

from analyzer.service import states
from analyzer.service.jobs import add_events, change_job
from analyzer.service.rows import upsert
from analyzer.service.schema import DEVICES, JOBS, WORKERS, DatabaseTime
from analyzer.service.states import Change, Lifecycle, State
from analyzer.store.database import Database

_HELD = [str(state) for state in states.HELD]
# A worker that is gone stays in the list so long after its lease ended: long enough to be seen by
# people (a choice).
_FORGET_S = 3600.0


class LeaseLostError(Exception):
    """The job is another worker's, or nobody's, by now."""


@dataclass(frozen=True, slots=True)
class Device:
    """What measures for one job at a time.

    Args:
        id: The same for every process that could use it: the boot's id and ``cpu``, or the GPU's
            UUID.
        kind: ``cpu`` or ``gpu``.
        host: Name of the machine.
        name: For people.
    """

    id: str
    kind: str
    host: str
    name: str


@dataclass(frozen=True, slots=True)
class Claim:
    """A job that a worker holds, in the attempt that it holds."""

    number: int
    id: str
    project: str
    kind: str
    model: str
    model_name: str
    options: Mapping[str, Any]
    study: str
    source_job: str | None
    attempt: int
    #: Until when it is held at least, by this machine's ``time.monotonic()``.
    until: float


class Queue:
    """The jobs of a database, for one worker.

    Args:
        worker: Its id, unique among all processes ever.
        lease_s: Seconds that a job stays with a worker that does not answer.
    """

    def __init__(self, database: Database, worker: str, device: Device, *, lease_s: float) -> None:
        #: Where the jobs are.
        self.database = database
        #: That the worker measures on.
        self.device = device
        self._worker = worker
        self._lease_s = lease_s
        self._row: dict[str, Any] = {}  # as it was enrolled

    def enrol(self, *, pid: int, version: str, isolation: Mapping[str, Any]) -> None:
        """Notes the worker and its device."""
        own = self.device
        self._row = {
            "id": self._worker,
            "host": own.host,
            "pid": pid,
            "version": version,
            "device": own.id,
            "isolation": json.dumps(isolation),
            "started_at": DatabaseTime(),
        }
        with self.database.writing() as connection:
            upsert(
                connection,
                DEVICES,
                {"id": own.id, "kind": own.kind, "host": own.host, "name": own.name},
                update=("kind", "host", "name"),
            )
            self._seen(connection)
            started_at = select(WORKERS.c.started_at).where(WORKERS.c.id == self._worker)
            self._row["started_at"] = connection.execute(started_at).scalar_one()

    def _seen(self, connection: Connection) -> None:
        """Notes that the worker answers; anew where its row was swept while it slept."""
        upsert(
            connection,
            WORKERS,
            self._row | {"seen_at": DatabaseTime(), "lease_until": DatabaseTime() + self._lease_s},
            update=("seen_at", "lease_until"),
        )

    def leave(self) -> None:
        """Removes the worker's row."""
        with self.database.writing() as connection:
            connection.execute(delete(WORKERS).where(WORKERS.c.id == self._worker))

    def claim(self) -> Claim | None:
        """The oldest job that this worker's device can measure; None if there is none.

        None as well while another worker measures on the device.
        """
        if not self._waiting():
            return None
        until = time.monotonic() + self._lease_s
        with self.database.writing() as connection:
            device = connection.execute(
                select(DEVICES)
                .where(
                    DEVICES.c.id == self.device.id,
                    or_(DEVICES.c.job.is_(None), DEVICES.c.lease_until < DatabaseTime()),
                )
                .with_for_update(skip_locked=True)
            ).one_or_none()
            if device is None:
                return None
            row = connection.execute(
                self._queued().order_by(JOBS.c.number).limit(1).with_for_update(skip_locked=True)
            ).one_or_none()
            if row is None:
                return None
            lease = DatabaseTime() + self._lease_s
            after = change_job(
                connection,
                row,
                Change.CLAIM,
                fields={
                    "worker": self._worker,
                    "lease_until": lease,
                    "phase": "preparing",
                    "started_at": DatabaseTime() if row.started_at is None else row.started_at,
                },
            )
            connection.execute(
                update(DEVICES)
                .where(DEVICES.c.id == self.device.id)
                .values(job=row.number, attempt=after.attempt, lease_until=lease)
            )
        return Claim(
            number=row.number,
            id=row.id,
            project=row.project,
            kind=row.kind,
            model=row.model,
            model_name=row.model_name,
            options=json.loads(row.options),
            study=row.study,
            source_job=row.source_job,
            attempt=after.attempt,
            until=until,
        )

    def _queued(self) -> Any:
        kinds = ["auto", self.device.kind]
        return select(JOBS).where(JOBS.c.state == State.QUEUED, JOBS.c.device.in_(kinds))

    def _waiting(self) -> bool:
        """Whether a claim is worth a writing transaction."""
        with self.database.reading() as connection:
            return connection.execute(self._queued().limit(1)).first() is not None

    def state(self, claim: Claim) -> State:
        """What users want of the job now.

        Raises:
            LeaseLostError: It is no longer this worker's.
        """
        with self.database.reading() as connection:
            row = connection.execute(
                select(JOBS.c.state, JOBS.c.attempt).where(JOBS.c.number == claim.number)
            ).one_or_none()
        return State(_own(row, claim).state)

    def beat(self, claim: Claim | None = None) -> float:
        """Lengthens the leases: the worker's, and those of the job and the device it holds.

        Returns:
            Until when they last at least, by this machine's ``time.monotonic()``: the database
            counts from the transaction, which began later.

        Raises:
            LeaseLostError: The job is no longer this worker's.
        """
        until = time.monotonic() + self._lease_s
        lease = DatabaseTime() + self._lease_s
        with self.database.writing() as connection:
            if claim is not None:
                self._lock(connection, claim)
                connection.execute(
                    update(JOBS).where(JOBS.c.number == claim.number).values(lease_until=lease)
                )
                connection.execute(
                    update(DEVICES)
                    .where(DEVICES.c.job == claim.number, DEVICES.c.attempt == claim.attempt)
                    .values(lease_until=lease)
                )
            self._seen(connection)
        return until

    @contextmanager
    def writing(self, claim: Claim) -> Iterator[Connection]:
        """A transaction that holds the job's row, in the attempt of ``claim``.

        Raises:
            LeaseLostError: The job is no longer this worker's; nothing is written.
        """
        with self.database.writing() as connection:
            self._lock(connection, claim)
            yield connection

    def say(self, claim: Claim, found: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """Appends events to the job's, and notes the newest phase.

        Raises:
            LeaseLostError: The job is no longer this worker's.
        """
        phases = [str(body["phase"]) for kind, body in found if kind == "phase"]
        log_bytes = sum(len(str(body["text"])) for kind, body in found if kind == "log")
        with self.writing(claim) as connection:
            add_events(connection, claim.number, claim.attempt, found)
            values: dict[str, Any] = {"log_bytes": JOBS.c.log_bytes + log_bytes}
            if phases:
                values["phase"] = phases[-1][:128]
            connection.execute(update(JOBS).where(JOBS.c.number == claim.number).values(**values))

    def finish(
        self, connection: Connection, claim: Claim, change: Change, fields: Mapping[str, Any]
    ) -> Lifecycle:
        """Ends the claim in a transaction of :meth:`writing`, and frees the device.

        Args:
            change: ``SUCCEED``, ``FAIL``, ``STOP`` or ``RELEASE``.
            fields: Columns of the job to set.

        Raises:
            NotAllowed: The run ended because it was asked to, and nobody asks any more.
        """
        row = self._lock(connection, claim)
        after = change_job(connection, row, change, fields=fields)
        _free(connection, claim.number)
        return after

    def _lock(self, connection: Connection, claim: Claim) -> Any:
        # A lease that has run out is not taken up again, swept or not: the device may be another
        # worker's by now, and the command has ended with the lease.
        row = connection.execute(
            select(JOBS)
            .where(JOBS.c.number == claim.number, JOBS.c.lease_until > DatabaseTime())
            .with_for_update()
        ).one_or_none()
        return _own(row, claim)


def _own(row: Any, claim: Claim) -> Any:
    if row is None or row.attempt != claim.attempt or row.state not in _HELD:
        raise LeaseLostError(f"The job {claim.id} is no longer in attempt {claim.attempt}.")
    return row


def _free(connection: Connection, number: int) -> None:
    connection.execute(
        update(DEVICES)
        .where(DEVICES.c.job == number)
        .values(job=None, attempt=None, lease_until=None)
    )


def sweep(database: Database) -> int:
    """Takes jobs back whose lease ran out; returns how many. Every process calls it now and then.

    A queued job has no lease, and so is never swept.
    """
    late = JOBS.c.state.in_(_HELD) & (JOBS.c.lease_until < DatabaseTime())
    gone = WORKERS.c.lease_until < DatabaseTime() - _FORGET_S
    with database.reading() as connection:
        found = connection.execute(select(JOBS.c.number).where(late).limit(1)).first()
        forgotten = connection.execute(select(WORKERS.c.id).where(gone).limit(1)).first()
    if found is None and forgotten is None:
        return 0
    with database.writing() as connection:
        rows = connection.execute(select(JOBS).where(late).with_for_update(skip_locked=True)).all()
        for row in rows:
            change_job(connection, row, Change.LOSE)
            _free(connection, row.number)
        connection.execute(delete(WORKERS).where(gone))
    return len(rows)
