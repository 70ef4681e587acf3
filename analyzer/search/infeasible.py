"""When nothing was found: whether that is proven."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import Failure, Measurement
from analyzer.domain.sla import Sla
from analyzer.search.prepare import Prepared
from analyzer.search.proposals import constraints
from analyzer.search.request import SearchRequest


def ruled_out(
    request: SearchRequest,
    prepared: Prepared,
    candidates: Sequence[Configuration],
    done: Mapping[str, Measurement | Failure],
    *,
    trusted: bool,
    predicted: Callable[[Configuration], float | None],
) -> str | None:
    """The sentence that rules every configuration out; None where one may still keep the SLA.

    It takes a measured FAIL of the best candidate, and for each of the rest one of: it was measured
    and breaks a limit; its variant is excluded; no execution of its variant was ever as short as
    the budget; the trusted twin sees no rate at which it keeps the SLA.
    """
    if not candidates:
        return "every variant that may be recommended breaks the accuracy limit or cannot be built"
    sla = request.sla
    heavy = [o for o in done.values() if _too_heavy(o, sla)]
    failed = heavy or any(
        isinstance(outcome, Measurement)
        and outcome.certificate is not None
        and outcome.certificate.verdict == "FAIL"
        for outcome in done.values()
    )
    if not failed:
        return None
    too_slow = {
        key: shortest
        for key, calibration in prepared.calibrations.items()
        if (shortest := _shortest_ms(calibration.results)) is not None
        and shortest > sla.latency_budget_ms
    }
    floor_rps = sla.target_rate_rps if sla.objective in ("latency", "memory") else 0.0
    measured = ruled_by_time = ruled_by_twin = ruled_by_memory = 0
    for configuration in candidates:
        outcome = done.get(configuration.config_id)
        if outcome is not None:
            if all(value <= 0 for value in constraints(outcome, sla).values()):
                return None
            measured += 1
        elif any(_at_least(configuration, other.configuration) for other in heavy):
            ruled_by_memory += 1
        elif configuration.variant in too_slow:
            ruled_by_time += 1
        elif trusted and (predicted(configuration) or 0.0) < 0.8 * (floor_rps or 0.0) + 1e-9:
            ruled_by_twin += 1
        else:
            return None
    parts = [f"{measured} configurations were measured and break a limit"]
    if ruled_by_time:
        shortest = min(too_slow.values())
        parts.append(
            f"{ruled_by_time} cannot answer in time (no execution took less than {shortest:.3g} ms,"
            f" the budget is {sla.latency_budget_ms:g} ms)"
        )
    if ruled_by_memory:
        parts.append(
            f"{ruled_by_memory} hold at least as much as one that exceeds the memory limit"
        )
    if ruled_by_twin:
        parts.append(f"{ruled_by_twin} keep the SLA at no rate as the twin predicts")
    return "; ".join(parts)


def _too_heavy(outcome: Measurement | Failure, sla: Sla) -> bool:
    return isinstance(outcome, Measurement) and constraints(outcome, sla).get("memory", 0.0) > 0


def _at_least(configuration: Configuration, other: Configuration) -> bool:
    """Whether ``configuration`` holds what ``other`` holds: as many instances, as large batches."""
    return (
        configuration.variant == other.variant
        and configuration.instance_count >= other.instance_count
        and configuration.max_batch_size >= other.max_batch_size
    )


def _shortest_ms(results: Sequence[object]) -> float | None:
    from analyzer.twin.probes import ProbeResult

    samples = [min(r.samples_ms) for r in results if isinstance(r, ProbeResult) and r.samples_ms]
    return min(samples) if samples else None
