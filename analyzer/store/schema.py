"""Our tables, their schema number, and how an older database becomes a current one."""

from __future__ import annotations

import json
from collections.abc import Callable

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    insert,
    inspect,
    select,
    text,
    update,
)

from analyzer.errors import StoreError

SCHEMA = 3
"""The schema number that this version writes."""

# Optuna's tables live in the same database, so each of ours carries a prefix.
METADATA = MetaData()
_OURS = ("tritune_", "service_")  # the second: of analyze service, which may share the file

# SQLite numbers rows by itself only if the key's type is spelt INTEGER.
_Key = BigInteger().with_variant(Integer(), "sqlite")

VERSION = Table(
    "tritune_version",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("schema_number", Integer, nullable=False),
)

STUDIES = Table(
    "tritune_studies",
    METADATA,
    Column("id", _Key, primary_key=True, autoincrement=True),
    Column("name", String(255), nullable=False, unique=True),
    Column("model_name", String(255), nullable=False),
    Column("status", String(32), nullable=False),
    Column("verdict", String(32)),
    Column("started_at", String(40), nullable=False),
    Column("seed", String(80)),
    Column("model", Text, nullable=False),
    Column("sla", Text, nullable=False),
    Column("options", Text, nullable=False),
    Column("provenance", Text, nullable=False),
)

# What a study ended with, apart from its row and its outcomes: ``records.StoredResult`` as JSON.
RESULTS = Table(
    "tritune_results",
    METADATA,
    Column("study_id", _Key, ForeignKey("tritune_studies.id"), primary_key=True),
    Column("body", Text, nullable=False),
)

OUTCOMES = Table(
    "tritune_outcomes",
    METADATA,
    Column("id", _Key, primary_key=True, autoincrement=True),
    Column("study_id", _Key, ForeignKey("tritune_studies.id"), nullable=False),
    Column("trial_number", Integer, nullable=False),
    Column("role", String(32), nullable=False),
    Column("state", String(16), nullable=False),
    Column("config_id", String(12), nullable=False),
    Column("variant", Text, nullable=False),
    Column("reason", String(64)),
    Column("message", Text),
    Column("edge_rps", Double),
    Column("capacity_rps", Double),
    Column("certificate", String(16)),
    Column("measured_at_rps", Double),
    Column("throughput_ips", Double),
    Column("latency_ms_p50", Double),
    Column("latency_ms_p99", Double),
    Column("latency_ms_sla", Double),
    Column("memory_bytes_peak", BigInteger),
    Column("gpu_memory_bytes_peak", BigInteger),
    Column("gpu_utilization", Double),
    Column("power_watts", Double),
    Column("cpu_utilization", Double),
    Column("accuracy_drop", Double),
    Column("cost_per_hour", Double),
    Column("load_test_seconds", Double),
    Column("created_at", String(40), nullable=False),
    Column("params", Text, nullable=False),
    # The whole object as JSON, apart from its load tests, which few readers need.
    Column("body", Text, nullable=False),
    Column("load_tests", LargeBinary),
    Index("tritune_outcomes_study", "study_id", "trial_number"),
)

