"""Types of inputs and outputs that can be served, and what to do about the others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from analyzer.domain.model import NUMPY_DTYPES
from analyzer.engine.runtimes.onnxruntime_ import ORT_DATATYPES
from analyzer.errors import ModelError

# More names than these are not spelt out in a hint.
_NAMES_SHOWN = 6
# What the converters that know a switch for it call it.
_ZIPMAP_SWITCHES = {
    "skl2onnx": "convert with options={id(model): {'zipmap': False}}.",
    "onnxmltools": "convert with zipmap=False.",
}


def served_type(proto: Any, value: Any, role: str) -> str:
    """Triton's name of the type of ``value``, a NodeArg of a session.

    Args:
        proto: The model.
        role: What ``value`` is to it: an input or an output.

    Raises:
        ModelError: It cannot be served.
    """
    datatype = ORT_DATATYPES.get(value.type, "")
    if datatype in NUMPY_DTYPES:
        return datatype
    hint = "Supported: " + ", ".join(NUMPY_DTYPES) + "."
    if value.type.startswith(("seq", "map", "optional")):
        hint = "Export the model with tensors, each an input or output of its own."
    raise ModelError(
        f"The {role} {value.name!r} has the type {value.type}, which cannot be served.",
        hint=_zipmap_hint(proto, value.name) or hint,
    )


def _zipmap_hint(proto: Any, name: str) -> str:
    """How to get the probabilities that a ZipMap gives as a map; empty where it is none."""
    zipped = {n.output[0]: n.input[0] for n in proto.graph.node if n.op_type == "ZipMap"}
    if name not in zipped:
        return ""
    outputs = [zipped.get(value.name, value.name) for value in proto.graph.output]
    switch = _ZIPMAP_SWITCHES.get(proto.producer_name.lower())
    if switch is None:
        switch = f"cut the ZipMap out of the graph, with {_extract(proto, outputs)}."
    return f"Give the probabilities as a tensor: {switch}"


def refuse_strings(proto: Any) -> None:
    """Raises ModelError where an input or output of the model ``proto`` holds strings."""
    for role, values in (("input", proto.graph.input), ("output", proto.graph.output)):
        for name in _strings(proto, values):
            hint = _label_hint(proto, name) if role == "output" else ""
            raise ModelError(
                f"The {role} {name!r} holds strings, which cannot be tuned.",
                hint=hint
                or "Export the model without its text pre- or post-processing (numbers in,"
                " numbers out).",
            )


def _strings(proto: Any, values: Sequence[Any]) -> Iterator[str]:
    import onnx

    constants = {tensor.name for tensor in proto.graph.initializer}
    for value in values:
        is_string = value.type.tensor_type.elem_type == onnx.TensorProto.STRING
        if is_string and value.name not in constants:
            yield value.name


def _label_hint(proto: Any, name: str) -> str:
    """How to do without the output ``name``, a class's name, say; empty if nothing else is left."""
    strings = set(_strings(proto, proto.graph.output))
    others = [value.name for value in proto.graph.output if value.name not in strings]
    if not others:
        return ""
    drop = f"rop the output {name!r}, with {_extract(proto, others)}."
    if any(node.domain == "ai.onnx.ml" for node in proto.graph.node):
        return f"Train on integer classes, or d{drop}"
    return f"D{drop}"


def _extract(proto: Any, outputs: Sequence[str]) -> str:
    """The call that keeps of a graph what gives ``outputs``."""
    constants = {tensor.name for tensor in proto.graph.initializer}
    inputs = [value.name for value in proto.graph.input if value.name not in constants]
    return f"onnx.utils.extract_model(FILE, NEW_FILE, {_listed(inputs)}, {_listed(outputs)})"


def _listed(names: Sequence[str]) -> str:
    shown = [*map(repr, names[:_NAMES_SHOWN]), *(["…"] if len(names) > _NAMES_SHOWN else [])]
    return f"[{', '.join(shown)}]"
