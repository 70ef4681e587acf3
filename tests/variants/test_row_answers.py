"""What counts as rounding between two sets of answers to the same rows, and what does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from analyzer.variants.row_answers import FLOAT, differing, tolerance_of, varying

RNG = np.random.default_rng(0)
ROWS = 8


def differ(before: NDArray[np.generic], after: NDArray[np.generic]) -> bool:
    return bool(differing({"y": before}, {"y": after}, FLOAT))


def test_the_last_digits_of_floats_are_rounding() -> None:
    before = RNG.standard_normal((2, 4096), np.float32)
    noise = RNG.standard_normal(before.shape, np.float32)
    assert not differ(before, before + np.float32(1e-5) * noise), "single values lie close to 0"
    assert differ(before, before + np.float32(1e-1) * noise)
    assert differ(before, before * np.float32(1.01))


@pytest.mark.parametrize("axis", [1, 2])
def test_each_channel_has_a_scale_of_its_own(axis: int) -> None:
    """Boxes in pixels beside scores up to 1, in either layout."""
    boxes, scores = (RNG.random((ROWS, 5, 50)) for _ in range(2))
    before = np.concatenate([boxes * 600, scores], axis=1)
    after = before.copy()
    after[:, 5:] *= 0.9
    if axis == 2:
        before, after = before.swapaxes(1, 2), after.swapaxes(1, 2)
    assert differ(before, after)


def test_nan_and_infinity_must_be_the_same() -> None:
    before = np.array([[np.nan, np.inf, -np.inf, 1.0]] * ROWS)
    assert not differ(before, before.copy())
    for place, value in ((0, 1.0), (1, -np.inf), (2, np.nan), (3, np.nan), (3, 2.0)):
        after = before.copy()
        after[0, place] = value
        assert differ(before, after), (place, value)


def test_a_label_that_changes_is_another_answer() -> None:
    before = np.arange(ROWS)
    after = before.copy()
    after[3] += 1
    assert differ(before, after)
    assert differ(before > 3, after > 3)
    assert differ(before[:, None] > 3, before[:, None] > 4)


def test_few_labels_of_an_image_may_change() -> None:
    """Two classes are as likely in a pixel, and another kernel prefers the other."""
    before = RNG.integers(0, 20, (ROWS, 100, 100))
    after = before.copy()
    after[:, 0, :10] += 1
    assert not differ(before, after)
    after[:, :10] += 1
    assert differ(before, after)


def test_two_values_may_change_places_in_a_row() -> None:
    """Of a hundred boxes two with nearly the same score; in every row it is no chance."""
    before = RNG.random((ROWS, 100, 4))
    after = before.copy()
    after[0, [7, 8]] = after[0, [8, 7]]
    assert not differ(before, after)
    after[:, [7, 8]] = before[:, [8, 7]]
    assert differ(before, after)


def test_integers_beyond_the_digits_of_a_float_are_rounded() -> None:
    before = np.full((ROWS, 3), 123_456_789)
    assert not differ(before, before + 8) and differ(before, before + 1000)


def test_what_differs_between_two_runs_varies() -> None:
    before = RNG.standard_normal((ROWS, 4))
    assert varying({"y": before}, {"y": before * 1.0005}, FLOAT) == {"y"}
    assert not varying({"y": before}, {"y": before.copy()}, FLOAT)


def test_a_graph_tells_what_its_rounding_may_change(write_model: Callable[..., Path]) -> None:
    def tolerance(*nodes: object, kind: int = TensorProto.FLOAT) -> tuple[float, float]:
        path = write_model(list(nodes), [("x", kind, ["n", 4])], [("y", kind, ["n", 4])])
        found = tolerance_of(str(path))
        return found.relative, found.integer_rows

    plain = helper.make_node("Neg", ["x"], ["y"])
    assert tolerance(plain) == (FLOAT.relative, 0.0)
    half, integers = tolerance(plain, kind=TensorProto.FLOAT16)
    assert half > FLOAT.relative and integers > 0
    quantized = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"]),
    ]
    assert tolerance(*quantized)[0] > half
    drawn = helper.make_node("RandomNormalLike", ["x"], ["y"])
    assert tolerance(drawn) == (FLOAT.relative, 1.0), "integers are equal by chance, or are not"
