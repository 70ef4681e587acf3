"""When nothing was found: whether that is proven."""

from __future__ import annotations

from analyzer.domain.answer import closest_miss
from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import OUT_OF_TIME, Measurement
from analyzer.domain.refutation import shown, walked
from analyzer.search.build import BuiltVariants
from analyzer.search.context import SearchContext
from analyzer.search.refuting import Refuting, never_runs, shortest_ms
from analyzer.search.screening import Screening
from analyzer.search.twin_refuted import contradicted, too_slow

# Scores' limits that no rate changes.
_LASTING = ("memory", "accuracy")
# What rules configurations out, as the sentence ends.
_AS_MUCH = "at least as much as one that exceeds the memory limit"
_NOTHING = "the SLA at no rate as the twin predicts"


def prove_infeasible(
    context: SearchContext, built: BuiltVariants, screening: Screening
) -> str | None:
    """Certifies that nothing keeps the SLA, as far as that takes measurements.

    Returns:
        The sentence that rules every configuration out; None where one may still keep the SLA.
    """
    refuting = Refuting(context, built, screening)
    if not context.log.ranked(screening.recommendable) and not context.log.nothing_runs:
        refuting.run()
    found = ruled_out(context, built, screening)
    tried = [
        outcome
        for outcome in context.log.outcomes
        if isinstance(outcome, Measurement) and outcome.load_tests
    ]
    open_ = found is None and bool(tried) and not context.log.ranked(screening.recommendable)
    if open_ and not misses_for_good(context, screening):
        kept = any(measurement.edge.at_least_rps for measurement in tried)
        what = "Nothing that was measured" if kept else "No rate that was tried"
        context.log.warn(
            f"{what} keeps the promise, but it is not shown that none does: "
            f"{_open_reason(context, screening, refuting)}."
        )
    return found


def misses_for_good(context: SearchContext, screening: Screening) -> bool:
    """Whether what came closest misses a limit that neither another rate nor more time changes."""
    sla, allowed = context.request.sla, screening.recommendable
    closest = closest_miss(context.log.outcomes, sla, among=allowed)
    return closest is not None and any(miss.lasts for miss in closest[1])


def _open_reason(context: SearchContext, screening: Screening, refuting: Refuting) -> str:
    """What is missing to the proof that nothing keeps the SLA."""
    measured = filter(None, map(context.log.measurement, screening.unrefuted))
    reasons = dict.fromkeys(
        reason
        for measurement in measured
        if walked(measurement) and measurement.certificate is not None
        for reason in measurement.certificate.void_reasons
    )
    if reasons:
        return "; ".join(reasons)
    if refuting.out_of_time:
        return "the time did not suffice for the runs that would"
    if wrong_rps := contradicted(context, screening):
        return f"the twin had expected {wrong_rps:,.3g}/s where next to nothing was kept"
    return "too little was measured"


def ruled_out(context: SearchContext, built: BuiltVariants, screening: Screening) -> str | None:
    """The sentence that rules every configuration out; None where one may still keep the SLA.

    It takes a configuration that is shown to keep the SLA at no rate
    (:func:`~analyzer.domain.refutation.shown`), and for each of the rest one of: it is shown as
    well, or breaks a limit that holds at every rate; its variant is excluded; no execution of its
    variant with as many threads was ever as short as the budget; a twin that was not contradicted
    sees no rate at which it keeps the SLA.
    """
    if any(failure.reason == OUT_OF_TIME for failure in built.excluded.values()):
        return None  # what was never built may keep it
    if not screening.recommendable:
        return (
            "every variant that may be recommended breaks the accuracy limit, cannot be built, or "
            "does not run"
        )
    sla, scores = context.request.sla, context.log.scores
    measured = [m for key in context.log.latest if (m := context.log.measurement(key)) is not None]
    heavy = [
        m.configuration
        for m in measured
        if scores[m.configuration.config_id].constraints["memory"] > 0
    ]
    candidates = [m for m in measured if m.configuration.config_id in screening.unrefuted]
    proven = {m.configuration.config_id for m in candidates if shown(m, sla)}
    if any(walked(m) and m.configuration.config_id not in proven for m in candidates):
        return None  # runs that were made to show it did not
    if not heavy and not proven:
        return None
    if context.log.ranked(screening.recommendable):
        return None  # the baseline or a candidate keeps a rate
    least_rps = sla.fixed_rps or 0.0
    by_twin_too = screening.designer.trusted and contradicted(context, screening) is None
    by_measurement = by_twin = by_memory = by_failure = 0
    too_slow_ms: list[float] = []
    for config_id, configuration in sorted(screening.unrefuted.items()):
        known = scores.get(config_id)
        if never_runs(context.log.latest.get(config_id)):
            by_failure += 1
        elif config_id in proven or (
            known is not None and any(known.constraints[limit] > 0 for limit in _LASTING)
        ):
            by_measurement += 1
        elif any(_at_least(configuration, other) for other in heavy):
            by_memory += 1
        elif (
            shortest := shortest_ms(built, configuration)
        ) is not None and shortest > sla.latency_budget_ms:
            by_measurement += bool(known)
            too_slow_ms += [] if known else [shortest]
        elif by_twin_too and too_slow(screening, configuration, least_rps):
            by_measurement, by_twin = by_measurement + bool(known), by_twin + (not known)
        else:
            return None
    least_ms = min(too_slow_ms, default=0.0)
    cannot = (
        f"cannot answer in time (no execution took less than {least_ms:.3g} ms, the budget is "
        f"{sla.latency_budget_ms:g} ms)"
    )
    parts: list[str] = []
    for count, one, more in (
        (by_measurement, "was measured and breaks a limit", "were measured and break a limit"),
        (by_failure, "did not run", "did not run"),
        (len(too_slow_ms), cannot, cannot),
        (by_memory, f"holds {_AS_MUCH}", f"hold {_AS_MUCH}"),
        (by_twin, f"keeps {_NOTHING}", f"keep {_NOTHING}"),
    ):
        if count:
            noun = "" if parts else f" configuration{'s' * (count > 1)}"
            parts.append(f"{count}{noun} {one if count == 1 else more}")
    return "; ".join(parts)


def _at_least(configuration: Configuration, other: Configuration) -> bool:
    """Whether ``configuration`` holds what ``other`` holds: as many instances, as large batches."""
    return (
        configuration.variant == other.variant
        and configuration.instance_count >= other.instance_count
        and configuration.max_batch_size >= other.max_batch_size
    )
