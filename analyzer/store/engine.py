"""Connections to SQLite and PostgreSQL, and what their errors mean to people."""

from __future__ import annotations

import os
import shlex
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from analyzer.errors import MissingPartError, StoreError

# Longer than any transaction of ours holds the database.
BUSY_TIMEOUT_S = 30.0
_WAL_RETRY_S = 0.01  # of the order of the first transaction of another program, which it waits for
# For libpq. A server that vanishes without a word is noticed after 25 s at rest, and after 10 s
# where something was sent: sooner than a lease of the service ends (30 s), and not after minutes.
_POSTGRES = {
    "connect_timeout": 10,
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
_SPELLING = "Write sqlite:///results.db, or postgresql://USER:PASSWORD@HOST/DATABASE."

# What SQLite calls it: the sentence's end, and what to do. Looked up by the name's beginning.
_SQLITE = {
    "SQLITE_BUSY": ("is locked by another program", "Close whatever holds it open, then go on."),
    "SQLITE_LOCKED": ("is locked by another program", "Close whatever holds it open, then go on."),
    "SQLITE_FULL": (
        "cannot grow: the disk is full",
        "Free some space, then go on with --resume; what was stored before is safe.",
    ),
    "SQLITE_IOERR": (
        "could not be read or written: the disk reported an error or is full",
        "Check the disk and its free space, then go on with --resume.",
    ),
    "SQLITE_READONLY": (
        "is not writable",
        "Change its permissions, or choose another file with --store.",
    ),
    "SQLITE_CANTOPEN": (
        "cannot be opened",
        "Check that its folder exists and is writable, or choose another file with --store.",
    ),
    "SQLITE_NOTADB": (
        "is not a SQLite database",
        "Choose another file with --store; this one was left as it is.",
    ),
    "SQLITE_CORRUPT": (
        "is damaged",
        "Save a copy, then try the sqlite3 command's .recover; or choose another with --store.",
    ),
    "SQLITE_PERM": ("may not be accessed", "Change its permissions, or choose another file."),
}


def parse_url(text: str) -> URL:
    """The database that ``--store`` names.

    Raises:
        StoreError: It names none, or one of another kind, or one in memory.
    """
    try:
        url = sqlalchemy.make_url(text)
    except ArgumentError as error:
        raise StoreError(f"{text!r} is not the URL of a database.", hint=_SPELLING) from error
    kind = url.get_backend_name()
    if kind in ("postgres", "postgresql"):
        # The one driver that the extra "postgres" installs, whatever SQLAlchemy's default is.
        plain = url.drivername in ("postgres", "postgresql")
        return url.set(drivername="postgresql+psycopg") if plain else url
    if kind != "sqlite":
        raise StoreError(
            f"{safe(url)}: only SQLite and PostgreSQL are supported, not {kind!r}.", hint=_SPELLING
        )
    if url.database in (None, "", ":memory:"):
        raise StoreError(f"{text!r} names no file: nothing would be kept.", hint=_SPELLING)
    return url


def file_url(path: Path) -> str:
    """What ``--store`` would be for the SQLite file ``path``: a URL has ``%`` and ``?`` encoded."""
    return URL.create("sqlite", database=str(path)).render_as_string()


def safe(url: URL) -> str:
    """The URL for people: without its password; a SQLite file by its path."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    # libpq takes a password among the parameters, too.
    return url.difference_update_query(["password"]).render_as_string(hide_password=True)


def check_file(url: URL, *, create: bool) -> None:
    """Looks at a SQLite file before SQLite does, for a clearer sentence than its own.

    Raises:
        StoreError: The folder is missing, the file is a folder, or it is absent and may not be
            made.
    """
    path = Path(str(url.database))
    try:
        if path.is_dir():
            raise StoreError(f"The results database {path} is a folder.", hint=_SPELLING)
        if not path.parent.is_dir():
            command = shlex.join(["mkdir", "-p", str(path.parent)])
            raise StoreError(
                f"The folder {path.parent} of the results database {path.name} does not exist.",
                hint=f"Make it ({command}), or choose another file with --store.",
            )
        if not create and not path.exists():
            raise StoreError(
                f"There are no results yet: the database {path} does not exist.",
                hint="Run a search first (analyze search MODEL --latency-budget DURATION), "
                "or name its database with --store.",
            )
    except OSError as error:
        raise StoreError(
            f"The results database {path} cannot be reached: {error.strerror}.",
            hint="Check the permissions of its folder, or choose another file with --store.",
        ) from error


def check_writable(url: URL) -> None:
    """Raises StoreError where a SQLite file that is there may be read only.

    SQLite opens it all the same, and says so with the first write.
    """
    path = Path(str(url.database))
    if url.get_backend_name() == "sqlite" and path.exists() and not os.access(path, os.W_OK):
        what, hint = _SQLITE["SQLITE_READONLY"]
        raise StoreError(f"The results database {path} {what}.", hint=hint)


def postgres_arguments(url: URL) -> dict[str, int]:
    """How PostgreSQL's driver connects, unless the URL says otherwise."""
    return {name: value for name, value in _POSTGRES.items() if name not in url.query}


def make_engine(url: URL, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Engine:
    """An engine whose write transactions hold SQLite's write lock from their start.

    A connection with the execution option ``writes=True`` begins with BEGIN IMMEDIATE: two studies
    on one file then wait for each other instead of failing when a reader becomes a writer.

    Raises:
        MissingPartError: PostgreSQL's driver is not installed.
        StoreError: The URL names a driver that does not exist.
    """
    sqlite = url.get_backend_name() == "sqlite"
    # isolation_level None: sqlite3 then begins no transactions of its own accord.
    arguments: dict[str, Any] = (
        {"timeout": busy_timeout_s, "isolation_level": None} if sqlite else postgres_arguments(url)
    )
    try:
        engine = sqlalchemy.create_engine(url, connect_args=arguments, pool_pre_ping=not sqlite)
    except NoSuchModuleError as error:
        raise StoreError(f"{safe(url)}: {error}.", hint=_SPELLING) from error
    except ImportError as error:
        raise MissingPartError(
            f"The database {safe(url)} needs PostgreSQL's driver, which is not installed.",
            hint="pip install 'tritune[postgres]'",
        ) from error
    if sqlite:
        event.listen(engine, "connect", _configure_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def limit_idle(engine: Engine, idle_s: float) -> None:
    """Lets PostgreSQL end a transaction that does nothing for so long, and free what it locked.

    A process that is stopped, or a machine that is gone, would keep its locks for ever otherwise.
    SQLite has nothing of the kind: its lock is the process's.
    """
    if engine.dialect.name != "postgresql":
        return

    def limit(connection: Any, _record: object) -> None:
        connection.execute(f"SET idle_in_transaction_session_timeout = {round(idle_s * 1e3)}")
        connection.commit()

    event.listen(engine, "connect", limit)


def _configure_sqlite(connection: Any, _record: object) -> None:
    cursor = connection.cursor()
    try:
        cursor.execute("PRAGMA foreign_keys = ON")
        cursor.execute("PRAGMA synchronous = FULL")
    finally:
        cursor.close()


def enable_wal(engine: Engine) -> None:
    """Lets readers and one writer of a SQLite file work side by side; the file remembers it.

    SQLite does not wait for other connections here as it does elsewhere: the change takes a lock
    that could wait for one which waits for it, so it fails at once, whatever the busy timeout is.
    """
    raw = engine.raw_connection()  # the mode cannot be changed inside a transaction
    try:
        cursor = raw.cursor()
        wait_s = cursor.execute("PRAGMA busy_timeout").fetchone()[0] / 1e3
        end_s = time.monotonic() + wait_s
        while True:
            try:
                cursor.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                # The low byte is the kind of error, the rest says more (SQLITE_BUSY_RECOVERY).
                kind = error.sqlite_errorcode & 0xFF
                if kind != sqlite3.SQLITE_BUSY or time.monotonic() >= end_s:
                    raise
                time.sleep(_WAL_RETRY_S)
        cursor.close()
    finally:
        raw.close()


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


@contextmanager
def translated(url: URL) -> Iterator[None]:
    """Turns the database's errors into StoreError, with its cause kept."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error) as error:
        raise store_error(error, url) from error


def store_error(error: BaseException | None, url: URL) -> StoreError:
    """What an error of the database, or of SQLAlchemy, means to people."""
    if isinstance(error, (DBAPIError, sqlite3.Error)):
        sentence, hint = _explain(error.orig if isinstance(error, DBAPIError) else error, url)
        return StoreError(f"The results database {safe(url)} {sentence}.", hint=hint)
    return StoreError(f"The results database {safe(url)} cannot be used: {error}.", hint=_SPELLING)


def _explain(cause: BaseException | None, url: URL) -> tuple[str, str]:
    """What a driver's error means: the end of the sentence, and what to do."""
    name = getattr(cause, "sqlite_errorname", "")
    for known, explanation in _SQLITE.items():
        if name.startswith(known):
            return explanation
    first_line = str(cause).strip().splitlines()[0] if str(cause).strip() else type(cause).__name__
    state = getattr(cause, "sqlstate", None)
    if state == "53100":
        return "cannot grow: the server's disk is full", "Free some space, then use --resume."
    if state == "42501":
        return (
            f"does not allow this: {first_line}",
            "The user needs the right to create and write tables.",
        )
    if url.get_backend_name() == "postgresql":
        return (
            f"did not do what was asked: {first_line}",
            "Check that the server runs, that the database exists, and user and password.",
        )
    return f"did not do what was asked: {first_line}", "Choose another file with --store."
