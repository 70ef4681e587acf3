"""fp16 of graphs with operators of ai.onnx.ml, which compute in float32 alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper

from analyzer.variants.precision import convert_fp16
from analyzer.variants.session import open_session

Write = Callable[..., Path]


def classical(kind: str, source: str, target: str, **attributes: object) -> NodeProto:
    return helper.make_node(kind, [source], [target], domain="ai.onnx.ml", **attributes)


def test_classical_operators_stay_float_beside_standard_ones(
    write_model: Write, tmp_path: Path
) -> None:
    """Boosted trees and pipelines did not load: no cast stood where a type was not known."""
    nodes = [
        classical("Scaler", "x", "scaled", offset=[1.0], scale=[2.0]),
        helper.make_node("Mul", ["scaled", "factor"], ["product"]),
        classical("Imputer", "product", "filled", imputed_value_floats=[0.0]),
        helper.make_node("Concat", ["filled", "scaled"], ["y"], axis=1),
    ]
    path = write_model(
        nodes,
        [("x", TensorProto.FLOAT, ["n", 4])],
        [("y", TensorProto.FLOAT, ["n", 8])],
        {"factor": np.full(4, 3, np.float32)},
    )
    model = onnx.load(path)
    model.opset_import.add(domain="ai.onnx.ml", version=3)
    onnx.save(model, path)
    half = tmp_path / "half.onnx"
    convert_fp16(path, half)
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    (expected,), (seen,) = (open_session(file).run(None, {"x": x}) for file in (path, half))
    assert expected.dtype == seen.dtype and np.allclose(seen, expected, rtol=0.01, atol=0.02)
    weights = {tensor.name: tensor.data_type for tensor in onnx.load(half).graph.initializer}
    assert weights["factor"] == TensorProto.FLOAT16
