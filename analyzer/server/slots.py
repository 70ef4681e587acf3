"""What the repository knows of a model that was loaded once: its versions and their states."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from analyzer.engine.loaded_model import LoadedModel

State = Literal["READY", "UNAVAILABLE", "LOADING", "UNLOADING"]
VersionState = tuple[State, str]  # with the reason; empty where there is none

READY: VersionState = ("READY", "")
LOADING: VersionState = ("LOADING", "")
UNLOADING: VersionState = ("UNLOADING", "")
UNLOADED: VersionState = ("UNAVAILABLE", "unloaded")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexEntry:
    """One line of the repository's index; a model that was never loaded has only a name."""

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""


@dataclass(slots=True)
class Slot:
    """A model that was loaded once: its versions, their states, and what it was loaded from.

    Args:
        states: Also of versions that are no more; 0 stands for a model without any.
        awaited: The members of an ensemble that went with one of them: it comes back with them.
        folder: What its folder held; None where files of the request stood for it.
        config_json: The configuration of the request, instead of the folder's.
    """

    versions: dict[int, LoadedModel] = field(default_factory=dict)
    states: dict[int, VersionState] = field(default_factory=dict)
    members: tuple[str, ...] = ()
    awaited: tuple[str, ...] = ()
    folder: tuple[tuple[str, int, int], ...] | None = None
    config_json: str | None = None
    override: tempfile.TemporaryDirectory[str] | None = None

    def follow(self, old: Slot) -> None:
        """Lists the versions of ``old`` that are not here any more, as Triton goes on to do."""
        gone = {v: state for v, state in old.states.items() if state in (UNLOADING, UNLOADED)}
        self.states = gone | dict.fromkeys(old.versions, UNLOADING) | self.states

    def note_unloaded(self, versions: Iterable[int]) -> None:
        """Notes that old copies of ``versions`` have ended; a newer one stays what it is."""
        for version in versions:
            if self.states.get(version) == UNLOADING:
                self.states[version] = UNLOADED

    def well(self) -> bool:
        """Whether it is no obstacle to Triton's strict readiness: ready, or unloaded."""
        return all(state in (READY, UNLOADED) for state in self.states.values())

    def entries(self, name: str, lost: str) -> Iterator[IndexEntry]:
        """A line of the index for each version; without one, for the name.

        Args:
            lost: Why nothing is ready any more; empty where that is not so.
        """
        if not self.states:
            yield IndexEntry(name=name)
        for version, (state, reason) in sorted(self.states.items()):
            if state == "READY" and lost:
                state, reason = "UNAVAILABLE", lost
            number = str(version) if version > 0 else ""
            yield IndexEntry(name=name, version=number, state=state, reason=reason)
