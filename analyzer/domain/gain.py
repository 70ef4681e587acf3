"""What a recommendation gains over the baseline, like with like, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from analyzer.domain.answer import machines_at, misses, objective_at
from analyzer.domain.measurement import Measurement
from analyzer.domain.refutation import refuted
from analyzer.domain.sla import Sla

Basis = Literal["certified", "edges"]
"""Rates that are compared, and from which fleets follow: certified ones, or estimated edges."""

Interval = tuple[float | None, float | None]

#: Certified rates are compared where they are the same share of their edges, by this tolerance.
SHARES_TOLERANCE = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """The objective, recommendation against baseline: above 1 where the recommendation is better.

    Args:
        ratio: The estimate. Of a baseline whose edge was not bracketed the middle counts between
            what it kept and what clearly broke; where only one of them is known, that end, and the
            interval is open on the side on which it may be off.
        basis: ``certified``: both rates were certified, at the same share of their edges.
        interval: What the ratio lies between; None for an end that is not known. For the
            objectives latency and memory neither is.
    """

    ratio: float
    basis: Basis
    interval: Interval


def gain(
    sla: Sla,
    recommendation: Measurement | None,
    baseline: Measurement | None,
    *,
    devices_per_machine: int = 1,
) -> Gain | None:
    """What the recommendation gains; None without one, or if the baseline never keeps the SLA.

    ``capacity``: rate over rate. The others want less, so it is baseline over recommendation:
    machines at the target rate (hence dollars), latency or memory at the target rate, which both
    must carry. A baseline that kept none of the rates that were tried carries less than the lowest:
    the ratio of rates is then a bound, its interval open above.
    """
    if recommendation is None or baseline is None or never_keeps(baseline, sla):
        return None
    if not sla.at_any_rate and misses(baseline, sla):
        return None
    basis = common_basis(sla, recommendation, baseline)
    if recommendation.configuration == baseline.configuration:
        return Gain(ratio=1.0, basis=basis, interval=(1.0, 1.0))
    ours, theirs = rate_of(recommendation, basis), rate_of(baseline, basis)
    if not sla.at_any_rate:
        amounts = objective_at(recommendation, sla, ours), objective_at(baseline, sla, theirs)
        if not amounts[0] or not amounts[1]:
            return None
        return Gain(ratio=amounts[1] / amounts[0], basis=basis, interval=(None, None))
    if basis == "edges":
        theirs = baseline.edge.likely_rps
    if not ours or not theirs:
        return None
    our_bounds, their_bounds = _bounds(recommendation, basis), _bounds(baseline, basis)

    def ratio(our_rps: float | None, their_rps: float | None) -> float | None:
        if not our_rps or not their_rps:
            return None
        if sla.objective == "capacity":
            return our_rps / their_rps
        return machines_at(sla, their_rps, devices_per_machine) / machines_at(
            sla, our_rps, devices_per_machine
        )

    estimate = ratio(ours, theirs)
    assert estimate is not None
    low, high = ratio(our_bounds[0], their_bounds[1]), ratio(our_bounds[1], their_bounds[0])
    return Gain(
        ratio=estimate,
        basis=basis,
        interval=(
            min(low, estimate) if low is not None else None,
            max(high, estimate) if high is not None else None,
        ),
    )


def never_keeps(baseline: Measurement, sla: Sla) -> bool:
    """Whether it is shown that no rate of the baseline keeps the SLA.

    It breaks a limit that holds at every rate, or the latency budget without any queue. That it was
    late at the rates that were tried is less.
    """
    missed = {miss.limit for miss in misses(baseline, sla)}
    if missed - {"latency_budget_ms", "target_rate_rps"}:
        return True
    return "latency_budget_ms" in missed and refuted(baseline, sla)


def common_basis(sla: Sla, recommendation: Measurement, baseline: Measurement | None) -> Basis:
    """The basis on which two configurations can be compared; for one alone, the best it has."""
    if recommendation.capacity_rps is None:
        return "edges"
    if baseline is None:
        return "certified"
    if baseline.capacity_rps is None:
        return "edges"
    if not sla.at_any_rate:  # both were certified at the target rate
        return "certified"
    ours, theirs = recommendation.edge.rate_rps, baseline.edge.rate_rps
    if not ours or not theirs:
        return "edges"
    shares = recommendation.capacity_rps / ours, baseline.capacity_rps / theirs
    unequal = abs(shares[0] / shares[1] - 1.0) > SHARES_TOLERANCE
    return "edges" if unequal else "certified"


def rate_of(measurement: Measurement, basis: Basis) -> float | None:
    """The rate on ``basis``, requests per second; None where it is unknown."""
    return measurement.capacity_rps if basis == "certified" else measurement.edge.at_least_rps


def _bounds(measurement: Measurement, basis: Basis) -> Interval:
    """What the highest rate that keeps the SLA lies between, requests per second.

    Where it was certified at a rate, that is the lower end.
    """
    low, high = measurement.edge.bounds_rps
    if basis == "certified":
        low = measurement.capacity_rps
    if high is not None and low is not None and high < low:
        high = low
    return low, high
