"""First dimensions that are no batch: what tells them, and how their sizes are asked for."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.domain.model import ModelInfo
from analyzer.errors import AnalyzerError, ModelError
from analyzer.variants.onnx_file import load_onnx
from analyzer.variants.session import open_session
from analyzer.variants.shapes import Declared, Dims, declared_dims, is_length, unknown_shapes

Shapes = Mapping[str, tuple[int, ...]]

# One row, and as many as may be needed together: rows in pairs, frames of a sound that a network of
# convolutions sees at once (5 to 21 of those in madmom) and the like.
_ROWS_TRIED = (*range(1, 9), 12, 16, 24, 32, 48, 64, 96, 128)
_SECONDS_MAX = 5.0  # no further number is tried then
#: Larger arrays are made for no try of a model.
ELEMENTS_MAX = 1 << 22


def whole_shapes(inputs: Sequence[Declared], given: Shapes) -> list[Declared]:
    """The inputs whose given shape has every dimension, a dynamic first one included."""
    return [
        tensor
        for tensor in inputs
        if tensor.dims
        and not isinstance(tensor.dims[0], int)
        and len(given.get(tensor.name, ())) == len(tensor.dims)
    ]


def without_batch(inputs: Sequence[Declared], written: Shapes) -> Shapes:
    """``written``, a configuration's, where it shows that the first dimensions are no batch; or {}.

    It does where it has every dimension (Triton does not batch then) and a first one is more than
    1, or a length by its name. A first dimension of 1 is a batch of one request as a rule.
    """
    whole = whole_shapes(inputs, written)
    fits = all(_fits(written.get(t.name), t.dims) for t in inputs)
    shows = any(written[t.name][0] > 1 or is_length(t) for t in whole)
    return written if fits and shows else {}


def _fits(shape: tuple[int, ...] | None, dims: Dims) -> bool:
    if shape is None:
        return True
    return len(shape) == len(dims) and all(
        size == dim or not isinstance(dim, int) for size, dim in zip(shape, dims, strict=True)
    )


def given_reason(tensors: Sequence[Declared], shapes: Shapes) -> str:
    """Why a model is not batched of which ``shapes`` have the first dimensions of ``tensors``."""
    shown = ", ".join(f"{shapes[t.name][0]} of {t.name!r}" for t in tensors)
    return f"the first dimensions are given ({shown})"


def hint_of_rows(model: ModelInfo, reason: str) -> str:
    """How to give first dimensions of a model whose rows proved to be no batch, a sentence.

    Args:
        model: As it was inspected, its shapes without the first dimensions.
        reason: What proved it, a sentence.

    Raises:
        ModelError: A first dimension is a length by its name: its size must be given.
    """
    first = _first_dimensions(model)
    shapes: dict[str, Dims] = {
        spec.name: (first[spec.name].dims[0] if is_length(first[spec.name]) else 1, *spec.shape)
        for spec in model.inputs
    }
    if any(not isinstance(dims[0], int) for dims in shapes.values()):
        asked = unknown_shapes(shapes, batchable=False, example=None)
        raise ModelError(f"{asked.message} It is no batch: {reason}", hint=asked.hint)
    spec = model.inputs[0]
    option = f"--input-shape {spec.name}:{','.join(map(str, ('N', *spec.shape)))}"
    return f"Requests have one row; {option} makes it N."


def needs_rows(model: ModelInfo, rows: Mapping[str, Any]) -> ModelError | None:
    """The error that asks for first dimensions where one row does not run and several do; or None.

    Args:
        model: As it was inspected, with a batch.
        rows: Inputs ``[rows, *shape]``, of which one does not run; repeated where more are tried.
    """
    if not model.batchable:
        return None
    try:
        session = open_session(Path(model.path))
    except AnalyzerError:
        return None  # a model for a GPU, say
    row_elements = max(array[0].size for array in rows.values())
    begun = time.monotonic()
    for count in _ROWS_TRIED:
        if count * row_elements > ELEMENTS_MAX or time.monotonic() - begun > _SECONDS_MAX:
            break
        tried = {name: np.resize(own, (count, *own.shape[1:])) for name, own in rows.items()}
        try:
            session.run(None, tried)
        except Exception:  # its classes are not public
            continue
        if count == 1:
            return None  # another row is the one that does not run
        first = _first_dimensions(model)
        asked = unknown_shapes(
            {spec.name: (first[spec.name].dims[0], *spec.shape) for spec in model.inputs},
            batchable=False,
            example={spec.name: (count, *spec.shape) for spec in model.inputs},
        )
        return ModelError(
            f"One row of the model does not run, and {count} together do: the first dimension is"
            " no batch, so its size must be given.",
            hint=asked.hint,
        )
    return None


def _first_dimensions(model: ModelInfo) -> dict[str, Declared]:
    """The inputs as the graph's file declares them."""
    values = {value.name: value for value in load_onnx(Path(model.path)).graph.input}
    found = {}
    for spec in model.inputs:
        dims = values[spec.name].type.tensor_type.shape.dim
        sizes = [d.dim_value if d.HasField("dim_value") else d.dim_param for d in dims]
        declared = declared_dims(sizes or [None])
        found[spec.name] = Declared(name=spec.name, datatype=spec.datatype, dims=declared)
    return found
