"""First dimensions that are lengths: they are asked for, taken when given, and never 1 unasked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from analyzer.cli.models import as_it_runs
from analyzer.errors import ModelError
from analyzer.modelconfig.render import input_shapes
from analyzer.modelconfig.text import parse_config
from analyzer.variants.deployed import inspect_deployed
from analyzer.variants.inputs import synthetic_inputs
from analyzer.variants.inspect import inspect_model
from analyzer.variants.shapes import Declared, is_length
from analyzer.variants.try_model import as_unbatched, try_model

FLOAT = TensorProto.FLOAT
Write = Callable[..., Path]


def attention(write_model: Write, first: str | None) -> Path:
    """``[tokens, 8]`` in and out; every row looks at every other."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["columns"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "columns"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "x"], ["y"]),
    ]
    return write_model(nodes, [("x", FLOAT, [first, 8])], [("y", FLOAT, [first, 8])])


def reranker(write_model: Write, documents: str | None) -> Path:
    """A query ``[1, 8]`` and some documents."""
    nodes = [
        helper.make_node("Transpose", ["docs"], ["columns"], perm=[1, 0]),
        helper.make_node("MatMul", ["q", "columns"], ["scores"]),
    ]
    return write_model(
        nodes,
        [("q", FLOAT, [1, 8]), ("docs", FLOAT, [documents, 8])],
        [("scores", FLOAT, [1, documents])],
    )


@pytest.mark.parametrize(
    ("first", "length"),
    [("tokens", True), ("T", True), ("N", False), ("batch", False), ("x_dynamic_axes_1", False),
     ("s77", False), (None, False), (4, False)],
)  # fmt: skip
def test_names_of_lengths(first: str | int | None, length: bool) -> None:
    assert is_length(Declared(name="x", datatype="FP32", dims=(first, 8))) == length


def test_a_length_on_the_first_axis_is_asked_for_once_it_is_found_out(write_model: Write) -> None:
    """It was measured and exported for one token."""
    model = inspect_model(attention(write_model, "tokens"))
    with pytest.raises(ModelError, match=r"Dimension 0 \(tokens\) of the input 'x'") as caught:
        try_model(model, synthetic_inputs(model, 2, 0))
    assert caught.value.exit_code == 2
    assert "--input-shape x:N,8" in caught.value.hint
    assert "It is no batch: the answer to a request" in caught.value.message


@pytest.mark.parametrize("first", ["tokens", "N", None])
def test_a_length_on_the_first_axis_is_taken_as_it_is_given(
    write_model: Write, first: str | None
) -> None:
    model = inspect_model(attention(write_model, first), input_shapes={"x": (64, 8)})
    assert not model.batchable and model.fixed_batch is None
    assert model.inputs[0].shape == (64, 8)
    assert "first dimensions are given (64 of 'x')" in model.notes[0]
    assert try_model(model, synthetic_inputs(model, 2, 0))[0] == model


def test_rows_without_a_name_are_one_and_the_option_for_more_is_told(write_model: Write) -> None:
    model = inspect_model(attention(write_model, "N"))
    ran, _ = try_model(model, synthetic_inputs(model, 2, 0))
    assert ran.inputs[0].shape == (1, 8)
    assert "Requests have one row; --input-shape x:N,8 makes it N." in ran.notes[-1]


def test_a_graph_that_runs_one_row_only_is_not_asked_for_its_length(write_model: Write) -> None:
    model = as_unbatched(inspect_model(attention(write_model, "tokens")))
    assert model.inputs[0].shape == (1, 8)


def test_the_batch_of_an_ordinary_model_cannot_be_given(write_model: Write) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    for name in ("batch", "N", None):
        path = write_model(nodes, [("x", FLOAT, [name, 8])], [("y", FLOAT, [name, 8])])
        with pytest.raises(ModelError, match="has 2 dimensions, and the input has 1"):
            inspect_model(path, input_shapes={"x": (16, 8)})


def test_the_length_of_a_second_input_is_asked_for(write_model: Write) -> None:
    """One document was ranked, and nobody was told."""
    path = reranker(write_model, "num_docs")
    with pytest.raises(ModelError, match=r"Dimension 0 \(num_docs\) of the input 'docs'") as caught:
        inspect_model(path)
    assert "--input-shape docs:N,8 with a number for each N;" in caught.value.hint
    model = inspect_model(path, input_shapes={"docs": (50, 8)})
    assert [spec.shape for spec in (*model.inputs, *model.outputs)] == [(1, 8), (50, 8), (1, 50)]
    assert model.fixed_batch is None


