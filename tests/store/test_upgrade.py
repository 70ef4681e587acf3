"""Databases of older versions open, and their studies tell what they told.

``data/schema_1.db`` and the reports beside it were written by commit e130f86 (schema 1): a finished
study with a verification, and one that was interrupted.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import sqlalchemy as sa

from analyzer.report.document import build_document
from analyzer.report.entries import make_report
from analyzer.store.results import open_store

DATA = Path(__file__).parent / "data"


def copy_tables(source: str, target: str) -> None:
    """Every table and row of one database into another, which is empty and of any kind."""
    tables = sa.MetaData()
    reader, writer = sa.create_engine(source), sa.create_engine(target)
    with reader.connect() as old, writer.begin() as new:
        tables.reflect(old)
        for table in tables.sorted_tables:
            for column in table.columns:
                column.type = column.type.as_generic()
        tables.create_all(new)
        for table in tables.sorted_tables:
            # Numbers are given out anew, in the same order, so that the sequences stand right.
            columns = [c for c in table.columns if c is not table.autoincrement_column]
            if rows := old.execute(sa.select(*columns)).mappings().all():
                new.execute(sa.insert(table), [dict(row) for row in rows])
    reader.dispose()
    writer.dispose()


@pytest.fixture
def schema_1(store_url: str, tmp_path: Path) -> str:
    """The database of schema 1, as a SQLite file and in PostgreSQL."""
    file = shutil.copy(DATA / "schema_1.db", tmp_path / "schema_1.db")
    if store_url.startswith("sqlite"):
        return f"sqlite:///{file}"
    copy_tables(f"sqlite:///{file}", store_url.replace("postgresql:", "postgresql+psycopg:"))
    return store_url


def of_before(found: Any, expected: Any) -> Any:
    """``found`` without the keys that documents did not have then."""
    if isinstance(found, dict) and isinstance(expected, dict):
        return {k: of_before(v, expected[k]) for k, v in found.items() if k in expected}
    if isinstance(found, list) and isinstance(expected, list):
        return [of_before(*pair) for pair in zip(found, expected, strict=True)]
    return found


@pytest.mark.parametrize("name", ["digits-1", "digits-2"])
def test_a_study_of_schema_1_has_the_same_report(schema_1: str, name: str) -> None:
    expected = json.loads((DATA / f"schema_1.{name}.json").read_text())
    for _ in range(2):  # upgraded once, then simply opened
        with open_store(schema_1, create=False) as store:
            found = build_document(make_report(store.load_result(name)))
            assert of_before(found, expected) == expected
            assert store.study(name).options["budget_s"] == 60.0


def test_an_upgraded_database_has_the_tables_of_a_new_one(schema_1: str, sqlite_url: str) -> None:
    found = []
    for url in (schema_1, sqlite_url):
        open_store(url).close()
        engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
        inspector = sa.inspect(engine)
        found.append(
            {
                name: {column["name"] for column in inspector.get_columns(name)}
                for name in inspector.get_table_names()
            }
        )
        engine.dispose()
    assert found[0] == found[1]


def test_a_result_of_schema_1_is_no_longer_among_the_options(schema_1: str) -> None:
    with open_store(schema_1) as store:
        assert "facts" not in store.study("digits-1").options
        (verification,) = store.verifications("digits-1")
        claim = verification.claim
        assert claim.configuration.config_id == store.load_result("digits-1").recommended_id
        assert (claim.rate_rps, claim.sla.latency_budget_ms) == (556.2, 50.0)


def test_an_upgraded_study_goes_on(schema_1: str) -> None:
    with open_store(schema_1) as store:
        before = store.outcomes("digits-2")
        store.set_status("digits-2", "running")
        store.add_outcome("digits-2", 7, {}, before[0].outcome)
        store.save_result(store.load_result("digits-2"))
        assert [item.trial_number for item in store.outcomes("digits-2")] == [0, 1, 7]


def test_an_upgraded_study_takes_labels_of_any_length(schema_1: str, make: ModuleType) -> None:
    with open_store(schema_1) as store:
        store.add_outcome("digits-2", 7, {}, make.make_wordy())
        assert store.outcomes("digits-2")[-1].outcome == make.make_wordy()
