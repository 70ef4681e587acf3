"""Triton's data types as NumPy arrays, and their binary form."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.model import NUMPY_DTYPES
from analyzer.engine.fault import Fault

# BYTES are arrays of Python bytes, as in Triton's own clients.
DTYPES: dict[str, np.dtype[Any]] = {name: np.dtype(kind) for name, kind in NUMPY_DTYPES.items()}
DTYPES["BYTES"] = np.dtype(object)
DATATYPE_OF = {dtype: name for name, dtype in DTYPES.items()}
_LENGTH = struct.Struct("<I")


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