def test_the_example_of_the_hint_is_accepted(write_model: Write) -> None:
    """The advice left the first dimension out, and gave the same error again."""
    mean = [helper.make_node("ReduceMean", ["x"], ["y"], axes=[0], keepdims=0)]
    path = write_model(mean, [("x", FLOAT, ["time", "batch", 8])], [("y", FLOAT, ["batch", 8])])
    with pytest.raises(ModelError) as caught:
        inspect_model(path)
    example = caught.value.hint.rsplit("--input-shape x:", 1)[1].rstrip(".")
    shape = tuple(map(int, example.split(",")))
    assert inspect_model(path, input_shapes={"x": shape}).inputs[0].shape == shape


def test_a_batch_on_a_later_axis_is_one(write_model: Write) -> None:
    """The hint proposed 128 for it, which became the request that was measured."""
    path = write_model(
        [helper.make_node("Neg", ["x"], ["y"])],
        [("x", FLOAT, [10, "batch", 8])],
        [("y", FLOAT, [10, "batch", 8])],
    )
    model = inspect_model(path)
    assert model.inputs[0].shape == (10, 1, 8) and model.fixed_batch is None


def test_a_first_dimension_that_comes_again_is_a_length(write_model: Write) -> None:
    """A graph's matrix ``[n, n]`` was measured and exported as ``[1, 1]``."""
    path = write_model(
        [helper.make_node("MatMul", ["links", "nodes"], ["y"])],
        [("nodes", FLOAT, ["n", 8]), ("links", FLOAT, ["n", "n"])],
        [("y", FLOAT, ["n", 8])],
    )
    with pytest.raises(ModelError, match=r"Dimension 0 \(n\) of the input 'nodes'") as caught:
        inspect_model(path)
    assert "--input-shape nodes:N,8 with a number for each N;" in caught.value.hint
    model = inspect_model(path, input_shapes={"nodes": (50, 8)})
    assert [spec.shape for spec in (*model.inputs, *model.outputs)] == [(50, 8), (50, 50), (50, 8)]


def pairs(write_model: Write) -> Path:
    """Adds rows up in pairs; a single row does not run."""
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["p"]),
        helper.make_node("ReduceSum", ["p", "axis"], ["y"], keepdims=0),
    ]
    weights = {"shape": np.array([-1, 2, 8]), "axis": np.array([1])}
    return write_model(nodes, [("x", FLOAT, ["N", 8])], [("y", FLOAT, ["M", 8])], weights)


def bags(write_model: Write, items: str) -> Path:
    """What torch's EmbeddingBag becomes: an answer for each of the bags that ``offsets`` begins."""
    then = [
        helper.make_node("Cast", ["tokens"], ["values"], to=FLOAT),
        helper.make_node("CumSum", ["values", "zero"], ["sums"]),
        helper.make_node("Gather", ["sums", "offsets"], ["y"]),
    ]
    return write_model(
        then,
        [("tokens", TensorProto.INT64, [items]), ("offsets", TensorProto.INT64, ["batch"])],
        [("y", FLOAT, ["batch"])],
        {"zero": np.array(0)},
    )


def test_a_model_that_needs_several_rows_asks_for_them(write_model: Write) -> None:
    """It was refused with a message of ONNX Runtime's, whatever was given."""
    path = pairs(write_model)
    with pytest.raises(ModelError, match="One row of the model does not run, and 2") as e:
        as_it_runs(inspect_model(path), None, None)
    assert e.value.hint.startswith("Add --input-shape x:N,8 with a number for each N;")
    assert e.value.hint.endswith("for example, --input-shape x:2,8.")
    model, _, _ = as_it_runs(inspect_model(path, input_shapes={"x": (4, 8)}), None, None)
    assert not model.batchable and model.inputs[0].shape == (4, 8)
    with pytest.raises(ModelError, match="loads and does not run") as e:
        inspect_model(path, input_shapes={"x": (3, 8)})  # no pairs
    assert e.value.hint.endswith("for example, --input-shape x:2,8.")


def test_a_network_over_frames_asks_for_as_many_as_it_sees_at_once(write_model: Write) -> None:
    """Networks of madmom see 5 to 21 frames; too few were "2 dimensions" instead of 1."""
    sizes = {"image": np.array([1, 1, -1, 4]), "w": np.ones((2, 1, 11, 4), np.float32)}
    sizes["others"] = np.array([0, 1, 3])
    nodes = [
        helper.make_node("Reshape", ["x", "image"], ["i"]),
        helper.make_node("Conv", ["i", "w"], ["c"]),
        helper.make_node("ReduceSum", ["c", "others"], ["y"], keepdims=0),
    ]
    path = write_model(nodes, [("x", FLOAT, ["x_dim_0", 4])], [("y", FLOAT, ["y_dim_0"])], sizes)
    inspected = inspect_model(path)
    with pytest.raises(ModelError, match="One row of the model does not run, and 12") as e:
        as_it_runs(inspected, None, None)
    assert e.value.hint.endswith("for example, --input-shape x:12,4.")
    with pytest.raises(ModelError, match="loads and does not run") as e:
        inspect_model(path, input_shapes={"x": (7, 4)})
    assert e.value.hint.endswith("for example, --input-shape x:12,4.")
    with pytest.raises(ModelError, match="One row of the model does not run, and 12"):
        inspect_model(path, input_shapes={"x": (1, 4)})
    assert inspect_model(path, input_shapes={"x": (15, 4)}).inputs[0].shape == (15, 4)


