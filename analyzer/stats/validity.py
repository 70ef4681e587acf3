"""Whether a load test says anything: the generator, the offered rate, Little's law, the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from analyzer.domain.load_test import InvalidityKind, Validity

# The rules of docs/statistics.md, section 7: lag of 1 ms or 5 % of the budget, the offered rate
# and Little's law within 5 %.
LAG_MS_MIN = 1.0
LAG_BUDGET_FRACTION = 0.05
RATE_TOLERANCE = 0.05
LITTLE_TOLERANCE = 0.05


def lag_limit_ms(budget_ms: float | None) -> float:
    """Returns how late the generator may be at p99: the larger of 1 ms and 5 % of the budget."""
    return max(LAG_MS_MIN, LAG_BUDGET_FRACTION * (budget_ms or 0.0))


def judge(
    *,
    send_lag_ms_p99: float | None,
    budget_ms: float | None,
    offered_rps: float,
    achieved_offered_rps: float,
    in_flight_mean: float | None,
    throughput_rps: float,
    latency_s_mean: float | None,
    closed_loop: bool,
    requests: int | None = None,
    throttled: float | None = None,
    clock_limits: Sequence[str] = (),
) -> Validity:
    """Returns whether the run is valid, with a sentence for each reason against it.

    Args:
        send_lag_ms_p99: How late the generator sent, p99; None if unknown (or nothing was sent).
        budget_ms: The latency budget; None without one.
        offered_rps: The rate of the arrival schedule.
        achieved_offered_rps: The rate at which requests were really sent. What the server refuses
            or delays does not lower it, so a shortfall is the client's.
        in_flight_mean: Requests in flight, sampled independently of the latencies; None if not.
        throughput_rps: Replies per second over the same window.
        latency_s_mean: Mean latency of those replies, from the same instant at which a request
            counts as in flight; None if there are none.
        closed_loop: There is no schedule: lag and offered rate are not judged.
        requests: Requests of the run, for the allowance that a small sample gets; None if unknown.
        throttled: Fraction of the run in which heat or the power supply slowed the GPU down; None
            where nobody watched.
        clock_limits: What held its clocks down, NVML's names.
    """
    reasons: dict[InvalidityKind, str] = {}
    if not closed_loop:
        limit_ms = lag_limit_ms(budget_ms)
        if send_lag_ms_p99 is not None and not send_lag_ms_p99 <= limit_ms:
            reasons["lag"] = (
                f"the generator sent late: lag p99 {send_lag_ms_p99:.3g} ms,"
                f" limit {limit_ms:.3g} ms"
            )
        # A schedule drawn at random has a count of its own: 3 standard deviations of Poisson's.
        slack = RATE_TOLERANCE + (3.0 / sqrt(requests) if requests else 0.0)
        if achieved_offered_rps < offered_rps * (1.0 - min(slack, 0.5)):
            reasons["offered_rate"] = (
                f"the offered rate was not achieved: {achieved_offered_rps:.4g}/s sent"
                f" of {offered_rps:.4g}/s scheduled"
            )
    if in_flight_mean is not None and latency_s_mean is not None and throughput_rps > 0:
        expected = throughput_rps * latency_s_mean
        allowance = LITTLE_TOLERANCE * max(expected, in_flight_mean) + _little_allowance(
            max(expected, in_flight_mean), requests
        )
        if not abs(in_flight_mean - expected) <= allowance:
            reasons["littles_law"] = (
                f"Little's law fails: {in_flight_mean:.4g} requests in flight, but"
                f" throughput × mean latency is {expected:.4g}"
            )
    if throttled:
        reasons["throttled"] = (
            f"the GPU throttled in {throttled:.0%} of the run ({', '.join(clock_limits)}): what was"
            " measured meanwhile proves nothing"
        )
    return Validity(valid=not reasons, reasons=tuple(reasons.values()), kinds=tuple(reasons))


def _little_allowance(in_flight: float, requests: int | None) -> float:
    """What chance alone does to the difference, in requests in flight.

    At both ends of the window up to ``in_flight`` requests lie partly outside, which shifts the
    mean by in_flight² / requests each; and a mean of few samples of a count scatters by
    sqrt(in_flight / samples), where samples are assumed no rarer than requests.
    """
    if requests is None or requests <= 0:
        return 0.05
    return 2.0 * in_flight**2 / requests + 3.0 * sqrt(in_flight / requests)
