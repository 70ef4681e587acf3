"""The database of the service: opened, its tables upgraded by Alembic, used in transactions."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, func, inspect, select, text

from analyzer.errors import StoreError
from analyzer.store import engine as engines
from analyzer.store.database import Database

_MIGRATIONS = Path(__file__).parent / "migrations"
_LOCK_NUMBER = 0x536572766963655F  # any number that no other program is likely to lock
_UPGRADE_IDLE_S = 60.0  # loading the migrations on a busy machine takes seconds
#: A third of a lease: many times what a transaction of ours waits between its statements.
IDLE_S = 10.0
# Optuna keeps the usual name for itself.
VERSION_TABLE = "service_alembic_version"


def open_service_database(url: str, *, upgrade: bool = True, idle_s: float = IDLE_S) -> Database:
    """The database at ``url`` with the newest tables.

    Args:
        upgrade: Whether tables are made or upgraded; otherwise they must be current.
        idle_s: After so long PostgreSQL ends a transaction in which this process does nothing (it
            was stopped, or cut off), so that others get at the rows that it holds.

    Raises:
        StoreError: It cannot be reached or written, a newer version has upgraded it, or its tables
            are not there, or older, and may not be upgraded.
        MissingPartError: PostgreSQL's driver is not installed.
    """
    parsed = engines.parse_url(url)
    engine = engines.make_engine(parsed)
    engines.limit_idle(engine, idle_s)
    database = Database(parsed, engine)
    try:
        if database.sqlite:
            if not upgrade and not Path(str(parsed.database)).exists():
                raise _no_tables(database.place)  # SQLite would make the file
            engines.check_file(parsed, create=True)
            with engines.translated(parsed):
                database.refuse_foreign()
                engines.enable_wal(engine)
        with database.writing() as connection:
            if not database.sqlite:
                limit = f"SET LOCAL idle_in_transaction_session_timeout = '{_UPGRADE_IDLE_S:g}s'"
                connection.execute(text(limit))
                # Two programs that start at once must not both make the tables.
                connection.execute(select(func.pg_advisory_xact_lock(_LOCK_NUMBER)))
            _bring_up_to_date(connection, database.place, upgrade=upgrade)
    except BaseException:
        database.close()
        raise
    return database


def _bring_up_to_date(connection: Connection, place: str, *, upgrade: bool) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS))
    config.attributes["connection"] = connection
    scripts = ScriptDirectory.from_config(config)
    found = stored_revision(connection)
    if found == scripts.get_current_head():
        return
    if found is not None and found not in {script.revision for script in scripts.walk_revisions()}:
        raise StoreError(
            f"The database {place} is at revision {found}, which this version does not know.",
            hint="Update tritune on this machine (pip install --upgrade tritune).",
        )
    if not upgrade:
        raise _no_tables(place)
    command.upgrade(config, "head")


def _no_tables(place: str) -> StoreError:
    return StoreError(
        f"The database {place} has no tables of this version's service.",
        hint="Start analyze service of this version on it once: it upgrades the tables.",
    )


def stored_revision(connection: Connection) -> str | None:
    """The revision of the service's tables; None if there are none."""
    from alembic.migration import MigrationContext

    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return context.get_current_revision()
