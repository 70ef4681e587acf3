"""Every value that a domain object can hold survives; other versions' rows are read."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.domain.load_test import LatencySummary
from analyzer.domain.measurement import Failure, Measurement
from analyzer.store import codec


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    number: float
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    required: float | None = None
    pair: tuple[float | None, int] = (None, 0)
    leaves: tuple[Leaf, ...] = ()
    leaf: Leaf | None = None
    sized: int | None = 4
    table: tuple[tuple[str, float], ...] = ()
    items: list[float] = field(default_factory=list)


numbers = st.floats(allow_nan=False) | st.integers(-(2**60), 2**60).map(float)
leaves = st.builds(Leaf, number=numbers, kind=st.sampled_from(["a", "b"]))
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
branches = st.builds(
    Branch,
    required=st.none() | numbers,
    pair=st.tuples(st.none() | numbers, st.integers()),
    leaves=st.lists(leaves, max_size=3).map(tuple),
    leaf=st.none() | leaves,
    sized=st.none() | st.integers(),
    table=st.lists(st.tuples(st.text(), numbers), max_size=3).map(tuple),
    items=st.lists(numbers, max_size=3),
)


def test_bytes_that_are_no_text_are_written_as_escapes() -> None:
    """Of a path, with which a study could not be stored."""
    text = codec.dumps({"path": "caf\udce9.npz", "text": "é"})
    assert codec.loads_plain(text) == {"path": r"caf\udce9.npz", "text": "é"}
    assert text.encode()


@given(branches)
def test_objects_come_back_equal(branch: Branch) -> None:
    text = codec.dumps(branch)
    json.loads(text, parse_constant=pytest.fail)  # strict JSON: no NaN, no Infinity
    assert codec.loads(text, Branch) == branch


@given(st.dictionaries(st.text(), plain))
def test_plain_trees_come_back_equal(tree: dict[str, Any]) -> None:
    assert codec.loads_plain(codec.dumps(tree)) == tree


def test_nan_comes_back() -> None:
    assert math.isnan(codec.loads(codec.dumps(Branch(required=math.nan)), Branch).required)
    assert math.isnan(codec.loads_plain(codec.dumps({"x": math.nan}))["x"])


def test_numpy_scalars_become_python_numbers() -> None:
    branch = Branch(required=np.float32(0.5), sized=np.int64(7))  # type: ignore[arg-type]
    back = codec.loads(codec.dumps(branch), Branch)
    assert (back.required, back.sized) == (0.5, 7)
    assert codec.loads_plain(codec.dumps({"a": np.arange(2)})) == {"a": [0, 1]}


def test_the_class_is_told_by_its_tag(make: ModuleType) -> None:
    for outcome in (make.make_measurement(), make.make_failure()):
        assert codec.loads(codec.dumps(outcome), Measurement, Failure) == outcome
    with pytest.raises(ValueError, match="expected LatencySummary"):
        codec.loads(codec.dumps(make.make_failure()), LatencySummary)


def test_other_versions_are_read() -> None:
    newer = '{"$type":"Branch","required":1.0,"unheard_of":[1],"leaves":[{"number":2,"new":0}]}'
    assert codec.loads(newer, Branch) == Branch(required=1.0, leaves=(Leaf(number=2),))
    assert codec.loads("{}", Branch) == Branch(required=None)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"$type":"Leaf"}', '{"leaves":3}', '{"leaves":[{}]}', '{"pair":[1]}',
     '{"$type":3}', '{"leaf":{}}', '{"leaves":[[]]}'],
)  # fmt: skip
def test_damage_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        codec.loads(text, Branch)


def test_what_has_no_json_form_is_refused() -> None:
    with pytest.raises(TypeError, match="object"):
        codec.dumps({"x": object()})
