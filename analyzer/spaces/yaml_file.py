"""YAML files checked by pydantic, with messages that name file, key, value and rule."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Never, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, WrapValidator, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from analyzer.errors import AnalyzerError

_RULE = "rule"
_MERGE = "tag:yaml.org,2002:merge"
_Model = TypeVar("_Model", bound="Table")


def broken(problem: str, hint: str) -> Never:
    """Refuses the value that is being checked, with a sentence about it and what to write."""
    raise PydanticCustomError(_RULE, "{problem}", {"problem": problem, "hint": hint})


def nearest(word: object, known: Sequence[str]) -> str:
    """``Did you mean 'fp32'? ``, or nothing where no known word is near."""
    near = difflib.get_close_matches(str(word), known, n=1)
    return f"Did you mean {near[0]!r}? " if near else ""


def says(problem: str, hint: str, *, words: Sequence[str] = ()) -> WrapValidator:
    """Says of a value that its type refuses: the value, ``problem``, and ``hint``.

    Args:
        words: What can be written; the nearest to a wrong one is suggested.
    """

    def check(value: Any, accept: Any) -> Any:
        try:
            return accept(value)
        except ValidationError:
            broken(f"{value!r} {problem}", nearest(value, words) + hint)

    return WrapValidator(check)


class Table(BaseModel):
    """A mapping with known keys alone."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, value: Any) -> Any:
        known = list(cls.model_fields)
        listed = ", ".join(known)
        if not isinstance(value, dict):
            broken(
                f"expected a mapping, found {type(value).__name__}.",
                f"Write 'key: value' lines; known keys: {listed}.",
            )
        for key, item in value.items():
            if key not in known:
                broken(f"unknown key {key!r}.", f"{nearest(key, known)}Known: {listed}.")
            if item is None:
                broken(f"{key!r} has no value.", "Write one, or leave the key out.")
        return value


class _Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping, where PyYAML would take the last.

    A value that cannot be what it is written like stays text, where PyYAML would fail.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
                continue
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} stands twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep=deep)
        except (ValueError, KeyError, AttributeError):
            # Like a date, a number or a truth value, and none: 2026-06-31, 0x_, !!bool maybe. As
            # text it is refused by the rule of its key, which names it.
            return node.value


def read_table(path: Path, kind: type[_Model], error: type[AnalyzerError], hint: str) -> _Model:
    """The file's document as a ``kind``.

    Args:
        error: What is raised.
        hint: What to do where the file cannot be read, or a rule has no advice of its own.

    Raises:
        AnalyzerError: As ``error``: the file cannot be read or breaks a rule.
    """
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # a SafeLoader
    except (OSError, UnicodeDecodeError) as cause:
        raise error(f"{path} cannot be read: {cause}.", hint=hint) from cause
    except yaml.constructor.ConstructorError as cause:
        line = cause.problem_mark.line + 1 if cause.problem_mark is not None else 1
        raise error(f"{path}, line {line}: {cause.problem}.", hint=hint) from cause
    except yaml.YAMLError as cause:
        raise error(f"{path} is no YAML: {cause}.", hint=hint) from cause
    try:
        return kind.model_validate(document)
    except ValidationError as cause:
        first = cause.errors(include_url=False)[0]
        problem, advice = _sentence(first)
        raise error(f"{path}, {_place(first)}: {problem}", hint=advice or hint) from cause


def _place(found: ErrorDetails) -> str:
    """``parameters.precision``, ``configurations[2]``; ``top level`` for the document itself."""
    place = ""
    for part in found["loc"]:
        place += f"[{part}]" if isinstance(part, int) else f".{part}"
    return place.removeprefix(".") or "top level"


def _sentence(found: ErrorDetails) -> tuple[str, str]:
    """The problem, and what to write where the rule says so."""
    if found["type"] == _RULE:
        return found["ctx"]["problem"], found["ctx"]["hint"]
    if found["type"] == "missing":
        return "it is missing.", ""
    rule = found["msg"].removeprefix("Input ")
    return f"{found['input']!r} {rule[0].lower()}{rule[1:]}.", ""
