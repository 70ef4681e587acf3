"""Backup and restore, as docs/deployment.md has them: the database first, then the objects."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from analyzer.service.content import ContentStore
from analyzer.service.database import open_service_database
from analyzer.service.event_stream import EventHub
from analyzer.service.queue import sweep
from analyzer.service.schema import DEVICES, JOBS


def saved_and_restored(store_url: str, folder: Path, request: pytest.FixtureRequest) -> str:
    """Another database with what is in this one now; its URL."""
    if store_url.startswith("sqlite"):
        with (
            contextlib.closing(sqlite3.connect(store_url.removeprefix("sqlite:///"))) as live,
            contextlib.closing(sqlite3.connect(folder / "restored.db")) as copy,
        ):
            live.backup(copy)  # what the program sqlite3 does for ".backup"
        return f"sqlite:///{folder / 'restored.db'}"
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_dump"))
    if not programs:
        pytest.skip("pg_dump is not installed (Debian: postgresql-client)")
    server = request.getfixturevalue("postgres_server")
    url: str = server.create(store_url.rpartition("/")[2] + "restored")
    dump = folder / "tritune.dump"
    with dump.open("wb") as stream:
        subprocess.run([programs[-1], "-Fc", store_url], stdout=stream, check=True)
    restore = programs[-1].with_name("pg_restore")
    subprocess.run([restore, "--clean", "--if-exists", "-d", url, dump], check=True)
    return url


@pytest.mark.long_on_postgres
def test_what_was_saved_is_there_and_goes_on(
    client: httpx.Client, service: Any, submit: Callable[..., str], working: Any, wait_for: Any,
    store_url: str, tmp_path: Path, request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    done, open_ = submit(outcomes=1, say="done"), submit(outcomes=6, pause_s=0.5)
    with working():
        wait_for(done, "SUCCEEDED")
        while len(client.get(f"/api/v1/jobs/{open_}/trials").json()["trials"]) < 2:
            time.sleep(0.1)
        url = saved_and_restored(store_url, tmp_path, request)
        shutil.copytree(tmp_path / "data" / "objects", tmp_path / "restored" / "objects")
        wait_for(open_, "SUCCEEDED")
    content = ContentStore(tmp_path / "restored")
    with open_service_database(url, upgrade=False) as database:
        address = service.serve(database=database, content=content, hub=EventHub(database, 10))
        there = httpx.Client(base_url=address)
        for what in ("result", "artifacts/repository.tar", "artifacts/study.db", "log", "trials"):
            path = f"/api/v1/jobs/{done}/{what}"
            assert there.get(path).content == client.get(path).content, what
        kept = len(there.get(f"/api/v1/jobs/{open_}/trials").json()["trials"])
        assert there.get(f"/api/v1/jobs/{open_}").json()["state"] == "RUNNING" and kept >= 2
        with database.writing() as connection:
            # An hour later; leases of all but the restored job are of no account here.
            for table in (JOBS, DEVICES):
                connection.execute(update(table).values(lease_until=table.c.lease_until - 3600))
        assert sweep(database) == 1
        with working(elsewhere=(database, content)):
            ends_at = time.monotonic() + 90
            while (now := there.get(f"/api/v1/jobs/{open_}").json())["finished_at"] is None:
                assert time.monotonic() < ends_at, now
                time.sleep(0.1)
        assert (now["state"], now["attempt"]) == ("SUCCEEDED", 2)
        assert len(there.get(f"/api/v1/jobs/{open_}/trials").json()["trials"]) == 6
        assert f"Note: {kept} were there" in there.get(f"/api/v1/jobs/{open_}/log").text
        there.close()
