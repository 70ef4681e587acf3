"""What a resumed study goes on with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from analyzer.cli.study_record import begin_study, moved_notes, outcomes_to_keep, price_kept
from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import Edge, Failure, Measurement
from analyzer.domain.model import ModelInfo, TensorSpec
from analyzer.domain.sla import Sla
from analyzer.domain.study import Pricing
from analyzer.errors import UsageError
from analyzer.hardware.machine import inspect_machine
from analyzer.store.records import StudyRecord
from analyzer.store.results import ResultStore, open_store
from analyzer.variants.cache import file_sha256

MODEL = ModelInfo(
    name="m", path="/m.onnx", sha256="ab" * 32, batchable=True, inputs=(), outputs=(), opset=17
)


@pytest.mark.parametrize(("resume", "kept"), [(True, ["crash", "timeout"]), (False, [])])
def test_what_a_lost_worker_measured_is_measured_again(
    tmp_path: Path, resume: bool, kept: list[str]
) -> None:
    options = options_of(resume=resume)
    with open_store(f"sqlite:///{tmp_path / 'results.db'}") as store:
        store.create_study(StudyRecord(name="mine", model=MODEL, sla=Sla(latency_budget_ms=50.0)))
        for number, reason in enumerate(("crash", "worker_lost", "timeout")):
            configuration = Configuration(instance_count=number + 1).canonical()
            failure = Failure(
                configuration=configuration, stage="worker", reason=reason, message="It ended."
            )
            store.add_outcome("mine", number, {}, failure)
        found = outcomes_to_keep(options, store, "mine", "a machine")
    assert [s.outcome.reason for s in found if isinstance(s.outcome, Failure)] == kept


def options_of(**given: Any) -> Any:
    known: dict[str, Any] = {
        "resume": False, "study": "mine", "seed": 1, "seed_given": True, "arrivals": "poisson",
        "request_batch_size": 1, "server": "embedded", "sampler": "twin", "space": None,
        "calibration_data": None, "budget": 60.0, "instance_types": (), "ray_address": None,
        "command": "analyze m.onnx", "instance_type": None, "price": None, "measures_here": True,
    }  # fmt: skip
    return SimpleNamespace(**{**known, **given})


@pytest.mark.parametrize("here", [True, False])
def test_what_another_machine_measured_does_not_count(tmp_path: Path, here: bool) -> None:
    """Of a server elsewhere, and of a cluster, this machine's hardware says nothing."""
    first, sla = inspect_machine(), Sla(latency_budget_ms=50.0)
    second = replace(first, cpu=f"another than {first.cpu}")
    with open_store(f"sqlite:///{tmp_path / 'results.db'}") as store:
        begin_study(options_of(), store, MODEL, sla, first, "cpu", None)
        for count, machine in ((1, first), (2, second)):
            configuration = Configuration(instance_count=count).canonical()
            measured = Measurement(
                configuration=configuration,
                edge=Edge(rate_rps=100.0, interval_rps=(90.0, 110.0)),
                hardware=machine.hardware,
            )
            store.add_outcome("mine", count, {}, measured)
        failure = Failure(
            configuration=configuration, stage="load", reason="out_of_memory", message="It ended."
        )
        store.add_outcome("mine", 3, {}, failure)
        store.set_status("mine", "interrupted")
    going_on = options_of(resume=True, measures_here=here)
    with open_store(f"sqlite:///{tmp_path / 'results.db'}") as store:
        less = replace(second, memory_bytes=second.memory_bytes // 2)  # a new limit
        record = begin_study(going_on, store, MODEL, sla, less, "cpu", None)
        found = outcomes_to_keep(going_on, store, "mine", less.hardware)
        notes = moved_notes(going_on, record, less.hardware)
    assert [known.trial_number for known in found] == ([2] if here else [1, 2, 3])
    assert len(notes) == here
    assert all(first.hardware in note and less.hardware in note for note in notes)


@pytest.mark.parametrize("here", [True, False])
def test_what_other_runtimes_carried_does_not_count(
    tmp_path: Path, here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another version of ONNX Runtime did stood beside what this one does."""
    machine, sla = inspect_machine(), Sla(latency_budget_ms=50.0)
    going_on = options_of(resume=True, measures_here=here)

    def measure(store: ResultStore, count: int) -> None:
        measured = Measurement(
            configuration=Configuration(instance_count=count).canonical(),
            edge=Edge(rate_rps=100.0, interval_rps=(90.0, 110.0)),
            hardware=machine.hardware,
        )
        store.add_outcome("mine", count, {}, measured)
        store.set_status("mine", "interrupted")

    url = f"sqlite:///{tmp_path / 'results.db'}"
    with open_store(url) as store, monkeypatch.context() as patch:
        begun = begin_study(options_of(), store, MODEL, sla, machine, "cpu", None).provenance
        libraries = dict.fromkeys(begun["libraries"], "1.0.0")
        earlier = {**begun, "libraries": libraries, "started_at": "2020-01-01T00:00:00+00:00"}
        store.set_status("mine", "running", provenance=earlier)
        patch.setattr("analyzer.store.results._now", lambda: "2020-01-01T00:00:00.100+00:00")
        measure(store, 1)
    with open_store(url) as store:
        begin_study(going_on, store, MODEL, sla, machine, "cpu", None)
        measure(store, 2)
    with open_store(url) as store:
        record = begin_study(going_on, store, MODEL, sla, machine, "cpu", None)
        found = outcomes_to_keep(going_on, store, "mine", machine.hardware)
        notes = moved_notes(going_on, record, machine.hardware)
    assert [known.trial_number for known in found] == ([2] if here else [1, 2])
    assert len(notes) == here
    for note in notes:
        assert " 1.0.0 does not count with onnxruntime" in note
        assert "numpy" not in note and "tensorrt" not in note, "which run no model on a CPU"


def begun(store: ResultStore, pricing: Pricing, **given: Any) -> Pricing:
    """Begins the study, or goes on with it, and is interrupted; the price that it has then."""
    options, sla = options_of(**given), Sla(latency_budget_ms=50.0)
    kept = price_kept(options, pricing, store)
    begin_study(options, store, MODEL, sla, inspect_machine(), "cpu", None, pricing=kept)
    store.set_status("mine", "interrupted")
    assert store.load_result("mine").pricing == kept
    return kept


def test_a_resumed_study_keeps_its_price(tmp_path: Path) -> None:
    """``--resume`` without ``--price`` told no costs, and an interrupted study none at all."""
    vm = Pricing(instance_type="vm", price_per_hour=0.5, source="--price")
    url = f"sqlite:///{tmp_path / 'results.db'}"
    with open_store(url) as store:
        assert begun(store, vm, instance_type="vm", price=0.5) == vm
    with open_store(url) as store:
        assert begun(store, Pricing(), resume=True) == vm
    with open_store(url) as store:
        dearer = Pricing(price_per_hour=0.7, source="--price")
        found = begun(store, dearer, resume=True, price=0.7)
        assert found == replace(vm, price_per_hour=0.7)
    with open_store(url) as store:
        assert begun(store, Pricing(), resume=True) == found
    with open_store(url) as store:
        other = Pricing(instance_type="other", price_per_hour=2.0, source="--price")
        assert begun(store, other, resume=True, instance_type="other", price=2.0) == other


SIZED = replace(MODEL, inputs=(TensorSpec(name="image", datatype="FP32", shape=(3, 224, 224)),))


@pytest.mark.parametrize(
    ("now", "said", "hint"),
    [
        (
            replace(SIZED, inputs=(replace(SIZED.inputs[0], shape=(3, 112, 112)),)),
            "measured inputs of image:3,224,224, and this command has image:3,112,112.",
            "Give --input-shape image:3,224,224, or",
        ),
        (
            replace(SIZED, batchable=False),
            "ran the model in batches; as this command reads it, it runs one request at a time.",
            "Repeat the options --input-shape and --calibration-data, and give a --budget",
        ),
    ],
)
def test_a_study_does_not_go_on_with_another_size(
    tmp_path: Path, now: ModelInfo, said: str, hint: str
) -> None:
    """Measurements of two sizes were pooled, and the older size was exported."""
    sla, machine = Sla(latency_budget_ms=50.0), inspect_machine()
    url = f"sqlite:///{tmp_path / 'results.db'}"
    with open_store(url) as store:
        begin_study(options_of(), store, SIZED, sla, machine, "cpu", None)
        store.set_status("mine", "interrupted")
    with open_store(url) as store:
        with pytest.raises(UsageError) as refused:
            begin_study(options_of(resume=True), store, now, sla, machine, "cpu", None)
        assert refused.value.message.endswith(said) and refused.value.hint.startswith(hint)
        assert store.study("mine").status == "interrupted"
        begin_study(options_of(resume=True), store, SIZED, sla, machine, "cpu", None)


def test_what_goes_on_with_files_that_were_moved_is_exported_from_where_they_are(
    tmp_path: Path,
) -> None:
    """The model was looked for at its first path, where it no longer is."""
    sla, machine = Sla(latency_budget_ms=50.0), inspect_machine()
    url = f"sqlite:///{tmp_path / 'results.db'}"
    for place in ("first", "then"):
        data = tmp_path / place / "rows.npz"
        data.parent.mkdir()
        data.write_bytes(b"rows")
        options = options_of(resume=place == "then", calibration_data=data)
        model = replace(SIZED, path=f"/{place}/m.onnx")
        with open_store(url) as store:
            record = begin_study(options, store, model, sla, machine, "cpu", "the same rows")
            store.set_status("mine", "interrupted")
            result = store.load_result("mine")
        assert record.model == result.model == model
        assert record.options["model_path"] == model.path
        assert result.provenance == record.provenance
        assert result.provenance["calibration_data"] == str(data)
        assert result.provenance["calibration_data_sha256"] == file_sha256(data)
