"""First dimensions that are no batch: what tells them, and how their sizes are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.model import ModelInfo
from analyzer.engine.runtimes.onnxruntime_ import OrtRuntime
from analyzer.errors import AnalyzerError, ModelError
from analyzer.variants.onnx_file import load_onnx
from analyzer.variants.shapes import Declared, Dims, declared_dims, is_length, unknown_shapes
from analyzer.variants.tries import apart, rows_max

Shapes = Mapping[str, tuple[int, ...]]

# One row, and as many as may be needed together: rows in pairs, frames of a sound that a network of
# convolutions sees at once (5 to 21 of those in madmom) and the like.
_ROWS_TRIED: tuple[int, ...] = (*range(1, 9), 12, 16, 24, 32, 48, 64, 96, 128)
_TRYING_S = 5.0  # all of that


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
    count = _rows_that_run(model, rows)
    if count is None or count == 1:  # another row is the one that does not run
        return None
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


def _rows_that_run(model: ModelInfo, rows: Mapping[str, Any]) -> int | None:
    """The fewest of ``_ROWS_TRIED`` that run together; None where none do in time."""
    try:
        runtime = OrtRuntime(model.path)
    except AnalyzerError:
        return None  # a model for a GPU, say
    try:
        return apart(partial(_fewest, runtime, rows), runtime.stop, _TRYING_S)
    except ModelError:  # not in time
        return None
    finally:
        runtime.close()


def _fewest(runtime: OrtRuntime, rows: Mapping[str, Any]) -> int | None:
    most = rows_max(sum(array[0].size for array in rows.values()))
    for count in _ROWS_TRIED:
        if count > most:
            break
        with suppress(AnalyzerError):
            runtime.run({name: _resized(array, count) for name, array in rows.items()})
            return count
    return None


def _resized(rows: NDArray[Any], count: int) -> NDArray[Any]:
    """``count`` rows: the first ones, or all of them again and again."""
    return np.resize(rows, (count, *rows.shape[1:]))


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
