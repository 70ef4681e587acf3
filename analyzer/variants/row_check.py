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
from analyzer.variants.graph import all_graphs
from analyzer.variants.onnx_file import load_onnx
from analyzer.variants.session import open_session, run_error

# Of each input as many rows are tried as take this long together, some at least and at most.
_SECONDS_MAX = 1.0
_ROWS_MIN = 4
_ROWS_MAX = 32
# Operators to which NaN is a value that is missing.
_MISSING_VALUES = {
    *("TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"),
    *("Imputer", "IsNaN"),
}


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
            error = _error(session, _feeds(model, inputs, place[0]))
            if error is not None and not is_out_of_memory(error):
                value = str(inputs[name][place])
                return FailingRow(name=name, place=place, value=value, reason=run_error(error))
    return None


def takes_nan(model: ModelInfo, inputs: Mapping[str, NDArray[np.generic]]) -> bool:
    """Whether NaN is a missing value to the model: it has an operator for it, and answers numbers.

    Tried are some of the rows with NaN; False where the model cannot be asked.

    Args:
        inputs: ``[rows, *shape]`` of every input.
    """
    file = Path(model.path)
    if not file.is_file() or not _MISSING_VALUES & _operators(file):
        return False
    try:
        session = open_session(file)
    except AnalyzerError:
        return False  # a model for a GPU, say
    rows = np.zeros(len(next(iter(inputs.values()))), np.bool_)
    for array in inputs.values():
        rows |= np.isnan(array.reshape(len(array), -1)).any(axis=1)
    found = np.flatnonzero(rows)
    chosen = found[np.unique(np.linspace(0, len(found) - 1, _ROWS_MAX).astype(int))]
    return all(_answers_numbers(session, _feeds(model, inputs, row)) for row in chosen)


def _operators(file: Path) -> set[str]:
    graphs = all_graphs(load_onnx(file).graph)
    return {node.op_type for graph in graphs for node in graph.node}


def _answers_numbers(session: Any, feeds: Mapping[str, NDArray[np.generic]]) -> bool:
    """Whether floats are among the answers, and none of them is NaN."""
    try:
        answers = [np.asarray(answer) for answer in session.run(None, dict(feeds))]
    except Exception:  # its classes are not public
        return False
    floats = [answer for answer in answers if answer.dtype.kind == "f"]
    return bool(floats) and not any(np.isnan(answer).any() for answer in floats)


def _feeds(
    model: ModelInfo, inputs: Mapping[str, NDArray[np.generic]], row: int
) -> dict[str, NDArray[np.generic]]:
    """The request that the row ``row`` is."""
    place = slice(row, row + 1) if model.batchable else row
    return {name: array[place, ...] for name, array in inputs.items()}


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
