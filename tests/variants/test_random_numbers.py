"""Graphs whose answers differ from run to run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from analyzer.variants.inspect import inspect_model
from analyzer.variants.row_answers import tolerance_of


@pytest.mark.parametrize(
    ("ratio", "training", "random"),
    [(0.5, True, True), (None, True, True), (0.5, False, False), (0.0, True, False)],
)
def test_dropout_draws_in_training_mode(
    write_model: Callable[..., Path], ratio: float | None, training: bool, random: bool
) -> None:
    """Variants of a model that was exported in training mode were refused by chance."""
    mode = numpy_helper.from_array(np.array(training))
    nodes = [
        helper.make_node("Constant", [], ["training"], value=mode),
        helper.make_node("Dropout", ["x", "" if ratio is None else "ratio", "training"], ["y"]),
    ]
    weights = {} if ratio is None else {"ratio": np.array(ratio, np.float32)}
    x, y = ([(name, TensorProto.FLOAT, ["n", 8])] for name in "xy")
    path = write_model(nodes, x, y, weights)
    notes = inspect_model(path).notes
    assert ["draws random numbers (Dropout)" in note for note in notes] == [True] * random
    assert tolerance_of(str(path)).integer_rows == (1.0 if random else 0.0)
