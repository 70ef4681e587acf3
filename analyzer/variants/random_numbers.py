"""Whether a graph's answers differ from run to run, since it draws random numbers."""

from __future__ import annotations

from typing import Any

from analyzer.variants.graph import all_graphs

_RANDOM = {
    *("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"),
    *("Multinomial", "Bernoulli"),
}
# Inputs of Dropout from opset 12 on.
_RATIO, _TRAINING_MODE = 1, 2


def draws(model: Any) -> str:
    """An operator that draws random numbers; empty where there is none.

    A Dropout does in training mode, as a model has it that was exported with it.

    Args:
        model: A ModelProto; its weights need not be loaded.
    """
    nodes = [n for graph in (*all_graphs(model.graph), *model.functions) for n in graph.node]
    if found := next((node.op_type for node in nodes if node.op_type in _RANDOM), ""):
        return str(found)
    dropouts = [node for node in nodes if node.op_type == "Dropout"]
    constants = _constants(model, nodes) if dropouts else {}
    return "Dropout" if any(_drops(node, constants) for node in dropouts) else ""


def _constants(model: Any, nodes: list[Any]) -> dict[str, Any]:
    """The constant tensors of a graph by name."""
    found = {tensor.name: tensor for g in all_graphs(model.graph) for tensor in g.initializer}
    for node in nodes:
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if attribute.name == "value":
                found[node.output[0]] = attribute.t
    return found


def _drops(node: Any, constants: dict[str, Any]) -> bool:
    """Whether a Dropout is in training mode, by a constant, and keeps not everything."""
    ratio, training = (_value(node, place, constants) for place in (_RATIO, _TRAINING_MODE))
    return bool(training) and ratio != 0


def _value(node: Any, place: int, constants: dict[str, Any]) -> float | None:
    """The constant number that is an input of ``node``; None where it has none."""
    from onnx import numpy_helper

    tensor = constants.get(next(iter(node.input[place : place + 1]), ""))
    if tensor is None or tensor.data_location == tensor.EXTERNAL:
        return None
    values = numpy_helper.to_array(tensor).reshape(-1)
    return float(values[0]) if values.size == 1 else None
