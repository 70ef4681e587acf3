"""What an operator does: migrations, retention, tokens on the command line."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text, update

from analyzer.cli.main import main
from analyzer.errors import StoreError
from analyzer.hardware import gpus
from analyzer.service import auth, serve
from analyzer.service.content import ContentStore
from analyzer.service.database import VERSION_TABLE, open_service_database
from analyzer.service.gc import collect
from analyzer.service.schema import JOBS, METADATA, OBJECTS
from analyzer.service.sessions import begin_session, find_session
from analyzer.service.studies import keep_study, optuna_name
from analyzer.service.worker import this_device
from analyzer.store.database import Database
from analyzer.store.optuna_storage import open_optuna_storage
from analyzer.store.results import ResultStore, open_store


def test_the_migrations_make_the_tables_of_the_schema(database: Database) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    with database.reading() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table": VERSION_TABLE,
                "compare_type": True,
                "include_name": lambda name, kind, _: (
                    kind != "table" or str(name).startswith("service_")
                ),
            },
        )
        assert compare_metadata(context, METADATA) == []


def test_a_database_of_a_newer_version_is_left_alone(database: Database, store_url: str) -> None:
    open_service_database(store_url, upgrade=False).close()
    with database.writing() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    with pytest.raises(StoreError, match="9999"):
        open_service_database(store_url)


def test_a_worker_does_not_make_the_tables(store_url: str) -> None:
    with pytest.raises(StoreError, match="no tables"):
        open_service_database(store_url, upgrade=False)


def test_a_worker_makes_neither_database_nor_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong path left an empty database and an empty folder, where the next command took them."""

    def refused(store: Path, data: Path) -> str:
        with pytest.raises(SystemExit) as end:
            main(["worker", "--store", f"sqlite:///{store}", "--data", str(data)])
        assert end.value.code == 2
        return capsys.readouterr().err

    assert "w.db does not exist" in refused(tmp_path / "w.db", tmp_path / "d")
    assert not any(tmp_path.iterdir())
    (tmp_path / "w.db").touch()
    assert "d is not there" in refused(tmp_path / "w.db", tmp_path / "d")
    assert "w.db is no folder" in refused(tmp_path / "w.db", tmp_path / "w.db")
    (tmp_path / "d").mkdir()
    handlers = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert "no tables" in refused(tmp_path / "w.db", tmp_path / "d")
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
    assert not any((tmp_path / "d").iterdir())


