"""Databases that are missing, foreign, locked, full, old, new or cut off in the middle."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from analyzer.errors import AnalyzerError, StoreError
from analyzer.store import schema
from analyzer.store.engine import file_url
from analyzer.store.results import ResultStore, open_store
from benchlib.postgres import PostgresServer


def raises_store_error(url: str, match: str, **options: object) -> StoreError:
    with pytest.raises(StoreError, match=match) as caught:
        open_store(url, **options)  # type: ignore[arg-type]
    assert caught.value.hint and caught.value.exit_code == 2
    return caught.value


def test_urls_that_name_no_database(tmp_path: Path) -> None:
    for url in ("", "results.db", "sqlite", "://"):
        raises_store_error(url, "not the URL of a database")
    for url in ("sqlite://", "sqlite:///:memory:"):
        raises_store_error(url, "names no file")
    for url in ("mysql://me:secret@host/db", "mysql://host/db?user=me&password=secret"):
        error = raises_store_error(url, "only SQLite and PostgreSQL")
        assert "secret" not in str(error)
    raises_store_error("postgresql+nodriver://host/db", "nodriver")


@pytest.mark.parametrize("name", ["a%20b.db", "50%.db", "what?.db", "é x#y.db"])
def test_the_url_of_a_file_names_that_file(tmp_path: Path, name: str) -> None:
    """A URL is percent-decoded: a path with %20 in it meant another file."""
    with open_store(file_url(tmp_path / name)) as store:
        assert store.place == str(tmp_path / name)
    assert (tmp_path / name).is_file()
    with open_store(f"sqlite:///{tmp_path}/a%20b%25.db"):
        assert (tmp_path / "a b%.db").is_file()


def test_absent_results_are_not_made_by_a_reader(sqlite_url: str, tmp_path: Path) -> None:
    raises_store_error(sqlite_url, "no results yet.*does not exist", create=False)
    assert not (tmp_path / "results.db").exists()
    sqlite3.connect(tmp_path / "results.db").close()  # an empty file is a database without tables
    raises_store_error(sqlite_url, "no results yet in the database", create=False)


def test_a_folder_in_the_way_or_missing(tmp_path: Path) -> None:
    raises_store_error(f"sqlite:///{tmp_path}", "is a folder")
    error = raises_store_error(f"sqlite:///{tmp_path}/no/results.db", "does not exist")
    assert "mkdir -p" in error.hint
    error = raises_store_error(f"sqlite:///{tmp_path}/a b/results.db", "does not exist")
    assert f"mkdir -p '{tmp_path}/a b'" in error.hint
    (tmp_path / "file").touch()
    raises_store_error(f"sqlite:///{tmp_path}/file/results.db", "does not exist")


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"not a database at all " * 500)
    before = path.read_bytes()
    raises_store_error(f"sqlite:///{path}", "is not a SQLite database")
    assert path.read_bytes() == before


def test_an_unwritable_folder(tmp_path: Path, make: ModuleType) -> None:
    code = "import sys; from analyzer.store.results import open_store\nopen_store(sys.argv[1])"
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o555)
    options = {}
    if os.geteuid() == 0:
        if not Path("/proc/sys").is_dir():
            pytest.skip("root may write everywhere, and there is no /proc/sys to try instead")
        folder = Path("/proc/sys")
    process = make.run_python(code, f"sqlite:///{folder}/results.db", **options)
    _, said = process.communicate(timeout=60)
    assert "StoreError: The results database" in said
    assert "cannot be opened" in said or "is not writable" in said


def test_a_locked_database(sqlite_url: str, tmp_path: Path, make: ModuleType) -> None:
    with open_store(sqlite_url) as store:
        name = store.create_study(make.make_record()).name
    other = sqlite3.connect(tmp_path / "results.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        with open_store(sqlite_url, busy_timeout_s=0.05) as store:
            assert store.list_studies()[0].name == name  # readers are not held up
            with pytest.raises(StoreError, match="locked by another program"):
                store.add_outcome(name, 0, {}, make.make_failure())
            other.execute("ROLLBACK")
            store.add_outcome(name, 0, {}, make.make_failure())
            assert len(store.outcomes(name)) == 1
    finally:
        other.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if os.geteuid() != 0 or not mount or not umount:
        pytest.skip("only root may mount a small disk")
    command = [mount, "-t", "tmpfs", "-o", "size=1m", "tritune-test", str(folder)]
    if subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("no small disk can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run([umount, "-l", str(folder)], check=True)


def test_a_full_disk_loses_nothing(small_disk: Path, make: ModuleType) -> None:
    stored = 0
    with open_store(f"sqlite:///{small_disk}/results.db") as store:
        name = store.create_study(make.make_record()).name
        with pytest.raises(StoreError, match=r"disk is full|disk reported an error") as caught:
            for number in range(1000):
                log = make.make_log(3000)
                store.add_outcome(name, number, {}, make.make_measurement(), logs=[log])
                stored += 1
        assert "--resume" in caught.value.hint
        assert stored > 0
        assert len(store.outcomes(name)) == stored
        assert len(store.request_logs(name, stored - 1)) == 1
    with open_store(f"sqlite:///{small_disk}/results.db", create=False) as store:
        assert [s.trial_number for s in store.outcomes(name)] == list(range(stored))


def test_a_process_killed_while_it_writes(
    sqlite_url: str, tmp_path: Path, make: ModuleType
) -> None:
    code = """
