"""The tables of the service; a migration in the folder beside this module goes with each change.

Times are seconds since 1970 by the database's clock (:class:`DatabaseTime`), so that leases do not
depend on how well the clocks of several machines agree. Each table carries the prefix
``service_``: the tables of studies and Optuna's may lie in the same database.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    text,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import expression

METADATA = MetaData()
#: Of a whole number in a column.
NUMBER_MAX = 2**63 - 1
#: Characters of the columns that hold a worker's id.
WORKER_ID_MAX = 64

# SQLite numbers rows by itself only if the key's type is spelt INTEGER.
_Key = BigInteger().with_variant(Integer(), "sqlite")
_Sha256 = String(64)


class DatabaseTime(expression.FunctionElement[float]):
    """Now, by the database's clock: seconds since 1970."""

    type = Double()
    inherit_cache = True


@compiles(DatabaseTime, "sqlite")
def _sqlite_now(element: DatabaseTime, compiler: Any, **kwargs: Any) -> str:
    # julianday of 1970-01-01T00:00Z is 2440587.5.
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(DatabaseTime, "postgresql")
def _postgresql_now(element: DatabaseTime, compiler: Any, **kwargs: Any) -> str:
    # Not now(): that is when the transaction began, which may have waited for a lock.
    return "extract(epoch from clock_timestamp())::double precision"


PROJECTS = Table(
    "service_projects",
    METADATA,
    Column("name", String(64), primary_key=True),
    Column("created_at", Double, nullable=False),
)

TOKENS = Table(
    "service_tokens",
    METADATA,
    Column("id", String(16), primary_key=True),
    Column("project", String(64), ForeignKey("service_projects.name"), nullable=False),
    Column("name", String(128), nullable=False),
    Column("scope", String(16), nullable=False),
    Column("hash", _Sha256, nullable=False, unique=True),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("revoked_at", Double),
    Column("last_used_at", Double),
)

# Of a browser: a cookie's hash stands for a token until it ends.
SESSIONS = Table(
    "service_sessions",
    METADATA,
    Column("hash", _Sha256, primary_key=True),
    Column("token_id", String(16), ForeignKey("service_tokens.id"), nullable=False),
    Column("csrf", String(64), nullable=False),
    Column("expires_at", Double, nullable=False),
)

