"""Who changed what, and when."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row, insert, select

from analyzer.service.schema import AUDIT, DatabaseTime


def note(
    connection: Connection, project: str, actor: str, action: str, subject: str, **details: Any
) -> None:
    """Notes a change, in the transaction that makes it."""
    connection.execute(
        insert(AUDIT).values(
            at=DatabaseTime(),
            project=project,
            actor=actor,
            action=action,
            object=subject,
            details=json.dumps(details),
        )
    )


def entries(
    connection: Connection, project: str, *, before: int | None, limit: int
) -> Sequence[Row[Any]]:
    """Changes in a project, the newest first."""
    query = select(AUDIT).where(AUDIT.c.project == project).order_by(AUDIT.c.number.desc())
    if before is not None:
        query = query.where(AUDIT.c.number < before)
    return connection.execute(query.limit(limit)).all()
