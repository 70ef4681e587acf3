"""Which rows are tried, and which models prove to be no batch by them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from analyzer.domain.configuration import Configuration
from analyzer.domain.model import ModelInfo
from analyzer.errors import ModelError
from analyzer.modelconfig.render import render_config
from analyzer.modelconfig.text import parse_config
from analyzer.variants.inputs import synthetic_inputs
from analyzer.variants.inspect import inspect_model
from analyzer.variants.precision import convert_fp16
from analyzer.variants.quantize import quantize_dynamic
from analyzer.variants.try_model import rows_to_try, try_model

Write = Callable[..., Path]
Node = helper.make_node
FLOAT, INT64, BOOL, UINT8 = (
    *(TensorProto.FLOAT, TensorProto.INT64),
    *(TensorProto.BOOL, TensorProto.UINT8),
)
WEIGHTS = np.random.default_rng(1).standard_normal((8, 4)).astype(np.float32)
TO_THE_END = np.array([2**63 - 1], np.int64)


def as_it_runs(model: ModelInfo) -> ModelInfo:
    return try_model(model, rows_to_try(model, None))[0]


def graph(
    write_model: Write,
    nodes: list[object],
    kind: int = FLOAT,
    dims: tuple[object, ...] = ("n", 8),
    **weights: np.ndarray,
) -> ModelInfo:
    """The model of ``nodes`` from ``x`` [n, 8] to ``y``."""
    return inspect_model(
        write_model(nodes, [("x", FLOAT, ["n", 8])], [("y", kind, list(dims))], weights)
    )


CENTRED = [Node("ReduceMean", ["x"], ["mean"], axes=[0]), Node("Sub", ["x", "mean"], ["centred"])]


@pytest.mark.parametrize("direction", ["forward", "reverse"])
def test_a_network_over_the_rows_is_no_batch_in_either_direction(
    write_model: Write, direction: str
) -> None:
    """Only the second row was looked at, which sees nothing behind it."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((1, 32, 8)).astype(np.float32),
        "r": rng.standard_normal((1, 32, 8)).astype(np.float32),
        "one": np.array([1], np.int64),
        "two": np.array([1, 2], np.int64),
    }
    nodes = [
        Node("Unsqueeze", ["x", "one"], ["steps"]),
        Node("LSTM", ["steps", "w", "r"], ["states"], hidden_size=8, direction=direction),
        Node("Squeeze", ["states", "two"], ["y"]),
    ]
    assert not as_it_runs(graph(write_model, nodes, **weights)).batchable


def test_a_row_that_adds_the_next_one_is_no_batch(write_model: Write) -> None:
    nodes = [
        Node("Pad", ["x", "pads"], ["padded"]),
        Node("Slice", ["padded", "start", "end"], ["next"]),
        Node("Add", ["x", "next"], ["y"]),
    ]
    weights = {
        "pads": np.array([0, 0, 1, 0], np.int64),
        "start": np.array([1], np.int64),
        "end": TO_THE_END,
    }
    assert not as_it_runs(graph(write_model, nodes, **weights)).batchable


@pytest.mark.parametrize("kind", [INT64, BOOL, UINT8])
def test_integers_tell_that_rows_depend_on_each_other(write_model: Write, kind: int) -> None:
    """A label and a flag relative to the batch's mean, and probabilities over it as bytes."""
    product = Node("MatMul", ["centred", "w"], ["z"])
    tails = {
        INT64: [product, Node("ArgMax", ["z"], ["y"], axis=1, keepdims=0)],
        BOOL: [
            Node("ReduceSumSquare", ["centred"], ["size"], axes=[1], keepdims=0),
            Node("Greater", ["size", "limit"], ["y"]),
        ],
        UINT8: [
            Node("Softmax", ["x"], ["p"], axis=0),
            Node("Mul", ["p", "levels"], ["scaled"]),
            Node("Cast", ["scaled"], ["y"], to=UINT8),
        ],
    }
    dims = ("n", 8) if kind == UINT8 else ("n",)
    weights = {"w": WEIGHTS, "limit": np.float32(4), "levels": np.float32(255)}
    model = graph(write_model, [*CENTRED, *tails[kind]], kind, dims, **weights)
    assert not as_it_runs(model).batchable


