"""The non-dominated set: what no other candidate beats in everything at once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Direction = Literal["up", "down"]


def non_dominated(
    rows: Sequence[Sequence[float | None]], directions: Sequence[Direction]
) -> tuple[int, ...]:
    """The indices, ascending, of the rows that no other row dominates.

    A row dominates another if it is at least as good in every objective and better in one. Equal
    rows do not dominate each other: all of them stay. None (and NaN) is worse than any number and
    equal to None: what is unknown cannot claim to be good, but it does not hide what is known.

    O(n log n) for up to two objectives and, but for moving list entries, for three; beyond that
    O(n · front).

    Args:
        rows: One value per objective for each candidate.
        directions: Which way each objective is better.
    """
    assert all(len(row) == len(directions) for row in rows), "one value per direction"
    if not rows or not directions:
        return tuple(range(len(rows)))
    losses = _losses(rows, directions)
    # In lexicographic order a row is only ever dominated by one before it.
    unique, inverse = np.unique(losses, axis=0, return_inverse=True)
    width = unique.shape[1]
    if width <= 3:
        keep = _sweep(np.pad(unique, ((0, 0), (0, 3 - width))))
    else:
        keep = _filter(unique)
    return tuple(int(index) for index in np.flatnonzero(keep[inverse.ravel()]))


def _losses(
    rows: Sequence[Sequence[float | None]], directions: Sequence[Direction]
) -> NDArray[np.float64]:
    """Lower is better everywhere, the unknown is +inf; float64 [rows, objectives]."""
    values = np.array(
        [[np.nan if value is None else value for value in row] for row in rows], dtype=np.float64
    )
    signs = np.array([-1.0 if direction == "up" else 1.0 for direction in directions])
    values *= signs
    return np.where(np.isnan(values), np.inf, values) + 0.0  # + 0.0: no −0, which sorts apart


def _sweep(rows: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which of the unique, lexicographically sorted rows [n, 3] stay, by a sweep.

    Going through the first objective, it keeps the staircase of the other two: ``second`` ascends
    while ``third`` descends strictly.
    """
    keep = np.zeros(len(rows), dtype=bool)
    second: list[float] = []
    third: list[float] = []
    for index, (_, y, z) in enumerate(rows.tolist()):
        at = bisect_left(second, y)
        # The best third value among those at least as good in the second: the last step up to y.
        step = at if at < len(second) and second[at] == y else at - 1
        if step >= 0 and third[step] <= z:
            continue
        keep[index] = True
        end = at
        while end < len(second) and third[end] >= z:
            end += 1
        second[at:end] = [y]
        third[at:end] = [z]
    return keep


def _filter(rows: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which of the unique, lexicographically sorted rows [n, m] stay, by elimination."""
    alive = np.arange(len(rows))
    position = 0
    while position < len(alive):
        pivot = rows[alive[position]]
        survives = (rows[alive] < pivot).any(axis=1)
        survives[position] = True
        alive = alive[survives]
        position = int(survives[:position].sum()) + 1
    keep = np.zeros(len(rows), dtype=bool)
    keep[alive] = True
    return keep
