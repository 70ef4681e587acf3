"""JSON lists to arrays: what a request may make the server hold, and nesting of any depth."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from analyzer.engine.fault import Fault
from analyzer.server.json_tensors import json_to_array


def refusal(data: Any, datatype: str) -> str:
    with pytest.raises(Fault, match="Unable to parse 'data'") as caught:
        json_to_array(data, datatype, "X", (1,))
    return caught.value.message


@pytest.mark.parametrize("datatype", ["FP32", "INT64", "UINT8", "BOOL"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_long_string_among_numbers_takes_no_memory(datatype: str, nested: bool) -> None:
    """It made each of the 2,000 elements as wide as the string: 400 MB for 60 kB of JSON."""
    numbers: list[Any] = [0] * 2_000
    text = "x" * 50_000
    data = [[0, *numbers], [text, *numbers]] if nested else [*numbers, text]
    tracemalloc.start()
    try:
        assert "attempt to access JSON non-" in refusal(data, datatype)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1 << 20


@pytest.mark.parametrize("leaf", [None, {}, "1"])
def test_a_leaf_that_is_no_number_is_refused(leaf: Any) -> None:
    for data in ([leaf], [1, leaf], [[1, 2], [3, leaf]], [[1], leaf]):
        for datatype in ("FP64", "INT8", "BOOL"):
            assert "attempt to access JSON non-" in refusal(data, datatype)


def test_a_boolean_among_numbers_is_none_at_any_depth() -> None:
    for data in ([1, True], [[1, 2], [3, False]], [[[1]], [[True]]]):
        assert refusal(data, "FP32").endswith("non-number as double")


def test_nesting_does_not_matter() -> None:
    for data in ([1, 2, 3, 4], [[1, 2], [3, 4]], [[[1], 2], 3, [[[4]]]], [[], [1, 2], [3, 4]]):
        found = json_to_array(data, "INT32", "X", (2, 2))
        np.testing.assert_array_equal(found, np.array([1, 2, 3, 4], np.int32))
        assert found.dtype == np.int32
    for empty in ([], [[], []], [[], [[]]]):
        assert json_to_array(empty, "FP32", "X", (0,)).size == 0


def test_lists_deeper_than_an_array_can_be() -> None:
    deep: list[Any] = [7]
    for _ in range(5_000):  # beyond the interpreter's own limit on calls within calls
        deep = [deep]
    assert json_to_array(deep, "FP32", "X", (1,)).tolist() == [7.0]
