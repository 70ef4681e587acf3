"""Databases of older versions open, and their studies tell what they told.

``data/schema_1.db`` and the reports beside it were written by commit e130f86 (schema 1): a finished
study with a verification, and one that was interrupted.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from analyzer.report.document import build_document
from analyzer.report.entries import make_report
from analyzer.store.results import open_store

DATA = Path(__file__).parent / "data"


@pytest.fixture
def schema_1(tmp_path: Path) -> Path:
    return Path(shutil.copy(DATA / "schema_1.db", tmp_path))


@pytest.mark.parametrize("name", ["digits-1", "digits-2"])
def test_a_study_of_schema_1_has_the_same_report(schema_1: Path, name: str) -> None:
    expected = json.loads((DATA / f"schema_1.{name}.json").read_text())
    for _ in range(2):  # upgraded once, then simply opened
        with open_store(f"sqlite:///{schema_1}", create=False) as store:
            result = store.load_result(name)
            assert build_document(make_report(result)) == expected
            assert store.study(name).options["budget_s"] == 60.0


def test_an_upgraded_database_has_the_tables_of_a_new_one(schema_1: Path, tmp_path: Path) -> None:
    fresh = tmp_path / "fresh.db"
    tables = []
    for path in (schema_1, fresh):
        open_store(f"sqlite:///{path}").close()
        with sqlite3.connect(path) as connection:
            query = "SELECT name FROM sqlite_master WHERE name LIKE 'tritune%' ORDER BY name"
            tables.append(connection.execute(query).fetchall())
        connection.close()
    assert tables[0] == tables[1]


def test_a_result_of_schema_1_is_no_longer_among_the_options(schema_1: Path) -> None:
    with open_store(f"sqlite:///{schema_1}") as store:
        assert "facts" not in store.study("digits-1").options
        (verification,) = store.verifications("digits-1")
        claim = verification.claim
        assert claim.configuration.config_id == store.load_result("digits-1").recommended_id
        assert (claim.rate_rps, claim.sla.latency_budget_ms) == (556.2, 50.0)
