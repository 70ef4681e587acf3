"""How much a try of a model may be made of: arrays that any machine has room for."""

from __future__ import annotations

# 16 MiB of floats, which a model answers with as much again.
_ELEMENTS_MAX = 1 << 22


def rows_max(elements: int) -> int:
    """How many rows of so many elements a try may have: two at least, to show what a batch is."""
    return max(2, _ELEMENTS_MAX // max(1, elements))
