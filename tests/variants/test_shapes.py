"""Dimensions as exporters of real models write them: placeholders, other batch axes, states."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import GraphProto, NodeProto, TensorProto, helper

from analyzer.engine.runtimes.onnxruntime_ import OrtRuntime
from analyzer.errors import ModelError
from analyzer.variants.inputs import synthetic_inputs
from analyzer.variants.inspect import inspect_model
from analyzer.variants.shapes import Declared, declared_dims, state_loops, unbatched_reasons
from analyzer.variants.try_model import try_model

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
Write = Callable[..., Path]


def tensor(name: str, *dims: int | str | None, datatype: str = "FP32") -> Declared:
    return Declared(name=name, datatype=datatype, dims=declared_dims(dims))


@pytest.mark.parametrize(
    "name", ["?", "None", "-1", "unk__214", "unknown_7", "dynamic", "*", "DynamicDimension.0"]
)
def test_placeholders_are_unknowns_of_their_own(write_model: Write, name: str) -> None:
    nodes = [helper.make_node("GlobalAveragePool", ["x"], ["y"])]
    path = write_model(
        nodes, [("x", FLOAT, [None, 3, name, name])], [("y", FLOAT, [None, 3, 1, 1])]
    )
    model = inspect_model(path, input_shapes={"x": (3, 48, 192)})
    assert model.batchable and model.inputs[0].shape == (3, 48, 192)


def test_real_names_are_shared(write_model: Write) -> None:
    nodes = [helper.make_node("GlobalAveragePool", ["x"], ["y"])]
    path = write_model(
        nodes, [("x", FLOAT, [None, 3, "side", "side"])], [("y", FLOAT, [None, 3, 1, 1])]
    )
    with pytest.raises(ModelError, match="192 where 48 is needed"):
        inspect_model(path, input_shapes={"x": (3, 48, 192)})


def speech_model(write_model: Write, batch: object, state_batch: object) -> Path:
    """A speech detector's interface: samples, a state with its batch on axis 1, a scalar rate."""
    nodes = [
        helper.make_node("ReduceMean", ["state"], ["mean"], axes=[0, 2], keepdims=0),
        helper.make_node("Equal", ["sr", "rate"], ["right"]),
        helper.make_node("Cast", ["right"], ["factor"], to=FLOAT),
        helper.make_node("ReduceMean", ["input"], ["level"], axes=[1], keepdims=0),
        helper.make_node("Add", ["level", "mean"], ["sum"]),
        helper.make_node("Mul", ["sum", "factor"], ["output"]),
        helper.make_node("Identity", ["state"], ["stateN"]),
    ]
    return write_model(
        nodes,
        [
            ("input", FLOAT, [batch, "samples"]),
            ("state", FLOAT, [2, state_batch, 16]),
            ("sr", INT64, []),
        ],
        [("output", FLOAT, [batch]), ("stateN", FLOAT, [None, None, None])],
        {"rate": np.int64(16000)},
    )


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        (
            "batch",
            "input 'state' has its dynamic batch dimension 'batch' on axis 1, Triton batches",
        ),
        (None, "input 'state' has its only dynamic dimension on axis 1, Triton batches on axis 0"),
    ],
)
def test_stateful_model_is_served_unbatched(write_model: Write, batch: object, said: str) -> None:
    path = speech_model(write_model, batch, batch)
    model = inspect_model(path, input_shapes={"input": (512,)})
    assert not model.batchable
    shapes = {spec.name: spec.shape for spec in model.inputs}
    assert shapes == {"input": (1, 512), "state": (2, 1, 16), "sr": ()}
    assert said in model.notes[0] and "input 'sr' is a scalar" in model.notes[0]
    assert "'state' comes back as 'stateN'" in model.notes[1]
    assert "the same state each time" in model.notes[1]
    rows = synthetic_inputs(model, 2, 0)
    assert (rows["sr"] == 16000).all()
    assert not try_model(model, rows)[0].batchable


