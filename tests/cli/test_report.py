"""``analyze report``: what it prints, and the hints that it gives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from facts_example import MODEL, SLA, undecided_facts

from analyzer.cli import study_record
from analyzer.cli.report import report
from analyzer.cli.studies import studies
from analyzer.errors import UsageError
from analyzer.store.records import StudyRecord
from analyzer.store.results import open_store

FACTS = undecided_facts()


@pytest.fixture
def url(folder: Path) -> Iterator[str]:
    """A database with a study that ended without a proof."""
    place = f"sqlite:///{folder / 'sub.db'}"
    with open_store(place) as store:
        store.create_study(StudyRecord(name=FACTS.name, model=FACTS.model, sla=FACTS.sla))
        for outcome in FACTS.outcomes:
            store.add_outcome(FACTS.name, 0, {}, outcome)
        store.save_result(replace(FACTS, speed_factors=()))
    yield place


def told(url: str, *options: str) -> Result:
    return CliRunner().invoke(report, [FACTS.name, "--store", url, *options])


def test_json_is_one_document_or_refused(url: str, folder: Path) -> None:
    """``--json --format md`` printed Markdown."""
    for kind in ("md", "csv"):
        refused = told(url, "--json", "--format", kind)
        assert isinstance(refused.exception, UsageError) and refused.output == ""
        assert f"--format {kind}" in refused.exception.message
        assert "-o FILE" in refused.exception.hint
        written = told(url, "--json", "--format", kind, "-o", str(folder / "it"))
        assert json.loads(written.output)["study"] == FACTS.name
    for options in ((), ("--format", "json"), ("--format", "html")):
        assert json.loads(told(url, "--json", *options).output)["study"] == FACTS.name
    assert told(url, "--format", "md").output.startswith("# ")


def test_json_beside_a_file_has_the_commands_that_it_has_without(url: str, folder: Path) -> None:
    """The next command was one for another database."""
    beside = told(url, "--json", "-o", str(folder / "report.csv")).output
    assert beside == told(url, "--json").output
    assert f"--store {url}" in json.loads(beside)["closest"]["command"]


def test_the_hints_of_a_study_elsewhere_name_its_store(url: str) -> None:
    """They found no study, or said that results.db does not exist."""
    said = told(url, "--format", "md").output.replace("\\_", "_")
    assert f"analyze export {FACTS.name} --store {url} --config " in said
    assert f"--store {url} --study {FACTS.name} --resume" in said
    shown = CliRunner().invoke(studies, ["show", FACTS.name, "--store", url])
    assert f"--store {url} --study {FACTS.name} --resume" in shown.output


def test_a_study_began_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``analyze studies`` and its report told two times, a second apart."""

    class Clock(datetime):
        at = datetime(2026, 11, 26, tzinfo=UTC)

        @classmethod
        def now(cls, tz: Any = None) -> Any:
            cls.at += timedelta(seconds=1)
            return cls.at

    monkeypatch.setattr(study_record, "datetime", Clock)
    monkeypatch.setattr(study_record, "_told", lambda *_: {})
    constants = SimpleNamespace(sentence=lambda: "")
    monkeypatch.setattr(study_record, "constants_of", lambda *_, **__: constants)
    options: Any = SimpleNamespace(
        study="new",
        resume=False,
        seed=1,
        seed_given=True,
        ray_address=None,
        server="embedded",
        command="analyze",
        calibration_data=None,
    )
    machine: Any = SimpleNamespace(hardware={})
    with open_store(url) as store:
        record = study_record.begin_study(options, store, MODEL, SLA, machine, "cpu", None)
        assert record.started_at == record.provenance["started_at"]
