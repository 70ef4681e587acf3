"""What an ONNX graph says without running it: the types of its weights, the tables inputs index."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from analyzer.modelconfig.weights import all_tensors, subgraphs
from analyzer.variants.categories import categories

# Operators that hand values on unchanged, with the inputs whose values they hand on.
_PASS_THROUGH: dict[str, tuple[int, ...]] = {
    "Cast": (0,),
    "CastLike": (0,),
    "Identity": (0,),
    "Unsqueeze": (0,),
    "Squeeze": (0,),
    "Reshape": (0,),
    "Flatten": (0,),
    "Transpose": (0,),
    "Expand": (0,),
    "Slice": (0,),
    "Split": (0,),
    "Tile": (0,),
    "Dropout": (0,),
    "Gather": (0,),
    "GatherElements": (0,),
    "GatherND": (0,),
    "Where": (1, 2),
    "Concat": tuple(range(1024)),
}

_RECURRENT = ("GRU", "LSTM", "RNN")

# Operators whose results are as large as a value among their inputs says: where that value stands.
_SIZED_BY: dict[str, tuple[int, ...]] = {
    "TopK": (1,),
    "Reshape": (1,),
    "Resize": (2, 3),
    "Upsample": (1,),
    "Expand": (1,),
    "Tile": (1,),
    "Pad": (1,),
    "ConstantOfShape": (0,),
    "OneHot": (1,),
    "Range": (1,),
    "Slice": (2,),
    "NonMaxSuppression": (2,),
}
_SCALES = 2  # Resize's factors; its sizes stand behind them
# Of these the result is as large as the value less the one that stands here.
_BEGINS_AT = {"Range": 0, "Slice": 1}
# Operators that sizes are computed with.
_ARITHMETIC = (
    *("Add", "Sub", "Mul", "Div", "Mod", "Neg", "Abs", "Min", "Max", "Clip"),
    *("Floor", "Ceil", "Round", "ReduceMax", "ReduceMin", "ReduceProd"),
)

# Operators whose output holds the same distinct values as their first input.
_KEEPS_VALUES = ("Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape", "Expand")
# Fewer constants in a row are more likely flags or special tokens than classes.
_ONE_HOT_CLASSES_MIN = 3
# The 64-bit integers, in which inputs are made up, end before it.
_INTEGERS_END = 2**63


def half_weights(model: Any) -> str:
    """``fp16`` or ``bf16`` where weights have that type and none is float32; empty otherwise."""
    from onnx import TensorProto

    kinds = {tensor.data_type for tensor in all_tensors(model.graph)}
    if TensorProto.FLOAT in kinds:
        return ""
    names = {TensorProto.FLOAT16: "fp16", TensorProto.BFLOAT16: "bf16"}
    return next((name for kind, name in names.items() if kind in kinds), "")


def quantized_weights(model: Any) -> str:
    """``quantized already`` where operators compute on quantized values; empty otherwise."""
    operators = (node.op_type for graph in all_graphs(model.graph) for node in graph.node)
    return "quantized already" if any(map(is_quantized, operators)) else ""


def trains(model: Any) -> str:
    """``BatchNormalization`` where one is in training mode, so that rows change each other."""
    for graph in all_graphs(model.graph):
        for node in graph.node:
            if node.op_type == "BatchNormalization" and any(
                attribute.name == "training_mode" and attribute.i for attribute in node.attribute
            ):
                return str(node.op_type)
    return ""


def is_quantized(operator: str) -> bool:
    """Whether an operator of this name computes on, makes or reads quantized values.

    Those that begin with a Q do (``QLinearConv``, ``QAttention``), of ONNX and of its runtime.
    """
    return "quantize" in operator.lower() or operator.startswith("Q") or "Integer" in operator


def table_ranges(model: Any) -> dict[str, tuple[int, int]]:
    """Valid values (both ends included) of each input that indexes a table of known length.

    An input is followed through operators that hand its values on (``Cast``, ``Reshape``, …) and
    through additions of constants, to the indices of ``Gather``, ``GatherElements``, ``OneHot`` and
    the like; a comparison with 0, 1, 2, … is a one-hot encoding too. Where it indexes several
    tables, the shortest decides. A single number that the graph compares with a constant (a sample
    rate) is that constant.

    Args:
        model: A ModelProto; its weights need not be loaded.
    """
    tracer = _Tracer(model)
    initializers = {tensor.name for tensor in model.graph.initializer}
    ranges = {}
    for value in model.graph.input:
        if value.name not in initializers:
            found = tracer.trace(value.name)
            dims = value.type.tensor_type.shape.dim
            if found is None and all(dim.dim_value == 1 for dim in dims):
                found = tracer.expected(value.name)
            if found is not None:
                ranges[value.name] = found
    return ranges


@dataclass(frozen=True, slots=True)
class Amount:
    """What an input asks for that says how much work a request is.

    Args:
        kind: ``steps`` of a recurrent layer or a loop, the ``best`` of many values, or a ``size``.
        most: The most that it can ask for; of a size the one that there is without it; None where
            the graph does not tell.
    """

    kind: Literal["steps", "best", "size"]
    most: int | None


def amounts(model: Any, shapes: Mapping[str, Sequence[int | str | None]]) -> dict[str, Amount]:
    """What each input asks for that says how much work a request is.

    Such are the ``sequence_lens`` of a recurrent layer, of which the most is the length of its
    sequences; the trip count of a Loop, which has none; how many values a TopK keeps; and sizes, as
    those that a Resize makes of an image.

    Args:
        model: As of :func:`table_ranges`; its inputs get the sizes in ``shapes``.
        shapes: Of every input, with the batch axis; what is no number is not known.
    """
    initializers = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in initializers]
    for value in inputs:
        dims = value.type.tensor_type.shape.dim
        for dim, size in zip(dims, shapes.get(value.name, ()), strict=False):
            if isinstance(size, int):
                dim.dim_value = size
    tracer = _Tracer(model)
    found = {}
    for value in inputs:
        if asked := [*tracer.counts(value.name), *tracer.sizes(value.name)]:
            most = [amount.most for amount in asked if amount.most is not None]
            known = len(most) == len(asked)
            found[value.name] = Amount(asked[0].kind, min(most) if known else None)
    return found


class _Tracer:
    """Follows values through one model."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._consumers: dict[str, list[Any]] = {}
        self._producers: dict[str, Any] = {}
        self._constants: dict[str, Any] = {}
        self._shapes: dict[str, tuple[int | None, ...]] | None = None
        for graph in all_graphs(model.graph):
            self._constants.update((tensor.name, tensor) for tensor in graph.initializer)
            for node in graph.node:
                for name in filter(None, set(node.input)):
                    self._consumers.setdefault(name, []).append(node)
                for name in node.output:
                    self._producers[name] = node
                if node.op_type == "Constant":
                    for attribute in node.attribute:
                        if attribute.name == "value":
                            self._constants[node.output[0]] = attribute.t

    def trace(self, name: str) -> tuple[int, int] | None:
        """The range of the values of ``name``, None if they index no table of known length."""
        lows, highs = [], []
        for node, value, shift_low, shift_high in self._readers(name):
            rows = self._rows_indexed(node, value)
            if rows is not None:
                lows.append(max(0, -shift_low))
                highs.append(rows - 1 - shift_high)
            elif (known := categories(node)) is not None:
                lows.append(known[0] - shift_low)
                highs.append(known[1] - shift_high)
        if not highs or min(highs) < max(lows):
            return None
        return max(lows), min(highs)

    def expected(self, name: str) -> tuple[int, int] | None:
        """The first constant that the single number ``name`` is compared with; None without one.

        As a range of one value. Numbers that count as flags (0 and 1) are no settings.
        """
        for node, value, shift, _ in self._readers(name):
            compared = self._compared(node, value)
            if compared is None or compared.size != 1 or compared.dtype.kind in "OU":
                continue  # strings are no numbers
            number = compared.reshape(-1)[0]
            if abs(float(number)) < _INTEGERS_END:  # neither infinite nor NaN
                constant = int(number) - shift
                if constant not in (0, 1):
                    return constant, constant
        return None

    def counts(self, name: str) -> Iterator[Amount]:
        """What ``name`` counts: the steps of layers and loops, the values that a TopK keeps."""
        for node, value, _, shift in self._readers(name):
            if node.op_type in _RECURRENT and list(node.input[4:5]) == [value]:
                layout = next((a.i for a in node.attribute if a.name == "layout"), 0)
                length = self._dimension(node.input[0], 1 if layout else 0)
                yield Amount("steps", None if length is None else max(1, length - shift))
            elif node.op_type == "Loop" and node.input[0] == value:
                yield Amount("steps", None)
            elif node.op_type == "TopK" and list(node.input[1:2]) == [value]:
                axis = next((a.i for a in node.attribute if a.name == "axis"), -1)
                length = self._dimension(node.input[0], axis)
                yield Amount("best", None if length is None else max(1, length - shift))

    def sizes(self, name: str) -> Iterator[Amount]:
        """The sizes that ``name`` decides, directly or as a part of what they are computed from."""
        counted = {id(node) for node, *_ in self._readers(name) if node.op_type == "TopK"}
        reached, queue = {name}, [name]
        while queue:
            for node in self._consumers.get(queue.pop(), ()):
                places = _PASS_THROUGH.get(node.op_type, ())
                if node.op_type in _ARITHMETIC or any(
                    i in places and given in reached for i, given in enumerate(node.input)
                ):
                    outputs = set(filter(None, node.output))
                    queue += outputs - reached
                    reached.update(outputs)
        readers = [node for value in reached for node in self._consumers.get(value, ())]
        for node in {id(node): node for node in readers}.values():
            # Older operators have attributes where newer ones have inputs: few may be given.
            begin = _BEGINS_AT.get(node.op_type, len(node.input))
            if id(node) in counted or reached.intersection(node.input[begin : begin + 1]):
                continue
            for place in _SIZED_BY.get(node.op_type, ()):
                if reached.intersection(node.input[place : place + 1]):
                    values = math.prod(size or 1 for size in self._shape(name) or ())
                    yield Amount("size", self._size_without(node, place, values))

    def _size_without(self, node: Any, place: int, values: int) -> int | None:
        """The value that leaves the size of what ``node`` reads as it is; None if no single one.

        Args:
            place: Of the input that tells the size.
            values: How many of them the model's input holds.
        """
        if node.op_type == "Reshape":
            rank = len(self._shape(node.input[0]) or ())
            return 0 if rank and self._shape(node.input[place]) == (rank,) else None
        if node.op_type != "Resize":
            return None
        if place == _SCALES:
            return 1
        sides = [size for size in (self._shape(node.input[0]) or ())[2:] if size]
        return max(sides, default=None) if values <= len(sides) else None

    def _readers(self, name: str) -> Iterator[tuple[Any, str, int, int]]:
        """``(node, input, low, high)`` of every node that reads ``name``, directly or shifted.

        ``low`` and ``high`` are the least and the most that was added on the way.
        """
        seen: set[tuple[str, int, int]] = set()
        queue = [(name, 0, 0)]
        while queue:
            state = queue.pop()
            if state in seen or len(seen) > 100_000:
                continue
            seen.add(state)
            value, shift_low, shift_high = state
            for node in self._consumers.get(value, ()):
                yield node, value, shift_low, shift_high
                queue += self._follow(node, value, shift_low, shift_high)

    def _follow(self, node: Any, value: str, low: int, high: int) -> Iterator[tuple[str, int, int]]:
        if node.op_type in ("Add", "Sub") and len(node.input) == 2:
            first = node.input[0] == value
            constant = self._values(node.input[1] if first else node.input[0])
            if constant is None or (node.op_type == "Sub" and not first):
                return
            if not np.isfinite(constant).all():
                return  # a mask, not an index
            sign = 1 if node.op_type == "Add" else -1
            ends = (sign * int(constant.min()), sign * int(constant.max()))
            yield node.output[0], low + min(ends), high + max(ends)
            return
        positions = _PASS_THROUGH.get(node.op_type, ())
        if any(i in positions and name == value for i, name in enumerate(node.input)):
            for output in node.output[:1] if node.op_type != "Split" else node.output:
                yield output, low, high

    def _rows_indexed(self, node: Any, value: str) -> int | None:
        """Length of the table that ``node`` indexes with ``value``; None if it does not."""
        inputs = list(node.input)
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
        if node.op_type in ("Gather", "GatherElements", "GatherBlockQuantized"):
            if node.op_type == "GatherBlockQuantized":
                axis = next((a.i for a in node.attribute if a.name == "gather_axis"), 0)
            return self._dimension(inputs[0], axis) if inputs[1:2] == [value] else None
        if node.op_type in ("ScatterElements", "ScatterND", "GatherND", "Scatter"):
            return self._dimension(inputs[0], axis) if inputs[1:2] == [value] else None
        if node.op_type == "RoiAlign":
            return self._dimension(inputs[0], 0) if inputs[2:3] == [value] else None
        if node.op_type == "OneHot" and inputs[0] == value:
            depth = self._values(inputs[1])
            return int(depth.reshape(-1)[0]) if depth is not None and depth.size else None
        compared = self._compared(node, value)
        if compared is not None and compared.size >= _ONE_HOT_CLASSES_MIN:
            counting = compared.reshape(-1) == range(compared.size)
            return int(compared.size) if counting.all() else None
        if node.op_type in ("EmbedLayerNormalization", "SkipEmbedLayerNormalization"):
            for index, table in ((0, 2), (1, 4), (8, 3)):
                if inputs[index : index + 1] == [value] and len(inputs) > table and inputs[table]:
                    return self._dimension(inputs[table], 0)
        return None

    def _compared(self, node: Any, value: str) -> Any:
        """The constants that ``node`` compares ``value`` with; None if it does not compare."""
        if node.op_type != "Equal":
            return None
        first = node.input[0] == value
        return self._values(node.input[1] if first else node.input[0])

    def _values(self, name: str) -> Any:
        """The constant ``name`` as an integer array if it is small and at hand, else None."""
        from onnx import numpy_helper

        tensor = self._constants.get(name)
        if tensor is None:
            producer = self._producers.get(name)
            if producer is not None and producer.op_type in _KEEPS_VALUES:
                return self._values(producer.input[0])
            return None
        size = 1
        for dim in tensor.dims:
            size *= dim
        if tensor.data_location == tensor.EXTERNAL or not 0 < size <= 1_000_000:
            return None
        return numpy_helper.to_array(tensor)

    def _shape(self, name: str) -> tuple[int | None, ...] | None:
        tensor = self._constants.get(name)
        return self._inferred_shapes().get(name) if tensor is None else tuple(tensor.dims)

    def _dimension(self, name: str, axis: int) -> int | None:
        shape = self._shape(name)
        if not shape or not -len(shape) <= axis < len(shape):
            return None
        rows = shape[axis]
        return rows if rows and rows > 0 else None

    def _inferred_shapes(self) -> dict[str, tuple[int | None, ...]]:
        """Shapes of intermediate values by ONNX's inference; computed at the first need."""
        if self._shapes is None:
            import onnx

            self._shapes = {}
            try:
                inferred = onnx.shape_inference.infer_shapes(self._model, data_prop=True)
            except Exception:  # a graph that defeats the inference only costs us a range
                return self._shapes
            for graph in all_graphs(inferred.graph):
                for value in (*graph.value_info, *graph.input):
                    if value.type.tensor_type.HasField("shape"):
                        self._shapes[value.name] = tuple(
                            dim.dim_value if dim.HasField("dim_value") else None
                            for dim in value.type.tensor_type.shape.dim
                        )
        return self._shapes


def all_graphs(graph: Any) -> Iterator[Any]:
    """``graph`` and the graphs inside its nodes (If, Loop, Scan)."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for subgraph in subgraphs(attribute):
                yield from all_graphs(subgraph)
