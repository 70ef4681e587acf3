"""Retention: what is old goes, and with it what nothing refers to any more."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sqlalchemy import delete, exists, select

from analyzer.service import audit, idempotency, jobs, states
from analyzer.service.content import ContentStore
from analyzer.service.schema import (
    ARTIFACTS,
    IDEMPOTENCY,
    JOBS,
    OBJECTS,
    SESSIONS,
    UPLOADS,
    DatabaseTime,
)
from analyzer.service.studies import forget_studies
from analyzer.service.variants import needed_models, remove_unused
from analyzer.store.database import Database

# A file that is noted in the database is referred to moments later; one that is being uploaded is
# written to all the time. Long beside both.
_SETTLED_S = 3600.0
_ABANDONED_S = 86_400.0
_AT_A_TIME = 200  # rows of a transaction: others write in between


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What was removed."""

    jobs: int
    files: int
    bytes: int


def collect(
    database: Database, content: ContentStore, *, keep_s: float, clock: float | None = None
) -> Collected:
    """Removes jobs that ended longer ago than ``keep_s``, and files that nothing needs.

    Uploads stay until they are deleted: they are what users hand in.

    Args:
        clock: This machine's time, seconds since 1970, for half-written files; None for now.
    """
    removed = _old_jobs(database, keep_s)
    forget_studies(database)
    with database.writing() as connection:
        old = IDEMPOTENCY.c.created_at < DatabaseTime() - idempotency.KEPT_S
        connection.execute(delete(IDEMPOTENCY).where(old))
        connection.execute(delete(SESSIONS).where(SESSIONS.c.expires_at < DatabaseTime()))
    files, size_bytes = _unused_files(database, content)
    now = time.time() if clock is None else clock
    for path in content.abandoned(older_than_s=_ABANDONED_S, now=now):
        path.unlink(missing_ok=True)
        files += 1
    with database.reading() as connection:
        needed = needed_models(connection)
    size_bytes += remove_unused(content.variants, needed, keep_s=keep_s, now=now)
    return Collected(jobs=removed, files=files, bytes=size_bytes)


def _old_jobs(database: Database, keep_s: float) -> int:
    removed = 0
    ended = [str(state) for state in states.TERMINAL]
    needed = select(JOBS.c.source_job).where(
        JOBS.c.finished_at.is_(None), JOBS.c.source_job.is_not(None)
    )
    old = (
        select(JOBS.c.id, JOBS.c.project)
        .where(
            JOBS.c.state.in_(ended),
            JOBS.c.finished_at < DatabaseTime() - keep_s,
            # One that waits goes on with what it measured, or verifies it.
            JOBS.c.id.not_in(needed),
        )
        .order_by(JOBS.c.number)
        .limit(_AT_A_TIME)
    )
    while True:
        with database.writing() as connection:
            rows = connection.execute(old).all()
            for row in rows:
                jobs.delete_job(connection, row.project, row.id)
                audit.note(connection, row.project, "retention", "job.delete", row.id)
        removed += len(rows)
        if len(rows) < _AT_A_TIME:
            return removed


def _unused_files(database: Database, content: ContentStore) -> tuple[int, int]:
    """Files and bytes removed; each goes in the transaction that removes its row."""
    files = size_bytes = 0
    unused = (
        select(OBJECTS)
        .where(
            OBJECTS.c.created_at < DatabaseTime() - _SETTLED_S,
            ~exists().where(UPLOADS.c.sha256 == OBJECTS.c.sha256),
            ~exists().where(ARTIFACTS.c.sha256 == OBJECTS.c.sha256),
            # A job that waits needs its model, whoever has deleted the upload.
            OBJECTS.c.sha256.not_in(select(JOBS.c.model).where(JOBS.c.finished_at.is_(None))),
        )
        .limit(_AT_A_TIME)
        .with_for_update(skip_locked=True)
    )
    while True:
        with database.writing() as connection:
            rows = connection.execute(unused).all()
            for row in rows:
                content.remove(row.sha256)
                connection.execute(delete(OBJECTS).where(OBJECTS.c.sha256 == row.sha256))
                size_bytes += row.size_bytes
        files += len(rows)
        if len(rows) < _AT_A_TIME:
            return files, size_bytes
