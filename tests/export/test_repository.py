"""An exported repository is whole or not there, and nothing is overwritten unasked."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from facts_example import example_facts
from onnx import TensorProto, helper, numpy_helper

from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import Measurement
from analyzer.domain.model import ModelInfo, TensorSpec
from analyzer.errors import RepositoryError
from analyzer.export import atomic
from analyzer.export.manifest import read_manifest
from analyzer.export.repository import REPLACED, export_repository
from analyzer.modelconfig.render import configuration_from_config
from analyzer.modelconfig.text import read_config
from analyzer.report.document import evidence_document

SMALL = Configuration(max_batch_size=4, dynamic_batching=True, instance_count=2, intra_op_threads=1)
OTHER = Configuration(max_batch_size=8, dynamic_batching=True, instance_count=1, intra_op_threads=1)


def write_onnx(path: Path, *, external: bool = False, location: str = "weights.bin") -> Path:
    """y = x + 1 over [batch, 4]."""
    weight = numpy_helper.from_array(np.ones(4, np.float32), "one")
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "one"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", 4])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    (path.parent / location).parent.mkdir(parents=True, exist_ok=True)
    onnx.save(
        model,
        str(path),
        save_as_external_data=external,
        location=location if external else None,
        size_threshold=0,
    )
    return path


def info(name: str = "adder", path: str = "/models/adder.onnx") -> ModelInfo:
    return ModelInfo(
        name=name,
        path=path,
        sha256="0" * 64,
        batchable=True,
        inputs=(TensorSpec(name="x", datatype="FP32", shape=(4,)),),
        outputs=(TensorSpec(name="y", datatype="FP32", shape=(4,)),),
    )


ANEW = {"study": "digits-2"}


@pytest.fixture
def variant(tmp_path: Path) -> Path:
    return write_onnx(tmp_path / "cache" / "variant.onnx")


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_repository_holds_config_model_and_manifest(tmp_path: Path, variant: Path) -> None:
    repository = tmp_path / "repository"
    evidence = {"entry": {"capacity_rps": 12.5}, "sla": {"latency_budget_ms": 50.0}}
    result = export_repository(info(), variant, SMALL, repository, evidence=evidence)
    assert result.to_dict() == {
        "path": str(repository),
        "model": "adder",
        "version": 1,
        "config_id": SMALL.config_id,
    }
    assert sorted(tree(repository)) == [
        "adder/1/model.onnx",
        "adder/config.pbtxt",
        "adder/tritune.json",
    ]
    assert (
        configuration_from_config(read_config(repository / "adder" / "config.pbtxt"))
        == SMALL.canonical()
    )
    manifest = read_manifest(repository, "adder")
    assert manifest.configuration == SMALL.canonical()
    assert manifest.evidence == evidence
    assert manifest.changed_files() == ()
    (repository / "adder" / "1" / "model.onnx").write_bytes(b"other")
    assert manifest.changed_files() == ("1/model.onnx",)
    assert not list(tmp_path.glob(f"**/{atomic.STAGING_PREFIX}*"))


def test_a_configuration_for_an_instance_type_is_exported_and_the_manifest_tells_it(
    tmp_path: Path, variant: Path
) -> None:
    wanted = replace(SMALL, instance_type="g5.xlarge")
    done = export_repository(info(), variant, wanted, tmp_path / "models")
    assert done.config_id == wanted.config_id
    manifest = read_manifest(tmp_path / "models", "adder")
    assert manifest.configuration == wanted.canonical()
    written = read_config(tmp_path / "models" / "adder" / "config.pbtxt")
    assert configuration_from_config(written) == SMALL.canonical()


def test_the_same_configuration_adds_a_version_beside_the_older(
    tmp_path: Path, variant: Path
) -> None:
    repository = tmp_path / "repository"
    export_repository(info(), variant, SMALL, repository)
    first = (repository / "adder" / "1" / "model.onnx").stat()
    assert export_repository(info(), variant, SMALL, repository, evidence=ANEW).version == 2
    kept = (repository / "adder" / "1" / "model.onnx").stat()
    assert (kept.st_ino, kept.st_mtime_ns) == (first.st_ino, first.st_mtime_ns)
    assert read_manifest(repository, "adder").version == 2
    assert read_manifest(repository, "adder", 1).version == 1


def test_another_model_of_the_same_name_is_told(tmp_path: Path, variant: Path) -> None:
    """A model in the place of another was called its version 2, without a word."""
    repository = tmp_path / "repository"
    export = partial(export_repository, info(), variant, SMALL, repository)
    facts = example_facts()
    measured = next(o for o in facts.outcomes if isinstance(o, Measurement))
    first, other = (
        evidence_document(replace(facts, model=replace(facts.model, sha256=digit * 64)), measured)
        for digit in "ab"
    )
    assert export(evidence=first).notes == ()
    assert export(evidence=first | ANEW).notes == (), "another study of the same model"
    (note,) = export(evidence=other).notes
    assert "Version 3 of adder serves another model than version 2" in note and "a" * 12 in note
    assert export(evidence={"model": "unknown"}).notes == ()


@pytest.mark.parametrize("backend", ["auto", "python"])
@pytest.mark.parametrize("force", [False, True])
def test_what_is_there_already_is_left_as_it_is(
    tmp_path: Path, variant: Path, backend: Any, force: bool
) -> None:
    repository = tmp_path / "repository"
    export = partial(
        export_repository, info(), variant, SMALL, repository, backend=backend, evidence=ANEW
    )
    assert export().notes == ()
    before = tree(repository)
    again = export(force=force)
    assert (again.version, again.config_id) == (1, SMALL.config_id)
    assert "already there" in again.notes[0]
    assert tree(repository) == before
    # A file that is no longer what was exported is written anew, beside the other.
    (repository / "adder" / "1" / "model.onnx").write_bytes(b"other")
    assert export(force=force).version == 2


def test_another_configuration_needs_force_and_keeps_the_old_one_on_record(
    tmp_path: Path, variant: Path
) -> None:
    repository = tmp_path / "repository"
    export_repository(info(), variant, SMALL, repository)
    before = tree(repository)
    with pytest.raises(RepositoryError, match="another configuration") as caught:
        export_repository(info(), variant, OTHER, repository)
    assert "--force" in caught.value.hint
    assert tree(repository) == before
    result = export_repository(info(), variant, OTHER, repository, force=True)
    assert result.version == 2
    assert result.notes
    assert (
        configuration_from_config(read_config(repository / "adder" / "config.pbtxt"))
        == OTHER.canonical()
    )
    assert (
        read_manifest(repository, "adder", 1).config_text.encode() == before["adder/config.pbtxt"]
    )


def test_a_strangers_model_is_not_touched_without_force(tmp_path: Path, variant: Path) -> None:
    model = tmp_path / "repository" / "adder"
    (model / "3").mkdir(parents=True)
    (model / "labels.txt").write_text("a\nb\n")
    (model / "config.pbtxt").write_text("nonsense")
    with pytest.raises(RepositoryError, match="another configuration"):
        export_repository(info(), variant, SMALL, model.parent)
    assert export_repository(info(), variant, SMALL, model.parent, force=True).version == 4
    assert (model / "labels.txt").read_text() == "a\nb\n"
    assert read_manifest(model.parent, "adder").version == 4


def test_a_configuration_by_hand_that_is_replaced_is_kept(tmp_path: Path, variant: Path) -> None:
    """The only copy of somebody's work was gone, and the note said that older versions remain."""
    model = tmp_path / "repository" / "adder"
    (model / "1").mkdir(parents=True)
    by_hand = "# mine\nmax_batch_size: 3\n"
    (model / "config.pbtxt").write_text(by_hand)
    done = export_repository(info(), variant, SMALL, model.parent, force=True)
    versions = json.loads((model / "tritune.json").read_text())["versions"]
    assert versions["2"][REPLACED] == by_hand
    assert f"versions.2.{REPLACED}" in done.notes[0]
    # One of ours is recorded already.
    done = export_repository(info(), variant, OTHER, model.parent, force=True)
    versions = json.loads((model / "tritune.json").read_text())["versions"]
    assert REPLACED not in versions["3"] and REPLACED not in done.notes[0]
    assert versions["2"][REPLACED] == by_hand


