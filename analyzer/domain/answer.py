"""The answer to a search: what counts as good, what keeps the limits, and what came closest.

Ranking and the Pareto front are about the estimated edge; what is recommended, and what it costs,
is about the certified capacity.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from analyzer.domain.configuration import Configuration
from analyzer.domain.cost import (
    cost_per_million_inferences,
    machines_needed,
    replicas_needed,
)
from analyzer.domain.load_test import LoadTest, ResourceUse
from analyzer.domain.measurement import Failure, Measurement
from analyzer.domain.pareto import Direction, non_dominated
from analyzer.domain.sla import Sla
from analyzer.domain.study import Pricing

# Rates that a schedule and a command line spell the same differ by rounding at most.
_RATE_TOLERANCE = 1e-6

EVIDENCE_ENOUGH = 300
"""Requests at kept rates from which on one candidate's evidence counts as much as another's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """One limit that a configuration does not keep.

    Args:
        limit: The SLA's key (``latency_budget_ms``, ``target_rate_rps``, ``max_memory_bytes``,
            ``max_accuracy_drop``), or ``certified_requests`` where only evidence is missing.
        required: What the SLA asks for, in the unit of the key; None if it is unknown (the number
            of requests that a certificate still needs).
        observed: What was measured; None where it falls among failed requests or was not measured.
    """

    limit: str
    required: float | None
    observed: float | None

    @property
    def lasts(self) -> bool:
        """Whether neither another rate nor more time changes it."""
        return self.limit in ("max_memory_bytes", "max_accuracy_drop")


def measured(outcomes: Iterable[Measurement | Failure]) -> tuple[Measurement, ...]:
    """One measurement per configuration, in order of first appearance.

    Where a configuration was measured more than once, the certified measurement counts, then the
    later one.
    """
    best: dict[Configuration, Measurement] = {}
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            continue
        known = best.get(outcome.configuration)
        if known is None or known.capacity_rps is None or outcome.capacity_rps is not None:
            best[outcome.configuration] = outcome
    return tuple(best.values())


def find(measurements: Sequence[Measurement], config_id: str | None) -> Measurement | None:
    """The measurement of ``config_id``; None if there is none.

    An id is a hash: those with a certificate are tried first, since they are few and what is
    looked for (recommendation and baseline) is among them.
    """
    if config_id is None:
        return None
    for certified in (True, False):
        for measurement in measurements:
            if (measurement.certificate is not None) is not certified:
                continue
            if measurement.configuration.config_id == config_id:
                return measurement
    return None


def memory_bytes(measurement: Measurement) -> int | None:
    """The peak over all load tests that ``--max-memory`` limits.

    GPU memory on a GPU, else the server's own; None where the machine does not tell.
    """
    uses = [measurement.resources, *(test.resources for test in measurement.load_tests)]
    if measurement.headline is not None:
        uses.append(measurement.headline.resources)
    peaks = [_limited_memory(measurement, use) for use in uses]
    return max((peak for peak in peaks if peak is not None), default=None)


def _limited_memory(measurement: Measurement, use: ResourceUse) -> int | None:
    on_gpu = measurement.configuration.device == "gpu"
    return use.gpu_memory_bytes_peak if on_gpu else use.memory_bytes_peak


def keeps_budget(test: LoadTest, sla: Sla) -> bool:
    """Whether the share of requests over budget is within the SLA in this one run, and stays so."""
    if test.over_budget is None or not test.requests or test.growing:
        return False
    return test.over_budget <= sla.miss_rate_max * test.requests


def representative_test(measurement: Measurement, sla: Sla) -> LoadTest | None:
    """The load test that stands for a configuration.

    The headline (at the certified or the target rate). Where nothing was certified: the valid
    open-loop test at the highest rate that kept the budget; else the one with the fewest requests
    over budget. None without a valid test.
    """
    if measurement.headline is not None:
        return measurement.headline
    tests = [
        test
        for test in measurement.load_tests
        if test.validity.valid and test.concurrency is None and test.requests
    ]
    kept = [test for test in tests if not test.aborted and keeps_budget(test, sla)]
    if kept:
        return max(kept, key=lambda test: test.offered_rps)
    return min(
        tests,
        key=lambda test: (_over_budget_share(test), test.offered_rps),
        default=None,
    )