def test_scalars_get_a_dimension_that_triton_can_serve(write_model: Write, tmp_path: Path) -> None:
    path = speech_model(write_model, "batch", "batch")
    plain = inspect_model(path, input_shapes={"input": (512,)})
    model = inspect_model(path, input_shapes={"input": (512,)}, scratch=tmp_path / "models")
    assert model.name == plain.name and model.sha256 != plain.sha256
    assert {spec.name: spec.shape for spec in model.inputs}["sr"] == (1,)
    assert {spec.name: spec.value_range for spec in model.inputs}["sr"] == (16000, 16000)
    assert "input 'sr' is a scalar" in model.notes[0]
    assert model.notes[-1] == (
        "Triton serves no scalars, so one dimension of size 1 is added to 'sr'."
    )
    rows = synthetic_inputs(model, 1, 0)
    want = OrtRuntime(plain.path).run(
        {
            name: a.reshape(a.shape[1:]) if name != "sr" else a.reshape(())
            for name, a in rows.items()
        }
    )
    got = OrtRuntime(model.path).run({name: array[0] for name, array in rows.items()})
    assert all((want[name] == got[name]).all() for name in want)
    again = inspect_model(path, input_shapes={"input": (512,)}, scratch=tmp_path / "models")
    assert again == model and len(list((tmp_path / "models").rglob("*.onnx"))) == 1


def test_scalars_are_replaced_inside_and_behind_subgraphs(
    write_model: Write, tmp_path: Path
) -> None:
    def branch(name: str, *nodes: NodeProto) -> GraphProto:
        value = helper.make_tensor_value_info(nodes[-1].output[0], FLOAT, [4])
        return helper.make_graph(list(nodes), name, [], [value])

    nodes = [
        helper.make_node(
            "If", ["flag"], ["y"],
            then_branch=branch("then", helper.make_node("Mul", ["x", "k"], ["scaled"])),
            else_branch=branch("else", helper.make_node("Sub", ["x", "k"], ["shifted"])),
        ),
        helper.make_node("ReduceSum", ["y"], ["total"], keepdims=0),
    ]  # fmt: skip
    path = write_model(
        nodes,
        [("x", FLOAT, [4]), ("k", FLOAT, []), ("flag", TensorProto.BOOL, [])],
        [("y", FLOAT, [4]), ("total", FLOAT, [])],
    )
    model = inspect_model(path, scratch=tmp_path / "models")
    feeds = {"x": np.arange(4, dtype=np.float32), "k": np.array([3], np.float32)}
    for flag, want in ((True, [0, 3, 6, 9]), (False, [-3, -2, -1, 0])):
        got = OrtRuntime(model.path).run({**feeds, "flag": np.array([flag])})
        assert (got["y"] == want).all()
        assert got["total"].shape == (1,) and got["total"][0] == sum(want)


def test_first_dimension_of_an_unbatched_model_may_be_given(write_model: Write) -> None:
    nodes = [
        helper.make_node("Add", ["frames", "h"], ["y"]),
        helper.make_node("Identity", ["h"], ["hn"]),
    ]
    path = write_model(
        nodes,
        [("frames", FLOAT, ["frames_n", 8]), ("h", FLOAT, [1, 8])],
        [("y", FLOAT, ["frames_n", 8]), ("hn", FLOAT, [1, 8])],
    )
    assert inspect_model(path).inputs[0].shape == (1, 8)
    model = inspect_model(path, input_shapes={"frames": (30, 8)})
    assert model.inputs[0].shape == (30, 8) and model.outputs[0].shape == (30, 8)
    assert model.fixed_batch is None
    assert "input 'h' has its first dimension fixed at 1" in model.notes[0]


def test_the_rank_of_an_output_that_the_graph_does_not_tell_is_found_by_a_run(
    write_model: Write,
) -> None:
    # Neither ONNX nor its runtime infers how many sizes Unique returns: a session shows a scalar.
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Unique", ["sizes"], ["shape"], sorted=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    path = write_model(nodes, [("x", FLOAT, ["batch", 3])], [("y", FLOAT, None)])
    model = inspect_model(path)
    assert model.batchable and model.outputs[0].shape == (-1,) and not model.notes
    model, _ = try_model(model, synthetic_inputs(model, rows=2, seed=0))
    assert model.batchable
    mean = [helper.make_node("ReduceMean", ["x"], ["y"], keepdims=0)]
    path = write_model(mean, [("x", FLOAT, ["batch", 3])], [("y", FLOAT, None)], name="mean.onnx")
    assert "output 'y' is a scalar" in inspect_model(path).notes[0]


def test_a_time_major_network_has_its_rows_on_axis_1(write_model: Write) -> None:
    """[time, batch, features] in, [batch, features] out: time is none of the rows."""
    mean = [helper.make_node("ReduceMean", ["x"], ["y"], axes=[0], keepdims=0)]
    path = write_model(mean, [("x", FLOAT, ["t", "n", 8])], [("y", FLOAT, ["n", 8])])
    with pytest.raises(
        ModelError, match=r"Dimension 0 \(t\) of the input 'x' is dynamic"
    ) as raised:
        inspect_model(path)
    assert "--input-shape x:N,1,8" in raised.value.hint
    model = inspect_model(path, input_shapes={"x": (20, 1, 8)})
    assert not model.batchable and model.inputs[0].shape == (20, 1, 8)
    assert (
        "input 'x' has the outputs' rows 'n' on axis 1, Triton batches on axis 0" in model.notes[0]
    )


