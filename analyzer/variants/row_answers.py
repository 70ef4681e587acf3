"""Whether two sets of answers to the same rows differ by more than rounding.

The rows of a batch are computed by other kernels than a row alone, which sum in another order. That
changes the last digits of a float; where a graph rounds or selects (an argmax, a top-k), it now and
then changes an integer, or moves a few values. A row that depends on the rows beside it changes
many values, or few of them in most rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.engine.runtimes.base import Tensors
from analyzer.modelconfig.weights import all_tensors
from analyzer.variants.graph import all_graphs, is_quantized
from analyzer.variants.random_numbers import draws

# A row of whose values more than this share changed is another answer.
_SHARE_CHANGED_MAX = 0.05
# Of a row's integers a share that rounding may change (labels of an image's pixels).
_INTEGERS_ROUNDED_SHARE = 0.003
# Float32 holds 24 bits: beyond them integers that come from floats are rounded too.
_INTEGERS_RELATIVE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """What rounding may change.

    Args:
        relative: By how much a float may differ, as a share of the largest value in its column.
        floor: The least that counts as a column's largest value, as a share of the output's.
        integer_rows: The share of rows whose integers may change altogether.
    """

    relative: float
    floor: float
    integer_rows: float


FLOAT = Tolerance(relative=1e-3, floor=0.05, integer_rows=0.0)
# Each value is rounded to 11 bits (bfloat16: 8), and scores that lie close together swap places.
_HALF = Tolerance(relative=0.02, floor=0.1, integer_rows=0.5)
# Dynamically quantized activations may be scaled over the whole batch.
_QUANTIZED = Tolerance(relative=0.1, floor=1.0, integer_rows=0.5)


def tolerance_of(path: str) -> Tolerance:
    """What rounding may change in the answers of the graph at ``path``.

    Of a graph that draws random numbers integers tell nothing: they can be equal by chance in one
    run and not in the next.
    """
    import onnx

    model = onnx.load(path, load_external_data=False)
    operators = {node.op_type for node in _nodes(model)}
    if any(map(is_quantized, operators)):
        found = _QUANTIZED
    elif _computes_in_half(model):
        found = _HALF
    else:
        found = FLOAT
    return replace(found, integer_rows=1.0) if draws(model) else found


def differing(expected: Tensors, seen: Tensors, tolerance: Tolerance) -> set[str]:
    """The outputs (``[rows, *shape]``, of the same shapes) that differ by more than rounding."""
    return {name for name in expected if _differs(expected[name], seen[name], tolerance)}


def varying(first: Tensors, second: Tensors, tolerance: Tolerance) -> set[str]:
    """The outputs that differ between two runs on the same inputs, as random numbers do."""
    exact = replace(tolerance, relative=tolerance.relative / 10, integer_rows=0.0)
    return differing(first, second, exact)


def _differs(expected: NDArray[Any], seen: NDArray[Any], tolerance: Tolerance) -> bool:
    if not expected.size or np.array_equal(expected, seen):
        return False
    if np.issubdtype(expected.dtype, np.floating):
        changed, slight, rows_spared = _floats_changed(expected, seen, tolerance), 0.0, 0.0
    else:
        changed, slight = _others_changed(expected, seen), _INTEGERS_ROUNDED_SHARE
        rows_spared = tolerance.integer_rows
    shares = changed.reshape(len(changed), -1).mean(axis=1)
    altogether = np.mean(shares > _SHARE_CHANGED_MAX)
    slightly = np.mean(shares > slight)
    return bool(altogether > rows_spared or slightly > max(rows_spared, 0.5))


def _floats_changed(
    expected: NDArray[Any], seen: NDArray[Any], tolerance: Tolerance
) -> NDArray[np.bool_]:
    """Which values changed; NaN and infinities must be the same."""
    dtype = np.promote_types(expected.dtype, np.float32)
    before, after = expected.astype(dtype, copy=False), seen.astype(dtype, copy=False)
    finite = np.isfinite(before) & np.isfinite(after)
    with np.errstate(invalid="ignore", over="ignore"):
        sizes = np.where(finite, np.maximum(np.abs(before), np.abs(after)), 0)
        moved = np.abs(after - before) > tolerance.relative * _scales(sizes, tolerance.floor)
    other = (before != after) & ~(np.isnan(before) & np.isnan(after))
    changed: NDArray[np.bool_] = np.where(finite, moved, other)
    return changed


def _scales(sizes: NDArray[Any], floor: float) -> NDArray[Any]:
    """For each value ``[rows, *shape]`` the largest beside it, in the axis where that is least.

    Columns (channels, features) may be of different units; a single value may lie close to 0 by
    cancellation, and says nothing of the numbers that it was computed from.
    """
    largest = sizes.max()
    least: NDArray[Any] = np.full((1,) * sizes.ndim, largest, sizes.dtype)
    for axis in range(1, sizes.ndim):
        others = tuple(other for other in range(sizes.ndim) if other != axis)
        least = np.minimum(least, sizes.max(axis=others, keepdims=True))
    np.maximum(least, floor * largest, out=least)
    return least


def _others_changed(expected: NDArray[Any], seen: NDArray[Any]) -> NDArray[np.bool_]:
    """Which integers, truth values or strings changed."""
    changed = np.asarray(expected != seen)
    if expected.dtype.kind in "iu":
        before, after = expected.astype(np.float64), seen.astype(np.float64)
        sizes = np.maximum(np.abs(before), np.abs(after))
        changed &= np.abs(after - before) > _INTEGERS_RELATIVE * sizes
    return changed


def _nodes(model: Any) -> Iterator[Any]:
    for part in (*all_graphs(model.graph), *model.functions):
        yield from part.node


def _computes_in_half(model: Any) -> bool:
    """Whether ``model`` holds, takes, gives or casts to values of 16 bits."""
    from onnx import TensorProto

    half = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
    values = (*model.graph.input, *model.graph.output)
    return (
        any(value.type.tensor_type.elem_type in half for value in values)
        or any(tensor.data_type in half for tensor in all_tensors(model.graph))
        or any(
            attribute.name == "to" and attribute.i in half
            for node in _nodes(model)
            for attribute in node.attribute
        )
    )
