"""``analyze doctor``: where the twin's constants come from."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from facts_example import MODEL, SLA

from analyzer.cli.machine import machine_cache
from analyzer.hardware.machine import inspect_machine
from analyzer.store.database import open_database
from analyzer.store.records import StudyRecord
from analyzer.store.results import open_store
from analyzer.twin.machine_constants import FALLBACK, MachineConstants

Call = Callable[..., Any]

MEASURED = MachineConstants(
    overhead_ms=0.41,
    host_ms=0.23,
    interference=((2, 1.07),),
    slowness=(1.0, 1.0),
    wake_ms_p99=0.2,
    witness_share=0.003,
    measured_at=time.time(),
)


def test_fallbacks_are_named_as_such(call: Call) -> None:
    answer = call("doctor")
    assert answer.code == 0 and "fitted on another machine" in answer.stdout
    assert "\nWhat the simulation assumes about this machine\n" in answer.stdout
    found = call("doctor", "--json").document["calibration"]
    assert found["source"] == "fallback" and found["measured_at"] is None
    assert found["overhead_ms"] == FALLBACK.overhead_ms and found["interference"] is None


def test_a_database_is_told_without_its_password(
    call: Call, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """``postgresql://me:secret@host/db, 3 studies`` was printed."""
    with open_store(f"sqlite:///{folder}/results.db"):
        pass
    monkeypatch.setattr(
        "analyzer.store.results.open_database",
        lambda url, **options: open_database(f"sqlite:///{folder}/results.db", **options),
    )
    for url in ("postgresql://me:secret@host/db", "postgresql://host/db?password=secret"):
        answer = call("doctor", "--store", url)
        assert "***" in answer.stdout and ", 0 studies" in answer.stdout
        assert "secret" not in answer.stdout + answer.stderr


def test_calibrating_measures_and_keeps(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def measured(*, cores: int, on_phase: object) -> MachineConstants:
        seen.append(cores)
        return MEASURED

    monkeypatch.setattr("analyzer.measure.machine.measure_machine", measured)
    answer = call("doctor", "--calibrate")
    assert answer.code == 0 and seen == [inspect_machine().cores]
    assert "measured here" in answer.stdout and "0.41 ms" in answer.stdout
    assert "steady while it was watched" in answer.stdout
    assert "watching the machine takes of one core" in answer.stdout
    found = call("doctor", "--json").document["calibration"]
    assert (found["source"], found["host_ms_per_request"]) == ("measured", 0.23)
    assert found["interference"] == {"2": 1.07} and found["speed_variation"] is None
    assert len(seen) == 1, "kept"
    machine_cache(inspect_machine()).save(replace(MEASURED, measured_at=time.time() - 8 * 86400))
    assert call("doctor", "--json").document["calibration"]["source"] == "fallback"


def test_studies_are_counted_as_they_are_said(call: Call) -> None:
    with open_store("sqlite:///results.db") as store:
        store.create_study(StudyRecord(model=MODEL, sla=SLA))
        assert ", 1 study " in call("doctor").stdout
        store.create_study(StudyRecord(model=MODEL, sla=SLA))
        assert ", 2 studies " in call("doctor").stdout
