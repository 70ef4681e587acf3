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
    # A list, as an absurd shape must not allocate.
    strings: list[bytes] = []
    view = memoryview(data)
    end, position = len(view), 0
    while position < end:
        if position + 4 > end:
            raise Fault(
                "invalid",
                f"incomplete string length indicator for {where}, expecting 4 bytes but only "
                f"{end - position} bytes available. Please make sure the string length indicator "
                "is in one buffer.",
            )
        (length,) = _LENGTH.unpack_from(view, position)
        position += 4
        if position + length > end:
            raise Fault(
                "invalid",
                f"incomplete string data for {where}, expecting string of length {length} but "
                f"only {end - position} bytes available",
            )
        strings.append(bytes(view[position : position + length]))
        check_string_count(len(strings), count, where, complete=False)
        position += length
    check_string_count(len(strings), count, where)
    values = np.empty(count, dtype=object)
    values[:] = strings
    return values


def check_string_count(found: int, count: int, where: str, *, complete: bool = True) -> None:
    """Compares the number of strings with the ``count`` of elements that the shape has.

    Args:
        where: The end of error messages: ``inference input 'X' for model 'm'``.
        complete: Whether no more strings follow.

    Raises:
        Fault: There are more, or fewer.
    """
    if found > count:
        raise Fault(
            "invalid",
            f"unexpected number of string elements {count + 1} for {where}, expecting {count}",
        )
    if complete and found < count:
        raise Fault("invalid", f"expected {count} string elements for {where}, got {found}")


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
