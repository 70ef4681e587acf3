"""Hill climbing as in Model Analyzer's quick search, on any table with ordinal settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray


def hill_climb(
    axes: NDArray[np.int64], rank: Callable[[int], Any], rng: np.random.Generator
) -> Iterator[int]:
    """Rows to read, each once: from the smallest setting step by step while it gains.

    Where no neighbour is better it begins anew at a random row that was not read.

    Args:
        axes: Ordinal coordinates of the rows, shape (rows, settings).
        rank: How good a row is that was read; larger is better.
    """
    read: set[int] = set()
    at = int(np.argmin(axes.sum(axis=1)))
    while True:
        near = np.flatnonzero(np.abs(axes - axes[at]).sum(axis=1) == 1)
        for index in (at, *map(int, rng.permutation(near))):
            if index not in read:
                read.add(index)
                yield index
        best = max([at, *map(int, near)], key=rank)
        if rank(best) > rank(at):
            at = best
            continue
        unread = [index for index in range(len(axes)) if index not in read]
        if not unread:
            return
        at = int(rng.choice(unread))
