"""Domain objects to JSON and back, driven by the type hints of their dataclasses.

What is written names every field, so that a row can be read with SQL alone and by a later version:
unknown keys are ignored, missing ones take the field's default. ``None`` is left out where reading
restores it. A float that JSON cannot spell is the string ``nan``, ``inf`` or ``-inf``; inside an
untyped dictionary it is ``{"$float": "nan"}``. An object whose type is a union of classes carries
its class's name as ``"$type"``.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import numpy as np

T = TypeVar("T")

_TYPE = "$type"
_FLOAT = "$float"
_Decoder = Callable[[Any], Any]

# functools.cache, without losing the signature: classes are the keys.
_F = TypeVar("_F", bound=Callable[..., Any])
_cached = cast("Callable[[_F], _F]", cache)


def dumps(value: object) -> str:
    """The JSON text of a dataclass (tagged with its class) or of a tree of plain values.

    Raises:
        TypeError: Something in it has no JSON form: a mistake of our own code.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        tree: object = {_TYPE: type(value).__name__, **_encode_dataclass(value)}
    else:
        tree = _encode(value, typed=False)
    return json.dumps(tree, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def loads(text: str, *kinds: type[Any]) -> Any:
    """The object of one of the classes ``kinds`` that :func:`dumps` wrote.

    Raises:
        ValueError: The text is not JSON, or is of another class, or lacks a field that has no
            default.
    """
    tree = json.loads(text)
    by_name = {kind.__name__: kind for kind in kinds}
    kind = by_name.get(tree.get(_TYPE, kinds[0].__name__)) if isinstance(tree, dict) else None
    if kind is None:
        raise ValueError(f"expected {' or '.join(by_name)}, found {text[:60]!r}")
    try:
        return _dataclass_decoder(kind)(tree)
    except (TypeError, AttributeError, AssertionError, KeyError) as error:
        raise ValueError(f"{kind.__name__}: {error}") from error


def loads_many(text: str, kind: type[T]) -> tuple[T, ...]:
    """The objects of one class that :func:`dumps` wrote as a list.

    Raises:
        ValueError: As :func:`loads`.
    """
    decode = _dataclass_decoder(kind)
    try:
        return tuple(decode(tree) for tree in json.loads(text))
    except (TypeError, AttributeError, AssertionError, KeyError) as error:
        raise ValueError(f"{kind.__name__}: {error}") from error


def loads_plain(text: str) -> Any:
    """The tree of plain values (dictionaries, lists, numbers, text) that :func:`dumps` wrote."""
    return _decode_plain(json.loads(text))


# --- writing -------------------------------------------------------------------------------------


@_cached
def _plan(kind: Any) -> tuple[tuple[str, bool], ...]:
    """Of each field: its name, and whether None is restored when it is left out."""
    return tuple(
        (field.name, field.default is None or not _has_default(field))
        for field in dataclasses.fields(kind)
    )


def _has_default(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is not missing or field.default_factory is not missing


@_cached
def _union_fields(kind: Any) -> frozenset[str]:
    """The fields whose type is a union of dataclasses, which need a tag."""
    hints = get_type_hints(kind)
    return frozenset(
        name for name, hint in hints.items() if sum(map(dataclasses.is_dataclass, _arms(hint))) > 1
    )


@_cached
def _plain_fields(kind: Any) -> frozenset[str]:
    """The fields that hold untyped trees."""
    hints = get_type_hints(kind)
    return frozenset(name for name, hint in hints.items() if _is_plain(hint))


def _is_plain(hint: Any) -> bool:
    return any(
        arm is Any or arm is dict or get_origin(arm) in (dict, Mapping) for arm in _arms(hint)
    )


def _encode_dataclass(value: Any) -> dict[str, object]:
    kind = type(value)
    unions, plain = _union_fields(kind), _plain_fields(kind)
    tree: dict[str, object] = {}
    for name, restores_none in _plan(kind):
        item = getattr(value, name)
        if item is None and restores_none:
            continue
        tree[name] = _encode(item, typed=name not in plain, tagged=name in unions)
    return tree


def _encode(value: Any, *, typed: bool, tagged: bool = False) -> object:
    if value is None or isinstance(value, (str, bool, int)):
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
        tree = _encode_dataclass(value)
        return {_TYPE: type(value).__name__, **tree} if tagged else tree
    raise TypeError(f"no JSON form for {type(value).__name__}: {value!r}")


# --- reading -------------------------------------------------------------------------------------


def _arms(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a union without None; the hint itself otherwise."""
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(arm for arm in get_args(hint) if arm is not type(None))
    return (hint,)


def _admits_none(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType) and type(None) in get_args(hint)


@_cached
def _dataclass_decoder(kind: Any) -> _Decoder:
    """Built once for each class: reading a hundred thousand rows must not look at type hints."""
    hints = get_type_hints(kind)
    plan: list[tuple[str, _Decoder | None, bool]] = []
    for field in dataclasses.fields(kind):
        needs_none = not _has_default(field) and _admits_none(hints[field.name])
        plan.append((field.name, _decoder(hints[field.name]), needs_none))

    def decode(tree: dict[str, Any]) -> Any:
        values: dict[str, Any] = {}
        for name, convert, needs_none in plan:
            if name in tree:
                item = tree[name]
                values[name] = item if convert is None or item is None else convert(item)
            elif needs_none:
                values[name] = None
        return kind(**values)

    return decode


def _decoder(hint: Any) -> _Decoder | None:
    """What turns a JSON value other than null into ``hint``; None where it already is one."""
    arms = _arms(hint)
    classes = [arm for arm in arms if dataclasses.is_dataclass(arm)]
    if len(classes) > 1:
        return _union_decoder(classes)
    arm = arms[0]
    if len(arms) > 1:
        return _decode_float if float in arms else None
    if classes:
        return _dataclass_decoder(classes[0])
    if arm is float:
        return _decode_float
    if _is_plain(arm):
        return _decode_plain
    if get_origin(arm) in (tuple, list):
        return _sequence_decoder(arm)
    return None


def _union_decoder(classes: list[Any]) -> _Decoder:
    decoders = {kind.__name__: _dataclass_decoder(kind) for kind in classes}
    return lambda tree: decoders[tree[_TYPE]](tree)


def _sequence_decoder(hint: Any) -> _Decoder:
    make = get_origin(hint)
    arguments = get_args(hint)
    if make is tuple and arguments[-1] is not Ellipsis:
        converts = [_decoder(argument) for argument in arguments]
        return lambda items: tuple(
            item if convert is None or item is None else convert(item)
            for convert, item in zip(converts, items, strict=True)
        )
    convert_all = _decoder(arguments[0])
    if convert_all is None:
        return make  # type: ignore[no-any-return]
    return lambda items: make(None if item is None else convert_all(item) for item in items)


def _decode_float(value: Any) -> Any:
    return float(value) if value.__class__ is str else value


def _decode_plain(value: Any) -> Any:
    if isinstance(value, dict):
        if len(value) == 1 and _FLOAT in value:
            return float(value[_FLOAT])
        return {key: _decode_plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_decode_plain(item) for item in value]
    return value
