"""How quiet a machine was, in words."""

from __future__ import annotations

from analyzer.domain.answer import measured
from analyzer.domain.conditions import STALL_MS, ConditionsSummary, summary_of
from analyzer.domain.study import StudyResult
from analyzer.report.wording import milliseconds, number, percent


def watched(result: StudyResult) -> ConditionsSummary | None:
    """What the machine was like during a study; None where nobody watched.

    Where only its load tests were watched, and where it did not end, during those.
    """
    if result.conditions is not None:
        return summary_of([result.conditions])
    return summary_of(test.conditions for m in measured(result.outcomes) for test in m.load_tests)


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
