"""JSON documents and their members, with the errors of Triton's ``triton_json.h``.

Each function that takes a ``name`` raises an internal :class:`Fault` which names that member where
its value has another type.
"""

from __future__ import annotations

import json
from typing import Any, TypeGuard

from analyzer.engine.fault import Fault

# What Triton's parser (RapidJSON) says where Python's says the key.
_JSON_REASONS = {
    "Expecting value": "Invalid value.",
    "Extra data": "The document root must not be followed by other values.",
    "Expecting property name enclosed in double quotes": "Missing a name for object member.",
    "Expecting ':' delimiter": "Missing a colon after a name of object member.",
    "Expecting ',' delimiter": "Missing a comma or '}' after an object member.",
    "Unterminated string starting at": "Missing a closing quotation mark in string.",
    "Invalid control character at": "Invalid escape character in string.",
    "Invalid \\escape": "Invalid escape character in string.",
}


def parse_json(text: bytes | memoryview) -> Any:
    """The JSON document in ``text``.

    Raises:
        Fault: It is none.
    """
    prefix = "failed to parse the request JSON buffer: "
    if len(text) == 0:
        raise Fault("internal", prefix + "The document is empty. at 0")
    try:
        return json.loads(bytes(text))
    except json.JSONDecodeError as error:
        if not bytes(text).strip():
            raise Fault("internal", f"{prefix}The document is empty. at {error.pos}") from error
        reason = _JSON_REASONS.get(error.msg, error.msg + ".")
        raise Fault("internal", f"{prefix}{reason} at {error.pos}") from error
    except UnicodeDecodeError as error:
        raise Fault("internal", f"{prefix}Invalid encoding in string. at {error.start}") from error
    except (ValueError, RecursionError) as error:
        raise Fault("internal", f"{prefix}Terminate parsing due to Handler error. at 0") from error


def member(value: Any, name: str) -> Any:
    """The member of an object."""
    if not isinstance(value, dict) or name not in value:
        raise Fault(
            "internal",
            f"Unable to parse '{name}': attempt to access non-existing object member '{name}'",
        )
    return value[name]


def as_array(value: Any, name: str) -> list[Any]:
    """``value``, which is a list."""
    if not isinstance(value, list):
        raise mismatch(name, "non-array as array")
    return value


def as_object(value: Any, what: str) -> dict[str, Any]:
    """``value``, which is an object; ``what`` begins the error otherwise."""
    if not isinstance(value, dict):
        raise Fault("internal", f"{what}attempt to get members for non-object")
    return value


def as_string(value: Any, name: str) -> str:
    """``value``, which is a string."""
    if not isinstance(value, str):
        raise mismatch(name, "non-string as string")
    return value


def as_unsigned(value: Any, name: str) -> int:
    """``value``, which is an integer from 0 to 2^64 − 1."""
    if not is_unsigned(value):
        raise mismatch(name, "non-unsigned-integer as unsigned-integer")
    return value


def is_unsigned(value: Any) -> TypeGuard[int]:
    """Whether ``value`` is an integer from 0 to 2^64 − 1."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 64


def as_boolean(value: Any, name: str) -> bool:
    """``value``, which is a boolean."""
    if not isinstance(value, bool):
        raise mismatch(name, "non-boolean as boolean")
    return value


def mismatch(name: str, what: str) -> Fault:
    """The error of a member: ``what`` is the type found and the type expected.

    Args:
        name: Empty where Triton does not name the member.
    """
    prefix = f"Unable to parse '{name}': " if name else ""
    return Fault("internal", f"{prefix}attempt to access JSON {what}")
