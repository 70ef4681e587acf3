"""Domain objects to JSON and back, by the type hints of their dataclasses; msgspec reads.

What is written names every field, so that a row can be read with SQL alone and by a later version:
unknown keys are ignored, missing ones take the field's default. ``None`` is left out where it is
the default. An object carries its class's name as ``"$type"``. A float that JSON cannot spell is
the string ``nan``, ``inf`` or ``-inf``; inside an untyped tree it is ``{"$float": "nan"}``.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar, cast

import msgspec
import numpy as np

T = TypeVar("T")

_TYPE = "$type"
_FLOAT = "$float"

# functools.cache, without losing the signature: classes are the keys.
_F = TypeVar("_F", bound=Callable[..., Any])
_cached = cast("Callable[[_F], _F]", cache)


# --- writing -------------------------------------------------------------------------------------


def dumps(value: object) -> str:
    """The JSON text of a dataclass (tagged with its class) or of a tree of plain values.

    Raises:
        TypeError: Something in it has no JSON form: a mistake of our own code.
    """
    tree = _encode(value, typed=False)
    if dataclasses.is_dataclass(value):
        assert isinstance(tree, dict)
        tree = {_TYPE: type(value).__name__, **tree}
    return json.dumps(tree, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


@_cached
def _plan(kind: Any) -> tuple[tuple[str, bool], ...]:
    """Of each field: its name, and whether None is its default."""
    return tuple((field.name, field.default is None) for field in dataclasses.fields(kind))


def _encode(value: Any, *, typed: bool) -> object:
    if isinstance(value, str):
        # A path may have bytes that are no text, which no database takes.
        return value if value.isascii() else value.encode(errors="backslashreplace").decode()
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return float(value)
        return str(value) if typed else {_FLOAT: str(value)}
    if isinstance(value, (tuple, list)):
        return [_encode(item, typed=typed) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _encode(item, typed=typed) for key, item in value.items()}
    if isinstance(value, np.generic):
        return _encode(value.item(), typed=typed)
    if isinstance(value, np.ndarray):
        return _encode(value.tolist(), typed=typed)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            name: _encode(item, typed=True)
            for name, none_by_default in _plan(type(value))
            if (item := getattr(value, name)) is not None or not none_by_default
        }
    raise TypeError(f"no JSON form for {type(value).__name__}: {value!r}")


# --- reading -------------------------------------------------------------------------------------


@_cached
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Not strict: a float may be spelt as text."""
    return msgspec.json.Decoder(kind, strict=False)


class _Tagged(msgspec.Struct):
    """Reads the tag of an object alone."""

    type: str | None = msgspec.field(default=None, name=_TYPE)


def loads(text: str, *kinds: type[Any]) -> Any:
    """The object of one of the classes ``kinds`` that :func:`dumps` wrote.

    Raises:
        ValueError: The text is not JSON, or is of another class, or lacks a field that has no
            default.
    """
    kind = kinds[0]
    if not text.startswith(f'{{"{_TYPE}":"{kind.__name__}"'):
        name = _read(text, _Tagged).type or kind.__name__
        by_name = {kind.__name__: kind for kind in kinds}
        if name not in by_name:
            raise ValueError(f"expected {' or '.join(by_name)}, found {text[:60]!r}")
        kind = by_name[name]
    return _read(text, kind)


def loads_many(text: str, kind: type[T]) -> tuple[T, ...]:
    """The objects of one class that :func:`dumps` wrote as a list.

    Raises:
        ValueError: As :func:`loads`.
    """
    return cast("tuple[T, ...]", _read(text, tuple[kind, ...]))  # type: ignore[valid-type]


def _read(text: str, kind: Any) -> Any:
    try:
        return _decoder(kind).decode(text)
    except (msgspec.MsgspecError, AssertionError) as error:
        raise ValueError(f"{getattr(kind, '__name__', kind)}: {error}") from error


def loads_plain(text: str) -> Any:
    """The tree of plain values (dictionaries, lists, numbers, text) that :func:`dumps` wrote."""
    return _decode_plain(json.loads(text))


def _decode_plain(value: Any) -> Any:
    if isinstance(value, dict):
        if len(value) == 1 and _FLOAT in value:
            return float(value[_FLOAT])
        return {key: _decode_plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_decode_plain(item) for item in value]
    return value
