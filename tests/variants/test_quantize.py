"""Graphs as real exporters write them, quantized: old operator sets, odd biases, int8 already."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from analyzer.engine.runtimes.onnxruntime_ import OrtRuntime
from analyzer.errors import BuildError
from analyzer.variants import quantize
from analyzer.variants.inspect import inspect_model
from analyzer.variants.precision import convert_fp16
from analyzer.variants.quantize import RowReader, quantize_dynamic, quantize_static

Array = NDArray[np.float32]
RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((6, 3, 8, 8), np.float32)
ROWS = RNG.standard_normal((6, 16), np.float32)


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape, np.float32)


def save(
    path: Path, nodes: list[NodeProto], row: Array, weights: dict[str, Array], *, opset: int = 17
) -> Path:
    """A model of one input ``x`` ``[n, *row.shape]`` and one output ``y``."""
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *row.shape])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), str(path))
    return path


def quantized_error(source: Path, rows: Array) -> tuple[float, tuple[str, ...]]:
    """Relative error of the statically quantized model on its own rows, and the notes."""
    target = source.with_name("int8.onnx")
    notes = quantize_static(
        source,
        target,
        RowReader({"x": rows}, batchable=True),
        external=(),
        backend="onnxruntime",
        work=source.parent,
    )
    assert Counter(n.op_type for n in onnx.load(str(target)).graph.node)["DequantizeLinear"]
    return relative_error(source, target, rows), notes


def relative_error(source: Path, target: Path, rows: Array, *, as_written: bool = False) -> float:
    """Of the answers; ``as_written`` runs every operator by itself, with no kernels for int8."""

    def answer(path: Path) -> Array:
        if not as_written:
            return OrtRuntime(path).run({"x": rows})["y"]
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        found: Array = session.run(["y"], {"x": rows})[0]
        return found

    want, got = (answer(path).astype(np.float64) for path in (source, target))
    return float(np.linalg.norm(want - got) / np.linalg.norm(want))


@pytest.mark.parametrize("opset", [10, 11, 12])
def test_old_operator_sets_get_a_scale_per_channel(tmp_path: Path, opset: int) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv"),
        helper.make_node("Relu", ["c"], ["y"], name="relu"),
    ]
    weights = {"w": normal(5, 3, 3, 3), "b": normal(5)}
    error, notes = quantized_error(
        save(tmp_path / "old.onnx", nodes, IMAGES[0], weights, opset=opset), IMAGES
    )
    assert error < 0.05 and notes == ("calibrated on 6 rows",)


def test_graph_that_cannot_be_converted_gets_a_scale_per_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_adapter(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
        raise RuntimeError("No Adapter for Upsample")

    monkeypatch.setattr(onnx.version_converter, "convert_version", no_adapter)
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["y"], name="conv")]
    weights = {"w": normal(5, 3, 3, 3), "b": normal(5)}
    error, notes = quantized_error(
        save(tmp_path / "old.onnx", nodes, IMAGES[0], weights, opset=12), IMAGES
    )
    assert error < 0.1
    assert notes[0] == "kept at its old operator set: No Adapter for Upsample"
    assert notes[1].startswith("one scale per tensor, since")
    assert notes[2] == "calibrated on 6 rows"


def test_bias_of_rank_two(tmp_path: Path) -> None:
    nodes = [helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="product")]
    # The quantizer trips over the bias only where it looks at its size, which a large one needs.
    weights = {"w": normal(16, 4) * np.float32(1e-6), "b": normal(1, 4) * np.float32(1e3)}
    error, _ = quantized_error(save(tmp_path / "gemm.onnx", nodes, ROWS[0], weights), ROWS)
    assert error < 0.05


def test_shared_bias_whose_copies_would_meet_other_names(tmp_path: Path) -> None:
    # The quantizer calls its copies of "b" "b2", "b3" and so on.
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["b2"], name="first"),
        helper.make_node("Conv", ["b2", "w2", "b"], ["b3"], name="second"),
        helper.make_node("Conv", ["b2", "w2", "b"], ["b4"], name="third"),
        helper.make_node("Conv", ["b2", "w2", "b"], ["b5"], name="fourth"),
        helper.make_node("Sum", ["b3", "b4", "b5"], ["y"], name="sum"),
    ]
    weights = {"w": normal(3, 3, 3, 3), "w2": normal(5, 3, 3, 3), "b": normal(5)}
    error, _ = quantized_error(save(tmp_path / "shared.onnx", nodes, IMAGES[0], weights), IMAGES)
    assert error < 0.05


def test_model_that_is_quantized_already(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")]
    source = save(tmp_path / "float.onnx", nodes, ROWS[0], {"w": normal(16, 4)})
    int8 = tmp_path / "int8.onnx"
    quantize_dynamic(source, int8, external=(), work=tmp_path)
    with pytest.raises(BuildError, match="quantized already") as caught:
        quantize_dynamic(int8, tmp_path / "again.onnx", external=(), work=tmp_path)
    assert "--precisions" in caught.value.hint
    assert "weights are quantized already" in inspect_model(int8).notes[0]
    convert_fp16(int8, tmp_path / "fp16.onnx")
    assert relative_error(int8, tmp_path / "fp16.onnx", ROWS) < 0.01


def test_a_failure_to_quantize_twice_is_told_as_that() -> None:
    """ONNX Runtime's own words were told: "two nodes with same node name"."""
    error = RuntimeError("two nodes with same node name")
    told = quantize._failed("static", error, Counter(["Conv", "DequantizeLinear"]))
    assert "quantized already" in told.message
    trees = RuntimeError("Failed to find proper ai.onnx domain")
    told = quantize._failed("static", trees, Counter(["TreeEnsembleClassifier"]))
    assert "nothing to quantize" in told.message
    assert "same node name" in quantize._failed("static", error, Counter(["Conv"])).message


