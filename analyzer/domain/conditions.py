"""What a machine was like, in a few numbers, and where two times of it differ."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from analyzer.domain.load_test import Conditions

STALL_MS = 20.0
"""A wake-up that comes later than this is a stall."""

# Two times of a machine differ where its median speed does by this share, or the share of time in
# stalls by this fraction and factor. A speed of a shared core wanders by a few per cent.
_SPEED_DIFFERS = 0.15
_STALLED_DIFFERS = 0.002
_STALLED_FACTOR = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionsSummary:
    """What a machine was like over some time.

    Args:
        seconds: Time that was watched.
        stalls: Wake-ups that came late by STALL_MS and more.
        stall_ms_max: The longest; None without any.
        stalled_fraction: Share of the time that they took, 0 to 1.
        slowest_second_fraction: Speed of the slowest second relative to the median one, 0 to 1;
            None where speed was not watched.
        work_us_median: CPU time of the fixed piece of work that speed is judged by, microseconds.
    """

    seconds: float
    stalls: int
    stall_ms_max: float | None = None
    stalled_fraction: float = 0.0
    slowest_second_fraction: float | None = None
    work_us_median: float | None = None


def summary_of(watched: Iterable[Conditions | None]) -> ConditionsSummary | None:
    """All that was watched, taken together; None where nobody watched."""
    known = [conditions for conditions in watched if conditions is not None]
    seconds = sum(conditions.seconds for conditions in known)
    if seconds <= 0:
        return None
    stalls_ms = [stall for conditions in known for stall in conditions.stalls_ms]
    stalled_s = sum(conditions.stalled_share(0.0) * conditions.seconds for conditions in known)
    work_us = [work for conditions in known for work in conditions.work_us if work > 0]
    usual_us = median(work_us) if work_us else None
    return ConditionsSummary(
        seconds=seconds,
        stalls=len(stalls_ms) + sum(conditions.stalls_cut for conditions in known),
        stall_ms_max=max(stalls_ms, default=None),
        stalled_fraction=stalled_s / seconds,
        slowest_second_fraction=usual_us / max(work_us) if usual_us else None,
        work_us_median=usual_us,
    )


def differences(then: ConditionsSummary, now: ConditionsSummary) -> tuple[str, ...]:
    """In what the machine differs now from then, a phrase each; empty where it is alike."""
    found = []
    if then.work_us_median and now.work_us_median:
        speed = then.work_us_median / now.work_us_median
        if abs(speed - 1.0) > _SPEED_DIFFERS:
            found.append(f"it runs at {speed:.2g} times the speed")
    low, high = sorted((then.stalled_fraction, now.stalled_fraction))
    if high - low > _STALLED_DIFFERS and high > _STALLED_FACTOR * low:
        found.append(
            f"stalls take {now.stalled_fraction:.2%} of the time instead of "
            f"{then.stalled_fraction:.2%}"
        )
    return tuple(found)
