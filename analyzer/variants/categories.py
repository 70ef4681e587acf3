"""What the encoders of ``ai.onnx.ml`` know."""

from __future__ import annotations

from typing import Any

_KNOWN = {"OneHotEncoder": "cats_int64s", "LabelEncoder": "keys_int64s"}


def categories(node: Any) -> tuple[int, int] | None:
    """The lowest and highest integer that an encoder of ``ai.onnx.ml`` knows, if all between."""
    wanted = _KNOWN.get(node.op_type)
    known = next((set(a.ints) for a in node.attribute if a.name == wanted), set())
    if not known or len(known) != max(known) - min(known) + 1:
        return None
    return min(known), max(known)
