"""Databases of earlier versions: opened, upgraded, and nothing in them lost."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import text

from analyzer.errors import StoreError
from analyzer.service import database as databases
from analyzer.service import jobs, uploads
from analyzer.service.database import open_service_database, stored_revision
from analyzer.service.queue import Device, Queue
from analyzer.service.states import Change
from analyzer.store import engine as engines
from analyzer.store.database import Database
from analyzer.store.results import open_store

MIGRATIONS = Path(databases.__file__).parent / "migrations"
# As the first version wrote them: no constant of the present one, which may change.
PROJECT = "INSERT INTO service_projects VALUES ('vision', 1.0)"
JOB = """
INSERT INTO service_jobs (id, project, kind, model, model_name, options, study, device, state,
  attempt, losses, phase, events, log_bytes, created_at, created_by)
VALUES ('{job}', 'vision', 'search', '{model}', 'm', '{{}}', 's', 'auto', '{state}', 1, 0, 'x', 1,
  0, 1.0, 'ann')
"""
EVENT = """
INSERT INTO service_events SELECT number, 1, 1, 'state', '{{"state": "{state}"}}', 1.0
FROM service_jobs WHERE id = '{job}'
"""
TRIAL = """
INSERT INTO service_trials SELECT number, 1, '{{"number": 1}}'
FROM service_jobs WHERE id = '{job}'
"""
OBJECT = "INSERT INTO service_objects VALUES ('0', 300, 1.0)"
ARTIFACT = """
INSERT INTO service_artifacts SELECT number, 'study.db', '0', 300
FROM service_jobs WHERE id = '{job}'
"""
QUEUED, PAUSED = "a" * 32, "b" * 32


def revisions() -> list[str]:
    """All, the first one first."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    scripts = ScriptDirectory.from_config(config).walk_revisions()
    return [script.revision for script in scripts][::-1]


def old_database(url: str, revision: str) -> None:
    """Makes the tables of an earlier revision, with jobs in them."""
    parsed = engines.parse_url(url)
    made = Database(parsed, engines.make_engine(parsed))
    try:
        with made.writing() as connection:
            config = Config()
            config.set_main_option("script_location", str(MIGRATIONS))
            config.attributes["connection"] = connection
            command.upgrade(config, revision)
            connection.execute(text(PROJECT))
            connection.execute(text(OBJECT))
            for job, state in ((QUEUED, "QUEUED"), (PAUSED, "PAUSED")):
                for row in (JOB, EVENT, TRIAL, ARTIFACT):
                    connection.exec_driver_sql(row.format(job=job, state=state, model="0" * 64))
    finally:
        made.close()


@pytest.mark.parametrize("revision", revisions()[:-1])
def test_a_database_of_each_earlier_revision_goes_on(store_url: str, revision: str) -> None:
    old_database(store_url, revision)
    with open_service_database(store_url) as database:
        with database.reading() as connection:
            assert stored_revision(connection) == revisions()[-1]
            assert uploads.stored_bytes(connection, "vision") == 600
            rows = jobs.list_jobs(connection, "vision")
            assert [(row.id, row.state) for row in rows] == [
                (PAUSED, "PAUSED"), (QUEUED, "QUEUED")
            ]  # fmt: skip
            for row in rows:
                assert jobs.trials_of(connection, row.number) == [{"number": 1}]
                assert [e.number for e in jobs.events_after(connection, row.number, 0)] == [1]
        queue = Queue(database, "w", Device(id="d", kind="cpu", host="h", name="n"), lease_s=30)
        queue.enrol(pid=1, version="0", isolation={})
        claim = queue.claim()
        assert claim is not None and claim.id == QUEUED
        with queue.writing(claim) as connection:
            queue.finish(connection, claim, Change.SUCCEED, {"verdict": "found"})
            jobs.ask(connection, "vision", PAUSED, Change.RESUME, actor="ann")
        with database.reading() as connection:
            found: Any = jobs.get_job(connection, "vision", PAUSED)
            assert (found.state, found.attempt, found.events) == ("QUEUED", 2, 2)
    # Opened once more, it stays as it is.
    open_service_database(store_url, upgrade=False).close()


def test_a_list_of_one_state_reads_no_other_jobs(store_url: str) -> None:
    with open_service_database(store_url) as database, database.writing() as connection:
        explain = "EXPLAIN QUERY PLAN" if database.sqlite else "EXPLAIN"
        if not database.sqlite:
            # An empty table is read as a whole.
            connection.execute(text("SET LOCAL enable_seqscan = off"))
        plan = connection.execute(
            text(
                f"{explain} SELECT id FROM service_jobs WHERE project = 'p' AND state = 'FAILED'"
                " ORDER BY number DESC LIMIT 50"
            )
        ).all()
        told = " ".join(str(row) for row in plan)
        assert "service_jobs_state" in told and "sort" not in told.lower(), told
        assert "TEMP B-TREE" not in told, told


def test_another_programs_file_is_refused_and_one_of_results_is_shared(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    other = sqlite3.connect(file)
    with other:
        other.execute("CREATE TABLE customers (name TEXT)")
    other.close()
    before = file.read_bytes()
    with pytest.raises(StoreError, match="belongs to another program"):
        open_service_database(f"sqlite:///{file}")
    assert file.read_bytes() == before
    shared = f"sqlite:///{tmp_path / 'shared.db'}"
    open_service_database(shared).close()
    open_store(shared).close()
    open_service_database(shared).close()