def test_two_rows_are_tried_however_large_they_are(write_model: Write) -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["p"]),
        helper.make_node("ReduceMean", ["p"], ["y"], axes=[1, 2, 3, 4], keepdims=0),
    ]
    path = write_model(
        nodes,
        [("x", FLOAT, ["N", 3, 1200, 1200])],
        [("y", FLOAT, ["M"])],
        {"shape": np.array([-1, 2, 3, 1200, 1200])},
    )
    with pytest.raises(ModelError, match="One row of the model does not run, and 2"):
        as_it_runs(inspect_model(path), None, None)


def test_a_batch_that_is_given_too_stays_an_error_where_nothing_made_up_runs(
    write_model: Write,
) -> None:
    """Real data were asked for, which are not what is wrong."""
    nodes = [
        helper.make_node("Add", ["ids", "far"], ["places"]),
        helper.make_node("Gather", ["table", "places"], ["y"]),
    ]
    path = write_model(
        nodes,
        [("ids", TensorProto.INT64, ["batch", "length"])],
        [("y", FLOAT, ["batch", "length", 2])],
        {"far": np.array(10), "table": np.ones((5, 2), np.float32)},
    )
    with pytest.raises(ModelError, match="has 2 dimensions, and the input has 1"):
        inspect_model(path, input_shapes={"ids": (8, 4)})


@pytest.mark.parametrize("items", ["n_tokens", "total"])
def test_bags_are_no_batch_when_every_first_dimension_is_given(
    write_model: Write, items: str
) -> None:
    """``tokens:20`` was asked for, and refused beside ``offsets:3``."""
    path = bags(write_model, items)
    model = inspect_model(path, input_shapes={"tokens": (20,), "offsets": (3,)})
    assert not model.batchable
    assert [spec.shape for spec in (*model.inputs, *model.outputs)] == [(20,), (3,), (3,)]
    with pytest.raises(ModelError, match=rf"Dimension 0 \({items}\) of the input 'tokens'"):
        inspect_model(path)


def test_lengths_that_a_run_proves_are_taken_as_they_are_given(write_model: Write) -> None:
    """What asks for the length of one input stands in the way of no other's."""
    nodes = [
        helper.make_node("ReduceSum", ["x", "axis"], ["sum"], keepdims=1),
        helper.make_node("Add", ["z", "sum"], ["y"]),
    ]
    path = write_model(
        nodes,
        [("x", FLOAT, ["time", 8]), ("z", FLOAT, [None, 8])],
        [("y", FLOAT, [None, 8])],
        {"axis": np.array([0])},
    )
    model = inspect_model(path, input_shapes={"x": (5, 8), "z": (3, 8)})
    assert [spec.shape for spec in model.inputs] == [(5, 8), (3, 8)]


def config(*dims: str) -> object:
    inputs = " ".join(
        f'input {{ name: "{name}" data_type: TYPE_FP32 dims: [ {sizes} ] }}'
        for name, sizes in (pair.split(":") for pair in dims)
    )
    return parse_config(f'backend: "onnxruntime" max_batch_size: 0 {inputs}')


def test_a_folder_that_does_not_batch_says_what_the_first_dimension_is(write_model: Write) -> None:
    """dims [64, 8] were measured and exported as [1, 8]."""
    path = attention(write_model, None)
    model = inspect_deployed(path, input_shapes(config("x:64, 8")))
    assert not model.batchable and model.inputs[0].shape == (64, 8)
    assert model.outputs[0].shape[-1] == 8
    given = inspect_deployed(path, input_shapes(config("x:64, 8")), given={"x": (32, 8)})
    assert given.inputs[0].shape == (32, 8)
    documents = reranker(write_model, None)
    model = inspect_deployed(documents, input_shapes(config("q:1, 8", "docs:50, 8")))
    assert [spec.shape for spec in model.inputs] == [(1, 8), (50, 8)]


@pytest.mark.parametrize("dims", ["x:1, 8", "x:-1, 8", "x:1, 9"])
def test_a_batch_of_one_in_a_folder_stays_a_batch(write_model: Write, dims: str) -> None:
    weights = {"w": np.ones((8, 4), np.float32)}
    path = write_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [("x", FLOAT, ["batch", 8])],
        [("y", FLOAT, ["batch", 4])],
        weights,
    )
    model = inspect_deployed(path, input_shapes(config(dims)))
    assert model.batchable and model.inputs[0].shape == (8,)