@pytest.mark.parametrize("opset", [13, 17, 21])
@pytest.mark.parametrize("kind", ["convolutional", "products"])
def test_int8_for_tensorrt_goes_over_a_float16_graph(tmp_path: Path, kind: str, opset: int) -> None:
    if kind == "convolutional":
        rows = IMAGES
        nodes = [
            helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv"),
            helper.make_node("Relu", ["c"], ["r"], name="relu"),
            helper.make_node("Conv", ["r", "w2"], ["y"], name="second"),
        ]
        weights = {"w": normal(5, 3, 3, 3), "b": normal(5), "w2": normal(4, 5, 3, 3)}
    else:
        rows = ROWS
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["m"], name="first"),
            helper.make_node("Tanh", ["m"], ["t"], name="tanh"),
            helper.make_node("Gemm", ["t", "w2", "b"], ["y"], name="second"),
        ]
        weights = {"w": normal(16, 8), "w2": normal(8, 4), "b": normal(4)}
    source = save(tmp_path / "m.onnx", nodes, rows[0], weights, opset=opset)
    whole, half = tmp_path / "int8.onnx", tmp_path / "over_fp16.onnx"
    quantize_static(
        source,
        whole,
        RowReader({"x": rows}, batchable=True),
        external=(),
        backend="tensorrt",
        work=tmp_path,
    )
    convert_fp16(whole, half, keep_quantizers=False)
    graph = onnx.load(str(half)).graph
    makers = {output: node for node in graph.node for output in node.output}
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            assert types[node.input[1]] == TensorProto.FLOAT16, node.name
            assert types[node.input[2]] == TensorProto.INT8, node.name
        if node.op_type in ("Conv", "MatMul", "Gemm"):
            # No cast stands between the dequantization and its product.
            assert {makers[name].op_type for name in node.input[:2]} == {"DequantizeLinear"}
    assert TensorProto.FLOAT not in types.values()
    assert relative_error(source, half, rows) < 0.05
    # Without VNNI the int8 kernels of ONNX Runtime saturate with weights of all eight bits.
    assert relative_error(whole, half, rows, as_written=True) < 0.02


