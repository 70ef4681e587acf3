"""The sentence encoder all-MiniLM-L6-v2 as an ONNX file, from the weights that a package ships."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper, save

LAYERS, HIDDEN, HEADS, TOKENS = 6, 384, 12, 128
_EPSILON = 1e-12
Weights = dict[str, NDArray[np.float32]]


def read_safetensors(path: Path) -> Weights:
    """The float32 tensors of a ``.safetensors`` file by name.

    Eight bytes (little-endian) tell the length of the JSON header, which holds each tensor's type,
    shape and place in the rest.
    """
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    tensors = {}
    for name, entry in header.items():
        if entry.get("dtype") == "F32":
            begin, end = entry["data_offsets"]
            values = np.frombuffer(content[start + begin : start + end], np.float32)
            tensors[name] = values.reshape(entry["shape"])
    return tensors


def write_minilm(source: Path, target: Path) -> None:
    """Writes the encoder with mean pooling: INT64 ``[batch, 128]`` inputs, ``embedding`` out."""
    builder = _Builder(read_safetensors(source))
    builder.encoder()
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", TOKENS])
        for name in ("input_ids", "attention_mask", "token_type_ids")
    ]
    output = helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", HIDDEN])
    graph = helper.make_graph(builder.nodes, "minilm", inputs, [output], builder.tensors)
    opsets = [helper.make_opsetid("", 17)]
    save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(target))


class _Builder:
    """Collects the nodes and weights of the graph."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self.nodes: list[NodeProto] = []
        self.tensors: list[TensorProto] = []

    def add(self, operator: str, *inputs: str, out: str = "", **attributes: object) -> str:
        """A node; returns the name of its output."""
        out = out or f"{operator}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [out], name=out, **attributes))
        return out

    def constant(self, values: object, dtype: type = np.int64) -> str:
        """A constant of the graph."""
        name = f"constant_{len(self.tensors)}"
        self.tensors.append(numpy_helper.from_array(np.array(values, dtype), name))
        return name

    def weight(self, name: str, *, transposed: bool = False) -> str:
        """A tensor of the package's file; linear layers keep theirs as ``[out, in]``."""
        values = self._weights[name]
        array = np.ascontiguousarray(values.T if transposed else values)
        self.tensors.append(numpy_helper.from_array(array, name))
        return name

    def linear(self, value: str, name: str) -> str:
        product = self.add("MatMul", value, self.weight(f"{name}.weight", transposed=True))
        return self.add("Add", product, self.weight(f"{name}.bias"))

    def norm(self, value: str, name: str) -> str:
        scale, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.add("LayerNormalization", value, scale, bias, axis=-1, epsilon=_EPSILON)

    def encoder(self) -> None:
        words = self.add("Gather", self.weight("embeddings.word_embeddings.weight"), "input_ids")
        kinds = self.weight("embeddings.token_type_embeddings.weight")
        places = self.weight("embeddings.position_embeddings.weight")
        here = self.add("Slice", places, self.constant([0]), self.constant([TOKENS]))
        value = self.add("Add", words, self.add("Gather", kinds, "token_type_ids"))
        value = self.norm(self.add("Add", value, here), "embeddings.LayerNorm")
        mask = self.add("Cast", "attention_mask", to=TensorProto.FLOAT)
        one = self.constant(1, np.float32)
        wide = self.add("Unsqueeze", self.add("Sub", one, mask), self.constant([1, 2]))
        hidden = self.add("Mul", wide, self.constant(-10_000, np.float32))
        for layer in range(LAYERS):
            value = self.layer(value, hidden, f"encoder.layer.{layer}")
        kept = self.add("Unsqueeze", mask, self.constant([2]))
        total = self.add("ReduceSum", self.add("Mul", value, kept), self.constant([1]), keepdims=0)
        count = self.add("ReduceSum", mask, self.constant([1]), keepdims=1)
        self.add("Div", total, count, out="embedding")

    def layer(self, value: str, hidden: str, name: str) -> str:
        own = f"{name}.attention.self"
        split = self.constant([0, TOKENS, HEADS, HIDDEN // HEADS])

        def heads(part: str, order: list[int]) -> str:
            parted = self.add("Reshape", self.linear(value, f"{own}.{part}"), split)
            return self.add("Transpose", parted, perm=order)

        query, key = heads("query", [0, 2, 1, 3]), heads("key", [0, 2, 3, 1])
        scale = self.constant(1 / np.sqrt(HIDDEN / HEADS), np.float32)
        scores = self.add("Mul", self.add("MatMul", query, key), scale)
        shares = self.add("Softmax", self.add("Add", scores, hidden), axis=-1)
        mixed = self.add("MatMul", shares, heads("value", [0, 2, 1, 3]))
        joined = self.add("Transpose", mixed, perm=[0, 2, 1, 3])
        flat = self.add("Reshape", joined, self.constant([0, TOKENS, HIDDEN]))
        attended = self.linear(flat, f"{name}.attention.output.dense")
        value = self.norm(self.add("Add", attended, value), f"{name}.attention.output.LayerNorm")
        wide = self.linear(value, f"{name}.intermediate.dense")
        root = self.constant(np.sqrt(2), np.float32)
        erf = self.add("Erf", self.add("Div", wide, root))
        gated = self.add("Mul", wide, self.add("Add", erf, self.constant(1, np.float32)))
        halved = self.add("Mul", gated, self.constant(0.5, np.float32))
        out = self.linear(halved, f"{name}.output.dense")
        return self.norm(self.add("Add", out, value), f"{name}.output.LayerNorm")
