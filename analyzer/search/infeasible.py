"""When nothing was found: whether that is proven."""

from __future__ import annotations

from contextlib import suppress

from analyzer.domain import answer
from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import Measurement
from analyzer.domain.refutation import failed_where_quiet, quiet_rps
from analyzer.errors import BudgetEndedError
from analyzer.measure.jobs import Job
from analyzer.measure.plan import CertifyPlan
from analyzer.search.build import BuiltVariants
from analyzer.search.context import SearchContext
from analyzer.search.outcome_log import merged, outcome_of
from analyzer.search.screening import Screening
from analyzer.search.time_plan import hangs_after_s
from analyzer.search.wording import complexity
from analyzer.twin.calibration import VariantCalibration

# A predicted edge below this share of the target rate rules a configuration out.
_PREDICTED_SHARE = 0.8
# At a rate without queues so many requests refute a claim; below so many seconds it is not tried.
_QUIET_REQUESTS = 60.0
_TIME_MIN_S = 1.5


def prove_infeasible(
    context: SearchContext, built: BuiltVariants, screening: Screening
) -> str | None:
    """Certifies that nothing keeps the SLA, as far as that takes a measurement.

    Returns:
        The sentence that rules every configuration out; None where one may still keep the SLA.
    """
    if not context.log.ranked(screening.allowed):
        _refute_closest(context, built, screening)
    return ruled_out(context, built, screening)


def _refute_closest(context: SearchContext, built: BuiltVariants, screening: Screening) -> None:
    """Certifies that what came closest fails where it is easiest: at a rate without queues."""
    sla, log = context.request.sla, context.log
    closest = answer.closest_miss(log.outcomes, sla)
    best = closest[0] if closest is not None else None
    if best is None or best.configuration.config_id not in screening.allowed:
        usable = filter(None, (log.measurement(key) for key in screening.allowed))
        best = min(usable, key=lambda m: complexity(m.configuration), default=None)
    left_s = context.plan.left_s - context.server_start_s
    if best is None or failed_where_quiet(best, sla) or left_s < _TIME_MIN_S:
        return
    rate_rps = quiet_rps(best, sla)
    seconds = max(min(_QUIET_REQUESTS / rate_rps, left_s), _TIME_MIN_S)
    task = context.measure_task(
        best.configuration,
        accuracy=built.accuracy(best.configuration),
        predicted_rps=screening.predicted.get(best.configuration.config_id),
        edge_plan=None,
        certify=CertifyPlan(
            seconds=seconds,
            edge=best.edge,
            rate_rps=rate_rps,
            twin=screening.server_model(best.configuration),
        ),
    )
    timeout_s = hangs_after_s(seconds)
    with suppress(BudgetEndedError):
        for result in context.run([Job("refute", task, timeout_s, "refute")]):
            outcome, logs = outcome_of(result, best.configuration)
            if isinstance(outcome, Measurement):
                outcome = merged(best, outcome)
            log.record(outcome, role="trial", logs=logs)


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
    if not heavy and not any(failed_where_quiet(m, sla) for m in measured):
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
        elif screening.designer.trusted and _too_slow(screening, configuration, floor_rps):
            by_twin += 1
        else:
            return None
    were = "configuration was" if by_measurement == 1 else "configurations were"
    parts = [f"{by_measurement} {were} measured and break{'s' * (by_measurement == 1)} a limit"]
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


def _too_slow(screening: Screening, configuration: Configuration, floor_rps: float) -> bool:
    """Whether the twin rules it out; what it does not know, it does not rule out."""
    predicted = screening.twin.edges([configuration])[0]
    if predicted is None:
        return False
    expected = screening.corrected(configuration, predicted) or 0.0
    return expected <= _PREDICTED_SHARE * floor_rps


def _at_least(configuration: Configuration, other: Configuration) -> bool:
    """Whether ``configuration`` holds what ``other`` holds: as many instances, as large batches."""
    return (
        configuration.variant == other.variant
        and configuration.instance_count >= other.instance_count
        and configuration.max_batch_size >= other.max_batch_size
    )


def _shortest_ms(calibration: VariantCalibration) -> float | None:
    return min((min(r.samples_ms) for r in calibration.results if r.samples_ms), default=None)
