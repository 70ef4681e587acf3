"""Edges over all speeds that the machine had during a study, from those that short runs found."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from analyzer.domain.load_test import LoadTest
from analyzer.domain.measurement import (
    Edge,
    Failure,
    Measurement,
    RateEvidence,
)

EVIDENCE_MIN = 300
"""Requests from which a rate that a certificate's runs kept counts, as for a side of an edge."""
BROKEN_SHARE = 2.0
"""Of the allowed share over budget: what a rate that broke the SLA counts as at most in an
estimate, as far above the allowed share as one without a late request is below it."""
SHARE_POWER = 2.0
"""The share over budget falls at least with this power of the rate: so little where a machine's
slow moments make requests late, far more where queues do."""


def edge_over_speeds(
    measurement: Measurement,
    factor: float,
    *,
    miss_rate_max: float,
    proven: bool = False,
    unmet_rps: Collection[float] = (),
) -> Edge:
    """The edge over all speeds of the machine that a study met.

    Short runs find the edge at the speeds that they met; the one over all is ``factor`` times
    that. It is no lower than a rate that was kept over at least 300 requests of a certificate whose
    runs met the slow states as often as the study, nor than the certified one. The lower end of one
    that is open upwards is what long runs are expected to keep (``long_share``) of a rate that was
    kept, over however few requests: there every such rate counts. Where nothing is proven the edge
    is the answer, and a rate that these broke over at least 300 requests lowers it in turn,
    whatever shorter runs kept above, as in :func:`_below`.

    Args:
        factor: The twin's edge over all speeds, over its edge at those of the edge's runs.
        proven: Whether the study certified anything: a climb that met a slow moment and was left
            says less of the edge than the runs that were made to find it.
        unmet_rps: Rates whose runs did not meet the slow states: that they were kept, or certified
            then, says nothing.
        miss_rate_max: The allowed fraction of requests over budget.
    """
    edge = measurement.edge
    certified_rps = measurement.capacity_rps or 0.0
    kept = [certified_rps if certified_rps not in unmet_rps else 0.0]
    requests_min = EVIDENCE_MIN if edge.rate_rps else 1
    evidence = [_counted(e, measurement.load_tests, miss_rate_max) for e in measurement.evidence]
    broken = [e for e in evidence if e.over_budget > miss_rate_max * e.requests]
    for known in evidence:
        if known in broken:
            break
        if known.requests >= requests_min and known.rate_rps not in unmet_rps:
            kept.append(known.rate_rps)
    least = max(kept)

    def over_all(rate: float | None, factor: float) -> float | None:
        return max(rate * factor, min(rate, least)) if rate else rate

    low, high = edge.interval_rps
    # A rate was kept, or broken, at the speeds of its run: a lower bound is higher nowhere, and an
    # upper one only where the study met faster ones.
    upper, broken_rps = (
        rate * max(factor, 1.0) if rate is not None else None for rate in (high, edge.broken_rps)
    )
    found = replace(
        edge,
        rate_rps=over_all(edge.rate_rps, factor),
        interval_rps=(over_all(low, min(factor, 1.0) * edge.long_share), upper),
        broken_rps=broken_rps,
        long_share=1.0,
    )
    long = next((known for known in broken if known.requests >= EVIDENCE_MIN), None)
    return found if proven or long is None else _below(found, long, least, miss_rate_max)


def _counted(known: RateEvidence, tests: Iterable[LoadTest], miss_rate_max: float) -> RateEvidence:
    """``known``; where it broke the SLA, without the runs that the generator's lag made invalid.

    Such a run may keep the SLA, since the lag is inside its latencies, and cannot break it.
    """
    if known.over_budget <= miss_rate_max * known.requests:
        return known
    late = [
        test
        for test in tests
        if test.offered_rps == known.rate_rps and test.kind == "certify" and not test.validity.valid
    ]
    requests = known.requests - sum(test.requests for test in late)
    over = known.over_budget - sum(test.over_budget or 0 for test in late)
    return replace(known, requests=max(requests, 0), over_budget=max(over, 0))


def _below(edge: Edge, broken: RateEvidence, kept_rps: float, miss_rate_max: float) -> Edge:
    """``edge`` below a rate that a certificate's runs broke, but no lower than ``kept_rps``.

    The estimate is halfway (in logarithms) to the rate that was kept, or where a share over budget
    that falls with the square of the rate would be the allowed one, if that is higher; a share
    counts as twice the allowed one at most, so that one stall does not decide it. For the lower end
    it counts in full.
    """
    share = broken.over_budget / broken.requests

    def allowed_rps(share: float) -> float:
        return broken.rate_rps * math.pow(miss_rate_max / share, 1.0 / SHARE_POWER)

    halfway_rps = math.sqrt(kept_rps * broken.rate_rps)
    most_rps = max(kept_rps, halfway_rps, allowed_rps(min(share, BROKEN_SHARE * miss_rate_max)))
    if (edge.at_least_rps or 0.0) <= most_rps:
        return edge
    least_rps = min(edge.interval_rps[0] or 0.0, max(kept_rps, allowed_rps(share)))
    return replace(
        edge,
        rate_rps=most_rps if edge.rate_rps else None,
        interval_rps=(least_rps, edge.interval_rps[1]),
    )


def restated(
    outcomes: Iterable[Measurement | Failure],
    factors: Mapping[str, float],
    unmet_rates: Iterable[tuple[str, float]] = (),
    *,
    miss_rate_max: float,
) -> tuple[Measurement | Failure, ...]:
    """``outcomes`` with their edges, and what was predicted of them, over all speeds.

    Args:
        factors: As of :func:`edge_over_speeds`, by ``config_id``; 1 where there is none.
        unmet_rates: As of :class:`~analyzer.domain.study.StudyResult`.
    """
    known, unmet, found = tuple(outcomes), tuple(unmet_rates), list[Measurement | Failure]()
    proven = any(isinstance(one, Measurement) and one.capacity_rps for one in known)
    for outcome in known:
        config_id = outcome.configuration.config_id
        factor = factors.get(config_id)
        if isinstance(outcome, Measurement) and factor is not None:
            predicted = outcome.predicted.edge_rps
            outcome = replace(
                outcome,
                edge=edge_over_speeds(
                    outcome,
                    factor,
                    miss_rate_max=miss_rate_max,
                    proven=proven,
                    unmet_rps=[rate for key, rate in unmet if key == config_id],
                ),
                predicted=replace(outcome.predicted, edge_rps=predicted and predicted * factor),
            )
        found.append(outcome)
    return tuple(found)
