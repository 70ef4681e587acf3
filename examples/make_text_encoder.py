"""Writes a text encoder of BERT's shape with random weights, of any size, without PyTorch.

    python examples/make_text_encoder.py encoder.onnx --preset mini --tokens 128
    python examples/make_text_encoder.py large.onnx --preset large --vocab 30522

Inputs are ``input_ids`` and ``attention_mask`` (INT64 ``[batch, tokens]``), the output is
``embedding`` (FP32 ``[batch, hidden]``): the mean over the tokens that the mask keeps, or
``logits`` (``[batch, classes]``) with ``--classes``. Weights beyond 1.5 GB go into a file of their
own beside the model.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

# Layers, hidden size and heads of the BERT models of that name.
PRESETS = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "small": (4, 512, 8),
    "medium": (8, 512, 8),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}
INLINE_BYTES_MAX = 1_500_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Dimensions of an encoder; ``classes`` 0 gives embeddings, ``batch`` 0 a dynamic batch."""

    layers: int = 4
    hidden: int = 256
    heads: int = 4
    tokens: int = 128
    vocab: int = 30522
    classes: int = 0
    batch: int = 0
    dynamic_tokens: bool = False


class EncoderBuilder:
    """Collects the nodes and weights of one encoder."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self.shape = shape
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []
        self._rng = np.random.default_rng(seed)

    def weight(self, name: str, *dims: int, scale: float = 0.02) -> str:
        """Adds normal random weights."""
        values = self._rng.standard_normal(dims, np.float32) * np.float32(scale)
        return self.constant(name, values)

    def constant(self, name: str, values: NDArray[np.generic]) -> str:
        """Adds fixed weights."""
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def op(self, kind: str, inputs: list[str], output: str, **attributes: object) -> str:
        """Adds a node named after its output."""
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def linear(self, value: str, name: str, width_in: int, width_out: int) -> str:
        """A product with weights and a bias, over the last axis."""
        product = self.op(
            "MatMul", [value, self.weight(f"{name}.weight", width_in, width_out)], f"{name}.product"
        )
        bias = self.constant(f"{name}.bias", np.zeros(width_out, np.float32))
        return self.op("Add", [product, bias], f"{name}.out")

    def norm(self, value: str, name: str) -> str:
        """Layer normalization over the last axis."""
        hidden = self.shape.hidden
        scale = self.constant(f"{name}.scale", np.ones(hidden, np.float32))
        shift = self.constant(f"{name}.shift", np.zeros(hidden, np.float32))
        return self.op("LayerNormalization", [value, scale, shift], f"{name}.out", axis=-1)

    def gelu(self, value: str, name: str) -> str:
        """x · (1 + erf(x / √2)) / 2."""
        scaled = self.op("Mul", [value, "sqrt_half"], f"{name}.scaled")
        error = self.op("Erf", [scaled], f"{name}.erf")
        shifted = self.op("Add", [error, "one"], f"{name}.shifted")
        product = self.op("Mul", [value, shifted], f"{name}.product")
        return self.op("Mul", [product, "half"], f"{name}.out")

    def attention(self, value: str, mask: str, name: str) -> str:
        """Multi-head self-attention; ``mask`` is added to the scores."""
        hidden = self.shape.hidden
        split = {}
        for part, order in (
            ("query", [0, 2, 1, 3]),
            ("key", [0, 2, 3, 1]),
            ("value", [0, 2, 1, 3]),
        ):
            projected = self.linear(value, f"{name}.{part}", hidden, hidden)
            heads = self.op("Reshape", [projected, "split_heads"], f"{name}.{part}.heads")
            split[part] = self.op("Transpose", [heads], f"{name}.{part}.turned", perm=order)
        scores = self.op("MatMul", [split["query"], split["key"]], f"{name}.scores")
        scaled = self.op("Mul", [scores, "score_scale"], f"{name}.scaled")
        masked = self.op("Add", [scaled, mask], f"{name}.masked")
        shares = self.op("Softmax", [masked], f"{name}.shares", axis=-1)
        mixed = self.op("MatMul", [shares, split["value"]], f"{name}.mixed")
        turned = self.op("Transpose", [mixed], f"{name}.turned", perm=[0, 2, 1, 3])
        joined = self.op("Reshape", [turned, "join_heads"], f"{name}.joined")
        return self.linear(joined, f"{name}.output", hidden, hidden)

    def layer(self, value: str, mask: str, name: str) -> str:
        """One transformer layer, normalized after each addition as in BERT."""
        hidden = self.shape.hidden
        attended = self.attention(value, mask, f"{name}.attention")
        added = self.op("Add", [value, attended], f"{name}.added")
        value = self.norm(added, f"{name}.norm1")
        wide = self.linear(value, f"{name}.wide", hidden, 4 * hidden)
        narrow = self.linear(self.gelu(wide, f"{name}.gelu"), f"{name}.narrow", 4 * hidden, hidden)
        added = self.op("Add", [value, narrow], f"{name}.added2")
        return self.norm(added, f"{name}.norm2")

    def embed(self) -> str:
        """Words plus positions, normalized."""
        s = self.shape
        words = self.op(
            "Gather", [self.weight("words", s.vocab, s.hidden), "input_ids"], "embedded.words"
        )
        table = self.weight("positions", max(s.tokens, 512), s.hidden)
        if s.dynamic_tokens:
            self.constant("zero", np.array([0], np.int64))
            self.op("Shape", ["input_ids"], "length", start=1, end=2)
            positions = self.op("Slice", [table, "zero", "length"], "embedded.positions")
        else:
            self.constant("zero", np.array([0], np.int64))
            self.constant("length", np.array([s.tokens], np.int64))
            positions = self.op("Slice", [table, "zero", "length"], "embedded.positions")
        return self.norm(self.op("Add", [words, positions], "embedded.sum"), "embedded.norm")

    def build(self) -> onnx.ModelProto:
        """The whole model."""
        s = self.shape
        for name, value in (("one", 1.0), ("half", 0.5), ("sqrt_half", 0.5**0.5)):
            self.constant(name, np.float32(value))
        self.constant("score_scale", np.float32((s.hidden / s.heads) ** -0.5))
        self.constant("split_heads", np.array([0, 0, s.heads, s.hidden // s.heads], np.int64))
        self.constant("join_heads", np.array([0, 0, s.hidden], np.int64))
        self.constant("mask_scale", np.float32(-10000.0))
        self.constant("mask_axes", np.array([1, 2], np.int64))
        self.constant("last_axis", np.array([2], np.int64))
        self.constant("token_axis", np.array([1], np.int64))

        kept = self.op("Cast", ["attention_mask"], "mask.float", to=TensorProto.FLOAT)
        hidden = self.op("Sub", ["one", kept], "mask.hidden")
        scaled = self.op("Mul", [hidden, "mask_scale"], "mask.scaled")
        mask = self.op("Unsqueeze", [scaled, "mask_axes"], "mask.scores")
        value = self.embed()
        for index in range(s.layers):
            value = self.layer(value, mask, f"layer{index}")
        weights = self.op("Unsqueeze", [kept, "last_axis"], "pool.weights")
        chosen = self.op("Mul", [value, weights], "pool.chosen")
        total = self.op("ReduceSum", [chosen, "token_axis"], "pool.total", keepdims=0)
        count = self.op("ReduceSum", [weights, "token_axis"], "pool.count", keepdims=0)
        at_least_one = self.op("Max", [count, "one"], "pool.at_least_one")
        name, width = "embedding", s.hidden
        if s.classes:
            mean = self.op("Div", [total, at_least_one], "pool.mean")
            head = self.weight("head.weight", s.hidden, s.classes, scale=s.hidden**-0.5)
            name, width = "logits", s.classes
            self.op("MatMul", [mean, head], name)
        else:
            self.op("Div", [total, at_least_one], name)

        batch: int | str = s.batch or "batch"
        tokens: int | str = "tokens" if s.dynamic_tokens else s.tokens
        inputs = [
            helper.make_tensor_value_info(each, TensorProto.INT64, [batch, tokens])
            for each in ("input_ids", "attention_mask")
        ]
        outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, width])]
        graph = helper.make_graph(self.nodes, "text_encoder", inputs, outputs, self.weights)
        model = helper.make_model(
            graph, producer_name="tritune examples", opset_imports=[helper.make_opsetid("", 17)]
        )
        model.ir_version = 8
        return model


def write_encoder(path: Path, shape: Shape, *, seed: int = 0, external: bool = False) -> int:
    """Writes an encoder to ``path``; returns how many bytes its weights take.

    Args:
        external: Whether the weights go into ``<name>.data`` beside it even if they are few.
    """
    if shape.hidden % shape.heads:
        raise SystemExit(f"--hidden {shape.hidden} is not divisible by --heads {shape.heads}.")
    model = EncoderBuilder(shape, seed).build()
    size = sum(len(weight.raw_data) for weight in model.graph.initializer)
    path.parent.mkdir(parents=True, exist_ok=True)
    if external or size > INLINE_BYTES_MAX:
        data = path.with_name(path.name + ".data")
        data.unlink(missing_ok=True)  # onnx appends to a file that is there
        onnx.save_model(
            model,
            str(path),
            save_as_external_data=True,
            all_tensors_to_one_file=True,
            location=data.name,
            size_threshold=1024,
        )
    else:
        onnx.save(model, str(path))
    return size


def main() -> None:
    """Writes the encoder that the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--preset", choices=PRESETS, default="mini")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--hidden", type=int)
    parser.add_argument("--heads", type=int)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--vocab", type=int, default=30522)
    parser.add_argument("--classes", type=int, default=0, help="add a classification head")
    parser.add_argument("--batch", type=int, default=0, help="fix the batch axis to this size")
    parser.add_argument("--dynamic-tokens", action="store_true")
    parser.add_argument("--external", action="store_true", help="weights in a file of their own")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    layers, hidden, heads = PRESETS[args.preset]
    shape = Shape(
        layers=args.layers or layers,
        hidden=args.hidden or hidden,
        heads=args.heads or heads,
        tokens=args.tokens,
        vocab=args.vocab,
        classes=args.classes,
        batch=args.batch,
        dynamic_tokens=args.dynamic_tokens,
    )
    size = write_encoder(args.path, shape, seed=args.seed, external=args.external)
    print(f"{args.path}: {shape.layers} layers, {size / 1e6:.1f} MB of weights")


if __name__ == "__main__":
    main()
