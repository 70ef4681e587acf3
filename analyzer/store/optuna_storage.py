"""Optuna's storage in the same database as ours."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

from analyzer.errors import StoreError
from analyzer.store.results import ResultStore

if TYPE_CHECKING:
    from optuna.storages import RDBStorage

# Two processes may create the tables at once; the other is done within a second or two.
_ATTEMPTS = 10
_PAUSE_S = 0.2


def open_optuna_storage(store: ResultStore) -> RDBStorage:
    """Optuna's tables beside ours, made if they are not there.

    Optuna looks whether a table is there and then makes it, without a lock: of several studies that
    start at once all but one may fail, and find the tables when they try again.

    Raises:
        StoreError: The tables cannot be made or read.
    """
    from optuna.exceptions import StorageInternalError

    from analyzer.store.running_trials import DrivenStorage

    failure: Exception | None = None
    for _ in range(_ATTEMPTS):
        try:
            return DrivenStorage(store.url_for_optuna(), store.engine_kwargs_for_optuna())
        except (
            IntegrityError,
            OperationalError,
            ProgrammingError,
            StorageInternalError,  # the others, in Optuna's own tables of versions
        ) as error:
            failure = error
            time.sleep(_PAUSE_S)
        except RuntimeError as error:  # another version's tables
            raise StoreError(
                f"Optuna's tables in {store.place} are of another version: {error}",
                hint="Choose another database with --store, or upgrade: optuna storage upgrade.",
            ) from error
    raise StoreError(
        f"Optuna cannot use the database {store.place}: {failure}",
        hint="Choose another database with --store.",
    ) from failure


def close_optuna_storage(storage: RDBStorage) -> None:
    """Closes its connections.

    The last one of a SQLite file moves what was written into the file itself. While any is open, a
    part of it lies in ``FILE-wal`` alone, and stays there when the program ends: a copy of the file
    would lack it.
    """
    storage.remove_session()
    storage.engine.dispose()
