"""What is remembered of a machine's speeds, and for how long."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from analyzer.search.virtual import MemoryStore
from analyzer.twin.speed_memory import SpeedMemory

DAY_S = 86400.0


@pytest.fixture
def memory_of() -> Callable[..., SpeedMemory]:
    store = MemoryStore()

    def opened(hardware: str = "here", days: float = 0.0) -> SpeedMemory:
        return SpeedMemory(
            store.get_cache, store.put_cache, hardware, now=lambda: 1e9 + days * DAY_S
        )

    return opened


def test_a_study_is_told_what_others_met_and_not_what_it_met_itself(
    memory_of: Callable[..., SpeedMemory],
) -> None:
    assert memory_of().work_us("a") == ()
    memory_of().keep("a", (5.0, 8.0))
    memory_of().keep("b", (6.0,))
    assert memory_of().work_us("a") == (6.0,) and memory_of().work_us("c") == (5.0, 8.0, 6.0)
    memory_of().keep("a", (5.0, 8.0, 5.0))
    assert memory_of().work_us("c") == (6.0, 5.0, 8.0, 5.0), "resumed: in place of what was known"
    assert memory_of("elsewhere").work_us("c") == ()


def test_speeds_are_kept_for_a_week(memory_of: Callable[..., SpeedMemory]) -> None:
    memory_of().keep("a", (5.0,))
    memory_of(days=5).keep("b", (6.0,))
    assert memory_of(days=6).work_us("c") == (5.0, 6.0)
    assert memory_of(days=8).work_us("c") == (6.0,)


def test_the_newest_studies_are_kept(memory_of: Callable[..., SpeedMemory]) -> None:
    for number in range(30):
        memory_of().keep(f"s{number}", (float(number),) * 60)
    known = memory_of().work_us("")
    assert len(known) == 960 and set(known) == {float(number) for number in range(14, 30)}
    memory_of().keep("long", (1.0,) * 5000)
    assert memory_of().work_us("") == (1.0,) * 1000
    memory_of().keep("unwatched", ())
    assert len(memory_of().work_us("")) == 1000
