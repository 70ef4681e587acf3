"""What a queued job waits for: a worker, or one with a device that no worker has."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, select

from analyzer.service.schema import DEVICES, WORKERS, DatabaseTime
from analyzer.service.states import State

_NAMES = {"cpu": "a worker without a GPU", "gpu": "a GPU"}


def kinds_of_workers(connection: Connection) -> frozenset[str]:
    """Kinds of the devices (``cpu``, ``gpu``) of all workers that answer."""
    query = (
        select(DEVICES.c.kind)
        .distinct()
        .join(WORKERS, WORKERS.c.device == DEVICES.c.id)
        .where(WORKERS.c.lease_until > DatabaseTime())
    )
    return frozenset(connection.execute(query).scalars())


def phase_of(row: Row[Any], kinds: frozenset[str]) -> str:
    """The job's phase; of one that no worker can take, why it waits.

    Args:
        kinds: As :func:`kinds_of_workers` tells them.
    """
    if row.state != State.QUEUED or (kinds if row.device == "auto" else row.device in kinds):
        return str(row.phase)
    if not kinds:
        return "waiting: no worker answers"
    return f"waiting: the job needs {_NAMES[row.device]}, and no worker has one"


def phases(connection: Connection, *rows: Row[Any]) -> list[str]:
    """:func:`phase_of` each row; workers are looked at only where a job is queued."""
    queued = any(row.state == State.QUEUED for row in rows)
    kinds = kinds_of_workers(connection) if queued else frozenset()
    return [phase_of(row, kinds) for row in rows]