def test_weights_in_a_file_of_their_own_are_prepared_as_well(tmp_path: Path) -> None:
    """They were quantized without folded constants and shapes, and a note said so."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")]
    inline = save(tmp_path / "inline.onnx", nodes, ROWS[0], {"w": normal(16, 64)})
    folder = tmp_path / "model"
    folder.mkdir()
    source = folder / "apart.onnx"
    onnx.save(
        onnx.load(str(inline)), str(source),
        save_as_external_data=True, location="apart.bin", size_threshold=0,
    )  # fmt: skip
    work = tmp_path / "work"
    work.mkdir()
    target = tmp_path / "int8.onnx"
    assert quantize_dynamic(source, target, external=("apart.bin",), work=work) == ()
    assert relative_error(inline, target, ROWS) < 0.05


def handing_on(folder: Path, *, external: bool = False) -> Path:
    """``y`` = x·w, with x itself as an output before it."""
    path = save(
        folder / "handing_on.onnx",
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        ROWS[0],
        {"w": normal(16, 4)},
    )
    model = onnx.load(str(path))
    model.graph.output.insert(0, model.graph.input[0])
    where = {"location": "weights.bin", "size_threshold": 0} if external else {}
    onnx.save_model(model, str(path), save_as_external_data=external, **where)
    return path


@pytest.mark.parametrize("kind", ["fp16", "static", "dynamic"])
@pytest.mark.parametrize("external", [False, True])
def test_an_output_that_is_an_input_is_handed_on(tmp_path: Path, kind: str, external: bool) -> None:
    """The reason given was that the graph has a cycle, and it has none."""
    source = handing_on(tmp_path, external=external)
    target, work = tmp_path / "variant.onnx", tmp_path / "work"
    work.mkdir()
    parts = ("weights.bin",) if external else ()
    if kind == "fp16":
        convert_fp16(source, target)
    elif kind == "static":
        reader = RowReader({"x": ROWS}, batchable=True)
        quantize_static(
            source, target, reader, external=parts, backend="onnxruntime", work=work
        )  # fmt: skip
    else:
        quantize_dynamic(source, target, external=parts, work=work)
    graph = onnx.load(str(target))
    onnx.checker.check_model(graph)
    assert [value.name for value in graph.graph.output] == ["x", "y"]
    np.testing.assert_array_equal(OrtRuntime(target).run({"x": ROWS})["x"], ROWS)
    assert relative_error(source, target, ROWS) < 0.05


def test_weights_among_the_inputs_become_half(tmp_path: Path) -> None:
    """As files before ONNX's IR version 4 list them: they stayed float32 between casts."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    path = save(tmp_path / "old.onnx", nodes, ROWS[0], {"w": normal(16, 4)})
    model = onnx.load(str(path))
    model.ir_version = 3
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [16, 4]))
    onnx.save(model, str(path))
    convert_fp16(path, tmp_path / "fp16.onnx")
    half = onnx.load(str(tmp_path / "fp16.onnx"))
    onnx.checker.check_model(half)
    assert [value.name for value in half.graph.input] == ["x"]
    assert {tensor.data_type for tensor in half.graph.initializer} == {TensorProto.FLOAT16}
    assert relative_error(path, tmp_path / "fp16.onnx", ROWS) < 0.005


def test_products_beside_fused_operators_are_quantized(tmp_path: Path) -> None:
    """ONNX infers no types behind operators of the runtime's own, and the quantizer stopped."""
    nodes = [
        helper.make_node("BiasGelu", ["x", "zero"], ["g"], domain="com.microsoft"),
        helper.make_node("Gemm", ["g", "w", "b"], ["h"]),
        helper.make_node("BiasGelu", ["h", "b"], ["g2"], domain="com.microsoft"),
        helper.make_node("MatMul", ["g2", "v"], ["p"]),
        helper.make_node("BiasGelu", ["p", "b"], ["y"], domain="com.microsoft"),
    ]
    weights = {"w": normal(16, 16), "v": normal(16, 16), "b": normal(16), "zero": normal(16)}
    source = save(tmp_path / "m.onnx", nodes, ROWS[0], weights)
    error, _ = quantized_error(source, ROWS)
    assert error < 0.05
    quantize_dynamic(source, tmp_path / "dynamic.onnx", external=(), work=tmp_path)
    assert relative_error(source, tmp_path / "dynamic.onnx", ROWS) < 0.05