import sys, store_objects as made
from analyzer.store.results import open_store
with open_store(sys.argv[1]) as store:
    store.create_study(made.make_record("s"))
    for number in range(100_000):
        store.add_outcome("s", number, {}, made.make_measurement(), logs=[made.make_log()])
        print(number, flush=True)
"""
    for _ in range(3):
        (tmp_path / "results.db").unlink(missing_ok=True)
        process = make.run_python(code, sqlite_url)
        committed = -1
        for line in process.stdout:
            committed = int(line)
            if committed >= 20:
                process.send_signal(signal.SIGKILL)
                break
        committed = max([committed, *map(int, process.stdout.read().split())])
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        with open_store(sqlite_url, create=False) as store:
            numbers = [s.trial_number for s in store.outcomes("s")]
            assert numbers == list(range(len(numbers)))
            assert len(numbers) in (committed + 1, committed + 2)  # told of, or just committed
            assert all(len(store.request_logs("s", number)) == 1 for number in numbers)
            store.add_outcome("s", 10**6, {}, make.make_failure())
        check = sqlite3.connect(tmp_path / "results.db")
        assert check.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        check.close()


def test_a_damaged_row_is_named(sqlite_url: str, tmp_path: Path, make: ModuleType) -> None:
    with open_store(sqlite_url) as store:
        name = store.create_study(make.make_record()).name
        store.add_outcome(name, 0, {}, make.make_measurement(), logs=[make.make_log()])
        edit = sqlite3.connect(tmp_path / "results.db")
        with edit:
            edit.execute("UPDATE tritune_outcomes SET load_tests = x'00'")
            edit.execute("UPDATE tritune_request_logs SET body = x'28b52ffd'")
        edit.close()
        with pytest.raises(StoreError, match="outcome 1 of study 'digits-1' cannot be read"):
            store.outcomes(name)
        with pytest.raises(StoreError, match="request log 1"):
            store.request_logs(name, 0)
        assert len(store.trial_rows(name)) == 1


# --- schemas of other versions -------------------------------------------------------------------


def test_a_newer_schema_is_refused(sqlite_url: str, tmp_path: Path, make: ModuleType) -> None:
    with open_store(sqlite_url) as store:
        store.create_study(make.make_record())
    edit = sqlite3.connect(tmp_path / "results.db")
    with edit:
        edit.execute("UPDATE tritune_version SET schema_number = 99")
    edit.close()
    for create in (True, False):
        error = raises_store_error(sqlite_url, f"schema 99; .*up to {schema.SCHEMA}", create=create)
        assert "Update tritune" in error.hint


def make_schema_0(path: Path, record: dict[str, object], body: str) -> None:
    """A database as before the first release: fewer tables, fewer columns, no indexes."""
    old = sqlite3.connect(path)
    with old:
        old.executescript(
            """
            CREATE TABLE tritune_version (id INTEGER PRIMARY KEY, schema_number INTEGER NOT NULL);
            INSERT INTO tritune_version VALUES (1, 0);
            CREATE TABLE tritune_studies (
                id INTEGER PRIMARY KEY AUTOINCREMENT, name VARCHAR(255) NOT NULL UNIQUE,
                model_name VARCHAR(255) NOT NULL, status VARCHAR(32) NOT NULL,
                started_at VARCHAR(40) NOT NULL, seed VARCHAR(80), model TEXT NOT NULL,
                sla TEXT NOT NULL, options TEXT NOT NULL, provenance TEXT NOT NULL);
            CREATE TABLE tritune_outcomes (
                id INTEGER PRIMARY KEY AUTOINCREMENT, study_id INTEGER NOT NULL,
                trial_number INTEGER NOT NULL, role VARCHAR(32) NOT NULL,
                state VARCHAR(16) NOT NULL, config_id VARCHAR(12) NOT NULL,
                variant VARCHAR(64) NOT NULL, created_at VARCHAR(40) NOT NULL,
                params TEXT NOT NULL, body TEXT NOT NULL, load_tests BLOB);
            """
        )
        names = [name for name in record if name not in ("verdict",)]
        marks = ", ".join("?" * len(names))
        old.execute(
            f"INSERT INTO tritune_studies ({', '.join(names)}) VALUES ({marks})",
            [record[name] for name in names],
        )
        old.execute(
            "INSERT INTO tritune_outcomes VALUES (1, 1, 4, 'trial', 'failed', 'c', 'fp32', 't', "
            "'{}', ?, NULL)",
            [body],
        )
    old.close()


def test_an_older_schema_is_upgraded(sqlite_url: str, tmp_path: Path, make: ModuleType) -> None:
    import dataclasses

    from analyzer.store import codec, rows

    record = dataclasses.replace(make.make_record("old"), started_at="2026-01-01")
    body = codec.dumps(make.make_failure())
    make_schema_0(tmp_path / "results.db", rows.study_row(record), body)
    for _ in range(2):  # upgraded once, then simply opened
        with open_store(sqlite_url) as store:
            assert store.study("old") == record
            assert store.outcomes("old")[0].outcome == make.make_failure()
            assert store.trial_rows("old")[0].edge_rps is None
            name = store.create_study(make.make_record()).name
            store.add_outcome(name, 0, {}, make.make_measurement(), logs=[make.make_log()])
            store.put_cache("k", "k", {})
    check = sqlite3.connect(tmp_path / "results.db")
    assert check.execute("SELECT schema_number FROM tritune_version").fetchall() == [
        (schema.SCHEMA,)
    ]
    fresh = tmp_path / "fresh.db"
    open_store(f"sqlite:///{fresh}").close()
    other = sqlite3.connect(fresh)
    for kind in ("table", "index"):
        query = f"SELECT name FROM sqlite_master WHERE type = '{kind}' AND name LIKE 'tritune%'"
        assert set(check.execute(query)) == set(other.execute(query))
    for connection in (check, other):
        connection.close()


def test_an_upgrade_that_fails_changes_nothing(
    sqlite_url: str, tmp_path: Path, make: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    from analyzer.store import rows

    make_schema_0(tmp_path / "results.db", rows.study_row(make.make_record("old")), "{}")

    def fail(connection: object) -> None:
        schema._add_what_is_missing(connection)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setitem(schema._UPGRADES, 0, fail)
        with pytest.raises(KeyboardInterrupt):
            open_store(sqlite_url)
    check = sqlite3.connect(tmp_path / "results.db")
    assert check.execute("SELECT schema_number FROM tritune_version").fetchall() == [(0,)]
    tables = "SELECT count(*) FROM sqlite_master WHERE name = 'tritune_cache'"
    assert check.execute(tables).fetchone() == (0,)
    check.close()
    open_store(sqlite_url).close()


# --- others in the same database -----------------------------------------------------------------


def test_optuna_and_several_studies_share_one_database(store_url: str, make: ModuleType) -> None:
    """Processes that start at once make both kinds of tables, and write side by side."""
    code = """
