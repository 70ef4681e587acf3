"""SQLite files that other programs hold for a moment: opened after a wait, not refused."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from analyzer.errors import StoreError
from analyzer.store.results import open_store

HELD_S = 0.4


def open_results(url: str) -> None:
    open_store(url).close()


def open_service(url: str) -> None:
    pytest.importorskip("alembic", reason="the extra 'service' is not installed")
    from analyzer.service.database import open_service_database

    open_service_database(url).close()


OPENERS = pytest.mark.parametrize("opened", [open_results, open_service])


@contextmanager
def writing(path: Path) -> Iterator[sqlite3.Connection]:
    """Another program in a transaction that writes; the file is not in WAL mode yet."""
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        other.execute("BEGIN IMMEDIATE")
        other.execute("CREATE TABLE theirs (number INTEGER)")
        yield other
    finally:
        other.close()


@OPENERS
def test_a_new_file_that_another_program_writes_is_waited_for(
    tmp_path: Path, sqlite_url: str, opened: Callable[[str], None]
) -> None:
    opened(f"sqlite:///{tmp_path / 'imports.db'}")  # takes longer than the file is held
    with writing(tmp_path / "results.db") as other:
        ends = threading.Timer(HELD_S, lambda: other.execute("COMMIT"))
        begun = time.monotonic()
        ends.start()
        opened(sqlite_url)
        assert time.monotonic() - begun >= HELD_S, "it was opened while the other one wrote"
        ends.join()
        assert other.execute("SELECT count(*) FROM theirs").fetchone() == (0,)
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_file_that_is_held_for_ever_is_told_after_the_wait(
    tmp_path: Path, sqlite_url: str
) -> None:
    with writing(tmp_path / "results.db"):
        begun = time.monotonic()
        with pytest.raises(StoreError, match="locked by another program"):
            open_store(sqlite_url, busy_timeout_s=HELD_S)
        assert time.monotonic() - begun >= HELD_S


@OPENERS
def test_programs_that_open_one_fresh_file_at_once(
    tmp_path: Path, opened: Callable[[str], None]
) -> None:
    opened(f"sqlite:///{tmp_path / 'imports.db'}")
    together = threading.Barrier(4)

    def start(number: int) -> None:
        together.wait()
        opened(f"sqlite:///{tmp_path / f'{number}.db'}")

    with ThreadPoolExecutor(4) as pool:
        for number in range(10):
            list(pool.map(start, [number] * 4))


def test_optunas_tables_wait_for_another_program(
    tmp_path: Path, sqlite_url: str, make: ModuleType
) -> None:
    """Making them and each of their transactions, as ours do."""
    import optuna

    from analyzer.store.optuna_storage import open_optuna_storage

    with open_store(sqlite_url) as store:
        other = sqlite3.connect(
            tmp_path / "results.db", isolation_level=None, check_same_thread=False
        )

        def held(use: Callable[[], object]) -> object:
            other.execute("BEGIN IMMEDIATE")
            ends = threading.Timer(HELD_S, lambda: other.execute("COMMIT"))
            begun = time.monotonic()
            ends.start()
            made = use()
            assert time.monotonic() - begun >= HELD_S
            ends.join()
            return made

        storage = held(lambda: open_optuna_storage(store))
        study = optuna.create_study(storage=storage)  # type: ignore[arg-type]
        trial = held(study.ask)
        assert isinstance(trial, optuna.Trial)
        held(lambda: trial.suggest_float("x", 0, 1))
        held(lambda: study.tell(trial, 1.0))
        held(lambda: store.create_study(make.make_record()))
        assert [each.params for each in study.trials] == [trial.params]
        storage.engine.dispose()  # type: ignore[attr-defined]
        other.close()
