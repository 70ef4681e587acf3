"""Two searches at once are told of each other, in the answer as well."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from analyzer.cli import neighbours
from analyzer.cli.search_options import SearchOptions
from analyzer.hardware.neighbours import measuring_here


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "lock"
    monkeypatch.setattr(neighbours, "measuring_here", lambda: measuring_here(path))
    return path


def options(server: str = "embedded", ray_address: str | None = None) -> Any:
    given: Any = SimpleNamespace(server=server, ray_address=ray_address)
    given.measures_here = cast(property, SearchOptions.measures_here).__get__(given)
    return given


def test_a_search_that_began_first_or_later_is_noted_once(lock: Path) -> None:
    told: list[str] = []
    with neighbours.noting_neighbours(options(), told.append) as notes:
        assert not notes
        with neighbours.noting_neighbours(options(), told.append) as others:
            assert others == [neighbours.ACCOMPANIED]
        assert len(others) == 1
    assert not notes, "the other one has ended: it said so itself"
    with neighbours.noting_neighbours(options(), told.append) as notes:
        later = measuring_here(lock)
        later.__enter__()
    assert notes == [neighbours.ACCOMPANIED]
    later.__exit__(None, None, None)
    assert told == [neighbours.ACCOMPANIED] * 2


def test_other_machines_have_no_neighbours_here(lock: Path) -> None:
    with measuring_here(lock):
        for elsewhere in (options("grpc://host:8001"), options(ray_address="auto")):
            with neighbours.noting_neighbours(elsewhere, pytest.fail) as notes:
                assert not notes
