"""Sizes that a model with dynamic dimensions accepts, found by trying a few usual ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from analyzer.domain.model import NUMPY_DTYPES, ModelInfo
from analyzer.variants.shapes import Dims, known

# Height and width of images, and the length of a sequence, of each try.
_TRIES = ((224, 224, 128), (48, 320, 512), (32, 320, 64), (64, 64, 256), (640, 640, 16))


def accepted_shapes(
    session: Any, model: ModelInfo, shapes: Mapping[str, Dims]
) -> dict[str, tuple[int, ...]] | None:
    """Shapes of all inputs with which ``session`` runs one row; None if no try succeeds.

    Two dynamic dimensions of one input are taken for height and width, others for lengths; a named
    dimension has one size wherever it stands.

    Args:
        session: An ONNX Runtime session of the model.
        shapes: The inputs' shapes as far as they are known, without the batch axis where the model
            is batchable.
    """
    for height, width, length in _TRIES:
        symbols: dict[str, int] = {}
        tried = {
            name: _fill(dims, symbols, (height, width), length) for name, dims in shapes.items()
        }
        if _runs(session, model, tried):
            return tried
    return None


def _fill(
    dims: Dims, symbols: dict[str, int], image: tuple[int, int], length: int
) -> tuple[int, ...]:
    unknown = [dim for dim in known(dims, symbols) if not isinstance(dim, int)]
    sizes = iter(image if len(unknown) == 2 and len(dims) > 2 else [length] * len(unknown))
    filled = []
    for dim in dims:
        size = dim if isinstance(dim, int) else symbols.get(dim or "")
        if size is None:
            size = next(sizes)
            if dim is not None:
                assert isinstance(dim, str)
                symbols[dim] = size
        filled.append(size)
    return tuple(filled)


def _runs(session: Any, model: ModelInfo, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    lead = (1,) if model.batchable else ()
    feeds = {}
    for spec in model.inputs:
        low, _ = spec.value_range or (0, 0)
        dtype = NUMPY_DTYPES[spec.datatype]
        feeds[spec.name] = np.full((*lead, *shapes[spec.name]), low, dtype)
    try:
        session.run(None, feeds)
    except Exception:  # whatever it says: this shape is not one to recommend
        return False
    return True
