"""Outputs that are declared with a fixed number of rows and have one for each of a batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from analyzer.variants.inspect import inspect_model

Write = Callable[..., Path]
FLOAT = TensorProto.FLOAT
X = ("x", FLOAT, ["n", 4])
NEGATIVE = helper.make_node("Neg", ["x"], ["y"])


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("external", [False, True])
def test_a_wrong_number_of_rows_is_corrected_in_what_is_served(
    write_model: Write, linear_model: Write, tmp_path: Path, rows: int, external: bool
) -> None:
    """Every LightGBM classifier of onnxmltools was served unbatched: its labels are ``[1]``."""
    path = write_model([NEGATIVE], [X], [("y", FLOAT, [rows, 4])])
    if external:
        path = linear_model(external=True)
        declared = onnx.load(path, load_external_data=False)
        declared.graph.output[0].type.tensor_type.shape.dim[0].dim_value = rows
        onnx.save(declared, path)
    for _ in range(2):  # what is there is used again
        model = inspect_model(path, scratch=tmp_path / "scratch")
        assert model.batchable and model.name == path.stem and model.path != str(path)
        (said,) = model.notes
        assert said == (
            "The model declares a fixed number of rows for 'y' and gives one for each of a batch:"
            " what is served declares that."
        )
    session = ort.InferenceSession(model.path)
    assert not isinstance(session.get_outputs()[0].shape[0], int)
    (name,) = (value.name for value in session.get_inputs())
    given = {name: np.ones((3, *model.inputs[0].shape), np.float32)}
    before, after = (ort.InferenceSession(str(p)).run(None, given)[0] for p in (path, model.path))
    assert np.array_equal(before, after) and len(after) == 3
    (said,) = inspect_model(path).notes
    assert said == f"Served unbatched: output 'y' has its first dimension fixed at {rows}."


@pytest.mark.parametrize(
    ("nodes", "output", "said"),
    [
        ([helper.make_node("ReduceMean", ["x"], ["y"], axes=[0])], [1, 4], "fixed at 1"),
        ([helper.make_node("Softmax", ["x"], ["y"], axis=0)], [1, 4], "fixed at 1"),
        ([helper.make_node("Unsqueeze", ["x", "first"], ["y"])], [1, None, 4], "on axis 1"),
    ],
)
def test_a_right_number_of_rows_stays(
    write_model: Write, tmp_path: Path, nodes: list[object], output: list[int], said: str
) -> None:
    weights = {"first": np.array([0])}
    path = write_model(nodes, [X], [("y", FLOAT, output)], weights)
    model = inspect_model(path, scratch=tmp_path / "scratch")
    assert not model.batchable and model.path == str(path)
    assert said in model.notes[0]


def test_inputs_with_a_fixed_number_of_rows_stay(write_model: Write, tmp_path: Path) -> None:
    path = write_model([NEGATIVE], [("x", FLOAT, [1, 4])], [("y", FLOAT, [1, 4])])
    assert inspect_model(path, scratch=tmp_path / "scratch").fixed_batch == 1
    assert not (tmp_path / "scratch").exists()
