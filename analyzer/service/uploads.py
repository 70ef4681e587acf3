"""What projects upload: models, calibration data and scenarios, by the SHA-256 of the file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, delete, func, select

from analyzer.service.content import ContentStore, Staged, let_go
from analyzer.service.limits import ServiceLimits
from analyzer.service.problems import Problem, conflict, not_found
from analyzer.service.rows import upsert
from analyzer.service.schema import JOBS, PROJECTS, UPLOADS, DatabaseTime


def stored_bytes(connection: Connection, project: str) -> int:
    """Bytes of all that the project has uploaded, and that its jobs have left.

    What several jobs have left alike is counted with each.
    """
    return sum(
        int(connection.execute(total.where(of == project)).scalar_one())
        for total, of in (
            (select(func.coalesce(func.sum(UPLOADS.c.size_bytes), 0)), UPLOADS.c.project),
            (select(func.coalesce(func.sum(JOBS.c.left_bytes), 0)), JOBS.c.project),
        )
    )


def lock_project(connection: Connection, project: str) -> None:
    """Lets others that hold a project to a limit wait until this transaction ends.

    SQLite has one writer at a time in any case.
    """
    # Rows that refer to the project may still come: they ask for its key alone.
    connection.execute(
        select(PROJECTS.c.name).where(PROJECTS.c.name == project).with_for_update(key_share=True)
    )


def check_room(connection: Connection, project: str, more: int, limits: ServiceLimits) -> None:
    """Raises Problem 413 where ``more`` bytes are beyond what the project may store."""
    used = stored_bytes(connection, project)
    if used + more > limits.stored_bytes_max:
        raise Problem(
            413,
            "project_full",
            f"The project stores {used:,} bytes of {limits.stored_bytes_max:,}"
            + (f"; {more:,} more do not fit." if more else "."),
            hint="Delete jobs that nobody looks at any more, and uploads that no job needs.",
        )


def check_new(
    connection: Connection, project: str, kind: str, staged: Staged, limits: ServiceLimits
) -> None:
    """Raises Problem 413 where a file is not there yet, and has no room."""
    if _find(connection, project, kind, staged.sha256) is None:
        check_room(connection, project, staged.size_bytes, limits)


def bytes_at_most(connection: Connection, project: str, kind: str, limits: ServiceLimits) -> int:
    """What an upload of a kind can have: there is room for it, or it may be there already."""
    there = select(func.max(UPLOADS.c.size_bytes)).where(
        UPLOADS.c.project == project, UPLOADS.c.kind == kind
    )
    largest: int = connection.execute(there).scalar_one() or 0
    return max(limits.stored_bytes_max - stored_bytes(connection, project), largest)


def add_upload(
    connection: Connection,
    content: ContentStore,
    staged: Staged,
    *,
    project: str,
    actor: str,
    kind: str,
    name: str,
    details: Mapping[str, Any],
    limits: ServiceLimits,
) -> Row[Any]:
    """Notes an uploaded file; the same file again keeps its row, with the new name.

    Raises:
        Problem: 413: others that came meanwhile have taken the project's room.
    """
    lock_project(connection, project)
    check_new(connection, project, kind, staged, limits)
    content.keep(connection, staged)
    upsert(
        connection,
        UPLOADS,
        {
            "project": project,
            "kind": kind,
            "sha256": staged.sha256,
            "name": name,
            "size_bytes": staged.size_bytes,
            "details": json.dumps(details),
            "created_at": DatabaseTime(),
            "created_by": actor,
        },
        update=("name",),
    )
    return get_upload(connection, project, kind, staged.sha256)


def get_upload(connection: Connection, project: str, kind: str, sha256: str) -> Row[Any]:
    """The upload with this id.

    Raises:
        Problem: 404: the project has none.
    """
    found = _find(connection, project, kind, sha256)
    if found is None:
        raise not_found(f"{kind} {sha256[:64]!r}")
    return found


def _find(connection: Connection, project: str, kind: str, sha256: str) -> Row[Any] | None:
    return connection.execute(
        select(UPLOADS).where(
            UPLOADS.c.project == project, UPLOADS.c.kind == kind, UPLOADS.c.sha256 == sha256
        )
    ).one_or_none()


def list_uploads(connection: Connection, project: str, kind: str) -> Sequence[Row[Any]]:
    """The project's uploads of a kind, the newest first."""
    return connection.execute(
        select(UPLOADS)
        .where(UPLOADS.c.project == project, UPLOADS.c.kind == kind)
        .order_by(UPLOADS.c.created_at.desc(), UPLOADS.c.sha256)
    ).all()


def delete_upload(connection: Connection, project: str, kind: str, sha256: str) -> None:
    """Removes an upload; workers remove its content an hour later, where nothing else needs it.

    Raises:
        Problem: 404: there is none; 409: a job that has not ended needs it.
    """
    get_upload(connection, project, kind, sha256)
    needs = JOBS.c.model == sha256 if kind == "model" else JOBS.c.options.contains(sha256)
    using = connection.execute(
        select(JOBS.c.id).where(JOBS.c.project == project, JOBS.c.finished_at.is_(None), needs)
    ).first()
    if using is not None:
        raise conflict(
            "in_use", f"The job {using.id} needs it.", hint="Wait for its end, or cancel it."
        )
    own = UPLOADS.c.project == project, UPLOADS.c.kind == kind, UPLOADS.c.sha256 == sha256
    let_go(connection, select(UPLOADS.c.sha256).where(*own))
    connection.execute(delete(UPLOADS).where(*own))
