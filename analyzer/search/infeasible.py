"""When nothing was found: whether that is proven."""

from __future__ import annotations

from analyzer.domain.configuration import Configuration
from analyzer.search.build import BuiltVariants
from analyzer.search.context import SearchContext
from analyzer.search.screening import Screening
from analyzer.twin.calibration import VariantCalibration

# A predicted edge below this share of the target rate rules a configuration out.
_PREDICTED_SHARE = 0.8


def ruled_out(context: SearchContext, built: BuiltVariants, screening: Screening) -> str | None:
    """The sentence that rules every configuration out; None where one may still keep the SLA.

    It takes a measured FAIL of the best candidate, and for each of the rest one of: it was measured
    and breaks a limit; its variant is excluded; no execution of its variant was ever as short as
    the budget; the trusted twin sees no rate at which it keeps the SLA.
    """
    if not screening.allowed:
        return "every variant that may be recommended breaks the accuracy limit or cannot be built"
    sla, scores = context.request.sla, context.log.scores
    measured = [m for key in context.log.latest if (m := context.log.measurement(key)) is not None]
    heavy = [
        m.configuration
        for m in measured
        if scores[m.configuration.config_id].constraints["memory"] > 0
    ]
    failed = any(m.certificate is not None and m.certificate.verdict == "FAIL" for m in measured)
    if not heavy and not failed:
        return None
    too_slow_ms = {
        key: shortest
        for key, calibration in built.calibrations.items()
        if (shortest := _shortest_ms(calibration)) is not None and shortest > sla.latency_budget_ms
    }
    floor_rps = (sla.target_rate_rps or 0.0) if sla.objective in ("latency", "memory") else 0.0
    by_measurement = by_time = by_twin = by_memory = 0
    for config_id in sorted(screening.allowed):
        configuration = screening.allowed[config_id]
        if config_id in scores:
            if scores[config_id].feasible:
                return None
            by_measurement += 1
        elif any(_at_least(configuration, other) for other in heavy):
            by_memory += 1
        elif configuration.variant in too_slow_ms:
            by_time += 1
        elif (
            screening.designer.trusted
            and (screening.expected(configuration) or 0.0) <= _PREDICTED_SHARE * floor_rps
        ):
            by_twin += 1
        else:
            return None
    parts = [f"{by_measurement} configurations were measured and break a limit"]
    if by_time:
        parts.append(
            f"{by_time} cannot answer in time (no execution took less than "
            f"{min(too_slow_ms.values()):.3g} ms, the budget is {sla.latency_budget_ms:g} ms)"
        )
    if by_memory:
        parts.append(f"{by_memory} hold at least as much as one that exceeds the memory limit")
    if by_twin:
        parts.append(f"{by_twin} keep the SLA at no rate as the twin predicts")
    return "; ".join(parts)


def _at_least(configuration: Configuration, other: Configuration) -> bool:
    """Whether ``configuration`` holds what ``other`` holds: as many instances, as large batches."""
    return (
        configuration.variant == other.variant
        and configuration.instance_count >= other.instance_count
        and configuration.max_batch_size >= other.max_batch_size
    )


def _shortest_ms(calibration: VariantCalibration) -> float | None:
    return min((min(r.samples_ms) for r in calibration.results if r.samples_ms), default=None)
