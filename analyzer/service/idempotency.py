"""``Idempotency-Key``: a creation that is asked for twice is done once.

The key and its answer are written in the transaction that creates, and in no other: a process that
dies leaves nothing of a key, or its answer. What comes with the same key meanwhile waits for that
transaction on SQLite (which has one writer at a time), and is told so on PostgreSQL.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select

from analyzer.service.problems import Problem, conflict
from analyzer.service.schema import IDEMPOTENCY, DatabaseTime
from analyzer.store.database import Database

#: How long an answer is kept: a client that tries again tries within a day (a choice).
KEPT_S = 86_400.0


def request_hash(what: str, body: Any) -> str:
    """The SHA-256 of what is asked for: method and path, and a body of JSON."""
    return hashlib.sha256(f"{what}\n{json.dumps(body, sort_keys=True)}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Slot:
    """One creation under a key.

    Args:
        connection: The transaction that creates.
        request: The SHA-256 of what is asked for.
        stored: The answer, where it was done before: status and body.
    """

    connection: Connection
    project: str
    key: str | None
    request: str
    stored: tuple[int, Any] | None = None

    def done(self, status: int, body: Any) -> None:
        """Notes the answer."""
        if self.key is not None:
            self.connection.execute(
                insert(IDEMPOTENCY).values(
                    project=self.project,
                    key=self.key,
                    request=self.request,
                    status=status,
                    response=json.dumps(body),
                    created_at=DatabaseTime(),
                )
            )


@contextmanager
def idempotent(database: Database, project: str, key: str | None, request: str) -> Iterator[Slot]:
    """A transaction for a creation; ``request`` is the SHA-256 of what is asked for.

    Raises:
        Problem: 409: the same is being done; 422: the key was used for something else.
    """
    with database.writing() as connection:
        stored = None if key is None else _stored(connection, project, key, request)
        yield Slot(connection, project, key, request, stored)


def is_answered(connection: Connection, project: str, key: str | None) -> bool:
    """Whether something was created under the key before; what, only :func:`idempotent` tells."""
    own = IDEMPOTENCY.c.project == project, IDEMPOTENCY.c.key == key
    answered = select(IDEMPOTENCY.c.key).where(*own, IDEMPOTENCY.c.status.is_not(None))
    return connection.execute(answered).first() is not None


def forget(connection: Connection, project: str, made: str) -> None:
    """Frees the keys under which ``made`` (an id) was created: it is deleted, and may come anew."""
    answer = IDEMPOTENCY.c.response.contains(f'"id": {json.dumps(made)}', autoescape=True)
    connection.execute(delete(IDEMPOTENCY).where(IDEMPOTENCY.c.project == project, answer))


def _stored(connection: Connection, project: str, key: str, request: str) -> tuple[int, Any] | None:
    """The answer that is there; without one the key is this transaction's alone, until its end."""
    if connection.dialect.name == "postgresql" and not _lock(connection, project, key):
        raise conflict(
            "idempotency_in_flight",
            "A request with this Idempotency-Key is being done.",
            hint="Try again in a moment.",
        )
    own = IDEMPOTENCY.c.project == project, IDEMPOTENCY.c.key == key
    # Earlier versions noted a key before its work: such a one was never done.
    connection.execute(delete(IDEMPOTENCY).where(*own, IDEMPOTENCY.c.status.is_(None)))
    found = connection.execute(select(IDEMPOTENCY).where(*own)).one_or_none()
    if found is None:
        return None
    if found.request != request:
        raise Problem(
            422,
            "idempotency_key_reused",
            "This Idempotency-Key was used for another request.",
            hint="Use a new key for each creation.",
        )
    return found.status, json.loads(found.response)


def _lock(connection: Connection, project: str, key: str) -> bool:
    """Holds the key until the transaction ends, or its process; False if another one does."""
    digest = hashlib.sha256(f"idempotency {project} {key}".encode()).digest()
    number = int.from_bytes(digest[:8], "big", signed=True)
    held: bool = connection.execute(select(func.pg_try_advisory_xact_lock(number))).scalar_one()
    return held