def test_a_transposed_answer_does_not_make_time_the_rows(write_model: Write) -> None:
    """[batch, channels, time] in, [time, batch, classes] out: it was searched at one step."""
    nodes = [helper.make_node("Transpose", ["x"], ["y"], perm=[2, 0, 1])]
    path = write_model(
        nodes, [("x", FLOAT, ["batch", 4, "time"])], [("y", FLOAT, ["time", "batch", 4])]
    )
    with pytest.raises(ModelError, match=r"Dimension 2 \(time\) of the input 'x' is dynamic"):
        inspect_model(path)
    model = inspect_model(path, input_shapes={"x": (4, 30)})
    assert not model.batchable and model.inputs[0].shape == (1, 4, 30)
    assert "output 'y' has its dynamic batch dimension 'batch' on axis 1" in model.notes[0]


def test_first_dimensions_that_paddle_names_are_a_batch(write_model: Write) -> None:
    """Its exporter numbers every dynamic dimension, so that names differ where sizes do not."""
    nodes = [
        helper.make_node("Unsqueeze", ["length", "one"], ["column"]),
        helper.make_node("Sub", ["ids", "column"], ["y"]),
    ]
    one, two, three, four = (f"p2o.DynamicDimension.{i}" for i in range(4))
    path = write_model(
        nodes,
        [("ids", INT64, [one, two]), ("length", INT64, [three])],
        [("y", INT64, [four, None])],
        {"one": np.array([1])},
    )
    model = inspect_model(path, input_shapes={"ids": (8,)})
    assert model.batchable and [spec.shape for spec in model.inputs] == [(8,), ()]
    assert try_model(model, synthetic_inputs(model, rows=2, seed=0))[0].batchable