def _over_budget_share(test: LoadTest) -> float:
    return math.inf if test.over_budget is None else test.over_budget / test.requests


def misses(measurement: Measurement, sla: Sla) -> tuple[Miss, ...]:
    """The limits that a configuration does not keep, judged by its edge; empty if it keeps all.

    A limit on something that was not measured (memory on a machine that does not tell, accuracy
    without data) is not missed.
    """
    found: list[Miss] = []
    edge_rps = measurement.edge.at_least_rps
    if edge_rps is None:
        test = representative_test(measurement, sla)
        found.append(
            Miss(
                limit="latency_budget_ms",
                required=sla.latency_budget_ms,
                observed=test.latency_ms.sla if test else None,
            )
        )
    elif not sla.at_any_rate and sla.target_rate_rps is not None:
        reached = max(edge_rps, measurement.capacity_rps or 0.0)
        if reached < sla.target_rate_rps * (1 - _RATE_TOLERANCE):
            found.append(
                Miss(limit="target_rate_rps", required=sla.target_rate_rps, observed=edge_rps)
            )
    peak = memory_bytes(measurement) if sla.max_memory_bytes is not None else None
    if sla.max_memory_bytes is not None and peak is not None and peak > sla.max_memory_bytes:
        found.append(Miss(limit="max_memory_bytes", required=sla.max_memory_bytes, observed=peak))
    drop = accuracy_drop_worst(measurement)
    if drop is not None and drop > sla.max_accuracy_drop:
        found.append(Miss(limit="max_accuracy_drop", required=sla.max_accuracy_drop, observed=drop))
    return tuple(found)


def open_below(measurement: Measurement, sla: Sla) -> bool:
    """Whether no rate was kept yet, though a lower one than was tried may be.

    Most requests were in time at the best rate that was tried, and no certificate refuted it.
    """
    certificate = measurement.certificate
    if measurement.edge.at_least_rps or not measurement.edge.interval_rps[1]:
        return False
    if certificate is not None and certificate.verdict == "FAIL":
        return False
    test = representative_test(measurement, sla)
    median_ms = test.latency_ms.p50 if test is not None else None
    return median_ms is not None and median_ms <= sla.latency_budget_ms


def accuracy_drop_worst(measurement: Measurement) -> float | None:
    """The bad end of the interval of the accuracy's drop; None without real data."""
    accuracy = measurement.real_accuracy
    if accuracy is None:
        return None
    return accuracy.interval[1] if accuracy.interval is not None else accuracy.drop


def objective_value(
    measurement: Measurement, sla: Sla, *, devices_per_machine: int = 1
) -> float | None:
    """The objective in its own unit, from the edge; None where it is unknown.

    ``capacity``: requests per second, more is better. ``cost``: machines at the target rate (the
    price of one is a common factor), ``latency``: milliseconds at the SLA's percentile,
    ``memory``: bytes; less is better. An edge that is only known to be at least a rate counts as
    that rate.
    """
    rate_rps = measurement.edge.at_least_rps
    return objective_at(measurement, sla, rate_rps, devices_per_machine=devices_per_machine)


def objective_at(
    measurement: Measurement, sla: Sla, rate_rps: float | None, *, devices_per_machine: int = 1
) -> float | None:
    """:func:`objective_value`, had ``rate_rps`` been the highest rate; None without one."""
    if not rate_rps:
        return None
    if sla.objective == "capacity":
        return rate_rps
    if sla.objective == "cost":
        return float(machines_at(sla, rate_rps, devices_per_machine))
    if sla.objective == "latency":
        test = representative_test(measurement, sla)
        return test.latency_ms.sla if test is not None else None
    headline = measurement.headline
    peak = _limited_memory(measurement, headline.resources) if headline is not None else None
    peak = peak if peak is not None else memory_bytes(measurement)
    return float(peak) if peak is not None else None


