"""BF16 and FP8 graphs, held numerically against the fp32 model on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from analyzer.domain.configuration import Execution
from analyzer.engine.runtimes.onnxruntime_ import OrtRuntime
from analyzer.errors import BuildError
from analyzer.variants.narrow_floats import retype_bf16, retype_fp8
from analyzer.variants.precision import convert_fp16
from analyzer.variants.quantize import RowReader, quantize_static

RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((8, 16), np.float32)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    weights: dict[str, NDArray[np.float32]] = {
        "w": RNG.standard_normal((16, 32), np.float32),
        # Beyond float16, well within bfloat16.
        "big": np.full((32,), 1e6, np.float32),
        "w2": RNG.standard_normal((32, 4), np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="first"),
        helper.make_node("Tanh", ["m"], ["t"], name="tanh"),
        helper.make_node("Mul", ["t", "big"], ["s"], name="scaled"),
        helper.make_node("Div", ["s", "big"], ["d"], name="back"),
        helper.make_node("MatMul", ["d", "w2"], ["y"], name="second"),
    ]
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    path = tmp_path / "source.onnx"
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), str(path))
    return path


def error(want: NDArray[Any], got: NDArray[Any]) -> float:
    want, got = want.astype(np.float64), got.astype(np.float64)
    return float(np.linalg.norm(want - got) / np.linalg.norm(want))


def types(path: Path) -> set[int]:
    return {tensor.data_type for tensor in onnx.load(str(path)).graph.initializer}


def test_bf16_rounds_every_weight_once_and_clips_none(source: Path, tmp_path: Path) -> None:
    convert_fp16(source, tmp_path / "half.onnx")
    retype_bf16(tmp_path / "half.onnx", source, tmp_path / "bf16.onnx")
    assert TensorProto.BFLOAT16 in types(tmp_path / "bf16.onnx")
    assert TensorProto.FLOAT16 not in types(tmp_path / "bf16.onnx")
    made = {t.name: t for t in onnx.load(str(tmp_path / "bf16.onnx")).graph.initializer}
    big = numpy_helper.to_array(made["big"]).astype(np.float64)
    np.testing.assert_allclose(big, 1e6, rtol=2**-8)
    # ONNX Runtime has no bfloat16 kernels on a CPU; ONNX's own evaluator has.
    want = OrtRuntime(source).run({"x": ROWS})["y"]
    got = ReferenceEvaluator(str(tmp_path / "bf16.onnx")).run(None, {"x": ROWS})[0]
    assert got.dtype == np.float32
    assert 1e-4 < error(want, got) < 0.02


def test_fp8_goes_over_a_float16_graph(source: Path, tmp_path: Path) -> None:
    int8, fp8, half = (tmp_path / f"{name}.onnx" for name in ("int8", "fp8", "over_fp16"))
    quantize_static(
        source,
        int8,
        RowReader({"x": ROWS}, batchable=True),
        external=(),
        backend="tensorrt",
        work=tmp_path,
    )
    retype_fp8(int8, fp8)
    assert TensorProto.FLOAT8E4M3FN in types(fp8) and TensorProto.INT8 not in types(fp8)
    want = OrtRuntime(source).run({"x": ROWS})["y"]
    # Three bits of mantissa: a relative step of 1/8 at each of the roundings.
    # ONNX Runtime fuses quantized products for int8 alone, so its optimizations are off.
    got = OrtRuntime(fp8, execution=Execution(graph_level=2)).run({"x": ROWS})["y"]
    assert 1e-3 < error(want, got) < 0.1
    convert_fp16(fp8, half, keep_quantizers=False)
    graph = onnx.load(str(half)).graph
    kinds = {t.name: t.data_type for t in graph.initializer}
    pairs = [n for n in graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert pairs and {kinds[n.input[1]] for n in pairs} == {TensorProto.FLOAT16}
    assert {kinds[n.input[2]] for n in pairs} == {TensorProto.FLOAT8E4M3FN}


def test_a_graph_that_stays_at_its_operator_set_says_what_to_do(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_adapter(model: onnx.ModelProto, version: int) -> onnx.ModelProto:
        raise RuntimeError("No Adapter for Upsample")

    monkeypatch.setattr(onnx.version_converter, "convert_version", no_adapter)
    with pytest.raises(BuildError, match=r"to operator set 19: No Adapter for Upsample\.") as e:
        retype_fp8(source, tmp_path / "fp8.onnx")
    assert "leave this precision out with --precisions" in e.value.hint
