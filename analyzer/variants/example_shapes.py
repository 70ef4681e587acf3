"""Sizes that a model with dynamic dimensions accepts, found by trying a few usual ones.

What such a run answers tells the rank of an output whose shape the graph does not tell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analyzer.domain.model import NUMPY_DTYPES, TensorSpec
from analyzer.variants.derived_dims import note_size, size_of
from analyzer.variants.shapes import Dims, is_derived, known

# Height and width of images, and the length of a sequence, of each try.
_TRIES = ((224, 224, 128), (48, 320, 512), (32, 320, 64), (64, 64, 256), (640, 640, 16))
_COLOURS = 3  # channels of an image
# Of the sizes that weights have, the first so many: the input's own is in those that read it.
_WEIGHT_SIZES_MAX = 8
# Larger inputs are not tried: two open dimensions with the size of a vocabulary are gigabytes.
_ELEMENTS_MAX = 1 << 24


def accepted_shapes(
    session: Any,
    graph: Any,
    inputs: Sequence[TensorSpec],
    shapes: Mapping[str, Dims],
    *,
    batchable: bool,
) -> dict[str, tuple[int, ...]] | None:
    """Shapes of all inputs with which ``session`` runs one row; None if no try succeeds.

    Two dynamic dimensions of one input are taken for height and width, others for lengths, and one
    that is called a channel for colours; a named dimension has one size wherever it stands. Where
    none of the usual sizes does, those of the first weights are tried: an exporter may leave the
    number of features open, which a matrix decides.

    Args:
        session: An ONNX Runtime session of the model.
        graph: The model's, as ONNX has it.
        inputs: Their types and ranges count.
        shapes: Theirs as far as they are known, without the batch axis where the model is
            ``batchable``.
    """
    tries = (*_TRIES, *((size, size, size) for size in _weight_sizes(graph)))
    ran = _first_run(session, inputs, shapes, tries, batchable=batchable)
    return ran[0] if ran is not None else None


def output_ranks(
    session: Any, inputs: Sequence[TensorSpec], shapes: Mapping[str, Dims], *, batchable: bool
) -> dict[str, int]:
    """How many dimensions each output has, from one row; empty if no try succeeds.

    Args:
        session, inputs, shapes, batchable: As of :func:`accepted_shapes`.
    """
    ran = _first_run(session, inputs, shapes, _TRIES, batchable=batchable)
    names = [output.name for output in session.get_outputs()]
    return {} if ran is None else {n: np.ndim(v) for n, v in zip(names, ran[1], strict=True)}


def _weight_sizes(graph: Any) -> tuple[int, ...]:
    """The sizes of matrices and larger weights, each once, in the order in which nodes use them."""
    dims = {weight.name: weight.dims for weight in graph.initializer}
    used = [size for node in graph.node for name in node.input for size in _matrix(dims.get(name))]
    return tuple(dict.fromkeys(used))[:_WEIGHT_SIZES_MAX]


def _matrix(dims: Sequence[int] | None) -> Sequence[int]:
    return [size for size in dims if size > 1] if dims is not None and len(dims) > 1 else ()


def _first_run(
    session: Any,
    inputs: Sequence[TensorSpec],
    shapes: Mapping[str, Dims],
    tries: Sequence[tuple[int, int, int]],
    *,
    batchable: bool,
) -> tuple[dict[str, tuple[int, ...]], list[Any]] | None:
    """The shapes of the first try that succeeds, and the answers."""
    for height, width, length in tries:
        symbols: dict[str, int] = {}
        # What is computed from other dimensions last, when those are known.
        ordered = sorted(shapes.items(), key=lambda item: is_derived(item[1]))
        tried = {name: _fill(dims, symbols, (height, width), length) for name, dims in ordered}
        if sum(map(math.prod, tried.values())) > _ELEMENTS_MAX:
            continue
        answers = _answers(session, inputs, tried, batchable=batchable)
        if answers is not None:
            return tried, answers
    return None


def _fill(
    dims: Dims, symbols: dict[str, int], image: tuple[int, int], length: int
) -> tuple[int, ...]:
    open_dims = known(dims, symbols)
    for dim in open_dims:
        if isinstance(dim, str) and "channel" in dim.lower():
            symbols[dim] = _COLOURS
    open_dims = known(open_dims, symbols)
    unknown = [dim for dim in open_dims if not isinstance(dim, int)]
    sizes = iter(image if len(unknown) == 2 and len(dims) > 2 else [length] * len(unknown))
    filled = []
    for dim in open_dims:
        size = size_of(dim, symbols) if isinstance(dim, str) else dim
        if size is None:
            size = next(sizes)
            if isinstance(dim, str):
                size = note_size(dim, size, symbols)
        filled.append(size)
    return tuple(filled)


def _answers(
    session: Any,
    inputs: Sequence[TensorSpec],
    shapes: Mapping[str, tuple[int, ...]],
    *,
    batchable: bool,
) -> list[Any] | None:
    lead = (1,) if batchable else ()
    feeds = {}
    for spec in inputs:
        low, _ = spec.value_range or (0, 0)
        dtype = NUMPY_DTYPES[spec.datatype]
        feeds[spec.name] = np.full((*lead, *shapes[spec.name]), low, dtype)
    try:
        return list(session.run(None, feeds))
    except Exception:  # whatever it says: this shape is not one to recommend
        return None