@pytest.mark.parametrize(
    ("first", "second", "batchable"),
    [
        ("items", "bags", False),
        ("items", "batch", False),
        ("batch_x", "batch_z", True),
        ("x_dynamic_axes_1", "z_dynamic_axes_1", True),  # named by torch's exporter
        (None, "batch", True),
    ],
)
def test_first_dimensions_of_different_names_are_no_batch(
    write_model: Write, first: str | None, second: str, batchable: bool
) -> None:
    path = write_model(
        [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Neg", ["z"], ["w"])],
        [("x", FLOAT, [first, 4]), ("z", FLOAT, [second, 4])],
        [("y", FLOAT, [first, 4]), ("w", FLOAT, [second, 4])],
    )
    shapes = {"x": (3, 4)} if first == "items" else {}
    if second == "bags":
        shapes["z"] = (5, 4)
    model = inspect_model(path, input_shapes=shapes)
    assert model.batchable == batchable
    assert ("different ones ('items' of 'x'" in "".join(model.notes)) != batchable
    if not batchable:
        assert [s.shape for s in model.inputs] == [(3, 4), shapes.get("z", (1, 4))]


def test_an_input_without_a_shape_takes_the_given_one(write_model: Write) -> None:
    path = write_model(
        [helper.make_node("Sigmoid", ["x"], ["y"])], [("x", FLOAT, None)], [("y", FLOAT, None)]
    )
    with pytest.raises(ModelError, match="does not declare a shape for the input 'x'"):
        inspect_model(path)
    model = inspect_model(path, input_shapes={"x": (16,)})
    assert model.batchable and model.inputs[0].shape == (16,) and model.outputs[0].shape == (-1,)
    assert try_model(model, synthetic_inputs(model, rows=2, seed=0))[0].batchable


def test_an_empty_dimension_is_refused_before_anything_is_searched(write_model: Write) -> None:
    path = write_model(
        [helper.make_node("Concat", ["x", "z"], ["y"], axis=1)],
        [("x", FLOAT, ["batch", 4]), ("z", FLOAT, ["batch", 0])],
        [("y", FLOAT, ["batch", 4])],
    )
    with pytest.raises(ModelError, match=r"'z' has an empty dimension \[0\]"):
        inspect_model(path)


def test_accepted_shapes_are_suggested(write_model: Write) -> None:
    # The reshape holds only for a height of 48, as in a text recogniser.
    nodes = [helper.make_node("Reshape", ["x", "target"], ["y"])]
    path = write_model(
        nodes,
        [("x", FLOAT, ["batch", 3, "?", "width"])],
        [("y", FLOAT, ["batch", 144, "width"])],
        {"target": np.array([1, 144, 320], np.int64)},
    )
    with pytest.raises(ModelError, match="Dimension 2 of the input 'x' is dynamic") as caught:
        inspect_model(path)
    assert "--input-shape x:3,N,N with a number" in caught.value.hint
    assert caught.value.hint.endswith("accepts, for example, --input-shape x:3,48,320.")
    assert caught.value.exit_code == 2


def test_every_open_input_is_listed_once(write_model: Write) -> None:
    nodes = [
        helper.make_node("Add", ["a", "b"], ["ab"]),
        helper.make_node("Gather", ["c", "zero"], ["first"], axis=1),
        helper.make_node("Add", ["ab", "first"], ["y"]),
    ]
    path = write_model(
        nodes,
        [(name, FLOAT, ["batch", size]) for name, size in (("a", "n"), ("b", "n"), ("c", "m"))],
        [("y", FLOAT, ["batch", "n"])],
        {"zero": np.array([0], np.int64)},
    )
    with pytest.raises(ModelError) as caught:
        inspect_model(path)
    assert "Add --input-shape a:N --input-shape c:N with" in caught.value.hint


def test_reasons_name_tensor_and_axis() -> None:
    matrix = tensor("distances", "atoms", "atoms")
    assert "'atoms' on axis 1" in unbatched_reasons([matrix], [])[0]
    outputs = [tensor("y", 4)]
    assert unbatched_reasons([tensor("x", "n", 4)], outputs) == (
        "output 'y' has its first dimension fixed at 4",
    )
    assert unbatched_reasons([tensor("x", "n", 4), tensor("z", None)], [tensor("y", "k")]) == ()


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("h", "hn", True),
        ("state", "state_out", True),
        ("h0", "h_n", True),
        ("past_key_values.0.key", "present.0.key", True),
        ("state1", "state2", True),
        ("h1", "h0", False),
        ("h1", "g2", False),
        ("1", "2", False),
        ("id", "id", False),
        ("input", "output", False),
        ("mask", "probabilities", False),
    ],
)
def test_states_are_told_by_name_and_shape(old: str, new: str, found: bool) -> None:
    inputs = [tensor("audio", "n", 80), tensor(old, 1, "n", 128)]
    assert state_loops(inputs, [tensor(new, 1, "n", 128)]) == (((old, new),) if found else ())
    assert state_loops(inputs, [tensor(new, 1, "n", 64)]) == ()
    assert state_loops(inputs[1:], [tensor(new, 1, "n", 128)]) == ()


def test_states_that_are_numbered_go_before_states_that_are_counted_on() -> None:
    inputs = [tensor("ids", "n", 1), *(tensor(f"past_{i}", "n", 8) for i in range(2))]
    outputs = [tensor(f"present_{i}", "n", 8) for i in (1, 0)]
    assert state_loops(inputs, outputs) == (("past_0", "present_0"), ("past_1", "present_1"))
    inputs = [tensor("x", "t", "n", 16), *(tensor(name, 1, "n", 8) for name in ("h0", "c0"))]
    outputs = [tensor(name, 1, "n", 8) for name in ("c1", "h1")]
    assert state_loops(inputs, outputs) == (("h0", "h1"), ("c0", "c1"))
    others = [tensor("h1", 1, "n", None)]  # not of one shape
    assert state_loops(inputs, others) == ()


def test_an_input_that_is_an_output_is_no_state(write_model: Write) -> None:
    """A number of the request that is handed through was told as one."""
    path = write_model(
        [helper.make_node("Relu", ["x"], ["y"])],
        [("x", FLOAT, ["n", 8]), ("id", TensorProto.INT64, ["n", 1])],
        [("y", FLOAT, ["n", 8]), ("id", TensorProto.INT64, ["n", 1])],
    )
    assert inspect_model(path).notes == ()


def test_the_batch_of_a_state_that_is_counted_on_is_one(write_model: Write) -> None:
    """The example took 224 sequences of 224 steps, and the placeholder was the batch's name."""
    nodes = [
        helper.make_node("Add", ["x", "h0"], ["y"]),
        helper.make_node("Neg", ["h0"], ["h1"]),
    ]
    state = [1, "N", 8]
    path = write_model(
        nodes,
        [("x", FLOAT, ["T", "N", 8]), ("h0", FLOAT, state)],
        [("y", FLOAT, ["T", "N", 8]), ("h1", FLOAT, state)],
    )
    with pytest.raises(ModelError) as caught:
        inspect_model(path)
    assert caught.value.hint == (
        "Add --input-shape x:N,1,8 with a number for each N; the model accepts, for example,"
        " --input-shape x:128,1,8."
    )


