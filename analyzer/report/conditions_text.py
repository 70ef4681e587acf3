"""How quiet a machine was, in words."""

from __future__ import annotations

from collections.abc import Iterable

from analyzer.domain.conditions import STALL_MS, ConditionsSummary, summary_of
from analyzer.domain.measurement import Measurement
from analyzer.report.wording import milliseconds, number, percent


def watched(measurements: Iterable[Measurement]) -> ConditionsSummary | None:
    """What the machine was like during all load tests; None where nobody watched."""
    return summary_of(test.conditions for m in measurements for test in m.load_tests)


def conditions_sentence(summary: ConditionsSummary | None) -> str:
    """``no stall over 20 ms in 62 s; the slowest second ran at 97 % of the median speed``."""
    if summary is None:
        return ""
    if summary.stalls:
        plural = "s" if summary.stalls > 1 else ""
        text = (
            f"{summary.stalls:,} stall{plural} over {milliseconds(STALL_MS)} in "
            f"{number(summary.seconds)} s (the longest {milliseconds(summary.stall_ms_max)}, "
            f"{percent(summary.stalled_fraction, 2)} of the time)"
        )
    else:
        text = f"no stall over {milliseconds(STALL_MS)} in {number(summary.seconds)} s"
    if summary.slowest_second_fraction is not None:
        share = percent(summary.slowest_second_fraction, 2)
        text += f"; the slowest second ran at {share} of the median speed"
    return text
