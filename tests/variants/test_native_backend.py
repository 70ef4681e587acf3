"""Configurations against the graph, as Triton's own ONNX Runtime backend compares them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from analyzer.domain.configuration import Configuration
from analyzer.domain.model import ModelInfo
from analyzer.engine.backends import check_tensors, declared_tensors
from analyzer.errors import InputError
from analyzer.modelconfig.render import render_config
from analyzer.modelconfig.rules import autocomplete_onnx
from analyzer.modelconfig.text import parse_config
from analyzer.variants.inspect import inspect_model
from analyzer.variants.try_model import as_unbatched

FLOAT = TensorProto.FLOAT
Write = Callable[..., Path]
Dims = list[object]


def negative(write_model: Write, given: Dims, answered: Dims) -> Path:
    node = helper.make_node("Neg", ["x"], ["y"])
    return write_model([node], [("x", FLOAT, given)], [("y", FLOAT, answered)])


def rendered(model: ModelInfo, max_batch_size: int) -> str:
    return render_config(
        model,
        Configuration(
            precision="fp32",
            backend="onnxruntime",
            device="cpu",
            max_batch_size=max_batch_size,
            dynamic_batching=max_batch_size > 1,
            preferred_batch_size=(max_batch_size,) if max_batch_size > 1 else None,
            max_queue_delay_us=0 if max_batch_size > 1 else None,
            instance_count=1,
        ),
    )


@pytest.mark.parametrize("max_batch_size", [0, 8])
@pytest.mark.parametrize("unbatched", [False, True])
def test_open_dimensions_of_outputs_stay_open_in_a_configuration(
    write_model: Write, max_batch_size: int, unbatched: bool
) -> None:
    """It had the sizes that were given for the input, and Triton would not have loaded it."""
    path = negative(write_model, ["b", "tokens", 8], ["b", "tokens", 8])
    model = inspect_model(path, input_shapes={"x": (128, 8)})
    assert model.outputs[0].shape == (128, 8)
    if unbatched:
        model, max_batch_size = as_unbatched(model), 0
    config = parse_config(rendered(model, max_batch_size), where="config.pbtxt")
    assert list(config.output[0].dims) == ([-1, 8] if max_batch_size else [-1, -1, 8])
    assert 128 in config.input[0].dims
    check_tensors(config, *declared_tensors(path))


FOLDER = """
backend: "onnxruntime"
name: "m"
max_batch_size: %d
input [{ name: "x" data_type: TYPE_FP32 dims: %s %s }]
output [{ name: "y" data_type: TYPE_FP32 dims: %s }]
"""


@pytest.mark.parametrize(
    ("graph", "batch", "given", "answered", "more", "refused"),
    [
        (["b", 8], 4, [8], [8], "", ""),
        (["b", 8], 0, [-1, 8], [-1, 8], "", ""),
        (["b", 8], 0, [2, 8], [-1, 8], "", ""),
        (["b", 8], 0, [2, 8], [2, 8], "", r"'y': the model expects 2 dimensions \(shape \[-1, 8\]"),
        (["b", 8], 4, [-1], [8], "", "'x': the model expects 2 dimensions"),
        (["b", "n"], 4, [5], [-1], "", ""),
        (["b", "n"], 4, [5], [5], "", "'y': the model expects 2 dimensions"),
        ([1, 8], 4, [8], [8], "", "the first dimension must be -1"),
        ([1, 8], 0, [1, 8], [1, 8], "", ""),
        (["b", 8], 4, [8], [8], "optional: true", "configuration expects 0 inputs"),
        (["b", 8], 4, [8], [8], "allow_ragged_batch: true", r"shape \[-1\] for ragged input 'x'"),
    ],
)
def test_a_folder_that_triton_would_not_load_is_refused(
    write_model: Write,
    graph: Dims,
    batch: int,
    given: list[int],
    answered: list[int],
    more: str,
    refused: str,
) -> None:
    config = parse_config(FOLDER % (batch, given, more, answered), where="config.pbtxt")
    tensors = declared_tensors(negative(write_model, graph, graph))
    if not refused:
        check_tensors(config, *tensors)
        return
    with pytest.raises(InputError, match=refused):
        check_tensors(config, *tensors)


@pytest.mark.parametrize(
    ("batch", "dims", "more", "refused"),
    [
        (0, "[-1, 8]", 'input { name: "k" data_type: TYPE_FP32 dims: 1 optional: true }', ""),
        (0, "[-1, 8]", "", ""),
        (0, "[-1, 8]", 'input { name: "k" data_type: TYPE_FP32 dims: 1 }', "expects 2 inputs"),
        (4, "8", 'input { name: "k" data_type: TYPE_FP32 dims: 1 optional: true }', "must be -1"),
    ],
)
def test_an_initializer_that_a_request_may_override_is_an_optional_input(
    write_model: Write, batch: int, dims: str, more: str, refused: str
) -> None:
    """Its name was unknown: the folder, which Triton serves, was neither served nor searched."""
    path = write_model(
        [helper.make_node("Mul", ["x", "k"], ["y"])],
        [("x", FLOAT, ["b", 8]), ("k", FLOAT, [1])],
        [("y", FLOAT, ["b", 8])],
        {"k": np.array([2.0], np.float32)},
    )
    config = parse_config((FOLDER % (batch, dims, "", dims)) + more, where="config.pbtxt")
    tensors = declared_tensors(path)
    if refused:
        with pytest.raises(InputError, match=refused):
            check_tensors(config, *tensors)
        return
    check_tensors(config, *tensors)
    alone = parse_config("", where="config.pbtxt")
    autocomplete_onnx(alone, *tensors)
    assert [tensor.name for tensor in alone.input] == ["x"] and alone.max_batch_size == 4