ENSEMBLE = """
platform: "ensemble" max_batch_size: %d
ensemble_scheduling { step { model_name: "adder" model_version: %d } }
"""


@pytest.mark.parametrize(
    ("batch_max", "step", "said"),
    [
        (4, -1, []),
        (5, -1, ["max_batch_size 5: Triton does not load it until that is at most 4"]),
        (4, 1, ["version 1, which is not served any more"]),
    ],
)
def test_what_an_export_breaks_beside_it_is_told(
    tmp_path: Path, variant: Path, batch_max: int, step: int, said: list[str]
) -> None:
    """An ensemble with larger batches than its member has now was not loaded any more."""
    model = tmp_path / "adder"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text("max_batch_size: 16")
    for name, text in (("both", ENSEMBLE % (batch_max, step)), ("broken", "what"), ("other", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.pbtxt").write_text(text)
    _, clients, *ensembles = export_repository(info(), variant, SMALL, tmp_path, force=True).notes
    assert clients.startswith("adder takes requests of at most 4 inferences now")
    assert len(ensembles) == len(said)
    for note, part in zip(ensembles, said, strict=True):
        assert note.startswith("The ensemble both has adder in it") and part in note


def test_a_new_version_that_is_served_in_place_of_a_pinned_one_is_told(
    tmp_path: Path, variant: Path
) -> None:
    """With the same configuration, too: of all versions the newest alone is served."""
    export_repository(info(), variant, SMALL, tmp_path)
    (tmp_path / "both").mkdir()
    (tmp_path / "both" / "config.pbtxt").write_text(ENSEMBLE % (4, 1))
    again = export_repository(info(), variant, SMALL, tmp_path)
    assert again.version == 1 and "already there" in again.notes[0] and len(again.notes) == 1
    done = export_repository(info(), variant, SMALL, tmp_path, evidence={"study": "another"})
    (note,) = done.notes
    assert done.version == 2 and "version 1, which is not served any more" in note


def test_a_batch_axis_that_was_a_dimension_took_any_number(tmp_path: Path, variant: Path) -> None:
    model = tmp_path / "adder"
    (model / "1").mkdir(parents=True)
    tensor = '{ name: "x" data_type: TYPE_FP32 dims: [ %s ] }'
    for dims, said in (("-1, 4", True), ("1, 4", False)):
        (model / "config.pbtxt").write_text("max_batch_size: 0 input " + tensor % dims)
        notes = export_repository(info(), variant, SMALL, tmp_path, force=True).notes
        assert any("where it took any number" in note for note in notes) == said


def test_external_weights_go_along(tmp_path: Path) -> None:
    variant = write_onnx(tmp_path / "cache" / "variant.onnx", external=True)
    export_repository(info(), variant, SMALL, tmp_path / "repository")
    version = tmp_path / "repository" / "adder" / "1"
    assert sorted(p.name for p in version.iterdir()) == ["model.onnx", "weights.bin"]
    onnx.load(str(version / "model.onnx"))
    (tmp_path / "cache" / "weights.bin").unlink()
    with pytest.raises(RepositoryError, match=r"weights\.bin"):
        export_repository(info(), variant, SMALL, tmp_path / "repository")


def test_triton_may_read_what_is_exported_whatever_the_umask(tmp_path: Path) -> None:
    """Files and the model's folder were readable, and the version's folder was not."""
    variant = write_onnx(
        tmp_path / "cache" / "variant.onnx", external=True, location="parts/weights.bin"
    )
    repository = tmp_path / "new" / "repository"
    before = os.umask(0o077)
    try:
        for evidence in ({}, ANEW):
            export_repository(info(), variant, SMALL, repository, evidence=evidence)
    finally:
        os.umask(before)
    found = [repository.parent, *repository.parent.rglob("*")]
    assert repository / "adder" / "2" / "parts" / "weights.bin" in found
    modes = {path: path.stat().st_mode & 0o777 for path in found}
    assert modes == {path: 0o755 if path.is_dir() else 0o644 for path in found}


def test_the_python_backend_gets_a_model_py_that_compiles(tmp_path: Path, variant: Path) -> None:
    export_repository(info(), variant, SMALL, tmp_path / "repository", backend="python")
    folder = tmp_path / "repository" / "adder"
    compile((folder / "1" / "model.py").read_text(), "model.py", "exec")
    proto = read_config(folder / "config.pbtxt")
    assert (proto.backend, proto.default_model_filename) == ("python", "model.py")
    manifest = read_manifest(folder.parent, "adder")
    assert (manifest.backend, manifest.config_id) == ("python", SMALL.config_id)


def test_an_engine_is_exported_for_tensorrt_alone(tmp_path: Path, variant: Path) -> None:
    engine = tmp_path / "cache" / "variant.plan"
    engine.write_bytes(b"engine")
    on_gpu = Configuration(
        backend="tensorrt", device="gpu", max_batch_size=8, dynamic_batching=True
    )
    export_repository(info(), engine, on_gpu, tmp_path / "repository")
    assert (tmp_path / "repository" / "adder" / "1" / "model.plan").read_bytes() == b"engine"
    with pytest.raises(RepositoryError, match="cannot serve"):
        export_repository(info("b"), engine, on_gpu, tmp_path / "repository", backend="python")
    with pytest.raises(RepositoryError, match="cannot serve"):
        export_repository(info("b"), variant, on_gpu, tmp_path / "repository")


@pytest.mark.parametrize("name", ["../escape", "a/b", "..", ".hidden", ""])
def test_a_model_name_cannot_leave_the_folder(tmp_path: Path, variant: Path, name: str) -> None:
    with pytest.raises(RepositoryError, match="not a model's name"):
        export_repository(info(), variant, SMALL, tmp_path / "repository", name=name or "/")
    assert not (tmp_path / "repository").exists()


def test_a_failure_at_the_last_moment_leaves_everything_as_it_was(
    tmp_path: Path, variant: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "repository"

    def fail(staged: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("analyzer.export.repository.put_in_place", fail)
    with pytest.raises(RepositoryError, match="No space left"):
        export_repository(info(), variant, SMALL, repository)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cache"]
    monkeypatch.undo()
    export_repository(info(), variant, SMALL, repository)
    before = tree(repository)
    monkeypatch.setattr("analyzer.export.repository.put_in_place", fail)
    with pytest.raises(RepositoryError):
        export_repository(info(), variant, OTHER, repository, force=True)
    assert tree(repository) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cache", "repository"]


def test_what_a_killed_export_left_goes_with_the_next(tmp_path: Path, variant: Path) -> None:
    repository = tmp_path / "repository"
    for place in (tmp_path, repository):
        (place / f"{atomic.STAGING_PREFIX}left" / "adder").mkdir(parents=True)
    export_repository(info(), variant, SMALL, repository)
    assert sorted(p.name for p in repository.iterdir()) == ["adder"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cache", "repository"]


def test_a_disk_that_fills_up_is_a_sentence_and_leaves_nothing(
    tmp_path: Path, variant: Path
) -> None:
    code = f"""
import resource, signal
from pathlib import Path
from typing import Any
from tests_export_helpers import info, SMALL
from analyzer.export.repository import export_repository
from analyzer.errors import RepositoryError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, {resource.RLIM_INFINITY}))
try:
    export_repository(info(), Path({str(variant)!r}), SMALL, Path({str(tmp_path / "repository")!r}))
except RepositoryError as error:
    print(error.message)
"""
    root = Path(__file__).parents[2]
    helpers = tmp_path / "helpers"
    helpers.mkdir()
    (helpers / "tests_export_helpers.py").write_text(Path(__file__).read_text())
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            "PYTHONPATH": f"{helpers}:{root}:{root / 'tests' / 'report'}",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert "cannot be written: File too large" in done.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cache", "helpers"]


def test_an_old_folder_is_put_back_where_folders_cannot_be_exchanged(
    tmp_path: Path, variant: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = tmp_path / "repository"
    export_repository(info(), variant, SMALL, repository)
    monkeypatch.setattr(atomic, "_exchange", lambda first, second: False)
    assert export_repository(info(), variant, SMALL, repository, evidence=ANEW).version == 2
    assert sorted(p.name for p in (repository / "adder").iterdir()) == [
        "1",
        "2",
        "config.pbtxt",
        "tritune.json",
    ]


def test_a_file_in_the_way_is_named(tmp_path: Path, variant: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RepositoryError, match="cannot be written"):
        export_repository(info(), variant, SMALL, tmp_path / "file")
    (tmp_path / "repository").mkdir()
    (tmp_path / "repository" / "adder").write_text("x")
    with pytest.raises(RepositoryError, match="is a file"):
        export_repository(info(), variant, SMALL, tmp_path / "repository", force=True)
    with pytest.raises(RepositoryError, match="not there"):
        export_repository(info(), tmp_path / "gone.onnx", SMALL, tmp_path / "repository")


def test_a_manifest_that_is_none_is_a_sentence(tmp_path: Path, variant: Path) -> None:
    repository = tmp_path / "repository"
    export_repository(info(), variant, SMALL, repository)
    path = repository / "adder" / "tritune.json"
    good = json.loads(path.read_text())
    for bad, said in (
        ("{", "no manifest"),
        (json.dumps({**good, "schema": 99}), "schema 99"),
        (json.dumps({**good, "versions": {"1": {}}}), "versions.1"),
    ):
        path.write_text(bad)
        with pytest.raises(RepositoryError, match=said):
            read_manifest(repository, "adder")
    path.unlink()
    with pytest.raises(RepositoryError, match="not exported by this program"):
        read_manifest(repository, "adder")
    path.write_text(json.dumps(good))
    with pytest.raises(RepositoryError, match="no version 5"):
        read_manifest(repository, "adder", 5)