def test_calibrating_rows_make_batches_and_ends_with_its_time() -> None:
    rows = normal(20, 4)
    reader = RowReader({"x": rows}, batchable=True)
    runs = [feeds["x"] for feeds in reader]
    assert [len(run) for run in runs] == [8, 8, 4]
    np.testing.assert_array_equal(np.concatenate(runs), rows)
    assert reader.used == 20
    alone = RowReader({"x": rows}, batchable=False)
    assert [feeds["x"].shape for feeds in alone] == [(4,)] * 20
    for batchable in (True, False):
        late = RowReader({"x": rows}, batchable=batchable, seconds_max=-1.0)
        assert [len(list(late)), late.used] == [1 if batchable else 8, 8]


def test_rows_that_would_end_late_do_not_calibrate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight rows of a slow model took 3 s, and another eight began just before these had passed."""
    clock = itertools.count(0.0, 2.9)
    monkeypatch.setattr(quantize, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    reader = RowReader({"x": normal(40, 4)}, batchable=True, seconds_max=10.0)
    assert [len(feeds["x"]) for feeds in reader] == [8, 8, 8]


def test_a_graph_without_products_is_not_calibrated(tmp_path: Path) -> None:
    """The quantizer failed on a boosted tree, with a message of the runtime's own."""
    nodes = [helper.make_node("Softmax", ["x"], ["y"])]
    source = save(tmp_path / "m.onnx", nodes, ROWS[0], {})
    reader = RowReader({"x": ROWS}, batchable=True)
    with pytest.raises(BuildError, match="There is nothing to quantize"):
        quantize_static(
            source, tmp_path / "8.onnx", reader, external=(), backend="onnxruntime", work=tmp_path
        )
    assert reader.used == 0


@pytest.mark.filterwarnings("ignore:All-NaN axis:RuntimeWarning")
def test_a_model_that_computes_nan_is_told_as_that(tmp_path: Path) -> None:
    """It said: scale issue."""
    nodes = [
        helper.make_node("Log", ["x"], ["l"]),
        helper.make_node("MatMul", ["l", "w"], ["y"]),
    ]
    source = save(tmp_path / "m.onnx", nodes, ROWS[0], {"w": normal(16, 4)})
    with pytest.raises(BuildError, match="computes NaN on the rows that calibrate it") as caught:
        quantized_error(source, ROWS)
    assert "--calibration-data" in caught.value.hint


def test_a_model_that_bears_few_rows_together_is_calibrated_in_smaller_runs(tmp_path: Path) -> None:
    """A table of three positions, one for each row: int8 could not be built."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"], end=1),
        helper.make_node("Squeeze", ["shape"], ["rows"]),
        helper.make_node("Range", ["zero", "rows", "one"], ["indices"]),
        helper.make_node("Gather", ["positions", "indices"], ["own"]),
        helper.make_node("Add", ["x", "own"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["y"]),
    ]
    weights = {"positions": np.zeros((3, 16), np.float32), "w": normal(16, 4)}
    counts = {"zero": np.array(0, np.int64), "one": np.array(1, np.int64)}
    source = save(tmp_path / "m.onnx", nodes, ROWS[0], weights | counts)
    target = tmp_path / "int8.onnx"
    reader = RowReader({"x": normal(20, 16)}, batchable=True)
    notes = quantize_static(
        source, target, reader, external=(), backend="onnxruntime", work=tmp_path
    )
    assert notes == ("calibrated on 20 rows",)
    assert relative_error(source, target, ROWS[:3]) < 0.05


def test_the_calibrator_stops_for_other_reasons_too() -> None:
    """Smaller runs are for rows that did not run, not for what comes after them."""
    reader = RowReader({"x": normal(20, 4)}, batchable=True)
    assert not reader.halve()
    reader.get_next()
    assert reader.halve() and reader.used == 0
    assert [len(feeds["x"]) for feeds in reader] == [4] * 5
    assert not reader.halve()
    alone = RowReader({"x": normal(20, 4)}, batchable=False)
    alone.get_next()
    assert not alone.halve()