REQUEST_LOGS = Table(
    "tritune_request_logs",
    METADATA,
    Column("id", _Key, primary_key=True, autoincrement=True),
    Column("outcome_id", _Key, ForeignKey("tritune_outcomes.id"), nullable=False),
    Column("load_test", Integer, nullable=False),
    Column("requests", Integer, nullable=False),
    Column("warmup", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("tritune_request_logs_outcome", "outcome_id"),
)

VERIFICATIONS = Table(
    "tritune_verifications",
    METADATA,
    Column("id", _Key, primary_key=True, autoincrement=True),
    Column("study_id", _Key, ForeignKey("tritune_studies.id"), nullable=False),
    Column("verdict", String(16), nullable=False),
    Column("at", String(40), nullable=False),
    Column("body", Text, nullable=False),
    Index("tritune_verifications_study", "study_id"),
)

CACHE = Table(
    "tritune_cache",
    METADATA,
    Column("kind", String(64), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("body", Text, nullable=False),
)


def stored_schema(connection: Connection) -> int | None:
    """The schema number of the database; None if it has no tables of ours yet."""
    if not inspect(connection).has_table(VERSION.name):
        return None
    found: int | None = connection.execute(select(VERSION.c.schema_number)).scalar_one_or_none()
    return found


def foreign_tables(connection: Connection) -> list[str]:
    """The tables of another program in a database that has none of ours, the service's included."""
    names = sorted(inspect(connection).get_table_names())
    return [] if any(name.startswith(_OURS) for name in names) else names


def check_not_newer(found: int, place: str) -> None:
    """Refuses a database that a newer version wrote.

    Raises:
        StoreError: It did.
    """
    if found > SCHEMA:
        raise StoreError(
            f"The database {place} has schema {found}; this version knows schemas up to {SCHEMA}.",
            hint="Update tritune (pip install --upgrade tritune), or choose another database "
            "with --store.",
        )


def prepare(connection: Connection, place: str) -> None:
    """Makes or upgrades our tables inside the caller's transaction, which holds the write lock.

    Raises:
        StoreError: The database is newer than this version.
    """
    found = stored_schema(connection)
    if found is None:
        METADATA.create_all(connection)
        connection.execute(insert(VERSION).values(id=1, schema_number=SCHEMA))
        return
    check_not_newer(found, place)
    for number in range(found, SCHEMA):
        _UPGRADES[number](connection)
    if found < SCHEMA:
        connection.execute(update(VERSION).values(schema_number=SCHEMA))


def _add_what_is_missing(connection: Connection) -> None:
    """Adds tables, columns and indexes that are not there; new columns hold NULL in old rows."""
    METADATA.create_all(connection)
    inspector = inspect(connection)
    quote = connection.dialect.identifier_preparer.quote
    for table in METADATA.sorted_tables:
        there = {column["name"] for column in inspector.get_columns(table.name)}
        for column in table.columns:
            if column.name not in there:
                assert column.nullable, f"{table.name}.{column.name} needs an upgrade of its own"
                kind = column.type.compile(connection.dialect)
                connection.execute(
                    text(f"ALTER TABLE {quote(table.name)} ADD COLUMN {quote(column.name)} {kind}")
                )
        indexes = {index["name"] for index in inspector.get_indexes(table.name)}
        for index in table.indexes:
            if index.name not in indexes:
                index.create(connection)


def _move_results(connection: Connection) -> None:
    """Results from the studies' options into their table; claims from the report's keys into ours.

    Schema 1 kept the result under ``facts`` in the options, the report's JSON document in
    ``tritune_documents``, and a verification's claim as the dictionary that was printed.
    """
    _add_what_is_missing(connection)
    studies = connection.execute(select(STUDIES.c.id, STUDIES.c.options)).all()
    for study_id, options_text in studies:
        options = json.loads(options_text)
        result = options.pop("facts", None)
        if result is None:
            continue
        connection.execute(insert(RESULTS).values(study_id=study_id, body=json.dumps(result)))
        connection.execute(
            update(STUDIES).where(STUDIES.c.id == study_id).values(options=json.dumps(options))
        )
    for key, body in connection.execute(select(VERIFICATIONS.c.id, VERIFICATIONS.c.body)).all():
        verification = json.loads(body)
        claim = verification["claim"]
        claim["configuration"] = claim.pop("config")
        limits = ("latency_budget_ms", "percentile", "confidence")
        claim["sla"] = {name: claim.pop(name) for name in limits}
        connection.execute(
            update(VERIFICATIONS)
            .where(VERIFICATIONS.c.id == key)
            .values(body=json.dumps(verification))
        )
    connection.execute(text("DROP TABLE IF EXISTS tritune_documents"))


def _lengthen_variants(connection: Connection) -> None:
    """Labels of variants of any length: they name every setting of an execution.

    SQLite keeps whatever it is given.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("ALTER TABLE tritune_outcomes ALTER COLUMN variant TYPE TEXT"))


# From each schema to the next. Schema 0 was the layout before the first release: a subset of the
# tables and columns of schema 1.
_UPGRADES: dict[int, Callable[[Connection], None]] = {
    0: _add_what_is_missing,
    1: _move_results,
    2: _lengthen_variants,
}
