"""``Idempotency-Key``: a creation that is asked for twice is done once.

The key is noted before the work begins and its answer in the transaction that creates; so a key
whose process died in between is either answered or free again after :data:`_STALE_S`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, select, update

from analyzer.service.problems import Problem, conflict
from analyzer.service.rows import upsert
from analyzer.service.schema import IDEMPOTENCY, DatabaseTime
from analyzer.store.database import Database

# Longer than any creation takes, uploads left out: their key is noted once the body is there.
_STALE_S = 120.0
#: How long an answer is kept: a client that tries again tries within a day (a choice).
KEPT_S = 86_400.0


@dataclass
class Slot:
    """One creation under a key.

    Args:
        stored: The answer, where it was done before: status and body.
    """

    project: str
    key: str | None
    stored: tuple[int, Any] | None = None

    def done(self, connection: Connection, status: int, body: Any) -> None:
        """Notes the answer, in the transaction that created."""
        if self.key is not None:
            connection.execute(
                update(IDEMPOTENCY)
                .where(*_where(self.project, self.key))
                .values(status=status, response=json.dumps(body))
            )


@contextmanager
def idempotent(database: Database, project: str, key: str | None, request: str) -> Iterator[Slot]:
    """A slot for a creation; ``request`` is the SHA-256 of what is asked for.

    Raises:
        Problem: 409: the same is being done; 422: the key was used for something else.
    """
    if key is None:
        yield Slot(project, None)
        return
    slot = Slot(project, key, _begin(database, project, key, request))
    try:
        yield slot
    except BaseException:
        if slot.stored is None:
            with database.writing() as connection:
                connection.execute(
                    delete(IDEMPOTENCY).where(*_where(project, key), IDEMPOTENCY.c.status.is_(None))
                )
        raise


def forget(connection: Connection, project: str, made: str) -> None:
    """Frees the keys under which ``made`` (an id) was created: it is deleted, and may come anew."""
    answer = IDEMPOTENCY.c.response.contains(f'"id": {json.dumps(made)}', autoescape=True)
    connection.execute(delete(IDEMPOTENCY).where(IDEMPOTENCY.c.project == project, answer))


def _where(project: str, key: str) -> tuple[Any, ...]:
    return IDEMPOTENCY.c.project == project, IDEMPOTENCY.c.key == key


def _begin(database: Database, project: str, key: str, request: str) -> tuple[int, Any] | None:
    with database.writing() as connection:
        stale = IDEMPOTENCY.c.created_at < DatabaseTime() - _STALE_S
        connection.execute(
            delete(IDEMPOTENCY).where(*_where(project, key), IDEMPOTENCY.c.status.is_(None), stale)
        )
        found = connection.execute(
            select(IDEMPOTENCY).where(*_where(project, key)).with_for_update()
        ).one_or_none()
        if found is None:
            fresh = upsert(
                connection,
                IDEMPOTENCY,
                {"project": project, "key": key, "request": request, "created_at": DatabaseTime()},
            )
            if fresh:
                return None
            # Somebody else was faster by a moment.
            found = connection.execute(select(IDEMPOTENCY).where(*_where(project, key))).one()
    if found.request != request:
        raise Problem(
            422,
            "idempotency_key_reused",
            "This Idempotency-Key was used for another request.",
            hint="Use a new key for each creation.",
        )
    if found.status is None:
        raise conflict(
            "idempotency_in_flight",
            "A request with this Idempotency-Key is being done.",
            hint="Try again in a moment.",
        )
    return found.status, json.loads(found.response)
