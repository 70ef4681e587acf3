"""What is left of a claim when the machine turned out slower than the claim's runs met it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from analyzer.domain.measurement import Measurement, RateEvidence
from analyzer.domain.sla import Sla
from analyzer.stats.certificate import certify, passes


def standing(
    measurement: Measurement, sla: Sla, stands: Callable[[Measurement], bool]
) -> Measurement | None:
    """``measurement`` at the highest rate that may still be claimed; None without one.

    What was proven on the way to a rate that was taken back is proven all the same.

    Args:
        stands: Whether nothing that is known of the machine speaks against the certified rate.
    """
    if stands(measurement):
        return measurement
    for known in sorted(measurement.evidence, key=lambda known: -known.rate_rps):
        lower = known.rate_rps < (measurement.capacity_rps or 0.0)
        if lower and passes(known, percentile=sla.percentile, confidence=sla.confidence):
            found = _at(measurement, known, sla)
            if stands(found):
                return found
    return None


def _at(measurement: Measurement, known: RateEvidence, sla: Sla) -> Measurement:
    """``measurement`` with the rate of ``known`` as the certified one."""
    certificate = certify(
        (),
        percentile=sla.percentile,
        confidence=sla.confidence,
        earlier=known,
        claim=known.claim,
    )
    runs = [
        test
        for test in measurement.load_tests
        if test.offered_rps == known.rate_rps and test.validity.valid and not test.aborted
    ]
    return replace(
        measurement,
        capacity_rps=known.rate_rps,
        certificate=replace(certificate, conditions=known.conditions),
        headline=max(runs, key=lambda test: test.requests, default=None),
    )
