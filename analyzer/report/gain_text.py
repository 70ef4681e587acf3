"""What the recommendation gains over the baseline, and what both rest on, in words."""

from __future__ import annotations

from analyzer.domain.answer import misses
from analyzer.domain.gain import Basis, Gain, Interval, never_keeps
from analyzer.domain.measurement import OUT_OF_TIME, Edge, Measurement
from analyzer.domain.refutation import lowest_late
from analyzer.domain.sla import Sla
from analyzer.domain.study import StudyResult
from analyzer.report.entries import Entry, StudyReport
from analyzer.report.wording import (
    NOT_MEASURED,
    interval,
    number,
    proven_rate,
    rate,
    times,
)

# What a ratio above 1 is of; else what it is of, and what the recommendation then is not.
_GAINS = {
    "capacity": ("the capacity of the baseline", "the capacity of the baseline", "higher"),
    "cost": ("cheaper than the baseline", "as cheap as the baseline", "cheaper"),
    "latency": ("lower latency than the baseline", "as fast as the baseline", "faster"),
    "memory": ("less memory than the baseline", "as small as the baseline", "smaller"),
}
_BASES: dict[Basis, str] = {"certified": "by certified rates", "edges": "by estimated edges"}


def edge_text(edge: Edge, *, bounded: bool = True) -> str:
    """``618 /s (593 to 637)``; ``at least 120 /s``, ``below 80 /s`` where it was not bracketed.

    Args:
        bounded: Whether the interval of a bracketed edge is told, and what clearly broke the SLA
            above an open one.
    """
    low, high = edge.interval_rps
    if edge.rate_rps is not None:
        bounds = interval((low or None, high)) if bounded else ""
        return f"{rate(edge.rate_rps)} ({bounds})" if bounds else rate(edge.rate_rps)
    if low and high is not None:
        return f"{number(low)} to {rate(high)}"
    if low and bounded and edge.bounds_rps[1]:
        return f"at least {rate(low)}, less than {rate(edge.bounds_rps[1])}"
    if low:
        return f"at least {rate(low)}"
    return f"below {rate(high)}" if high is not None else NOT_MEASURED


def rate_text(measurement: Measurement) -> str:
    """The rate that a configuration carries and what says so: ``556 /s certified``."""
    if measurement.capacity_rps is not None:
        return f"{proven_rate(measurement.capacity_rps)} certified"
    edge = edge_text(measurement.edge)
    if edge != NOT_MEASURED:
        return f"edge {edge}, not certified"
    return "no rate" if measurement.load_tests else "not measured"


def ratio_text(gain: Gain) -> str:
    """``2.91×``; ``≥ 1.4×``, ``≤ 3.2×`` where only that end of its interval is known."""
    return bounded_ratio(gain.ratio, gain.interval)


def bounded_ratio(ratio: float | None, ends: Interval | None) -> str:
    """:func:`ratio_text` of the numbers of a gain; a dash without a ratio."""
    sign, told = _told(ratio, ends)
    return f"{sign}{times(told)}"


def _told(ratio: float | None, ends: Interval | None) -> tuple[str, float | None]:
    """The figure that a gain is told by, and the sign before it where it is only a bound."""
    low, high = ends or (None, None)
    if low is not None and high is None:
        return "≥ ", low
    if high is not None and low is None:
        return "≤ ", high
    return "", ratio


def gain_sentence(report: StudyReport) -> str:
    """The gain of the recommendation (or of what came closest) in words."""
    gain, baseline = report.gain or report.closest_gain, report.baseline
    if report.is_baseline:
        return "it is the baseline itself"
    if gain is not None:
        return f"{ratio_text(gain)} {gain_note(gain, report.result.sla, baseline)}"
    if baseline is None:
        return "the baseline was not measured"
    for failure in report.failures:
        if failure.configuration == baseline.configuration:
            if failure.reason == OUT_OF_TIME and report.result.verdict == "infeasible":
                return "no gain to tell, since no configuration keeps the SLA"
            if failure.reason == OUT_OF_TIME:
                return "no gain to tell, since the budget ended before the baseline was measured"
            return f"no gain to tell, since the baseline failed: {failure.message.rstrip('.')}"
    if baseline.test is None and baseline.measurement.certificate is None:
        return "the baseline could not be measured"
    return f"no gain to tell, since {_shortfall(baseline.measurement, report.result)}"


def _shortfall(baseline: Measurement, result: StudyResult) -> str:
    """Why the baseline cannot be compared, as far as what was measured shows it."""
    if result.verdict == "infeasible" or never_keeps(baseline, result.sla):
        return "the baseline never keeps the SLA"
    if late := late_text(baseline):
        return late
    if misses(baseline, result.sla):
        return f"the baseline does not carry the target rate (edge {edge_text(baseline.edge)})"
    return "no rate of the baseline is known"


def late_text(baseline: Measurement) -> str:
    """The lowest rate at which the baseline was tried, where it was late; else empty."""
    test = lowest_late(baseline)
    if test is None:
        return ""
    return (
        f"the baseline was late at {rate(test.offered_rps)} already, the lowest rate tried "
        f"({test.over_budget:,} of {test.requests:,} requests)"
    )


def gain_note(gain: Gain, sla: Sla, baseline: Entry | None) -> str:
    """What a gain is of, by what it was found, and how sure it is."""
    late = late_text(baseline.measurement) if baseline is not None else ""
    return "; ".join(filter(None, (_gain_note(gain, sla), late)))


def _gain_note(gain: Gain, sla: Sla) -> str:
    low, high = gain.interval
    of = _gain_of(gain, sla)
    text = f"{of}, {_BASES[gain.basis]}"
    if not sla.at_any_rate:
        return f"{of} at the target rate" + ("" if gain.basis == "certified" else ", not certified")
    if low is None and high is None:
        return f"{text} (of what each kept: neither edge was bracketed)"
    if low is None or high is None or times(low) == times(high):
        return text
    return f"{text} ({times(low)} to {times(high)})"


def _gain_of(gain: Gain, sla: Sla) -> str:
    """What the ratio is of; a bound at or below 1 shows no gain, and an estimate there is none."""
    better, quantity, word = _GAINS[sla.objective]
    sign, told = _told(gain.ratio, gain.interval)
    if told is None or told > 1:
        return better
    unbracketed = sla.at_any_rate and gain.interval == (None, None)
    return f"{quantity} (it {'may be' if sign == '≥ ' or unbracketed else 'is'} no {word})"