def machines_at(sla: Sla, rate_rps: float, devices_per_machine: int = 1) -> int:
    """Machines for the target rate, where each device carries ``rate_rps``, above 0."""
    assert sla.target_rate_rps is not None
    return machines_needed(replicas_needed(sla.target_rate_rps, rate_rps), devices_per_machine)


def rank(
    outcomes: Sequence[Measurement | Failure], sla: Sla, *, devices_per_machine: int = 1
) -> tuple[Measurement, ...]:
    """The measured configurations, the best by its edge first.

    Those that keep every limit come first, by the objective, then the higher edge; the others
    follow, the closest miss first. Ties keep the order of the outcomes.
    """
    feasible: list[tuple[float, float, Measurement]] = []
    rest: list[tuple[int, float, Measurement]] = []
    for measurement in measured(outcomes):
        missed = misses(measurement, sla)
        value = objective_value(measurement, sla, devices_per_machine=devices_per_machine)
        if missed or value is None:
            rest.append((*_distance(missed, measurement, sla), measurement))
            continue
        loss = -value if sla.objective == "capacity" else value
        feasible.append((loss, -(measurement.edge.at_least_rps or 0.0), measurement))
    feasible.sort(key=lambda entry: entry[:2])
    rest.sort(key=lambda entry: entry[:2])
    return tuple(entry[2] for entry in feasible) + tuple(entry[2] for entry in rest)


def _distance(missed: tuple[Miss, ...], measurement: Measurement, sla: Sla) -> tuple[int, float]:
    """How far a configuration is from keeping the SLA: unknown last, then the worst ratio."""
    unknown = 0
    worst = 0.0
    for miss in missed:
        if miss.observed is None or miss.required is None:
            unknown += 1
        elif miss.limit == "target_rate_rps":
            worst = max(worst, miss.required / miss.observed - 1 if miss.observed else math.inf)
        elif miss.required > 0:
            worst = max(worst, miss.observed / miss.required - 1)
        else:
            worst = max(worst, 1.0 + miss.observed)
    if unknown:
        # Latency among the failures: the share over budget still tells how bad it is.
        test = representative_test(measurement, sla)
        worst = _over_budget_share(test) if test is not None else math.inf
    return unknown, worst


def evidence_requests(measurement: Measurement, sla: Sla) -> int:
    """Requests of valid open-loop load tests at rates that kept the budget; 0 without any."""
    return sum(
        test.requests
        for test in measurement.load_tests
        if test.validity.valid
        and test.concurrency is None
        and not test.aborted
        and keeps_budget(test, sla)
    )


def best_by_evidence(
    outcomes: Sequence[Measurement | Failure],
    sla: Sla,
    *,
    among: Collection[str] | None = None,
    devices_per_machine: int = 1,
) -> Measurement | None:
    """The best configuration, where a rate that was kept counts by the requests behind it.

    Those that keep every limit by their edge come before those that do not, and of these more
    evidence counts first until it suffices (``EVIDENCE_ENOUGH`` requests); then the objective.

    Args:
        among: Ids of the configurations that may be recommended; None for all.
    """
    ranked = rank(outcomes, sla, devices_per_machine=devices_per_machine)
    if among is not None:
        ranked = tuple(m for m in ranked if m.configuration.config_id in among)

    def key(measurement: Measurement) -> tuple[bool, int]:
        certificate = measurement.certificate
        if misses(measurement, sla) or (certificate and certificate.verdict == "FAIL"):
            return True, 0
        return False, -min(evidence_requests(measurement, sla), EVIDENCE_ENOUGH)

    # min keeps the order of the ranking among equals.
    return min(ranked, key=key, default=None)


