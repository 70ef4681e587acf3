"""Models whose types cannot be served are refused with a way out that works."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from analyzer.errors import ModelError
from analyzer.variants.inspect import inspect_model

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Write = Callable[..., Path]


def classifier(write_model: Write, producer: str, *, names: bool = False) -> Path:
    """A linear classifier; its labels are ``names``, or a ZipMap gives its probabilities."""
    kind = "classlabels_strings" if names else "classlabels_ints"
    scores = "p" if names else "scores"
    linear = helper.make_node(
        "LinearClassifier",
        ["x"],
        ["label", scores],
        domain="ai.onnx.ml",
        coefficients=[1.0, -1.0, -1.0, 1.0],
        intercepts=[0.0, 0.0],
        **{kind: ["no", "yes"] if names else [0, 1]},
    )
    zipmap = helper.make_node(
        "ZipMap", ["scores"], ["p"], domain="ai.onnx.ml", classlabels_int64s=[0, 1]
    )
    path = write_model(
        [linear] if names else [linear, zipmap],
        [("x", FLOAT, ["n", 2])],
        [("label", TensorProto.STRING if names else INT64, ["n"]), ("p", FLOAT, ["n", 2])],
    )
    model = onnx.load(path)
    model.opset_import.add(domain="ai.onnx.ml", version=3)
    model.producer_name = producer
    if not names:
        kind_of = model.graph.output[1].type.sequence_type.elem_type.map_type
        kind_of.key_type = INT64
        kind_of.value_type.tensor_type.elem_type = FLOAT
    onnx.save(model, path)
    return path


def extracted(path: Path, hint: str) -> Path:
    """The model that the call in ``hint`` writes of the one at ``path``."""
    new = path.with_name("new.onnx")
    call = re.search(r"extract_model\(FILE, NEW_FILE, \[(.*?)\], \[(.*?)\]\)", hint)
    assert call is not None
    names = [[name.strip("'") for name in group.split(", ")] for group in call.groups()]
    onnx.utils.extract_model(path, new, *names)
    return new


@pytest.mark.parametrize(
    ("producer", "switch"),
    [
        ("skl2onnx", "options={id(model): {'zipmap': False}}"),
        ("OnnxMLTools", "convert with zipmap=False"),
        ("CatBoost", "cut the ZipMap out of the graph"),
    ],
)
def test_a_zipmap_is_left_out_as_its_converter_does_it(
    write_model: Write, producer: str, switch: str
) -> None:
    """Only scikit-learn's converter has the option that was told."""
    path = classifier(write_model, producer)
    with pytest.raises(ModelError, match=r"The output 'p' has the type seq\(map\(") as caught:
        inspect_model(path)
    assert switch in caught.value.hint
    if producer == "CatBoost":
        model = inspect_model(extracted(path, caught.value.hint))
        assert [spec.name for spec in model.outputs] == ["label", "scores"]


def test_a_label_that_is_a_string_can_be_left_out(write_model: Write) -> None:
    """It has no text pre-processing that could be exported apart."""
    path = classifier(write_model, "skl2onnx", names=True)
    with pytest.raises(ModelError, match="The output 'label' holds strings") as caught:
        inspect_model(path)
    assert caught.value.hint.startswith("Train on integer classes, or drop the output 'label', ")
    model = inspect_model(extracted(path, caught.value.hint))
    assert [spec.name for spec in model.outputs] == ["p"]


def test_text_beside_numbers_can_be_left_out(write_model: Write) -> None:
    path = write_model(
        [
            helper.make_node("Relu", ["x"], ["y"]),
            helper.make_node("Cast", ["x"], ["text"], to=TensorProto.STRING),
        ],
        [("x", FLOAT, ["n", 2])],
        [("text", TensorProto.STRING, ["n", 2]), ("y", FLOAT, ["n", 2])],
    )
    with pytest.raises(ModelError, match="'text' holds strings") as caught:
        inspect_model(path)
    assert caught.value.hint.startswith("Drop the output 'text', with onnx.utils.extract_model(")


def test_a_model_of_strings_alone_is_not_asked_to_drop_them(write_model: Write) -> None:
    path = write_model(
        [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.STRING)],
        [("x", FLOAT, ["n", 2])],
        [("y", TensorProto.STRING, ["n", 2])],
    )
    with pytest.raises(ModelError, match="'y' holds strings") as caught:
        inspect_model(path)
    assert caught.value.hint.startswith("Export the model without its text")
