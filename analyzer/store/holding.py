"""Which study is being searched now: a lock that ends with its process, however that ends."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sqlalchemy import Engine, func, select
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError


def hold(url: URL, engine: Engine, study: str) -> Callable[[], None] | None:
    """Takes ``study`` for this process; what releases it, or None where another one has it.

    In SQLite a file beside the database that is locked, and removed at the end; in PostgreSQL an
    advisory lock of a connection. One process may hold a study once.

    Raises:
        OSError: No file can be made beside the database.
        SQLAlchemyError: The database cannot be asked.
    """
    digest = hashlib.sha256(study.encode()).digest()
    if url.get_backend_name() == "sqlite":
        file = os.path.realpath(str(url.database))  # the same one behind every link
        return _hold_file(Path(f"{file}-{digest[:6].hex()}.lock"))
    return _hold_connection(engine, int.from_bytes(digest[:8], signed=True))


def _hold_file(path: Path) -> Callable[[], None] | None:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            # Unlike flock(2), not inherited by the processes that a search starts.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            os.close(descriptor)
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(path.stat(), os.fstat(descriptor)):
                break
        os.close(descriptor)  # its holder has removed it meanwhile

    def release() -> None:
        path.unlink(missing_ok=True)
        os.close(descriptor)

    return release


def _hold_connection(engine: Engine, number: int) -> Callable[[], None] | None:
    connection = engine.connect()
    free = connection.execute(select(func.pg_try_advisory_lock(number))).scalar_one()
    connection.commit()
    if not free:
        connection.close()
        return None

    def release() -> None:
        # A connection that broke meanwhile has lost its lock; any other would keep it in the pool.
        with suppress(SQLAlchemyError):
            connection.execute(select(func.pg_advisory_unlock(number)))
            connection.commit()
        connection.close()

    return release
