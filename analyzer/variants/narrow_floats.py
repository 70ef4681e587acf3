"""BF16 and FP8 graphs from those that are made for float16 and int8: the same nodes, other types.

Only TensorRT executes them, so these graphs are for what it compiles. FP8 is E4M3 throughout, the
one of its types that TensorRT quantizes to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from analyzer.errors import BuildError
from analyzer.modelconfig.weights import all_tensors
from analyzer.variants.graph import all_graphs
from analyzer.variants.precision import save_model, with_opset

# The largest finite value of E4M3 without infinities, and the largest step of symmetric int8.
_E4M3_MAX = 448.0
_INT8_MAX = 127.0
# QuantizeLinear and DequantizeLinear know FP8 from here on (ONNX's operator changelog).
_FP8_OPSET = 19


def retype_bf16(half: Path, source: Path, target: Path) -> None:
    """Writes the float16 graph at ``half`` with bfloat16 in its place to ``target``.

    Args:
        half: As :func:`~analyzer.variants.precision.convert_fp16` wrote it.
        source: The model that it was made from: its weights are rounded once, and not clipped to
            float16's range.
    """
    import onnx

    model = onnx.load(str(half))
    old, new = onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16
    original = {
        tensor.name: tensor
        for tensor in onnx.load(str(source)).graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT
    }
    for tensor in all_tensors(model.graph):
        if tensor.data_type == old:
            _round_bf16(tensor, original.get(tensor.name, tensor))
    for graph in all_graphs(model.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type == old:
                value.type.tensor_type.elem_type = new
        for node in graph.node:
            for attribute in node.attribute:
                # Those that name a type: Cast's, and of the nodes that make values.
                if attribute.name in ("to", "dtype") and attribute.i == old:
                    attribute.i = new
    save_model(model, target)


def retype_fp8(int8: Path, target: Path) -> None:
    """Writes the symmetric int8 graph at ``int8`` with FP8 (E4M3) in its place to ``target``.

    A scale is the largest magnitude over the largest value of the type: int8's times 127 / 448.

    Args:
        int8: As :func:`~analyzer.variants.quantize.quantize_static` wrote it for TensorRT.

    Raises:
        BuildError: Its operator set has no FP8, or a zero point is not 0.
    """
    import onnx

    model = with_opset(onnx.load(str(int8)), _FP8_OPSET)
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    scales: set[str] = set()
    zeros: set[str] = set()
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            scales.add(node.input[1])
            zeros.add(node.input[2])
    for name in scales:
        scale = onnx.numpy_helper.to_array(tensors[name])
        narrow = (scale * (_INT8_MAX / _E4M3_MAX)).astype(scale.dtype)
        tensors[name].CopyFrom(onnx.numpy_helper.from_array(narrow, name))
    for name in zeros:
        zero = onnx.numpy_helper.to_array(tensors[name])
        if zero.any():
            raise BuildError(
                f"The zero point {name} is not 0: FP8 has none.",
                hint="This is a fault of the quantizer; leave fp8 out with --precisions.",
            )
        tensors[name].CopyFrom(
            onnx.helper.make_tensor(
                name, onnx.TensorProto.FLOAT8E4M3FN, zero.shape, [0.0] * zero.size
            )
        )
    for value in list(model.graph.value_info):
        if value.type.tensor_type.elem_type == onnx.TensorProto.INT8:
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT8E4M3FN
    save_model(model, target)


def _round_bf16(tensor: Any, values: Any) -> None:
    """Makes ``tensor`` the bfloat16 of ``values``."""
    import ml_dtypes
    import onnx

    rounded = onnx.numpy_helper.to_array(values).astype(np.float32).astype(ml_dtypes.bfloat16)
    name = tensor.name
    tensor.CopyFrom(onnx.numpy_helper.from_array(rounded, name))
