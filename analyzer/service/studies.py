"""Optuna's studies of jobs that have ended, in the service's database, for Optuna's own tools.

A job's study lies in a file of its own while it runs. At its end Optuna's part of it is copied
beside the jobs, so that ``optuna-dashboard`` shows all of them; with a database role that may only
read, it cannot disturb anything.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import inspect, select

from analyzer.service.documents import JOB_ID
from analyzer.service.schema import JOBS, PROJECTS
from analyzer.store.database import Database, open_database
from analyzer.store.engine import BUSY_TIMEOUT_S, file_url
from analyzer.store.optuna_storage import close_optuna_storage, open_optuna_storage
from analyzer.store.results import ResultStore

if TYPE_CHECKING:
    from optuna.storages import RDBStorage

_LOG = logging.getLogger(__name__)


def optuna_name(project: str, study: str, job: str) -> str:
    """What Optuna calls a job's study in the service's database."""
    return f"{project}/{study}/{job}"


@contextmanager
def _storage(store: ResultStore) -> Iterator[RDBStorage]:
    """Optuna's storage, whose connections are closed at the end."""
    storage = open_optuna_storage(store)
    try:
        yield storage
    finally:
        close_optuna_storage(storage)


def _has_optunas_tables(database: Database) -> bool:
    with database.reading() as connection:
        return inspect(connection).has_table("studies")


def keep_study(database: Database, source: Path, study: str, name: str) -> None:
    """Copies the study from the file ``source``; one that cannot be copied costs a warning.

    Args:
        name: As :func:`optuna_name` makes it.
    """
    url = file_url(source)
    try:
        with open_database(url, create=False, busy_timeout_s=BUSY_TIMEOUT_S) as found:
            if not _has_optunas_tables(found):  # opening its storage would make them
                raise KeyError(study)
            import optuna

            optuna.logging.set_verbosity(optuna.logging.WARNING)  # it tells of each study
            with (
                _storage(ResultStore(found)) as own,
                _storage(ResultStore(database)) as target,
            ):
                with suppress(KeyError):  # of an attempt before
                    optuna.delete_study(study_name=name, storage=target)
                optuna.copy_study(
                    from_study_name=study, from_storage=own, to_storage=target, to_study_name=name
                )
    except KeyError:
        _LOG.info("%s has no trials of Optuna's: nothing but the baseline was tried.", name)
    except Exception as error:
        # What is copied was written by a job's command: nothing in it may end a worker.
        _LOG.warning("Optuna's study of %s was not copied: %s", name, error)


def forget_studies(database: Database) -> int:
    """Removes Optuna's studies of jobs that are gone; returns how many.

    The database may hold studies of others: those are left alone.
    """
    if not _has_optunas_tables(database):
        return 0
    with database.reading() as connection:
        kept = set(connection.execute(select(JOBS.c.id)).scalars())
        projects = set(connection.execute(select(PROJECTS.c.name)).scalars())
    import optuna

    with _storage(ResultStore(database)) as storage:
        gone = [
            name
            for name in optuna.get_all_study_names(storage)
            if (job := _job_of(name, projects)) is not None and job not in kept
        ]
        for name in gone:
            optuna.delete_study(study_name=name, storage=storage)
    return len(gone)


def _job_of(name: str, projects: Collection[str]) -> str | None:
    """The job whose study is called ``name``; None where :func:`optuna_name` makes no such name."""
    project, *others = name.split("/")
    if project not in projects or len(others) != 2 or not re.fullmatch(JOB_ID, others[1]):
        return None
    return others[1]
