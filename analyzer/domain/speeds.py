"""Edges over all speeds that the machine had during a study, from those that short runs found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from analyzer.domain.measurement import (
    Edge,
    Failure,
    Measurement,
)

EVIDENCE_MIN = 300
"""Requests from which a rate that a certificate's runs kept counts, as for a side of an edge."""


def edge_over_speeds(measurement: Measurement, factor: float, *, miss_rate_max: float) -> Edge:
    """The edge over all speeds of the machine that a study met.

    Short runs find the edge at the speeds that they met; the one over all is ``factor`` times
    that. It is no lower than a rate that was kept over at least 300 requests of a certificate, nor
    than the certified one. The lower end of one that is open upwards is a rate that was kept, over
    however few requests: there every rate counts that a certificate's runs kept.

    Args:
        factor: The twin's edge over all speeds, over its edge at those of the edge's runs.
        miss_rate_max: The allowed fraction of requests over budget.
    """
    edge = measurement.edge
    kept = [measurement.capacity_rps or 0.0]
    requests_min = EVIDENCE_MIN if edge.rate_rps else 1
    for known in measurement.evidence:
        if known.over_budget > miss_rate_max * known.requests:
            break
        if known.requests >= requests_min:
            kept.append(known.rate_rps)
    least = max(kept)

    def lowered(rate: float | None) -> float | None:
        return max(rate * factor, min(rate, least)) if rate else rate

    low, high = edge.interval_rps
    # A rate that was broken was broken at the speeds of its run: a higher bound only where the
    # study met faster ones.
    upper = high * max(factor, 1.0) if high is not None else None
    return replace(edge, rate_rps=lowered(edge.rate_rps), interval_rps=(lowered(low), upper))


def restated(
    outcomes: Iterable[Measurement | Failure],
    factors: Mapping[str, float],
    *,
    miss_rate_max: float,
) -> tuple[Measurement | Failure, ...]:
    """``outcomes`` with their edges, and what was predicted of them, over all speeds.

    Args:
        factors: As of :func:`edge_over_speeds`, by ``config_id``; 1 where there is none.
    """
    found: list[Measurement | Failure] = []
    for outcome in outcomes:
        factor = factors.get(outcome.configuration.config_id)
        if isinstance(outcome, Measurement) and factor is not None:
            predicted = outcome.predicted.edge_rps
            outcome = replace(
                outcome,
                edge=edge_over_speeds(outcome, factor, miss_rate_max=miss_rate_max),
                predicted=replace(outcome.predicted, edge_rps=predicted and predicted * factor),
            )
        found.append(outcome)
    return tuple(found)
