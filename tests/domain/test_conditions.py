"""What a machine was like in a few numbers, and where two times of it differ."""

from __future__ import annotations

from dataclasses import replace

import pytest

from analyzer.domain.conditions import ConditionsSummary, differences, summary_of
from analyzer.domain.load_test import Conditions

QUIET = ConditionsSummary(seconds=60.0, stalls=0, work_us_median=100.0)


def test_what_was_watched_is_taken_together() -> None:
    found = summary_of(
        [
            Conditions(seconds=10.0, stalls_ms=(50.0,), work_us=(100.0, 100.0)),
            None,
            Conditions(seconds=30.0, stalls_ms=(150.0,), work_us=(100.0, 200.0)),
        ]
    )
    assert found is not None
    assert (found.seconds, found.stalls, found.stall_ms_max) == (40.0, 2, 150.0)
    assert found.stalled_fraction == pytest.approx(0.005)
    assert (found.slowest_second_fraction, found.work_us_median) == (0.5, 100.0)


def test_nobody_watched() -> None:
    assert summary_of([]) is None
    assert summary_of([None, Conditions(seconds=0.0)]) is None


def test_without_speeds_nothing_is_said_of_them() -> None:
    found = summary_of([Conditions(seconds=5.0)])
    assert found == ConditionsSummary(seconds=5.0, stalls=0)


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (QUIET, ()),
        (replace(QUIET, work_us_median=110.0), ()),
        (replace(QUIET, work_us_median=200.0), ("it runs at 0.5 times the speed",)),
        (replace(QUIET, stalls=1, stalled_fraction=0.001), ()),
        (
            replace(QUIET, stalls=9, stalled_fraction=0.03),
            ("stalls take 3.00% of the time instead of 0.00%",),
        ),
        (replace(QUIET, work_us_median=None), ()),
    ],
)
def test_differences_are_those_that_matter(now: ConditionsSummary, said: tuple[str, ...]) -> None:
    assert differences(QUIET, now) == said
