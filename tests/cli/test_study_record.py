"""What a resumed study goes on with."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from analyzer.cli.study_record import outcomes_to_keep
from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import Failure
from analyzer.domain.model import ModelInfo
from analyzer.domain.sla import Sla
from analyzer.store.records import StudyRecord
from analyzer.store.results import open_store

MODEL = ModelInfo(
    name="m", path="/m.onnx", sha256="ab" * 32, batchable=True, inputs=(), outputs=(), opset=17
)


@pytest.mark.parametrize(("resume", "kept"), [(True, ["crash", "timeout"]), (False, [])])
def test_what_a_lost_worker_measured_is_measured_again(
    tmp_path: Path, resume: bool, kept: list[str]
) -> None:
    options: Any = SimpleNamespace(resume=resume)
    with open_store(f"sqlite:///{tmp_path / 'results.db'}") as store:
        store.create_study(StudyRecord(name="mine", model=MODEL, sla=Sla(latency_budget_ms=50.0)))
        for number, reason in enumerate(("crash", "worker_lost", "timeout")):
            configuration = Configuration(instance_count=number + 1).canonical()
            failure = Failure(
                configuration=configuration, stage="worker", reason=reason, message="It ended."
            )
            store.add_outcome("mine", number, {}, failure)
        found = outcomes_to_keep(options, store, "mine")
    assert [s.outcome.reason for s in found if isinstance(s.outcome, Failure)] == kept
