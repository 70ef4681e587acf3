"""Tensors in one file, whatever their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.engine.runtimes.base import Tensors


def write_tensors(path: Path, tensors: Tensors) -> None:
    """Writes an ``.npz`` with an array ``names`` and the tensors by their position in it.

    Not by their names: these may hold characters that an entry of a zip file cannot, or be
    arguments of :func:`numpy.savez`.

    Raises:
        OSError: It cannot be written.
    """
    arrays = {str(index): array for index, array in enumerate(tensors.values())}
    with path.open("wb") as stream:
        np.savez(stream, names=np.array(list(tensors)), **arrays)  # type: ignore[arg-type]


def read_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """The tensors that :func:`write_tensors` wrote, in their order.

    Raises:
        OSError: The file is not there, or cannot be read.
    """
    with np.load(path, allow_pickle=False) as archive:
        return {str(name): archive[str(index)] for index, name in enumerate(archive["names"])}
