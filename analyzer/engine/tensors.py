"""Triton's data types as NumPy arrays, in their binary and JSON forms."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.model import NUMPY_DTYPES
from analyzer.engine.protocol import Fault

# BYTES are arrays of Python bytes, as in Triton's own clients.
DTYPES: dict[str, np.dtype[Any]] = {name: np.dtype(kind) for name, kind in NUMPY_DTYPES.items()}
DTYPES["BYTES"] = np.dtype(object)
DATATYPE_OF = {dtype: name for name, dtype in DTYPES.items()}
_LENGTH = struct.Struct("<I")
_INT64_MIN, _UINT64_END = -(1 << 63), 1 << 64


def decode_strings(data: memoryview | bytes, count: int, where: str) -> NDArray[Any]:
    """The ``count`` strings (4 bytes of length, little endian, then the bytes) in ``data``.

    Args:
        where: The end of error messages: ``inference input 'X' for model 'm'``.

    Raises:
        Fault: More or fewer strings, or an incomplete one.
    """
    # Each string takes four bytes at least; an absurd shape must not allocate.
    if count * 4 > len(data):
        raise Fault(
            "invalid", f"expected {count} string elements for {where}, got {_strings(data)}"
        )
    values = np.empty(count, dtype=object)
    view = memoryview(data)
    end, position, index = len(view), 0, 0
    while position < end:
        if position + 4 > end:
            raise Fault("invalid", f"incomplete string length indicator for {where}")
        (length,) = _LENGTH.unpack_from(view, position)
        position += 4
        if position + length > end:
            raise Fault(
                "invalid",
                f"incomplete string data for {where}, expecting string of length {length} but "
                f"only {end - position} bytes available",
            )
        if index >= count:
            raise Fault(
                "invalid",
                f"unexpected number of string elements {index + 1} for {where}, expecting {count}",
            )
        values[index] = bytes(view[position : position + length])
        position += length
        index += 1
    if index != count:
        raise Fault("invalid", f"expected {count} string elements for {where}, got {index}")
    return values


def _strings(data: memoryview | bytes) -> int:
    """How many complete strings ``data`` begins with."""
    view, position, count = memoryview(data), 0, 0
    while position + 4 <= len(view):
        position += 4 + _LENGTH.unpack_from(view, position)[0]
        if position <= len(view):
            count += 1
    return count


def encode_strings(array: NDArray[Any]) -> bytes:
    """The binary form of an array of strings."""
    parts: list[bytes] = []
    for value in array.reshape(-1).tolist():
        text = value if isinstance(value, bytes) else str(value).encode()
        parts.append(_LENGTH.pack(len(text)))
        parts.append(text)
    return b"".join(parts)


def to_bytes(array: NDArray[Any]) -> bytes:
    """The binary form of any array, C order."""
    if array.dtype.kind in "OUS":
        return encode_strings(array)
    return array.tobytes()


def json_to_array(data: Any, datatype: str, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """The array that a JSON ``data`` member spells, flat.

    Nesting does not matter, only the number of elements does, as in Triton.

    Raises:
        Fault: A wrong type of element, or a number of elements that ``shape`` does not have.
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
    if array.size != math.prod(shape):
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
    try:
        array = np.array(data)
    except (ValueError, OverflowError):
        array = np.empty(1, dtype=object)  # ragged: element by element below
    if array.size == 0:
        return np.empty(0, dtype=dtype)
    kinds = {"f": "fiu", "i": "iu", "u": "iu", "b": "b"}[dtype.kind]
    if array.dtype.kind in kinds:
        if dtype.kind == "u" and array.dtype.kind == "i" and bool((array < 0).any()):
            raise _wrong("non-unsigned-integer as unsigned-integer")
        # An integer that is too large wraps, as in Triton.
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
        return np.array([_float(value) for value in values], dtype=np.float64).astype(dtype)
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
            "unsupported",
            f"sending FP16 data via JSON is not supported. Please use the binary data format for "
            f"output {name}",
        )
    flat = array.reshape(-1).tolist()
    if array.dtype.kind in "OS":
        return [v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in flat]
    return flat
