"""Dimensions that are sums and products of others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from analyzer.errors import ModelError
from analyzer.variants.derived_dims import names_in, note_size, size_of
from analyzer.variants.inspect import inspect_model

FLOAT = TensorProto.FLOAT
Write = Callable[..., Path]


@pytest.mark.parametrize(
    ("dim", "names"),
    [("2*T", {"T"}), ("past + 1", {"past"}), ("a*b + 2 * c", {"a", "b", "c"}), ("T", set()),
     ("x_dynamic_axes_1", set()), ("s0//2", set())],
)  # fmt: skip
def test_what_a_dimension_is_computed_from(dim: str, names: set[str]) -> None:
    assert names_in(dim) == names


def halves(write_model: Write, *names: str) -> Path:
    """Inputs ``[batch, 2*T, 4]`` and ``[batch, T, 4]``, as ``names`` has the two lengths."""
    return write_model(
        [helper.make_node("Concat", ["x", "z"], ["y"], axis=1)],
        [(name, FLOAT, ["batch", dim, 4]) for name, dim in zip("xz", names, strict=True)],
        [("y", FLOAT, ["batch", None, 4])],
    )


def test_a_product_of_a_dimension_follows_from_it_and_tells_it(write_model: Write) -> None:
    """The example gave both lengths the same size, which contradicts what the graph declares."""
    path = halves(write_model, "2*T", "T")
    with pytest.raises(ModelError, match=r"\(T\) of the input 'z'") as caught:
        inspect_model(path)
    assert caught.value.hint.endswith("for example, --input-shape z:128,4.")
    for shapes in ({"x": (128, 4)}, {"z": (64, 4)}, {"x": (128, 4), "z": (64, 4)}):
        model = inspect_model(path, input_shapes=shapes)
        assert [spec.shape for spec in model.inputs] == [(128, 4), (64, 4)]
    with pytest.raises(ModelError, match=r"x:127,4 does not fit .* 127 where 2\*T is needed"):
        inspect_model(path, input_shapes={"x": (127, 4)})
    with pytest.raises(ModelError, match=r"x:64,4 does not fit .* 64 where 128 is needed"):
        inspect_model(path, input_shapes={"z": (64, 4), "x": (64, 4)})


def test_a_product_tells_a_dimension_that_stands_nowhere_else(write_model: Write) -> None:
    path = halves(write_model, "2*s1", "3 * s1 + 1")
    with pytest.raises(ModelError) as caught:
        inspect_model(path)
    assert "Add --input-shape x:N,4 with a number" in caught.value.hint
    assert caught.value.hint.endswith("for example, --input-shape x:128,4.")
    model = inspect_model(path, input_shapes={"x": (6, 4)})
    assert [spec.shape for spec in model.inputs] == [(6, 4), (10, 4)]


@given(st.integers(1, 9), st.integers(0, 9), st.integers(1, 1000))
def test_the_size_that_is_noted_is_one_that_the_dimension_can_have(
    factor: int, more: int, size: int
) -> None:
    symbols = {"past": more}
    dim = f"{factor}*new + past"
    noted = note_size(dim, size, symbols)
    assert noted == factor * symbols["new"] + more == size_of(dim, {"past": more, **symbols})
    assert noted <= max(size, factor + more) and noted > size - factor