def test_the_placeholder_of_sizes_is_the_name_of_none(write_model: Write) -> None:
    path = write_model(
        [helper.make_node("Add", ["x", "bias"], ["y"])],
        [("x", FLOAT, ["T", "N", 8]), ("bias", FLOAT, [1, 8])],
        [("y", FLOAT, ["T", "N", 8])],
    )
    with pytest.raises(ModelError) as caught:
        inspect_model(path)
    assert "--input-shape x:SIZE,SIZE,8 with a number for each SIZE" in caught.value.hint


def test_a_sum_of_dimensions_follows_from_its_terms(write_model: Write) -> None:
    """A decoder with a cache: its mask covers the past and the new tokens."""
    nodes = [
        helper.make_node("Concat", ["past", "tokens"], ["present"], axis=1),
        helper.make_node("Add", ["present", "mask"], ["y"]),
    ]
    both = "past_length + new_length"
    path = write_model(
        nodes,
        [
            (name, FLOAT, ["batch", length])
            for name, length in (("mask", both), ("tokens", "new_length"), ("past", "past_length"))
        ],
        [("present", FLOAT, ["batch", both]), ("y", FLOAT, ["batch", both])],
    )
    with pytest.raises(ModelError, match=r"Dimension 1 \(new_length\) of the input 'tokens'") as no:
        inspect_model(path)
    assert "Add --input-shape tokens:N --input-shape past:N with" in no.value.hint
    assert "for example, --input-shape tokens:128 --input-shape past:128." in no.value.hint
    model = inspect_model(path, input_shapes={"tokens": (2,), "past": (5,)})
    assert [spec.shape for spec in (*model.inputs, *model.outputs)] == [
        (7,),
        (2,),
        (5,),
        (7,),
        (7,),
    ]
    with pytest.raises(ModelError, match=r"mask:6 does not fit .* 6 where 7 is needed"):
        inspect_model(path, input_shapes={"mask": (6,), "tokens": (2,), "past": (5,)})


def test_images_whose_channels_are_open_get_an_example(write_model: Write) -> None:
    nodes = [helper.make_node("Conv", ["image", "w"], ["y"])]
    path = write_model(
        nodes,
        [("image", FLOAT, ["batch_size", "num_channels", "height", "width"])],
        [("y", FLOAT, ["batch_size", None, None, None])],
        {"w": np.ones((2, 3, 3, 3), np.float32)},
    )
    with pytest.raises(ModelError) as caught:
        inspect_model(path)
    assert caught.value.hint.endswith("for example, --input-shape image:3,224,224.")


def test_a_mask_that_is_handed_on_is_no_state() -> None:
    """An encoder gives its mask to the decoder."""
    mask, out = (tensor(name, "n", "t", datatype="BOOL") for name in ("mask", "mask_out"))
    assert state_loops([tensor("ids", "n", "t"), mask], [out]) == ()


def test_a_number_of_features_that_a_matrix_decides_is_the_example(write_model: Write) -> None:
    """No usual size runs; the networks of madmom leave 266 and 1,575 open."""
    path = write_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [("x", FLOAT, ["batch", "features"])],
        [("y", FLOAT, ["batch", 7])],
        {"w": np.ones((1575, 7), np.float32)},
    )
    with pytest.raises(ModelError) as caught:
        inspect_model(path)
    assert caught.value.hint.endswith("for example, --input-shape x:1575.")


def test_no_example_is_sought_with_gigabytes(write_model: Write) -> None:
    """Two open dimensions with the size of a vocabulary were 40 GB."""
    nodes = [
        helper.make_node("Gather", ["table", "zero"], ["row"]),
        helper.make_node("Reshape", ["x", "shape"], ["fixed"]),
        helper.make_node("MatMul", ["fixed", "row"], ["y"]),
    ]
    weights = {
        "table": np.ones((100_000, 4), np.float32),
        "zero": np.array(0),
        "shape": np.array([-1, 3, 4]),
    }
    path = write_model(
        nodes,
        [("x", FLOAT, ["batch", "a", "b"])],
        [("y", FLOAT, ["batch", 3])],
        weights,
    )
    with pytest.raises(ModelError, match="is dynamic, so its size must be given") as caught:
        inspect_model(path)
    assert "for example" not in caught.value.hint
