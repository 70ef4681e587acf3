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
_SPELT = ('"nan"', '"inf"', '"-inf"')
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
    kind = by_name.get(tree.pop(_TYPE, kinds[0].__name__)) if isinstance(tree, dict) else None
    if kind is None:
        raise ValueError(f"expected {' or '.join(by_name)}, found {text[:60]!r}")
    try:
        return _dataclass_decoder(kind, _has_floats(text))(tree)
    except (TypeError, AttributeError, AssertionError, KeyError) as error:
        raise ValueError(f"{kind.__name__}: {error}") from error


def loads_many(text: str, kind: type[T]) -> tuple[T, ...]:
    """The objects of one class that :func:`dumps` wrote as a list.

    Raises:
        ValueError: As :func:`loads`.
    """
    decode = _dataclass_decoder(kind, _has_floats(text))
    try:
        return tuple(decode(tree) for tree in json.loads(text))
    except (TypeError, AttributeError, AssertionError, KeyError) as error:
        raise ValueError(f"{kind.__name__}: {error}") from error


def _has_floats(text: str) -> bool:
    """Whether a float may be spelt as text in it."""
    return any(spelling in text for spelling in _SPELT)


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
def _dataclass_decoder(kind: Any, floats: bool) -> _Decoder:
    """Built once for each class: reading a hundred thousand rows must not look at type hints.

    Args:
        floats: Whether floats may be spelt as text; seldom, and looking at each takes its time.
    """
    hints = get_type_hints(kind)
    fields = dataclasses.fields(kind)
    converts = [
        (field.name, convert)
        for field in fields
        if (convert := _decoder(hints[field.name], floats)) is not None
    ]
    restored = [f.name for f in fields if not _has_default(f) and _admits_none(hints[f.name])]
    names = frozenset(field.name for field in fields)

    def decode(tree: dict[str, Any]) -> Any:
        for name, convert in converts:
            item = tree.get(name)
            if item is not None:
                tree[name] = convert(item)
        for name in restored:
            tree.setdefault(name, None)
        try:
            return kind(**tree)
        except TypeError:  # it has keys of another version, or of a union's tag
            return kind(**{name: item for name, item in tree.items() if name in names})

    return decode


def _decoder(hint: Any, floats: bool) -> _Decoder | None:
    """What turns a JSON value other than null into ``hint``; None where it already is one."""
    arms = _arms(hint)
    classes = [arm for arm in arms if dataclasses.is_dataclass(arm)]
    if len(classes) > 1:
        return _union_decoder(classes, floats)
    arm = arms[0]
    if len(arms) > 1 or arm is float:
        return _decode_float if floats and float in arms else None
    if classes:
        return _dataclass_decoder(classes[0], floats)
    if _is_plain(arm):
        return _decode_plain
    if get_origin(arm) in (tuple, list):
        return _sequence_decoder(arm, floats)
    return None


def _union_decoder(classes: list[Any], floats: bool) -> _Decoder:
    decoders = {kind.__name__: _dataclass_decoder(kind, floats) for kind in classes}
    return lambda tree: decoders[tree.pop(_TYPE)](tree)


def _sequence_decoder(hint: Any, floats: bool) -> _Decoder:
    make = get_origin(hint)
    arguments = get_args(hint)
    if make is tuple and arguments[-1] is not Ellipsis:
        return _fixed_tuple_decoder([_decoder(argument, floats) for argument in arguments])
    convert_all = _decoder(arguments[0], floats)
    if convert_all is None:
        return make  # type: ignore[no-any-return]
    return lambda items: make(None if item is None else convert_all(item) for item in items)


def _fixed_tuple_decoder(converts: list[_Decoder | None]) -> _Decoder:
    def decode(items: Any) -> tuple[Any, ...]:
        if len(items) != len(converts):
            raise ValueError(f"expected {len(converts)} items, found {len(items)}")
        return tuple(
            item if convert is None or item is None else convert(item)
            for convert, item in zip(converts, items, strict=True)
        )

    if any(converts):
        return decode
    return lambda items: tuple(items) if len(items) == len(converts) else decode(items)


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
