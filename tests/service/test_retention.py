"""What ``analyze service gc`` and workers remove, and what they leave."""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from page_example import Example
from sqlalchemy import insert, select, update

from analyzer.cli.main import main
from analyzer.service import jobs, kept
from analyzer.service.content import ContentStore, Staged
from analyzer.service.folder import REPORT, STUDY
from analyzer.service.gc import collect, remove_unused_files
from analyzer.service.problems import conflict
from analyzer.service.queue import Claim
from analyzer.service.schema import OBJECTS, DatabaseTime
from analyzer.service.states import Change
from analyzer.store.database import Database

DAY_S = 86_400.0
COMPOSE = Path(__file__).parents[2] / "deploy" / "service" / "compose.yaml"


def lost_file(content: ContentStore, data: bytes, age_s: float) -> Path:
    """A file of the content store that the database does not know."""
    path = content.path(hashlib.sha256(data).hexdigest())
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def hashes(database: Database) -> set[str]:
    with database.reading() as connection:
        return set(connection.execute(select(OBJECTS.c.sha256)).scalars())


def let_settle(database: Database) -> None:
    """Two hours go by."""
    with database.writing() as connection:
        connection.execute(update(OBJECTS).values(created_at=OBJECTS.c.created_at - 7200))


@pytest.mark.sqlite_alone
def test_a_folder_of_another_service_is_refused(
    client: httpx.Client, upload: Callable[..., str], database: Database, content: ContentStore,
    store_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The rows went, and the files stayed for ever."""
    model = upload()
    client.delete(f"/api/v1/models/{model}")
    let_settle(database)
    other = tmp_path / "tritune-service"
    with pytest.raises(SystemExit) as end:
        main(["service", "gc", "--store", store_url, "--data", str(other)])
    assert end.value.code == 2 and "none of the files" in capsys.readouterr().err
    assert not other.exists()
    assert remove_unused_files(database, ContentStore(other)) == (0, 0)
    assert hashes(database) == {model} and content.path(model).is_file()
    with pytest.raises(SystemExit) as end:
        main(["service", "gc", "--store", store_url, "--data", str(content.root)])
    assert end.value.code == 0 and "1 file " in capsys.readouterr().out
    assert hashes(database) == set() and not content.path(model).exists()


def test_files_that_the_database_has_lost_go_after_a_day(
    upload: Callable[..., str], database: Database, content: ContentStore
) -> None:
    known = {upload(say="one"), upload(say="two")}
    old, young = lost_file(content, b"old", 2 * DAY_S), lost_file(content, b"young", 60)
    note = old.with_name("README")
    note.touch()
    os.utime(note, (1, 1))
    done = collect(database, content, keep_s=DAY_S)
    assert (done.files, done.bytes) == (1, 3)
    assert not old.exists() and young.is_file() and note.is_file()
    assert hashes(database) == known and all(content.path(one).is_file() for one in known)


@pytest.mark.sqlite_alone
def test_files_are_left_where_most_are_not_the_databases(
    upload: Callable[..., str], database: Database, content: ContentStore,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Another database, one that was made by mistake, would end a service's files."""
    own = lost_file(content, b"a model", 2 * DAY_S)
    engine = content.variants / "default" / ("0" * 64) / ("e" * 24)
    engine.mkdir(parents=True)
    for known in (0, 1):
        collect(database, content, keep_s=DAY_S)
        if not known:
            assert own.is_file() and engine.is_dir() and "another service's" in caplog.text
            upload()
    assert not own.exists() and not engine.exists()


@pytest.mark.sqlite_alone
@pytest.mark.parametrize(("known", "most"), [(20, 10), (240, 12)])
def test_files_of_a_small_service_in_the_same_folder_are_left(
    database: Database, content: ContentStore, caplog: pytest.LogCaptureFixture,
    known: int, most: int,
) -> None:  # fmt: skip
    """Those of a smaller service went."""
    with database.writing() as connection:
        for number in range(known):
            path = lost_file(content, b"own %d" % number, 2 * DAY_S)
            values = {"sha256": path.name, "size_bytes": 1, "created_at": DatabaseTime()}
            connection.execute(insert(OBJECTS).values(values))
    others = [lost_file(content, b"another's %d" % n, 2 * DAY_S) for n in range(most + 1)]
    assert collect(database, content, keep_s=DAY_S).files == 0
    assert all(path.is_file() for path in others) and f"{most + 1} files" in caplog.text
    # Those of today count, too.
    os.utime(others[0])
    assert collect(database, content, keep_s=DAY_S).files == 0
    others[0].unlink()
    assert collect(database, content, keep_s=DAY_S).files == most


@pytest.mark.sqlite_alone
def test_what_else_lies_among_the_objects_is_passed_over(
    upload: Callable[..., str], database: Database, content: ContentStore
) -> None:
    """A disk of its own has a folder ``lost+found`` that only root reads; each gc ended there."""
    known = {upload(say="one"), upload(say="two")}
    old = lost_file(content, b"old", 2 * DAY_S)
    objects = content.root / "objects"
    unused = next(f"{n:02x}" for n in range(256) if not (objects / f"{n:02x}").exists())
    (objects / unused).touch()
    (objects / ".DS_Store").touch()
    (objects / "lost+found").mkdir(mode=0)
    # Root reads that all the same: nothing in it counts.
    (objects / "abc").mkdir()
    (objects / "abc" / ("abc" + "0" * 61)).touch()
    os.utime(objects / "abc" / ("abc" + "0" * 61), (1, 1))
    assert collect(database, content, keep_s=DAY_S).files == 1
    assert not old.exists() and hashes(database) == known
    names = [name for name, _ in content.files()]
    assert set(names).isdisjoint({"lost+found", "abc", ".DS_Store", unused})


@pytest.fixture
def claim(service: Any) -> Claim:
    return Example(service.context).running(trials=())


def noted(
    database: Database, content: ContentStore, claim: Claim, data: bytes, name: str = STUDY
) -> Staged:
    """A study that the job has left, or another file."""
    with content.incoming() as incoming, database.writing() as connection:
        incoming.write(data)
        staged = incoming.finish()
        content.keep(connection, staged)
        kept.note_artifact(connection, claim, name, staged)
    return staged


def test_a_superseded_study_stays_for_as_long_as_a_backup_takes(
    database: Database, content: ContentStore, claim: Claim
) -> None:
    first = noted(database, content, claim, b"first")
    let_settle(database)
    second = noted(database, content, claim, b"second")
    again = noted(database, content, claim, b"second")
    assert again.sha256 == second.sha256
    assert remove_unused_files(database, content) == (0, 0)
    let_settle(database)
    assert remove_unused_files(database, content, goes_on=lambda: False) == (1, 5)
    assert hashes(database) == {second.sha256}
    assert not content.path(first.sha256).exists() and content.path(second.sha256).is_file()


@pytest.mark.parametrize("by", ["upload", "job", "attempt"])
def test_what_is_let_go_stays_for_as_long_as_a_backup_takes(
    client: httpx.Client, upload: Callable[..., str], service: Any, database: Database,
    content: ContentStore, by: str,
) -> None:  # fmt: skip
    """Workers remove files every hour: those of a job that was deleted went at once."""
    claim = Example(service.context).running(trials=())
    study = noted(database, content, claim, b"study").sha256
    report = noted(database, content, claim, b"report", name=REPORT).sha256
    model = upload(say="a model")
    let_settle(database)
    if by == "upload":
        assert client.delete(f"/api/v1/models/{model}").status_code == 204
        gone = {model}
    elif by == "job":
        with database.writing() as connection:
            jobs.change_job(
                connection, jobs.get_job(connection, "default", claim.id), Change.SUCCEED
            )
        assert client.delete(f"/api/v1/jobs/{claim.id}").status_code == 204
        gone = {study, report}
    else:
        with database.writing() as connection:
            kept.forget_artifacts(connection, claim)
        gone = {report}
    assert remove_unused_files(database, content) == (0, 0)
    assert all(content.path(sha256).is_file() for sha256 in gone)
    let_settle(database)
    assert remove_unused_files(database, content)[0] == len(gone)
    assert hashes(database) == {study, report, model} - gone


@pytest.mark.sqlite_alone
def test_a_worker_removes_superseded_studies(
    client: httpx.Client, submit: Callable[..., str], working: Any, wait_for: Any,
    database: Database, content: ContentStore,
) -> None:  # fmt: skip
    job = submit(outcomes=2, pause_s=2.0)
    with working():
        wait_for(job, "SUCCEEDED")
    let_settle(database)
    before = hashes(database)
    ends_at = time.monotonic() + 20
    with working():
        while hashes(database) == before:
            assert time.monotonic() < ends_at, "each trial leaves its study"
            time.sleep(0.05)
    for name in ("artifacts/study.db", "artifacts/repository.tar", "result"):
        assert client.get(f"/api/v1/jobs/{job}/{name}").status_code == 200
    left = {path.name for _, files in content.files() for path in files}
    assert left == hashes(database) < before


def cancelled(client: httpx.Client, submit: Callable[..., str]) -> str:
    """A job that has ended."""
    job = submit()
    assert client.post(f"/api/v1/jobs/{job}/cancel").json()["state"] == "CANCELLED"
    return job


def test_a_job_that_changes_meanwhile_is_left_for_the_next_time(
    client: httpx.Client, submit: Callable[..., str], database: Database, content: ContentStore
) -> None:
    """It ended the whole collection, or was waited for."""
    if database.sqlite:
        pytest.skip("SQLite has one writer at a time")
    held, other = cancelled(client, submit), cancelled(client, submit)
    with database.writing() as connection:
        jobs.get_job(connection, "default", held, lock=True)
        assert collect(database, content, keep_s=-1).jobs == 1
        assert jobs.find_job(connection, "default", other) is None
    assert collect(database, content, keep_s=-1).jobs == 1


@pytest.mark.sqlite_alone
def test_a_job_that_another_one_has_come_to_need_is_passed_over(
    client: httpx.Client, submit: Callable[..., str], database: Database, content: ContentStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    made = [cancelled(client, submit) for _ in range(3)]
    delete = jobs.delete_job

    def delete_job(connection: Any, project: str, job: str) -> Any:
        if job == made[0]:
            raise conflict("in_use", "Another job needs it.")
        return delete(connection, project, job)

    monkeypatch.setattr(jobs, "delete_job", delete_job)
    monkeypatch.setattr("analyzer.service.gc._AT_A_TIME", 1)
    assert collect(database, content, keep_s=-1).jobs == 0, "the first one is always met again"
    monkeypatch.setattr("analyzer.service.gc._AT_A_TIME", 2)
    assert collect(database, content, keep_s=-1).jobs == 2
    assert [job["id"] for job in client.get("/api/v1/jobs").json()["items"]] == made[:1]


@pytest.mark.sqlite_alone
@pytest.mark.parametrize("by", ["user", "retention"])
def test_the_key_of_a_job_that_is_gone_makes_a_new_one(
    client: httpx.Client, upload: Callable[..., str], database: Database, content: ContentStore,
    by: str,
) -> None:  # fmt: skip
    """It was answered with the job that was gone."""
    body = {"kind": "search", "model": upload(), "options": {"latency_budget": "50ms"}}
    made = []
    for _ in range(2):
        done = client.post("/api/v1/jobs", json=body, headers={"Idempotency-Key": "a-key"})
        assert done.status_code == 201
        made.append(done.json()["id"])
        assert client.get(f"/api/v1/jobs/{made[-1]}").status_code == 200
        client.post(f"/api/v1/jobs/{made[-1]}/cancel")
        if by == "user":
            assert client.delete(f"/api/v1/jobs/{made[-1]}").status_code == 204
        else:
            assert collect(database, content, keep_s=-1).jobs == 1
    assert made[0] != made[1]


@pytest.mark.sqlite_alone
def test_compose_starts_retention_at_once_and_again_after_it_failed(tmp_path: Path) -> None:
    """It slept first: a machine that is started each day never came to it."""
    scripts = {
        "analyze": 'echo "analyze $*" >> said\n[ $(grep -c analyze said) != 1 ]',
        # The third one ends the loop.
        "sleep": 'echo "sleep $*" >> said\n[ $(grep -c sleep said) != 3 ] || kill $PPID',
    }
    for name, script in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    entrypoint = yaml.safe_load(COMPOSE.read_text())["services"]["gc"]["entrypoint"]
    path = f"{tmp_path}:{os.environ['PATH']}"
    subprocess.run(entrypoint, cwd=tmp_path, env={"PATH": path}, timeout=30)
    gc = "analyze service gc --data=/data"
    said = (tmp_path / "said").read_text().splitlines()
    assert said == [gc, "sleep 600", gc, "sleep 86400", gc, "sleep 86400"]
