"""Inputs that say how much work a request is are made up in full, or it is said that not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from analyzer.domain.model import ModelInfo
from analyzer.errors import DataError
from analyzer.variants.inputs import load_calibration, synthetic_inputs
from analyzer.variants.inspect import inspect_model
from analyzer.variants.try_model import try_model

FLOAT, INT32, INT64, BOOL = (
    TensorProto.FLOAT,
    TensorProto.INT32,
    TensorProto.INT64,
    TensorProto.BOOL,
)
Write = Callable[..., Path]
make = helper.make_node


def recurrent(write_model: Write, time: Any, *, operator: str = "GRU", minus: int = 0) -> Path:
    """``x`` ``[n, time, 4]``, of which ``lengths`` − ``minus`` steps count."""
    gates = {"GRU": 3, "LSTM": 4, "RNN": 1}[operator]
    nodes = [
        make("Sub", ["lengths", "minus"], ["less"]),
        make("Cast", ["less"], ["steps"], to=INT32),
        make("Transpose", ["x"], ["rows"], perm=[1, 0, 2]),
        make(operator, ["rows", "w", "r", "", "steps"], ["all", "last"], hidden_size=2),
        make("Squeeze", ["last", "zero"], ["y"]),
    ]
    weights = {
        "w": np.ones((1, 2 * gates, 4), np.float32),
        "r": np.ones((1, 2 * gates, 2), np.float32),
        "zero": np.array([0]),
        "minus": np.int64(minus),
    }
    inputs = [("x", FLOAT, ["n", time, 4]), ("lengths", INT64, ["n"])]
    return write_model(nodes, inputs, [("y", FLOAT, ["n", 2])], weights)


@pytest.mark.parametrize("operator", ["GRU", "LSTM", "RNN"])
def test_lengths_are_made_up_in_full(write_model: Write, operator: str) -> None:
    """One step of 200 was measured, and a rate was certified that no request allowed."""
    model = inspect_model(recurrent(write_model, 200, operator=operator))
    rows = synthetic_inputs(model, 4, 0)
    assert (rows["lengths"] == 200).all()
    assert not model.notes and try_model(model, rows)[0].batchable


def test_the_length_is_the_one_that_was_given(write_model: Write) -> None:
    model = inspect_model(recurrent(write_model, "time"), input_shapes={"x": (30, 4)})
    assert (synthetic_inputs(model, 2, 0)["lengths"] == 30).all()
    model = inspect_model(recurrent(write_model, 12, minus=-1))
    assert (synthetic_inputs(model, 2, 0)["lengths"] == 11).all(), "one is added in the graph"


def test_shorter_real_sequences_are_valid(write_model: Write, tmp_path: Path) -> None:
    model = inspect_model(recurrent(write_model, 12))
    data = tmp_path / "c.npz"
    lengths = np.arange(12) + 1
    np.savez(data, x=np.zeros((12, 12, 4), np.float32), lengths=lengths)
    assert (load_calibration(data, model).inputs["lengths"] == lengths).all()
    lengths[5] = 13
    np.savez(data, x=np.zeros((12, 12, 4), np.float32), lengths=lengths)
    with pytest.raises(DataError, match="'lengths' has the value 13 in row 5"):
        load_calibration(data, model)


def test_a_trip_count_that_nothing_tells_is_named(write_model: Write) -> None:
    body = helper.make_graph(
        [make("Identity", ["go"], ["go_on"]), make("Tanh", ["v"], ["next"])],
        "body",
        [
            helper.make_tensor_value_info("i", INT64, []),
            helper.make_tensor_value_info("go", BOOL, []),
            helper.make_tensor_value_info("v", FLOAT, ["n", 4]),
        ],
        [
            helper.make_tensor_value_info("go_on", BOOL, []),
            helper.make_tensor_value_info("next", FLOAT, ["n", 4]),
        ],
    )
    path = write_model(
        [make("Loop", ["steps", "", "x"], ["y"], body=body)],
        [("x", FLOAT, ["n", 4]), ("steps", INT64, [])],
        [("y", FLOAT, ["n", 4])],
    )
    for scratch in (None, path.parent / "scratch"):
        model = inspect_model(path, scratch=scratch)
        (note,) = (note for note in model.notes if "says how often a loop runs" in note)
        assert "'steps'" in note and "--calibration-data" in note
        assert (synthetic_inputs(model, 3, 0)["steps"] == 1).all()


def asked_for(model: ModelInfo, name: str) -> tuple[int, str]:
    """The one value that is made up for an input, and the note about it."""
    (value,) = np.unique(synthetic_inputs(model, 4, 0)[name])
    (note,) = (note for note in model.notes if f"The input {name!r} says" in note)
    return int(value), note


def test_the_best_are_made_up_as_all(write_model: Write) -> None:
    """None or one of 50 was measured, whatever a request asks for."""
    path = write_model(
        [make("TopK", ["x", "k"], ["y", "places"])],
        [("x", FLOAT, ["n", 50]), ("k", INT64, [1])],
        [("y", FLOAT, ["n", None]), ("places", INT64, ["n", None])],
    )
    value, note = asked_for(inspect_model(path), "k")
    assert value == 50 and "made up as 50, which is all of them: give real values" in note


@pytest.mark.parametrize(
    ("operator", "inputs", "shape", "value"),
    [
        ("Resize", ["x", "", "", "whole"], [2], 60),
        ("Resize", ["x", "", "", "sizes"], [4], 1),
        ("Resize", ["x", "", "sizes"], [4], 1),
        ("Reshape", ["x", "sizes"], [4], 0),
        ("Expand", ["x", "sizes"], [4], 1),
    ],
)
def test_a_size_that_an_input_decides_is_named(
    write_model: Write, operator: str, inputs: list[str], shape: list[int], value: int
) -> None:
    """An image was resized to 0 or 1 pixels, and what that carries was certified."""
    kind = FLOAT if len(inputs) == 3 else INT64
    nodes = [
        make("Concat", ["lead", "sizes"], ["whole"], axis=0),
        make(operator, inputs, ["y"]),
    ]
    path = write_model(
        nodes[0 if "whole" in inputs else 1 :],
        [("x", FLOAT, [1, 3, 40, 60]), ("sizes", kind, shape)],
        [("y", FLOAT, [None] * 4)],
        {"lead": np.array([1, 3])},
    )
    model = inspect_model(path)
    made_up, note = asked_for(model, "sizes")
    assert made_up == value and f"made up as {value}, and real requests may be more" in note
    try_model(model, synthetic_inputs(model, 1, 0))


def test_a_position_is_no_size(write_model: Write) -> None:
    """One row from there on is taken: as much wherever it begins."""
    nodes = [
        make("Add", ["position", "one"], ["end"]),
        make("Slice", ["table", "position", "end"], ["row"]),
        make("Add", ["x", "row"], ["y"]),
    ]
    path = write_model(
        nodes,
        [("x", FLOAT, [1, 4]), ("position", INT64, [1])],
        [("y", FLOAT, [1, 4])],
        {"one": np.array([1]), "table": np.ones((9, 4), np.float32)},
    )
    assert not any("The input" in note for note in inspect_model(path).notes)


def test_older_operators_have_attributes_where_newer_ones_have_inputs(write_model: Write) -> None:
    """A Slice of operator set 9 has one input: where it begins is none."""
    nodes = [
        make("Add", ["x", "x"], ["twice"]),
        make("Slice", ["twice"], ["y"], starts=[0], ends=[2], axes=[1]),
    ]
    outputs = [("y", FLOAT, ["n", 2])]
    path = write_model(nodes, [("x", FLOAT, ["n", 4])], outputs, opset=9)
    model = inspect_model(path)
    assert model.inputs[0].shape == (4,) and not any("The input" in note for note in model.notes)


@pytest.mark.parametrize(("name", "value"), [("orig_target_sizes", 640), ("flags", None)])
def test_sizes_of_images_are_made_up_as_some(
    write_model: Write, name: str, value: int | None
) -> None:
    """A detector's boxes in pixels of an image of 0 or 1 lay close to 0."""
    nodes = [make("Cast", [name], ["scale"], to=FLOAT), make("Mul", ["x", "scale"], ["boxes"])]
    inputs = [("x", FLOAT, ["n", 2]), (name, INT64, ["n", 2])]
    model = inspect_model(write_model(nodes, inputs, [("boxes", FLOAT, ["n", 2])]))
    assert model.inputs[1].value_range == ((value, value) if value else (0, 1))


def test_sizes_that_decide_how_large_tensors_are_stay_small(write_model: Write) -> None:
    nodes = [
        make("Concat", ["front", "size"], ["sizes"], axis=0),
        make("Resize", ["x", "", "", "sizes"], ["y"]),
    ]
    inputs = [("x", FLOAT, [1, 3, 8, 8]), ("size", INT64, [2])]
    outputs = [("y", FLOAT, [1, 3, None, None])]
    model = inspect_model(write_model(nodes, inputs, outputs, {"front": np.array([1, 3])}))
    assert model.inputs[1].value_range is not None and model.inputs[1].value_range[1] <= 8