def test_labels_of_rows_alone_are_a_batch(write_model: Write) -> None:
    nodes = [Node("MatMul", ["x", "w"], ["z"]), Node("ArgMax", ["z"], ["y"], axis=1, keepdims=0)]
    assert as_it_runs(graph(write_model, nodes, INT64, ("n",), w=WEIGHTS)).batchable


@pytest.mark.parametrize("dependent", [True, False])
def test_nan_and_infinity_do_not_hide_the_other_values(write_model: Write, dependent: bool) -> None:
    nodes = [
        Node("Log", ["x"], ["logarithm"]),  # NaN below 0
        Node("Add", ["x", "mask"], ["masked"]),
        Node("Softmax", ["x"], ["p"], axis=0 if dependent else 1),
        Node("Concat", ["logarithm", "masked", "p"], ["y"], axis=1),
    ]
    mask = np.array([0, -np.inf] * 4, np.float32)
    model = graph(write_model, nodes, FLOAT, ("n", 24), mask=mask)
    assert as_it_runs(model).batchable != dependent


def test_a_column_is_judged_by_its_own_size(write_model: Write) -> None:
    """A softmax over the rows beside features a hundred times as large."""
    nodes = [
        Node("Mul", ["x", "hundred"], ["large"]),
        Node("Softmax", ["x"], ["p"], axis=0),
        Node("Concat", ["large", "p"], ["y"], axis=1),
    ]
    model = graph(write_model, nodes, FLOAT, ("n", 16), hundred=np.float32(100))
    assert not as_it_runs(model).batchable


def test_a_small_share_of_the_other_rows_is_found(write_model: Write) -> None:
    nodes = [*CENTRED, Node("Mul", ["mean", "hundredth"], ["a"]), Node("Sub", ["x", "a"], ["y"])]
    assert not as_it_runs(graph(write_model, nodes, hundredth=np.float32(0.01))).batchable


def test_a_branch_that_the_whole_batch_decides_is_found(write_model: Write) -> None:
    branches = {
        f"{word}_branch": helper.make_graph(
            [Node(operator, ["x"], [f"of_{word}"])],
            word,
            [],
            [helper.make_tensor_value_info(f"of_{word}", FLOAT, ["n", 8])],
        )
        for word, operator in (("then", "Neg"), ("else", "Identity"))
    }
    nodes = [
        Node("ReduceSum", ["x"], ["sum"], keepdims=0),
        Node("Greater", ["sum", "zero"], ["positive"]),
        Node("If", ["positive"], ["y"], **branches),
    ]
    assert not as_it_runs(graph(write_model, nodes, zero=np.float32(0))).batchable


def test_a_table_of_positions_that_ends_is_no_reason_against_smaller_batches(
    write_model: Write,
) -> None:
    nodes = [
        Node("Shape", ["x"], ["size"], end=1),
        Node("Squeeze", ["size"], ["count"]),
        Node("Range", ["first", "count", "step"], ["positions"]),
        Node("Gather", ["table", "positions"], ["p"]),
        Node("Add", ["x", "p"], ["y"]),
    ]
    weights = {"first": np.int64(0), "step": np.int64(1), "table": np.zeros((4, 8), np.float32)}
    assert as_it_runs(graph(write_model, nodes, **weights)).batchable
    weights["table"] = WEIGHTS[:4, :1] * np.ones(8, np.float32)
    assert not as_it_runs(graph(write_model, nodes, **weights)).batchable, "of one's place"


def encoder(write_model: Write) -> Path:
    """Products of 256 features, large enough that kernels differ with the number of rows."""
    rng = np.random.default_rng(2)
    weights = {
        f"w{layer}": (rng.standard_normal((256, 256)) / 16).astype(np.float32) for layer in range(4)
    }
    nodes = []
    for layer in range(4):
        source = f"h{layer - 1}" if layer else "x"
        nodes += [
            Node("MatMul", [source, f"w{layer}"], [f"z{layer}"]),
            Node("Tanh", [f"z{layer}"], [f"h{layer}"]),
        ]
    nodes += [Node("Identity", ["h3"], ["y"]), Node("ArgMax", ["h3"], ["label"], axis=1)]
    return write_model(
        nodes,
        [("x", FLOAT, ["n", 256])],
        [("y", FLOAT, ["n", 256]), ("label", INT64, ["n", 1])],
        weights,
    )


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_rounding_is_no_dependence_in_any_precision(
    write_model: Write, tmp_path: Path, precision: str
) -> None:
    path = encoder(write_model)
    target = tmp_path / precision / "model.onnx"
    target.parent.mkdir()
    if precision == "fp16":
        convert_fp16(path, target)
    elif precision == "int8":
        quantize_dynamic(path, target, external=(), work=tmp_path)
    model = inspect_model(path if precision == "fp32" else target)
    rows = rows_to_try(model, None)
    assert as_it_runs(model).batchable
    # One of them several times as large: int8 activations are scaled over the whole batch.
    rows["x"][1] *= 4
    assert try_model(model, rows)[0].batchable


