"""Tensors in JSON: flat or nested lists of numbers, booleans or strings."""

from __future__ import annotations

import math
from contextlib import suppress
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.engine.fault import Fault
from analyzer.engine.tensors import DTYPES

_INT64_MIN, _UINT64_END = -(1 << 63), 1 << 64  # the widest of Triton's integers
_NUMBERS = frozenset({bool, float, int})


def json_to_array(data: Any, datatype: str, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """The array that a JSON ``data`` member spells, flat.

    Nesting does not matter, only the number of elements does, as in Triton.

    Raises:
        Fault: A wrong type of element, or a number of elements that ``shape`` does not have; the
            number of strings is left to the check against the model, as in Triton.
    """
    if datatype in ("FP16", "BF16"):
        raise Fault(
            "invalid",
            f"sending {datatype} data via JSON is not supported. Please use the binary data "
            f"format for input {name}",
        )
    if not isinstance(data, list):
        raise Fault("internal", "Unable to parse 'data': attempt to access JSON non-array as array")
    array = _flat(data, datatype)
    if datatype != "BYTES" and array.size != math.prod(shape):
        raise Fault(
            "internal", "Unable to parse 'data': Shape does not match true shape of 'data' field"
        )
    return array


def _flat(data: list[Any], datatype: str) -> NDArray[Any]:
    dtype = DTYPES[datatype]
    if datatype == "BYTES":
        values = _flatten(data)
        if any(not isinstance(value, str) for value in values):
            raise Fault(
                "internal",
                "Unable to parse JSON bytes array: attempt to access JSON non-string as string",
            )
        strings = np.empty(len(values), dtype=object)
        strings[:] = [value.encode("utf-8", "surrogatepass") for value in values]
        return strings
    types = _types(data)
    array = np.empty(1, dtype=object)  # stands for what is looked at element by element below
    # NumPy would write numbers beside a string as strings, each as wide as the widest.
    if types <= _NUMBERS:
        with suppress(ValueError, OverflowError):  # ragged
            array = np.array(data)
    if array.size == 0:
        return np.empty(0, dtype=dtype)
    kinds = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}[dtype.kind]
    # NumPy takes a boolean among numbers for one of them.
    if array.dtype.kind in kinds and (dtype.kind == "b" or bool not in types):
        if dtype.kind == "u" and array.dtype.kind == "i" and bool((array < 0).any()):
            raise _wrong("non-unsigned-integer as unsigned-integer")
        if dtype.kind == "i" and array.dtype.kind == "u" and bool((array >= -_INT64_MIN).any()):
            raise _wrong(_EXPECTED["i"])
        # An integer that is too large for its type alone wraps, as in Triton.
        with np.errstate(over="ignore"):  # of FP32: infinity
            return np.asarray(array.reshape(-1)).astype(dtype)
    return _element_by_element(_flatten(data), dtype)


def _element_by_element(values: list[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    if dtype.kind == "b":
        if any(not isinstance(value, bool) for value in values):
            raise _wrong("non-boolean as boolean")
        return np.array(values, dtype=dtype)
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in values):
        raise _wrong(_EXPECTED[dtype.kind])
    if dtype.kind == "f":
        wide_floats = np.array([_float(value) for value in values], dtype=np.float64)
        with np.errstate(over="ignore"):
            return wide_floats.astype(dtype)
    low, high = (0, _UINT64_END) if dtype.kind == "u" else (_INT64_MIN, -_INT64_MIN)
    if any(not isinstance(value, int) or not low <= value < high for value in values):
        raise _wrong(_EXPECTED[dtype.kind])
    wide = np.uint64 if dtype.kind == "u" else np.int64
    return np.array(values, dtype=wide).astype(dtype)


_EXPECTED = {
    "f": "non-number as double",
    "i": "non-signed-integer as signed-integer",
    "u": "non-unsigned-integer as unsigned-integer",
}


def _float(value: float | int) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _wrong(what: str) -> Fault:
    return Fault("internal", f"Unable to parse 'data': attempt to access JSON {what}")


def _types(data: list[Any]) -> set[type]:
    """The types of the leaves of nested lists, whatever the depth."""
    found: set[type] = set()
    rows = [data]
    while rows:
        types = set(map(type, chain.from_iterable(rows)))
        found |= types
        if list not in types:
            break
        rows = [value for value in chain.from_iterable(rows) if type(value) is list]
    found.discard(list)
    return found


def _flatten(data: list[Any]) -> list[Any]:
    """The leaves of nested lists, in order, whatever the depth."""
    values: list[Any] = []
    stack: list[Any] = [iter(data)]
    while stack:
        for value in stack[-1]:
            if isinstance(value, list):
                stack.append(iter(value))
                break
            values.append(value)
        else:
            stack.pop()
    return values


def array_to_json(array: NDArray[Any], name: str) -> list[Any]:
    """The flat JSON form of an array.

    Raises:
        Fault: A data type that JSON cannot carry.
    """
    if array.dtype == np.float16:
        raise Fault(
            "invalid",
            f"sending FP16 data via JSON is not supported. Please use the binary data format for "
            f"output {name}",
        )
    flat = array.reshape(-1).tolist()
    if array.dtype.kind in "OS":
        return [v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in flat]
    return flat