@pytest.mark.sqlite_alone
def test_retention_makes_and_upgrades_no_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A timer starts it: it upgraded the tables under the processes of the old version."""

    def refused(*more: str) -> None:
        with pytest.raises(SystemExit) as end:
            main(["service", "gc", "--data", str(tmp_path / "d"), *more])
        assert end.value.code == 2 and "no tables of this version" in capsys.readouterr().err

    refused()
    refused("--store", f"sqlite:///{tmp_path / 'w.db'}")
    assert not any(tmp_path.iterdir())
    (tmp_path / "w.db").touch()
    refused("--store", f"sqlite:///{tmp_path / 'w.db'}")
    with contextlib.closing(sqlite3.connect(tmp_path / "w.db")) as connection:
        assert connection.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    assert not (tmp_path / "d").exists()


def test_a_worker_measures_on_the_first_gpu_that_it_may_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = tuple(gpus.GpuIdentity(uuid=f"GPU-{n}", index=n, name=f"T{n}") for n in range(2))
    monkeypatch.setattr(gpus, "list_gpus", lambda *, nvml=None: found)
    for shown, device in ((None, "GPU-0"), ("1", "GPU-1"), ("GPU-1,GPU-0", "GPU-1")):
        monkeypatch.delenv(gpus.VISIBLE, raising=False)
        if shown is not None:
            monkeypatch.setenv(gpus.VISIBLE, shown)
        assert (this_device().id, this_device().kind) == (device, "gpu")
    monkeypatch.setenv(gpus.VISIBLE, "")
    assert this_device().kind == "cpu", "all are hidden"


def test_retention_takes_old_jobs_and_what_nothing_needs(
    client: httpx.Client, submit: Callable[..., str], working: Any, wait_for: Any,
    database: Database, content: ContentStore,
) -> None:  # fmt: skip
    old, young = submit(), submit(say="young")
    with working():
        wait_for(old, "SUCCEEDED"), wait_for(young, "SUCCEEDED")
    waiting = submit(say="waiting")
    model = client.get(f"/api/v1/jobs/{waiting}").json()["model"]
    with database.writing() as connection:
        connection.execute(update(OBJECTS).values(created_at=OBJECTS.c.created_at - 7200))
        connection.execute(
            update(JOBS).where(JOBS.c.id == old).values(finished_at=JOBS.c.finished_at - 1e6)
        )
    done = collect(database, content, keep_s=1e5)
    # Its result and study's snapshot were its own; its report and repository are the other's too.
    assert done.jobs == 1
    assert client.get(f"/api/v1/jobs/{old}").status_code == 404
    assert client.get(f"/api/v1/jobs/{young}/artifacts/repository.tar").status_code == 200
    assert content.path(model).is_file(), "a job that waits needs its model"
    collect(database, content, keep_s=-1)
    with database.writing() as connection:
        # What they left stays for an hour.
        connection.execute(update(OBJECTS).values(created_at=OBJECTS.c.created_at - 7200))
    collect(database, content, keep_s=-1)
    assert client.get(f"/api/v1/jobs/{young}").status_code == 404
    assert client.get(f"/api/v1/jobs/{waiting}").status_code == 200
    uploads = {item["id"] for item in client.get("/api/v1/models").json()["items"]}
    with database.reading() as connection:
        kept = set(connection.execute(OBJECTS.select()).scalars())
    assert kept == uploads


def test_a_worker_needs_the_services_folder(
    client: httpx.Client, submit: Callable[..., str], store_url: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """With another one each job would fail, and it would take them all."""
    submit()
    (tmp_path / "unmounted").mkdir()
    handlers = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        with pytest.raises(SystemExit) as end:
            main(["worker", "--store", store_url, "--data", str(tmp_path / "unmounted")])
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
    assert end.value.code == 2 and "none of the files" in capsys.readouterr().err
    assert not any((tmp_path / "unmounted").iterdir())


def test_a_job_stays_as_long_as_another_one_needs_it(
    client: httpx.Client, submit: Callable[..., str], working: Any, wait_for: Any,
    database: Database, content: ContentStore,
) -> None:  # fmt: skip
    begun = submit(outcomes=1)
    with working():
        wait_for(begun, "SUCCEEDED")
    for kind in ("search", "verify"):
        body: dict[str, Any] = {"kind": kind, "job": begun}
        if kind == "search":
            body["options"] = client.get(f"/api/v1/jobs/{begun}").json()["options"]
        waiting = client.post("/api/v1/jobs", json=body).json()["id"]
        refused = client.delete(f"/api/v1/jobs/{begun}")
        assert refused.status_code == 409 and waiting in refused.json()["detail"]
        assert collect(database, content, keep_s=-1).jobs == 0
        client.post(f"/api/v1/jobs/{waiting}/cancel")
        assert client.delete(f"/api/v1/jobs/{waiting}").status_code == 204
    assert client.delete(f"/api/v1/jobs/{begun}").status_code == 204


def test_a_token_is_made_listed_and_revoked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--data", str(tmp_path / "d")]

    def run(*arguments: str) -> str:
        with pytest.raises(SystemExit) as end:
            main(["service", "token", *arguments, *data])
        assert end.value.code == 0
        return capsys.readouterr().out

    made = json.loads(run("create", "--name", "ci", "--project", "team", "--json"))
    assert len(made["token"]) >= 43 and made["scope"] == "write"
    listed = run("list", "--project", "team")
    assert made["id"] in listed and "good" in listed and made["token"] not in listed
    run("revoke", made["id"], "--project", "team")
    assert "revoked" in run("list", "--project", "team")


def test_a_login_renews_one_token_and_its_end_ends_the_sessions(database: Database) -> None:
    def admit(name: str, scope: auth.Scope = "read") -> tuple[str, str]:
        with database.writing() as connection:
            principal = auth.admit(
                connection, subject="issuer\nalice", project="vision", name=name, scope=scope,
                expires_in_s=60,
            )  # fmt: skip
            assert principal.token_id is not None
            return principal.token_id, begin_session(connection, principal.token_id).cookie

    def who(cookie: str) -> auth.Principal | None:
        with database.reading() as connection:
            found = find_session(connection, cookie)
        return found and found[0]

    token, first = admit("oidc:" + "x" * 500)
    again, second = admit("oidc:alice", "admin")
    assert token == again, "one for each subject and project"
    for cookie in (first, second):
        found = who(cookie)
        assert found is not None and (found.actor, found.scope) == ("oidc:alice", "admin")
    with database.writing() as connection:
        assert not auth.revoke_token(connection, "default", token), "of another project"
        assert auth.revoke_token(connection, "vision", token)
    _, third = admit("oidc:alice")
    assert who(first) is None and who(second) is None and who(third) is not None


@pytest.mark.parametrize(
    "arguments",
    [
        ["--name", ""], ["--name", "  "], ["--name", "a\nb"], ["--name", "x" * 129],
        ["--name", "ab\u202ecd"], ["--name", "ci", "--expires", "0s"],
    ],
)  # fmt: skip
def test_a_token_that_no_list_could_show_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["service", "token", "create", *arguments, "--data", str(tmp_path / "d")])
    told = capsys.readouterr()
    assert end.value.code == 2 and "oken" in told.err and told.out == ""


def test_a_study_without_trials_of_optunas_is_no_warning(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with open_store(f"sqlite:///{tmp_path / 'study.db'}"):
        keep_study(database, tmp_path / "study.db", "s", "default/s/j")
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_optunas_own_words_are_not_in_the_operators_log(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import optuna

    source = f"sqlite:///{tmp_path / 'study.db'}"
    with open_store(source) as store:
        storage = open_optuna_storage(store)
        study = optuna.create_study(study_name="s", storage=storage)
        study.add_trial(optuna.trial.create_trial(value=1.0))
        storage.engine.dispose()
    optuna.logging.set_verbosity(optuna.logging.INFO)  # as in a worker that begins
    optuna.logging.enable_propagation()
    try:
        with caplog.at_level("INFO"):
            keep_study(database, tmp_path / "study.db", "s", "default/s/j")
    finally:
        optuna.logging.disable_propagation()
        optuna.logging.set_verbosity(optuna.logging.WARNING)
    assert [record.getMessage() for record in caplog.records] == []
    storage = open_optuna_storage(ResultStore(database))
    (trial,) = optuna.load_study(study_name="default/s/j", storage=storage).trials
    assert trial.value == 1.0
    storage.engine.dispose()


def test_retention_leaves_studies_of_others_in_the_same_database(
    database: Database, content: ContentStore, submit: Callable[..., str]
) -> None:
    """Every study with two slashes in its name was taken for one of the service's."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    there, gone = submit(), "a" * 32
    kept = [
        optuna_name("default", "s", there), "team/resnet/run-3", f"team/resnet/{gone}",
        "default/resnet/run-3", f"default/{gone}", f"default/a/b/{gone}", "resnet",
    ]  # fmt: skip
    storage = open_optuna_storage(ResultStore(database))
    for name in (*kept, optuna_name("default", "s", gone)):
        optuna.create_study(study_name=name, storage=storage)
    collect(database, content, keep_s=1e6)
    left = optuna.get_all_study_names(storage)
    storage.engine.dispose()
    assert sorted(left) == sorted(kept)


