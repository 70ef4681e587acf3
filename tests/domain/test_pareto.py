"""The non-dominated set against its definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.domain.pareto import Direction, non_dominated


def dominates(
    a: tuple[float | None, ...], b: tuple[float | None, ...], directions: list[Direction]
) -> bool:
    """The definition, one pair at a time."""
    pairs = [
        (
            float("inf") if x is None else (-x if direction == "up" else x),
            float("inf") if y is None else (-y if direction == "up" else y),
        )
        for x, y, direction in zip(a, b, directions, strict=True)
    ]
    return all(x <= y for x, y in pairs) and any(x < y for x, y in pairs)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[tuple[float | None, ...]], list[Direction]]:
    width = draw(st.integers(1, 5))
    value = st.one_of(st.none(), st.integers(-4, 4).map(float), st.floats(-1e6, 1e6))
    rows = draw(st.lists(st.tuples(*[value] * width), max_size=40))
    directions: list[Direction] = draw(
        st.lists(st.sampled_from(["up", "down"]), min_size=width, max_size=width)
    )
    return rows, directions


@given(tables())
def test_it_is_what_the_definition_says(
    table: tuple[list[tuple[float | None, ...]], list[Direction]],
) -> None:
    rows, directions = table
    expected = tuple(
        index
        for index, row in enumerate(rows)
        if not any(dominates(other, row, directions) for other in rows)
    )
    assert non_dominated(rows, directions) == expected


@given(tables(), st.randoms(use_true_random=False))
def test_the_order_of_the_rows_changes_nothing_but_the_indices(
    table: tuple[list[tuple[float | None, ...]], list[Direction]], random: object
) -> None:
    rows, directions = table
    order = list(range(len(rows)))
    random.shuffle(order)  # type: ignore[attr-defined]
    front = {order[index] for index in non_dominated([rows[i] for i in order], directions)}
    assert front == set(non_dominated(rows, directions))


def test_equal_rows_all_stay() -> None:
    assert non_dominated([(1.0, 2.0), (1.0, 2.0), (0.0, 3.0)], ["up", "down"]) == (0, 1)


def test_what_is_unknown_is_worst() -> None:
    assert non_dominated([(1.0, None), (1.0, 5.0), (2.0, None)], ["up", "down"]) == (1, 2)


def test_nothing_in_nothing_out() -> None:
    assert non_dominated([], ["up"]) == ()


@pytest.mark.parametrize("width", [2, 3, 4])
def test_a_hundred_thousand_rows(width: int) -> None:
    values = np.random.default_rng(7).random((100_000, width))
    rows = values.tolist()
    front = non_dominated(rows, ["down"] * width)
    chosen = values[list(front)]
    # No row of a sample dominates a member of the front, and each is dominated or on the front.
    for row in values[:200]:
        assert not ((row <= chosen).all(axis=1) & (row < chosen).any(axis=1)).any()
        assert (chosen <= row).all(axis=1).any()
