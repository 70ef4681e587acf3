"""Retention: what is old goes, and with it what nothing refers to any more."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection, delete, exists, select

from analyzer.service import audit, idempotency, jobs, states
from analyzer.service.content import ContentStore, is_of
from analyzer.service.problems import Problem
from analyzer.service.rows import upsert
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

_LOG = logging.getLogger(__name__)
# A file that is noted in the database is referred to moments later; one that is being uploaded is
# written to all the time. Long beside both. A file that was let go stays as long, too: a backup of
# the database may refer to it whose files are still being copied (docs/deployment.md, §4).
_SETTLED_S = 3600.0
_ABANDONED_S = 86_400.0
_AT_A_TIME = 200  # rows of a transaction: others write in between
# Files without a row that may be our own, which processes that were killed have left: each leaves
# one or two. Up to ten, or one in twenty of those with a row, whichever is more; choices. What is
# beyond may be another service's, or newer than a database that was restored.
_LOST_MAX = 10
_LOST_ONE_IN = 20


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
    now = time.time() if clock is None else clock
    own = _note_lost_files(database, content, now)
    files, size_bytes = remove_unused_files(database, content)
    for path in content.abandoned(older_than_s=_ABANDONED_S, now=now):
        path.unlink(missing_ok=True)
        files += 1
    with database.reading() as connection:
        needed = needed_models(connection)
    if own:
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
        # One that changes meanwhile can wait for the next time.
        .with_for_update(skip_locked=True)
    )
    while True:
        with database.writing() as connection:
            rows = connection.execute(old).all()
            done = sum(_delete(connection, *row, keep_s=keep_s) for row in rows)
        removed += done
        if len(rows) < _AT_A_TIME or not done:
            return removed


def _delete(connection: Connection, job: str, project: str, *, keep_s: float) -> bool:
    """Removes an old job; False where another one has come to need it."""
    try:
        jobs.delete_job(connection, project, job)
    except Problem:
        return False
    if keep_s < idempotency.KEPT_S:
        idempotency.forget(connection, project, job)
    audit.note(connection, project, "retention", "job.delete", job)
    return True


def _note_lost_files(database: Database, content: ContentStore, now: float) -> bool:
    """Notes files that the database does not know, for :func:`remove_unused_files` to remove.

    To remove them here could meet an upload of the same file. Returns whether the folder is the
    database's alone, which knows nearly all of its files then.
    """
    known = unknown = 0
    lost: list[tuple[str, int]] = []
    for prefix, files in content.files():
        # Behind every digit of a hash, in each order of letters.
        own = OBJECTS.c.sha256.between(prefix, f"{prefix}g")
        with database.reading() as connection:
            noted = set(connection.execute(select(OBJECTS.c.sha256).where(own)).scalars())
        own_files = sum(path.name in noted for path in files)
        known += own_files
        unknown += len(files) - own_files
        for path in files:
            with contextlib.suppress(FileNotFoundError):
                if path.name not in noted and (found := path.stat()).st_mtime < now - _ABANDONED_S:
                    lost.append((path.name, found.st_size))
    # Not most of them either, however few: those of a service beside an empty database.
    if unknown > min(known, max(_LOST_MAX, known // _LOST_ONE_IN)):
        _LOG.warning(
            "%d files in %s are not in the database %s, which has %d: are they another service's? "
            "They were left.", unknown, content.root, database.place, known,
        )  # fmt: skip
        return False
    for start in range(0, len(lost), _AT_A_TIME):
        with database.writing() as connection:
            for sha256, size_bytes in lost[start : start + _AT_A_TIME]:
                values = {"sha256": sha256, "size_bytes": size_bytes, "created_at": 0.0}
                upsert(connection, OBJECTS, values)
    return True


def remove_unused_files(
    database: Database, content: ContentStore, *, goes_on: Callable[[], bool] = lambda: True
) -> tuple[int, int]:
    """Files and bytes removed; each goes in the transaction that removes its row.

    None is where the folder is another database's: their rows alone would go.

    Args:
        goes_on: Asked after each transaction; what is left is for the next time.
    """
    files = size_bytes = 0
    with database.reading() as connection:
        if not is_of(connection, content.root):
            return 0, 0
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
        if len(rows) < _AT_A_TIME or not goes_on():
            return files, size_bytes