# What the content store holds; projects that upload the same file share it.
OBJECTS = Table(
    "service_objects",
    METADATA,
    Column("sha256", _Sha256, primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("created_at", Double, nullable=False),
)

UPLOADS = Table(
    "service_uploads",
    METADATA,
    Column("project", String(64), ForeignKey("service_projects.name"), primary_key=True),
    Column("kind", String(16), primary_key=True),  # model, calibration, scenario
    Column("sha256", _Sha256, ForeignKey("service_objects.sha256"), primary_key=True),
    Column("name", String(128), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("details", Text, nullable=False),  # what inspection found, as JSON
    Column("created_at", Double, nullable=False),
    Column("created_by", String(128), nullable=False),
    Index("service_uploads_object", "sha256"),
)

JOBS = Table(
    "service_jobs",
    METADATA,
    Column("number", _Key, primary_key=True, autoincrement=True),
    Column("id", String(32), nullable=False, unique=True),
    Column("project", String(64), ForeignKey("service_projects.name"), nullable=False),
    Column("kind", String(16), nullable=False),  # search, verify
    Column("model", _Sha256, nullable=False),
    Column("model_name", String(128), nullable=False),
    Column("options", Text, nullable=False),  # as the user gave them, JSON
    Column("study", String(160), nullable=False),
    Column("source_job", String(32)),  # whose study it goes on with, or verifies
    Column("device", String(8), nullable=False),  # auto, cpu, gpu
    Column("state", String(16), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("losses", Integer, nullable=False),
    Column("phase", String(128), nullable=False),
    Column("reason", String(64)),
    Column("message", Text),
    Column("hint", Text),
    Column("failing_trial", Text),  # JSON
    Column("log_tail", Text),
    Column("verdict", String(16)),
    Column("exit_code", Integer),
    Column("worker", String(WORKER_ID_MAX)),
    Column("lease_until", Double),
    Column("events", Integer, nullable=False),  # number of the newest event
    Column("log_bytes", BigInteger, nullable=False),
    # Of all its artifacts: a project's are summed up with each upload and job.
    Column("left_bytes", BigInteger, nullable=False, server_default=text("0")),
    Column("created_at", Double, nullable=False),
    Column("created_by", String(128), nullable=False),
    Column("started_at", Double),
    Column("finished_at", Double),
    Index("service_jobs_queue", "state", "number"),
    Index("service_jobs_project", "project", "number"),
    Index("service_jobs_state", "project", "state", "number"),
    Index("service_jobs_study", "project", "study", "number"),
    Index("service_jobs_left", "project", "left_bytes"),
    # Few beside all that have ended.
    Index(
        "service_jobs_unfinished",
        "project",
        sqlite_where=text("finished_at IS NULL"),
        postgresql_where=text("finished_at IS NULL"),
    ),
)


def _job_number() -> Column[int]:
    """The job that a row belongs to, with which it goes."""
    return Column(
        "job", _Key, ForeignKey("service_jobs.number", ondelete="CASCADE"), primary_key=True
    )


# Numbered within their job from 1, without gaps: the ids of the event stream.
EVENTS = Table(
    "service_events",
    METADATA,
    _job_number(),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("attempt", Integer, nullable=False),
    Column("kind", String(16), nullable=False),  # state, phase, detail, log, trial
    Column("body", Text, nullable=False),  # JSON
    Column("at", Double, nullable=False),
)

TRIALS = Table(
    "service_trials",
    METADATA,
    _job_number(),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("body", Text, nullable=False),  # JSON
)

ARTIFACTS = Table(
    "service_artifacts",
    METADATA,
    _job_number(),
    Column("name", String(64), primary_key=True),
    Column("sha256", _Sha256, ForeignKey("service_objects.sha256"), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Index("service_artifacts_object", "sha256"),
)

# A device measures for one job at a time, whichever process asks.
DEVICES = Table(
    "service_devices",
    METADATA,
    Column("id", String(128), primary_key=True),
    Column("kind", String(8), nullable=False),  # cpu, gpu
    Column("host", String(255), nullable=False),
    Column("name", String(255), nullable=False),
    Column("job", _Key),
    Column("attempt", Integer),
    Column("lease_until", Double),
)

WORKERS = Table(
    "service_workers",
    METADATA,
    Column("id", String(WORKER_ID_MAX), primary_key=True),
    Column("host", String(255), nullable=False),
    Column("pid", Integer, nullable=False),
    Column("version", String(32), nullable=False),
    Column("device", String(128), ForeignKey("service_devices.id"), nullable=False),
    Column("isolation", Text, nullable=False),  # JSON
    Column("started_at", Double, nullable=False),
    Column("seen_at", Double, nullable=False),
    Column("lease_until", Double, nullable=False),
)

IDEMPOTENCY = Table(
    "service_idempotency",
    METADATA,
    Column("project", String(64), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("request", _Sha256, nullable=False),  # of method, path and body
    Column("status", Integer),  # null while it is in flight
    Column("response", Text),
    Column("created_at", Double, nullable=False),
)

AUDIT = Table(
    "service_audit",
    METADATA,
    Column("number", _Key, primary_key=True, autoincrement=True),
    Column("at", Double, nullable=False),
    Column("project", String(64)),
    Column("actor", String(128), nullable=False),
    Column("action", String(64), nullable=False),
    Column("object", String(128), nullable=False),
    Column("details", Text, nullable=False),  # JSON
    Index("service_audit_project", "project", "number"),
)
