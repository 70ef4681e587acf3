"""Models with scalar inputs or outputs, in the form that Triton can serve.

Triton has no scalars in models that cannot be batched (``config.pbtxt`` needs a dimension). The
copy made here takes and gives one dimension of size 1 in their place and computes the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from analyzer.variants.graph import all_graphs
from analyzer.variants.linked_weights import load_whole
from analyzer.variants.precision import save_shared_model

_SUFFIX = "__scalar"


def with_dimensions(
    file: Path, external: Sequence[str], names: Sequence[str], target: Path
) -> None:
    """Writes the model at ``file``, its scalars ``names`` given one dimension, to ``target``.

    Several processes may write one target at once. ``external`` are the files of its weights.

    Raises:
        BuildError: ``target`` cannot be written.
    """
    model = load_whole(file, external)
    _give_dimensions(model.graph, set(names))
    save_shared_model(model, target)


def _give_dimensions(graph: Any, names: set[str]) -> None:
    from onnx import TensorProto, helper

    for part in all_graphs(graph):
        for node in part.node:
            for index, name in enumerate(node.input):
                if name in names:
                    node.input[index] = name + _SUFFIX
            for index, name in enumerate(node.output):
                if part is graph and name in names:
                    node.output[index] = name + _SUFFIX
        for value in part.output if part is not graph else ():
            if value.name in names:
                value.name += _SUFFIX
    inside, outside = "no_dimensions" + _SUFFIX, "one_dimension" + _SUFFIX
    graph.initializer.append(helper.make_tensor(inside, TensorProto.INT64, [0], []))
    graph.initializer.append(helper.make_tensor(outside, TensorProto.INT64, [1], [1]))
    for value in (*graph.input, *graph.output):
        if value.name in names:
            value.type.tensor_type.shape.dim.add().dim_value = 1
    entering = [
        helper.make_node("Reshape", [value.name, inside], [value.name + _SUFFIX])
        for value in graph.input
        if value.name in names
    ]
    leaving = [
        helper.make_node("Reshape", [value.name + _SUFFIX, outside], [value.name])
        for value in graph.output
        if value.name in names
    ]
    nodes = [*entering, *graph.node, *leaving]
    del graph.node[:]
    graph.node.extend(nodes)
