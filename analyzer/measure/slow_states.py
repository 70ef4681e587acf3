"""How often a claim's runs met the machine's slow states, and what that makes of the claim.

A rate that a slow state surely carries (``witness``) needs no more than its certificate; the runs
of any other one must have met it, or the PASS is taken back.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analyzer.domain.load_test import Conditions, LoadTest
from analyzer.domain.measurement import Edge, Measurement, RateEvidence
from analyzer.domain.sla import Sla
from analyzer.measure.walk_claims import all_met
from analyzer.measure.witness import (
    USUAL_QUANTILE,
    SlowEdge,
    in_proportion,
    rate_ceiling,
    share_above,
    slow_work_us,
    stalls_too_long,
    watched_times,
)
from analyzer.stats.certificate import passes
from analyzer.twin.pace import CONSTANT_FACTOR

# A certificate met the slow seconds as often as the study, or nearly.
SEEN_SHARE = 0.9
#: So often is enough for what the slow states do to be more than supposed.
MET_SHARE = 0.5


def met_share(
    rate_rps: float,
    edge: Edge,
    study: Conditions | None,
    sla: Sla,
    seen: Conditions | None,
    slow_edge: SlowEdge = in_proportion,
    tests: Sequence[LoadTest] = (),
    response: float = 1.0,
) -> float:
    """How often a claim's runs met the machine's slow states, over how often the study did.

    1 where that is as often, or nearly, and where the slow state carries the rate. Counted are the
    study's seconds that were slow, and those as slow as the slowest that count: a speed that drifts
    has many. A rate above the edge's estimate (a target rate, where the edge was found in a slower
    state) is also held against the state of those runs, however little slower that was.

    Args:
        seen: Of all the runs that the certificate counts; None where it counts others too.
        tests, response: As of :func:`rate_ceiling`.
    """
    if study is None or not study.work_us:
        return 1.0
    # An edge that was found in the slow state is the slow state's.
    ceiling_rps = rate_ceiling(edge, study, sla, slow_edge, tests, response)
    if rate_rps <= min(edge.at_least_rps or 0.0, ceiling_rps):
        return 1.0
    slow_us = CONSTANT_FACTOR * float(np.quantile(study.work_us, USUAL_QUANTILE))
    if edge.work_us and rate_rps > (edge.own_speed_rps or 0.0):
        # At the speed of the edge's runs the rate is too high, or may be.
        faster_us = edge.work_us / CONSTANT_FACTOR
        met = seen.work_us if seen is not None and seen.work_us else study.work_us
        slow_us = min(slow_us, faster_us) if np.median(met) < faster_us else slow_us
    share = _met_share(study, sla, seen, slow_us)
    return share if share < SEEN_SHARE else 1.0


def least_met(
    rate_rps: float,
    edge: Edge,
    studies: Sequence[Conditions | None],
    sla: Sla,
    seen: Sequence[Conditions | None],
    slow_edge: SlowEdge,
    tests: Sequence[LoadTest],
    response: float,
) -> float:
    """The least :func:`met_share` of several ``studies``, of each the most of what was ``seen``.

    Args:
        seen: As of :func:`all_met`.
    """
    return min(
        max(met_share(rate_rps, edge, study, sla, of, slow_edge, tests, response) for of in seen)
        for study in studies
    )


def met_slow_states(study: Conditions | None, sla: Sla, seen: Conditions | None) -> bool:
    """Whether what was ``seen`` had the study's slow states at least half as often as the study.

    Unknown states were not.
    """
    if study is None or not study.work_us:
        return False
    slow_us = CONSTANT_FACTOR * float(np.quantile(study.work_us, USUAL_QUANTILE))
    return _met_share(study, sla, seen, slow_us) >= MET_SHARE


def _met_share(study: Conditions, sla: Sla, seen: Conditions | None, slow_us: float) -> float:
    """How often ``seen`` had the seconds slower than ``slow_us``, over how often the study had.

    Or the slowest, of which it had fewer.
    """
    slowest_us = (slow_work_us(study, sla.miss_rate_max) or 0.0) / CONSTANT_FACTOR
    shares = [
        share_above(seen, least_us) / due
        for least_us in {slow_us, max(slow_us, slowest_us)}
        if (due := share_above(study, least_us)) > sla.miss_rate_max
    ]
    return min(shares, default=1.0)


def tenable(
    measurement: Measurement,
    study: Conditions | None,
    sla: Sla,
    slow_edge: SlowEdge = in_proportion,
    response: float = 1.0,
    earlier_us: Sequence[float] = (),
) -> bool:
    """Whether nothing that was seen of the machine speaks against the certified rate.

    Nor the confidence that is asked for now.

    Args:
        earlier_us: As of :func:`watched_times`.
    """
    test, certificate = measurement.headline, measurement.certificate
    rate_rps = measurement.capacity_rps or 0.0
    known = next((e for e in measurement.evidence if e.rate_rps == rate_rps), None)
    seen = known.conditions if known is not None else None
    median_ms = None
    if test is not None:
        median_ms = test.latency_ms.p50
        if seen is None and certificate is not None and certificate.requests == test.requests:
            seen = test.conditions
    if stalls_too_long(study, sla, median_ms):
        return False
    # Certified as the claim of fewer types of instances than the study has now.
    less = certificate is not None and certificate.confidence < sla.confidence
    if less and (known is None or not _proves(known, sla)):
        return False
    times = watched_times(study, earlier_us)
    share = _evidence_met(measurement, rate_rps, seen, times, sla, slow_edge, response)
    return outweighs(known, share, sla)


def unmet_rates(
    measurement: Measurement,
    study: Conditions | None,
    sla: Sla,
    slow_edge: SlowEdge = in_proportion,
    response: float = 1.0,
) -> tuple[float, ...]:
    """The rates whose runs met the study's slow states too seldom, which do not carry them.

    That they were kept says nothing of all speeds of the machine.
    """
    return tuple(
        known.rate_rps
        for known in measurement.evidence
        if _evidence_met(
            measurement, known.rate_rps, known.conditions, (study,), sla, slow_edge, response
        )
        < 1.0
    )


def _evidence_met(
    measurement: Measurement,
    rate_rps: float,
    seen: Conditions | None,
    times: Sequence[Conditions | None],
    sla: Sla,
    slow_edge: SlowEdge,
    response: float,
) -> float:
    """As :func:`least_met`, of what was ``seen`` at a rate and at those that count for it."""
    met = all_met(rate_rps, seen, measurement.evidence, miss_rate_max=sla.miss_rate_max)
    tests = measurement.load_tests
    return least_met(rate_rps, measurement.edge, times, sla, met, slow_edge, tests, response)


def _proves(known: RateEvidence, sla: Sla, share: float = 1.0) -> bool:
    return passes(known, percentile=sla.percentile, confidence=sla.confidence, share=share)


def outweighs(known: RateEvidence | None, share: float, sla: Sla) -> bool:
    """Whether a claim's requests prove it though its runs met slow states less often than others.

    Requests count by how often (``share``), and all that are late count, as if they had come in
    those states: as many as if each state had its share of the study's time (the worst case of the
    estimator of a stratified sample; Cochran 1977, Sampling Techniques, chapter 5).

    Args:
        known: None where nothing is known but the verdict.
        share: As of :func:`met_share`.
    """
    if share >= 1.0:
        return True
    return known is not None and _proves(known, sla, share)
