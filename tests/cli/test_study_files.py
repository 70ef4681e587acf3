"""Export and verify start from a study's files: changed ones are refused, absent ones told."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from facts_example import BASELINE, WINNER, example_facts
from onnx import TensorProto, helper, numpy_helper

from analyzer.cli.export import export_with_evidence
from analyzer.cli.options import cache_dir
from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import Measurement
from analyzer.domain.study import StudyResult
from analyzer.errors import DataError, ModelError
from analyzer.export.claims import claim_of_repository, claim_of_study
from analyzer.export.manifest import read_manifest
from analyzer.export.study import calibration_of, variant_of
from analyzer.variants.cache import file_sha256
from analyzer.variants.inspect import inspect_model

DYNAMIC = Configuration(precision="int8", quantization="dynamic").canonical()


def train(path: Path, weight: float, *, external: bool = False) -> Path:
    """Writes a model x [batch, 4] → x · weight."""
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
        [numpy_helper.from_array(np.full(4, weight, np.float32), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / "weights.bin").unlink(missing_ok=True)
    onnx.save_model(
        model, str(path), save_as_external_data=external, location="weights.bin", size_threshold=0
    )
    return path


def study_of(file: Path, configuration: Configuration = BASELINE, **provenance: Any) -> StudyResult:
    """A study of that file, which recommends ``configuration``."""
    return example_facts(
        model=inspect_model(file),
        recommended_id=configuration.config_id,
        provenance=provenance,
    )


def measured(facts: StudyResult) -> Measurement:
    """The recommended one."""
    found = next(o for o in facts.outcomes if o.configuration.config_id == facts.recommended_id)
    assert isinstance(found, Measurement)
    return found


@pytest.mark.parametrize("external", [False, True])
def test_a_model_that_changed_since_the_study_is_neither_exported_nor_verified(
    folder: Path, external: bool
) -> None:
    """New weights were exported with the certificate of the old ones, without a word."""
    file = train(folder / "net.onnx", 2.0, external=external)
    facts = study_of(file)
    kept = shutil.copytree(folder, folder.parent / "kept")
    train(file, 3.0, external=external)
    for use in (
        lambda: export_with_evidence(facts, folder / "models"),
        lambda: claim_of_study(facts, measured(facts), cache_dir()),
        lambda: variant_of(facts, WINNER, cache_dir()),
    ):
        with pytest.raises(ModelError, match="has changed since the study 'digits-1'") as refused:
            use()
        assert str(file) in refused.value.message and refused.value.hint.startswith("Search again")
        assert ("weights.bin" in refused.value.message) is external
    assert not (folder / "models").exists()
    shutil.copytree(kept, folder, dirs_exist_ok=True)
    assert export_with_evidence(facts, folder / "models").version == 1
    file.unlink()
    with pytest.raises(ModelError, match="is no longer at"):
        export_with_evidence(facts, folder / "models")


def test_a_variant_is_not_calibrated_again_with_other_rows(folder: Path) -> None:
    """An int8 model that nobody had measured was exported under the study's certificate."""
    data, rows = folder / "rows.npz", np.ones((8, 4), np.float32)
    np.savez(data, x=rows)
    told = {"calibration_data": str(data), "calibration_data_sha256": file_sha256(data)}
    facts = study_of(train(folder / "net.onnx", 2.0), WINNER, **told)
    assert calibration_of(facts, WINNER.variant) is not None
    np.savez(data, x=2 * rows)
    with pytest.raises(DataError, match=r"rows\.npz has changed since .* int8-static") as refused:
        export_with_evidence(facts, folder / "models")
    assert "put the file back" in refused.value.hint
    for other in (BASELINE, DYNAMIC):  # no row is in their files
        assert calibration_of(facts, other.variant) is not None
    before = replace(facts, provenance={"calibration_data": str(data)})
    assert calibration_of(before, WINNER.variant) is not None, "a study of an older version"


def test_another_model_in_the_place_of_an_exported_one_is_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The evidence did not tell which model it is of, so that this was never said."""
    first, other = (
        study_of(train(folder / place / "net.onnx", weight))
        for place, weight in (("a", 2.0), ("b", 3.0))
    )
    assert export_with_evidence(first, folder / "models").notes == ()
    assert read_manifest(folder / "models", "net").evidence["model"]["sha256"] == first.model.sha256
    (note,) = export_with_evidence(other, folder / "models").notes
    assert "Version 2 of net serves another model than version 1" in note
    assert first.model.sha256[:12] in note and note in capsys.readouterr().err


def test_real_inputs_that_are_not_there_are_told(
    folder: Path, call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another machine ``verify --repository`` measured made-up inputs, and did not say so."""
    data = folder / "rows.npz"
    np.savez(data, x=np.ones((8, 4), np.float32))
    facts = study_of(train(folder / "net.onnx", 2.0), calibration_data=str(data))
    export_with_evidence(facts, folder / "models")
    there = claim_of_repository(folder / "models", "net")
    assert (there.data_path, there.notes) == (data, ())
    data.unlink()
    absent = claim_of_repository(folder / "models", "net")
    (note,) = absent.notes
    assert absent.data_path is None and str(data) in note and "Put the file there" in note
    monkeypatch.setattr("analyzer.cli.verify._measure", lambda *_, **__: measured(facts))
    words = ("verify", "--repository", "models", "--model", "net")
    answer = call(*words)
    assert answer.code == 0 and f"Note: {note}" in answer.stderr
    assert f"  note         {note}" in answer.stdout.splitlines()
    quiet = call(*words, "--quiet", "--json")
    assert quiet.document["warnings"] == [note] and not quiet.stderr
