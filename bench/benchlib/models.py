"""The models that benches serve: the text encoder of the examples, a convolutional network, a
perceptron. The weights are the same at each call."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper, save

from benchlib.command import ROOT


def write_encoder(path: Path, *, tokens: int, vocabulary: int = 30_522) -> Path:
    """A text encoder: 4 layers, hidden 256, 4 heads."""
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        script = ROOT / "examples" / "make_text_encoder.py"
        shape = {"layers": 4, "hidden": 256, "heads": 4, "tokens": tokens, "vocab": vocabulary}
        options = [word for key, value in shape.items() for word in (f"--{key}", str(value))]
        subprocess.run([sys.executable, str(script), str(path), *options], check=True)
    return path


def write_convnet(
    path: Path, *, pixels: int = 64, width: int = 64, layers: int = 6, stride: int = 1
) -> Path:
    """A convolutional network over square images of 3 colours: 3 × 3 layers, a head.

    Args:
        stride: Of every second layer.
    """
    rng = np.random.default_rng(0)
    weights: list[TensorProto] = []
    nodes: list[NodeProto] = []

    def weight(name: str, *dims: int) -> str:
        scale = np.float32(np.sqrt(2 / np.prod(dims[1:])))
        array = rng.standard_normal(dims, np.float32) * scale
        weights.append(numpy_helper.from_array(array, name))
        return name

    value, channels = "image", 3
    for number in range(layers):
        convolved = f"layer{number}.convolved"
        inputs = [value, weight(f"layer{number}.weight", width, channels, 3, 3)]
        strides = [stride if number % 2 else 1] * 2
        nodes.append(
            helper.make_node("Conv", inputs, [convolved], pads=[1, 1, 1, 1], strides=strides)
        )
        value, channels = f"layer{number}.out", width
        nodes.append(helper.make_node("Relu", [convolved], [value]))
    nodes.append(helper.make_node("GlobalAveragePool", [value], ["pooled"]))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["features"]))
    head = weight("head.weight", 10, width)
    nodes.append(helper.make_node("Gemm", ["features", head], ["logits"], transB=1))
    return _write(path, nodes, weights, ("image", [3, pixels, pixels]), ("logits", [10]))


def write_table(path: Path, *, rows: int, width: int, tokens: int) -> Path:
    """Rows of a table by INT64 ``ids``, their mean, a layer beside FP32 ``dense``, and a score."""
    rng = np.random.default_rng(0)
    arrays = {
        "table": rng.standard_normal((rows, width), np.float32),
        "dense_weight": rng.standard_normal((16, width), np.float32),
        "head": rng.standard_normal((width, 1), np.float32),
    }
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["embedded"]),
        helper.make_node("ReduceMean", ["embedded"], ["pooled"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["dense", "dense_weight"], ["projected"]),
        helper.make_node("Add", ["pooled", "projected"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["features"]),
        helper.make_node("MatMul", ["features", "head"], ["score"]),
    ]
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", tokens])
    return _write(path, nodes, weights, ("dense", [16]), ("score", [1]), also=(ids,))


def write_perceptron(path: Path, widths: Sequence[int], *, relu: bool = True) -> Path:
    """Matrix products of the given widths over FP32 rows ``x``, with a ReLU between two."""
    rng = np.random.default_rng(0)
    weights: list[TensorProto] = []
    nodes: list[NodeProto] = []
    value = "x"
    for layer, (inner, outer) in enumerate(pairwise(widths)):
        matrix = rng.standard_normal((inner, outer), np.float32) / np.float32(np.sqrt(inner))
        weights.append(numpy_helper.from_array(matrix, f"w{layer}"))
        last = layer == len(widths) - 2
        product = "y" if last else f"h{layer}"
        nodes.append(helper.make_node("MatMul", [value, f"w{layer}"], [product]))
        value = product
        if relu and not last:
            value = f"r{layer}"
            nodes.append(helper.make_node("Relu", [product], [value]))
    return _write(path, nodes, weights, ("x", [widths[0]]), ("y", [widths[-1]]))


def _write(
    path: Path,
    nodes: list[Any],
    weights: list[Any],
    taken: tuple[str, list[int]],
    given: tuple[str, list[int]],
    *,
    also: Sequence[ValueInfoProto] = (),
) -> Path:
    """Writes a graph of one FP32 input and output with a dynamic batch axis, and more inputs."""
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", *dims])
        for name, dims in (taken, given)
    ]
    graph = helper.make_graph(nodes, path.stem, [*also, tensors[0]], tensors[1:], weights)
    opset = [helper.make_opsetid("", 17)]
    path.parent.mkdir(parents=True, exist_ok=True)
    save(helper.make_model(graph, opset_imports=opset, ir_version=8), str(path))
    return path
