"""Whether ONNX Runtime computes in float16 on this machine's processor."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import numpy as np

# Of an input and its weights; ``w`` is [out, in, height, width], or [in, out].
_OPERATORS = {"Conv": ((1, 8, 8, 8), (8, 8, 3, 3)), "MatMul": ((4, 16), (16, 16))}


@cache
def computes_half() -> bool:
    """Whether any of the operators in which models spend their time has a kernel for float16.

    Where there is none, ONNX Runtime casts to float32 and back around it, which gains nothing.
    Takes about 10 ms: graphs of one operator are optimized and looked at.
    """
    return any(_keeps_half(operator) for operator in _OPERATORS)


def _keeps_half(operator: str) -> bool:
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    shape, weights = _OPERATORS[operator]
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", "w"], ["y"])],
        "half",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, None)],
        [numpy_helper.from_array(np.zeros(weights, np.float16), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with tempfile.TemporaryDirectory() as folder:
        optimized = Path(folder) / "optimized.onnx"
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.optimized_model_filepath = str(optimized)
        onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return all(node.op_type != "Cast" for node in onnx.load(optimized).graph.node)
