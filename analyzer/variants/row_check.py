"""Rows of real data that a model may refuse: ONNX Runtime is asked about the doubtful ones.

What a graph tells of valid values (the tables that an input indexes) is too narrow where columns
index different tables or the graph replaces padding. So a range makes up data, and refuses none.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.model import ModelInfo, TensorSpec
from analyzer.errors import AnalyzerError, is_out_of_memory
from analyzer.variants.session import open_session, run_error

# Of each input as many rows are tried as take this long together, some at least and at most.
_SECONDS_MAX = 1.0
_ROWS_MIN = 4
_ROWS_MAX = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingRow:
    """A row that does not run.

    Args:
        name: The input whose value is outside of what the graph tells.
        place: Index of the value in the input's array.
        value: The value, as it is shown.
        reason: What ONNX Runtime says.
    """

    name: str
    place: tuple[int, ...]
    value: str
    reason: str


def failing_row(model: ModelInfo, inputs: Mapping[str, NDArray[np.generic]]) -> FailingRow | None:
    """One row that the model does not run; None if all that were tried do, or it cannot be asked.

    Tried are, of each input with a range, the rows with the values farthest outside of it, of every
    column; values inside are not doubted.

    Args:
        inputs: ``[rows, *shape]`` of every input.
    """
    doubtful = {
        spec.name: places for spec in model.inputs if (places := _outside(spec, inputs[spec.name]))
    }
    if not doubtful or not Path(model.path).is_file():
        return None
    try:
        session = open_session(Path(model.path))
    except AnalyzerError:
        return None  # a model for a GPU, say
    for name, places in doubtful.items():
        begun = time.monotonic()
        for tried, place in enumerate(places):
            if tried >= _ROWS_MIN and time.monotonic() - begun > _SECONDS_MAX:
                break
            row = slice(place[0], place[0] + 1) if model.batchable else place[0]
            error = _error(session, {key: array[row, ...] for key, array in inputs.items()})
            if error is not None and not is_out_of_memory(error):
                value = str(inputs[name][place])
                return FailingRow(name=name, place=place, value=value, reason=run_error(error))
    return None


def _error(session: Any, feeds: Mapping[str, NDArray[np.generic]]) -> Exception | None:
    try:
        session.run(None, dict(feeds))
    except Exception as error:  # its classes are not public
        return error
    return None


def _outside(spec: TensorSpec, array: NDArray[Any]) -> list[tuple[int, ...]]:
    """Places of the values outside of the range, a row once: the farthest above and below first."""
    if spec.value_range is None:
        return []
    low, high = spec.value_range
    columns = array.reshape(len(array), -1)
    every = np.arange(columns.shape[1])
    most, least = columns.argmax(axis=0), columns.argmin(axis=0)
    above = _farthest(most, columns[most, every].astype(np.float64) - high)
    below = _farthest(least, low - columns[least, every].astype(np.float64))
    places: dict[int, tuple[int, ...]] = {}
    for row, column in (pair for both in zip_longest(above, below) for pair in both if pair):
        index = np.unravel_index(column, array.shape[1:]) if array.ndim > 1 else ()
        places.setdefault(row, (row, *map(int, index)))
    return list(places.values())[:_ROWS_MAX]


def _farthest(rows: NDArray[np.int64], excess: NDArray[np.float64]) -> Iterator[tuple[int, int]]:
    """``(row, column)`` of the columns with an excess, the largest first.

    Args:
        rows: Where the column's value stands that is farthest outside, ``[columns]``.
        excess: How far outside it is; at most 0 where it is none.
    """
    for column in np.argsort(-excess, kind="stable")[:_ROWS_MAX]:
        if excess[column] <= 0:
            return
        yield int(rows[column]), int(column)