import sys, store_objects as made, optuna
from analyzer.store.optuna_storage import open_optuna_storage
from analyzer.store.results import open_store
optuna.logging.set_verbosity(optuna.logging.ERROR)
with open_store(sys.argv[1]) as store:
    name = store.create_study(made.make_record()).name
    storage = open_optuna_storage(store)
    study = optuna.create_study(study_name=name, storage=storage)
    for number in range(10):
        trial = study.ask()
        x = trial.suggest_float("x", 0, 1)
        store.add_outcome(name, trial.number, trial.params, made.make_measurement())
        study.tell(trial, x)
    assert [s.params for s in store.outcomes(name)] == [t.params for t in study.trials]
    storage.engine.dispose()
"""
    running = [make.run_python(code, store_url) for _ in range(4)]
    for process in running:
        _, said = process.communicate(timeout=100)
        assert process.returncode == 0, said
    with open_store(store_url) as store:
        assert [s.trials for s in store.list_studies()] == [10] * 4


@pytest.mark.postgres
def test_a_postgres_that_is_not_there_is_a_sentence(postgres_server: PostgresServer) -> None:
    error = raises_store_error(f"{postgres_server.url}/nobody", "does not exist")
    assert "secret" not in str(error)
    error = raises_store_error("postgresql://me:secret@127.0.0.1:1/db", "[Cc]onnection")
    assert "secret" not in f"{error}{error.hint}"


@pytest.mark.postgres
def test_a_postgres_that_goes_away_comes_back(postgres_url: str, make: ModuleType) -> None:
    import psycopg

    with open_store(postgres_url) as store:
        name = store.create_study(make.make_record()).name
        with psycopg.connect(postgres_url, autocommit=True) as killer:
            killer.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND datname = current_database()"
            )
        store.add_outcome(name, 0, {}, make.make_failure())  # a fresh connection
        assert len(store.outcomes(name)) == 1


def test_errors_cross_processes_with_their_hint() -> None:
    import pickle

    error = StoreError("a", hint="b")
    back: AnalyzerError = pickle.loads(pickle.dumps(error))
    assert (type(back), back.message, back.hint) == (StoreError, "a", "b")


def test_the_store_is_usable_from_threads(sqlite_url: str, make: ModuleType) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with open_store(sqlite_url) as store, ThreadPoolExecutor(4) as pool:
        name = store.create_study(make.make_record()).name

        def add(number: int) -> None:
            own: ResultStore = store
            own.add_outcome(name, number, {}, make.make_failure())

        list(pool.map(add, range(40)))
        assert sorted(s.trial_number for s in store.outcomes(name)) == list(range(40))