def closest_miss(
    outcomes: Sequence[Measurement | Failure],
    sla: Sla,
    *,
    among: Collection[str] | None = None,
) -> tuple[Measurement, tuple[Miss, ...]] | None:
    """What came closest when nothing is recommended, and what it missed; None if nothing ran.

    It is the best by evidence of those that may be recommended (ids in ``among``, all if None);
    where none of these was measured, of all.

    A configuration that keeps every limit by its edge but was not certified misses evidence:
    ``certified_requests``, the requests that the certificate would need against those it has.
    """
    best = best_by_evidence(outcomes, sla, among=among) or best_by_evidence(outcomes, sla)
    if best is None:
        return None
    missed = misses(best, sla)
    certificate = best.certificate
    if certificate is not None and certificate.verdict == "FAIL" and not missed:
        test = representative_test(best, sla)
        observed = test.latency_ms.sla if test is not None else None
        missed = (
            Miss(limit="latency_budget_ms", required=sla.latency_budget_ms, observed=observed),
        )
    elif open_below(best, sla):
        rest = tuple(miss for miss in missed if miss.limit != "latency_budget_ms")
        missed = (*rest, _missing_evidence(best, sla))
    elif not missed:
        missed = (_missing_evidence(best, sla),)
    return best, missed


def _missing_evidence(measurement: Measurement, sla: Sla) -> Miss:
    certificate = measurement.certificate
    if certificate is None:
        return Miss(limit="certified_requests", required=None, observed=0)
    missing = certificate.requests_missing
    if certificate.is_late(sla.miss_rate_max):
        missing = None  # a lower rate is another claim
    return Miss(
        limit="certified_requests",
        required=certificate.requests + missing if missing is not None else None,
        observed=certificate.requests,
    )


def edge_cost(
    measurement: Measurement, pricing: Pricing, request_batch_size: float
) -> float | None:
    """US dollars a million inferences at the edge; None where price or edge are unknown."""
    price, edge_rps = pricing.price_per_hour, measurement.edge.at_least_rps
    if price is None or not edge_rps:
        return None
    ips = edge_rps * request_batch_size
    return cost_per_million_inferences(price, ips, pricing.devices_per_machine)


def pareto_front(
    outcomes: Sequence[Measurement | Failure],
    sla: Sla,
    *,
    pricing_of: Callable[[Configuration], Pricing] = lambda configuration: Pricing(),
    request_batch_size: float = 1,
) -> tuple[Measurement, ...]:
    """The measured configurations that keep the limits and that no other beats in everything.

    Objectives: the edge (up), the latency at the SLA's percentile (down), peak memory (down) and,
    where a price is known, the cost of a million inferences at the edge (down). The highest edge
    comes first.
    """
    # The target rate decides what is recommended, not what is a sensible trade-off.
    limits = Sla(
        latency_budget_ms=sla.latency_budget_ms,
        percentile=sla.percentile,
        confidence=sla.confidence,
        max_memory_bytes=sla.max_memory_bytes,
        max_accuracy_drop=sla.max_accuracy_drop,
    )
    candidates = [m for m in measured(outcomes) if m.edge.at_least_rps and not misses(m, limits)]
    directions: list[Direction] = ["up", "down", "down", "down"]
    rows: list[list[float | None]] = []
    for candidate in candidates:
        test = representative_test(candidate, sla)
        edge_rps = candidate.edge.at_least_rps
        latency_ms = test.latency_ms.sla if test else None
        cost = edge_cost(candidate, pricing_of(candidate.configuration), request_batch_size)
        rows.append([edge_rps, latency_ms, memory_bytes(candidate), cost])
    if all(row[-1] is None for row in rows):  # then there is nothing to compare
        rows, directions = [row[:-1] for row in rows], directions[:-1]
    front = [candidates[index] for index in non_dominated(rows, directions)]
    return tuple(
        sorted(front, key=lambda m: (-(m.edge.at_least_rps or 0.0), m.configuration.config_id))
    )
