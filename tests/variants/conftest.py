"""Small models for the tests of inspection and of variants."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="session")
def examples() -> Path:
    return EXAMPLES


@pytest.fixture
def write_model(tmp_path: Path) -> Callable[..., Path]:
    """Writes an ONNX model from nodes, inputs, outputs ``(name, type, dims)`` and weights."""

    def write(
        nodes: list[onnx.NodeProto],
        inputs: list[tuple[str, int, list[object] | None]],
        outputs: list[tuple[str, int, list[object] | None]],
        weights: dict[str, np.ndarray] | None = None,
        *,
        name: str = "model.onnx",
        domains: tuple[str, ...] = (),
        external: bool = False,
        opset: int = 17,
    ) -> Path:
        graph = helper.make_graph(
            nodes,
            "test",
            [helper.make_tensor_value_info(*value) for value in inputs],
            [helper.make_tensor_value_info(*value) for value in outputs],
            [numpy_helper.from_array(array, key) for key, array in (weights or {}).items()],
        )
        opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
        model = helper.make_model(graph, opset_imports=opsets)
        model.ir_version = 8
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if external:
            onnx.save_model(
                model,
                str(path),
                save_as_external_data=True,
                location=path.name + ".data",
                size_threshold=0,
            )
        else:
            onnx.save(model, str(path))
        return path

    return write


@pytest.fixture
def linear_model(write_model: Callable[..., Path]) -> Callable[..., Path]:
    """A product with weights: input ``x`` ``[batch, 8]``, output ``y`` ``[batch, 4]``."""

    def write(*, batch: object = "batch", **options: object) -> Path:
        weights = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
        return write_model(
            [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
            [("x", TensorProto.FLOAT, [batch, 8])],
            [("y", TensorProto.FLOAT, [batch, 4])],
            {"w": weights},
            **options,
        )

    return write