def test_what_drops_a_row_that_comes_twice_is_no_batch(
    write_model: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Different rows come back as they are, and in their order."""
    nodes = [Node("Unique", ["x"], ["y"], axis=0, sorted=0)]
    model = graph(write_model, nodes)
    assert "has not one row for each" in as_it_runs(model).notes[-1]
    monkeypatch.setattr("analyzer.variants.try_model._SECONDS_MAX", 0.0)
    assert as_it_runs(model).batchable, "two rows of a slow model do not show it"


def test_many_boxes_are_one_request(write_model: Write) -> None:
    """A hundred were refused, since boxes that hardly overlap were taken for a batch."""
    weights = {
        "first": np.array([0], np.int64),
        "two": np.array([0, 1], np.int64),
        "most": np.array([10], np.int64),
        "overlap": np.array([0.5], np.float32),
        "column": np.array([2], np.int64),
        "rest": np.array([1], np.int64),
    }
    nodes = [
        Node("Unsqueeze", ["boxes", "first"], ["all_boxes"]),
        Node("Unsqueeze", ["scores", "two"], ["all_scores"]),
        Node("NonMaxSuppression", ["all_boxes", "all_scores", "most", "overlap"], ["kept"]),
        Node("Gather", ["kept", "column"], ["places"], axis=1),
        Node("Squeeze", ["places", "rest"], ["rows"]),
        Node("Gather", ["boxes", "rows"], ["y"]),
    ]
    inputs = [("boxes", FLOAT, [None, 4]), ("scores", FLOAT, [None])]
    path = write_model(nodes, inputs, [("y", FLOAT, [None, 4])], weights)
    tried = as_it_runs(inspect_model(path))
    assert not tried.batchable
    whole = inspect_model(path, input_shapes={"boxes": (100, 4), "scores": (100,)})
    assert not whole.batchable and whole.inputs[0].shape == (100, 4)


def test_equal_rows_are_passed_over(write_model: Write) -> None:
    model = graph(write_model, [Node("Neg", ["x"], ["y"])])
    repeated = np.repeat(np.arange(6, dtype=np.float32), 50)[:, None] * np.ones(8, np.float32)
    rows = rows_to_try(model, {"x": repeated})
    assert rows["x"][:, 0].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("count", [1, 2, 300])
def test_real_data_that_repeats_one_row_is_filled_up(write_model: Write, count: int) -> None:
    """Rows of zeros say nothing of a sum over the rows, and equal ones little of an attention."""
    nodes = [Node("CumSum", ["x", "axis"], ["y"])]
    model = graph(write_model, nodes, axis=np.int64(0))
    rows = rows_to_try(model, {"x": np.zeros((count, 8), np.float32)})
    assert len(rows["x"]) == 8 and not rows["x"][0].any()
    assert not try_model(model, rows)[0].batchable


def test_rows_that_do_not_run_are_passed_over(write_model: Write) -> None:
    """Made-up lengths, indices and the like need not be valid."""
    nodes = [
        Node("Gather", ["table", "i"], ["row"]),
        Node("Softmax", ["row"], ["y"], axis=0),
    ]
    path = write_model(
        nodes, [("i", INT64, ["n"])], [("y", FLOAT, ["n", 4])], {"table": WEIGHTS[:3]}
    )
    model = inspect_model(path)
    assert not try_model(model, {"i": np.array([0, 99, 98])})[0].batchable
    assert not try_model(model, {"i": np.array([0, 99, 1])})[0].batchable


def categorical(write_model: Write, known: list[int]) -> ModelInfo:
    """Of each of ``known`` a column; other integers are an error."""
    encoder = Node("OneHotEncoder", ["i"], ["y"], domain="ai.onnx.ml", cats_int64s=known, zeros=0)
    outputs = [("y", FLOAT, ["n", 1, len(known)])]
    inputs = [("i", INT64, ["n", 1])]
    return inspect_model(write_model([encoder], inputs, outputs, domains=("ai.onnx.ml",)))


def test_made_up_rows_that_do_not_run_are_told_before_a_search(write_model: Write) -> None:
    """A search spent its budget on them, and named a larger one: half of them were refused."""
    model = categorical(write_model, [1, 5, 9])
    rows = {"i": np.array([[1], [5], [2]])}
    assert try_model(model, rows)[0].batchable
    with pytest.raises(ModelError, match="does not run") as caught:
        try_model(model, rows, made_up=True)
    assert "--calibration-data" in caught.value.hint


def test_categories_tell_what_is_made_up(write_model: Write) -> None:
    model = categorical(write_model, [3, 1, 2])
    assert model.inputs[0].value_range == (1, 3)
    assert set(rows_to_try(model, None)["i"].reshape(-1)) == {1, 2, 3}


@pytest.mark.parametrize(("known", "refuses"), [([1, 5, 9], True), ([0, 5, 9], False)])
def test_a_model_that_fails_on_zeros_has_no_warm_up_of_them(
    write_model: Write, known: list[int], refuses: bool
) -> None:
    """Triton refused the certified repository: its warm-up failed with an unknown category."""
    model, _ = try_model(categorical(write_model, known), {"i": np.array([[5], [9]])})
    assert model.batchable and model.refuses_zeros == refuses
    proto = parse_config(render_config(model, Configuration(max_batch_size=8)))
    assert bool(proto.model_warmup) != refuses


def test_two_rows_are_tried_of_a_large_input(write_model: Write) -> None:
    path = write_model(
        [Node("GlobalAveragePool", ["x"], ["y"])],
        [("x", FLOAT, ["n", 3, 1024, 1024])],
        [("y", FLOAT, ["n", 3, 1, 1])],
    )
    assert len(rows_to_try(inspect_model(path), None)["x"]) == 2


def test_a_slow_model_runs_on_two_rows_alone_and_both_together(
    write_model: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    from analyzer.engine.runtimes.onnxruntime_ import OrtRuntime

    model = graph(write_model, [Node("Neg", ["x"], ["y"])])
    sizes = []
    run = OrtRuntime.run

    def slow(runtime: OrtRuntime, inputs: dict[str, np.ndarray]) -> object:
        sizes.append(len(inputs["x"]))
        clock[0] += 1.0
        return run(runtime, inputs)

    clock = [0.0]
    monkeypatch.setattr(OrtRuntime, "run", slow)
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    assert try_model(model, synthetic_inputs(model, 8, 0))[1] == 1.0
    assert sizes == [1, 1, 2]


def test_a_size_that_the_graph_leaves_open_is_looked_at_in_more_rows(
    write_model: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table reader's first two pages had as many cells each; it was exported with batches."""
    nodes = [
        Node("ReduceMax", ["x"], ["most"], axes=[0, 1], keepdims=0),
        Node("Cast", ["most"], ["whole"], to=INT64),
        Node("Unsqueeze", ["whole", "zero"], ["length"]),
        Node("Slice", ["x", "zero", "length", "one"], ["y"]),
    ]
    numbers = {"zero": np.array([0]), "one": np.array([1])}
    model = graph(write_model, nodes, dims=("n", None), **numbers)
    assert model.outputs[0].shape == (-1,)
    monkeypatch.setattr("analyzer.variants.try_model._SECONDS_MAX", 0.0)
    rows = np.tile(np.arange(8, dtype=np.float32), (4, 1))
    rows[2] = np.minimum(rows[2], 3)
    assert "has not one row for each" in try_model(model, {"x": rows})[0].notes[-1]
    assert try_model(model, {"x": rows[:2]})[0].batchable, "two may have the same by chance"


def dropping(write_model: Write, kind: int = BOOL, *, over: str = "rows") -> ModelInfo:
    """Gives the rows of ``x`` that ``keep_mask`` marks."""
    to_bool = Node("Cast", ["keep_mask"], ["keep"], to=BOOL)
    kept = {
        "rows": [Node("Compress", ["x", "keep"], ["y"], axis=0)],
        "indices": [
            Node("NonZero", ["keep"], ["found"]),
            Node("Squeeze", ["found", "zero"], ["index"]),
            Node("Gather", ["x", "index"], ["y"]),
        ],
    }
    path = write_model(
        [to_bool, *kept[over]],
        [("x", FLOAT, ["n", 8]), ("keep_mask", kind, ["n"])],
        [("y", FLOAT, [None, 8])],
        {"zero": np.array([0], np.int64)},
    )
    return inspect_model(path)


@pytest.mark.parametrize("over", ["rows", "indices"])
@pytest.mark.parametrize("kind", [BOOL, INT64, FLOAT])
@pytest.mark.parametrize("real", [False, True])
def test_rows_that_a_mask_drops_are_no_batch(
    write_model: Write, kind: int, over: str, real: bool
) -> None:
    """Made-up masks are all ones, and drop none; so are those of some real data."""
    model = dropping(write_model, kind, over=over)
    assert model.batchable
    data = synthetic_inputs(model, 20, 1) if real else None
    tried, _ = try_model(model, rows_to_try(model, data))
    assert not tried.batchable and tried.outputs[0].shape == (-1, 8)
    (note,) = tried.notes
    assert "the values of 'keep_mask' decide the size of the output 'y'." in note
    assert "--input-shape x:N,8 makes it N" in note


def test_rows_that_need_equal_masks_are_no_batch(write_model: Write) -> None:
    """Each row alone runs, whatever its mask; together only those that keep equally many."""
    nodes = [
        Node("Shape", ["x"], ["rows"], end=1),
        Node("NonZero", ["mask"], ["found"]),
        Node("Transpose", ["found"], ["places"]),
        Node("GatherND", ["x", "places"], ["kept"]),
        Node("Concat", ["rows", "rest"], ["target"], axis=0),
        Node("Reshape", ["kept", "target"], ["by_row"]),
        Node("ReduceMean", ["by_row"], ["y"], axes=[1]),
    ]
    path = write_model(
        nodes,
        [("x", FLOAT, ["n", 5]), ("mask", BOOL, ["n", 5])],
        [("y", FLOAT, ["n", 1])],
        {"rest": np.array([-1], np.int64)},
    )
    tried = as_it_runs(inspect_model(path))
    assert not tried.batchable
    assert "rows with other 'mask' do not run together" in tried.notes[0]


@pytest.mark.parametrize("kind", [BOOL, INT64, FLOAT])
def test_a_mask_that_hides_positions_leaves_a_batch(write_model: Write, kind: int) -> None:
    nodes = [
        Node("Cast", ["mask"], ["keep"], to=BOOL),
        Node("Where", ["keep", "x", "low"], ["seen"]),
        Node("Softmax", ["seen"], ["y"], axis=1),
    ]
    path = write_model(
        nodes,
        [("x", FLOAT, ["n", 8]), ("mask", kind, ["n", 8])],
        [("y", FLOAT, ["n", 8])],
        {"low": np.float32(-np.inf)},
    )
    tried = as_it_runs(inspect_model(path))
    assert tried.batchable and not tried.notes


def test_a_model_that_never_ends_is_given_up(tmp_path: Path) -> None:
    """Its run kept signals from the main thread, and the search's budget was of no use."""
    same = [Node("Identity", ["h"], ["h_out"]), Node("Identity", ["goes_on"], ["goes_on_out"])]
    state = [helper.make_tensor_value_info("h", FLOAT, ["n", 8])]
    carried = [helper.make_tensor_value_info("h_out", FLOAT, ["n", 8])]
    again = helper.make_tensor_value_info("goes_on", BOOL, [])
    number = helper.make_tensor_value_info("i", INT64, [])
    still = helper.make_tensor_value_info("goes_on_out", BOOL, [])
    body = helper.make_graph(same, "body", [number, again, *state], [still, *carried])
    loop = Node("Loop", ["", "true", "x"], ["y"], body=body)
    values = [helper.make_tensor_value_info(name, FLOAT, ["n", 8]) for name in "xy"]
    constant = numpy_helper.from_array(np.array(True), "true")
    whole = helper.make_graph([loop], "endless", values[:1], values[1:], [constant])
    path = tmp_path / "endless.onnx"
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(whole, opset_imports=opset, ir_version=8), str(path))
    model = inspect_model(path)
    with pytest.raises(ModelError, match="does not come to an end: it was tried for 0"):
        try_model(model, rows_to_try(model, None), 0.3)
    assert not [thread for thread in threading.enumerate() if thread.name == "try the model"]
