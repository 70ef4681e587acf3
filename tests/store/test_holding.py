"""A study is searched by one command at a time, on both databases, and a kill gives it up."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from analyzer.errors import StoreError
from analyzer.store.results import ResultStore, open_store


@pytest.fixture
def store(store_url: str) -> Iterator[ResultStore]:
    with open_store(store_url) as store:
        yield store


HOLDER = """
import sys, time
from analyzer.store.results import open_store
store = open_store(sys.argv[1])
store.hold_study(sys.argv[2])
print("held", flush=True)
time.sleep(60.0)
"""


@contextmanager
def held_elsewhere(url: str, study: str) -> Iterator[None]:
    """Another process has the study, and is killed at the end."""
    command = [sys.executable, "-c", HOLDER, url, study]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "held\n"
            yield
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(30)


def test_a_study_that_is_searched_is_refused_until_its_process_ends(
    store: ResultStore, make: ModuleType
) -> None:
    name = store.create_study(make.make_record()).name
    other = store.create_study(make.make_record()).name
    with held_elsewhere(store.url_for_optuna(), name):
        with pytest.raises(StoreError, match="being searched by another command") as caught:
            store.hold_study(name)
        assert "--resume" in caught.value.hint and caught.value.exit_code == 2
        store.hold_study(other)
    store.hold_study(name)


def test_a_link_leads_to_the_same_studies(
    tmp_path: Path, sqlite_url: str, make: ModuleType
) -> None:
    link = tmp_path / "link.db"
    link.symlink_to("results.db")
    with open_store(sqlite_url) as store:
        name = store.create_study(make.make_record()).name
        refused = pytest.raises(StoreError, match="being searched by another command")
        with held_elsewhere(f"sqlite:///{link}", name), refused:
            store.hold_study(name)
        store.hold_study(name)


def test_nothing_is_left_beside_the_database(
    tmp_path: Path, sqlite_url: str, make: ModuleType
) -> None:
    with open_store(sqlite_url) as store:
        name = store.create_study(make.make_record()).name
        store.hold_study(name)
        assert list(tmp_path.glob("*.lock"))
    assert not list(tmp_path.glob("*.lock"))
    with open_store(sqlite_url) as store:
        store.hold_study(name)


def test_what_was_given_up_can_be_had_at_once(store_url: str, make: ModuleType) -> None:
    with open_store(store_url) as store:
        name = store.create_study(make.make_record()).name
    for _ in range(3):
        with open_store(store_url) as store:
            store.hold_study(name)