class Working:
    """Stands for a worker's process, which takes a while to end."""

    returncode = None

    def poll(self) -> None:
        return None

    def terminate(self) -> None:
        return None

    def wait(self, timeout: float) -> int:
        time.sleep(0.3)
        return 0


def test_a_worker_that_cannot_be_started_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All of them ended, and nobody was told."""
    tried: list[int] = []

    def start(_: serve.ServiceOptions) -> Working:
        tried.append(len(tried))
        if tried[-1] in (1, 2):
            raise BlockingIOError(errno.EAGAIN, "no process is left")
        return Working()

    monkeypatch.setattr(serve, "_start_worker", start)
    monkeypatch.setattr(serve, "_RESTART_S", 0.01)
    options = serve.ServiceOptions(store_url="sqlite:///x.db", data=tmp_path, workers=2)

    async def run() -> int:
        keeping = asyncio.create_task(serve._keep_workers(options))
        while len(tried) < 4:
            assert not keeping.done()
            await asyncio.sleep(0.01)
        keeping.cancel()
        turns = 0
        while not keeping.done():
            turns += 1
            await asyncio.sleep(0.01)
        return turns

    assert asyncio.run(run()) > 5, "its end stopped everything else"
    assert tried == [0, 1, 2, 3] and caplog.text.count("no process is left") == 2
