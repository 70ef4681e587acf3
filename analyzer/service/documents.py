"""What the API takes and gives, as pydantic models: OpenAPI is made from them."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Row

from analyzer.service.states import State

#: What ids look like: of an upload, a job, a token.
UPLOAD_ID, JOB_ID, TOKEN_ID = (rf"^[0-9a-f]{{{length}}}$" for length in (64, 32, 16))


class ProblemDocument(BaseModel):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    hint: str | None = None
    pointer: str | None = None


class Upload(BaseModel):
    """An uploaded file; ``id`` is the SHA-256 of its content."""

    id: str
    name: str
    size_bytes: int
    created_at: str
    created_by: str
    details: dict[str, Any]


class UploadList(BaseModel):
    """A project's uploads of a kind."""

    items: list[Upload]


class NewJob(BaseModel):
    """What a job is made of.

    ``options`` are the command's long options with underscores (``latency_budget``). ``job`` is the
    search that a ``verify`` measures again (default: the newest of ``model`` that exported
    something), or whose study a ``search`` goes on with.
    """

    model_config = ConfigDict(extra="forbid")

    kind: Literal["search", "verify"]
    model: str | None = Field(default=None, pattern=UPLOAD_ID)
    job: str | None = Field(default=None, pattern=JOB_ID)
    options: dict[str, Any] = Field(default_factory=dict, max_length=100)


class ListedJob(BaseModel):
    """A job as a list has it. ``reason``, ``message``, ``hint`` and ``failing_trial`` say why."""

    id: str
    kind: Literal["search", "verify"]
    project: str
    model: str
    model_name: str
    options: dict[str, Any]
    study: str
    job: str | None
    device: str
    state: State
    phase: str
    reason: str | None
    message: str | None
    hint: str | None
    failing_trial: dict[str, Any] | None
    verdict: str | None
    exit_code: int | None
    attempt: int
    worker: str | None
    created_at: str
    created_by: str
    started_at: str | None
    finished_at: str | None


class Job(ListedJob):
    """A job, with the end of its command's log."""

    log_tail: str | None


class JobList(BaseModel):
    """A page of jobs, the newest first; ``next`` is the ``cursor`` of the page after it."""

    items: list[ListedJob]
    next: str | None


class TrialList(BaseModel):
    """The trials of a job so far."""

    trials: list[dict[str, Any]]


class Device(BaseModel):
    """What measures for one job at a time; ``job`` is the one that this worker runs."""

    id: str
    kind: str
    host: str
    name: str
    job: str | None


class WorkerDocument(BaseModel):
    """A worker; ``alive`` unless it has not answered for a lease."""

    id: str
    host: str
    pid: int
    version: str
    device: Device
    isolation: dict[str, Any]
    alive: bool
    started_at: str
    seen_at: str


class WorkerList(BaseModel):
    """All workers of the service."""

    items: list[WorkerDocument]


def stamp(seconds: float) -> str:
    """A stored time for people: ISO 8601, UTC, to the millisecond."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def iso(seconds: float | None) -> str | None:
    """A stored time as :func:`stamp` writes it; None where there is none."""
    return None if seconds is None else stamp(seconds)


def upload_document(row: Row[Any]) -> Upload:
    """An upload from its row."""
    return Upload(
        id=row.sha256,
        name=row.name,
        size_bytes=row.size_bytes,
        created_at=stamp(row.created_at),
        created_by=row.created_by,
        details=json.loads(row.details),
    )


def job_document(row: Row[Any], phase: str | None = None) -> Job:
    """A job from its row.

    Args:
        phase: As :func:`~analyzer.service.waiting.phases` tells it; None for the row's.
    """
    return Job(**_job_fields(row, phase), log_tail=row.log_tail)


def listed_job(row: Row[Any], phase: str | None = None) -> ListedJob:
    """A job of a list, from its row; ``phase`` as for :func:`job_document`."""
    return ListedJob(**_job_fields(row, phase))


def _job_fields(row: Row[Any], phase: str | None) -> dict[str, Any]:
    return {
        "id": row.id,
        "kind": row.kind,
        "project": row.project,
        "model": row.model,
        "model_name": row.model_name,
        "options": json.loads(row.options),
        "study": row.study,
        "job": row.source_job,
        "device": row.device,
        "state": State(row.state),
        "phase": row.phase if phase is None else phase,
        "reason": row.reason,
        "message": row.message,
        "hint": row.hint,
        "failing_trial": json.loads(row.failing_trial) if row.failing_trial else None,
        "verdict": row.verdict,
        "exit_code": row.exit_code,
        "attempt": row.attempt,
        "worker": row.worker,
        "created_at": stamp(row.created_at),
        "created_by": row.created_by,
        "started_at": iso(row.started_at),
        "finished_at": iso(row.finished_at),
    }
