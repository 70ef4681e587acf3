"""Says so where two searches measure on one machine at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from analyzer.cli.search_options import SearchOptions
from analyzer.hardware.neighbours import measuring_here

ACCOMPANIED = (
    "Another search ran on this machine at the same time: each counts in the other's figures. "
    "Run one after the other."
)


@contextmanager
def noting_neighbours(options: SearchOptions, warn: Callable[[str], None]) -> Iterator[list[str]]:
    """Looks for another search at the start and at the end; the list holds the note at the end.

    Not where other machines are measured.
    """
    notes: list[str] = []
    if not options.measures_here:
        yield notes
        return

    def look() -> None:
        if not notes and accompanied():
            notes.append(ACCOMPANIED)
            warn(ACCOMPANIED)

    with measuring_here() as accompanied:
        look()
        yield notes
        look()
