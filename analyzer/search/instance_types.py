"""Several instance types in one study: each is searched on its own machines, then compared by cost.

Machines differ in cores, GPUs and speeds, so that spaces, probes, engines and simulations are each
type's own. What they share is the model, the SLA, the time and the record.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from analyzer.domain.answer import find, measured
from analyzer.domain.cost import fleet_for
from analyzer.domain.load_test import Conditions
from analyzer.domain.measurement import Failure, Measurement
from analyzer.domain.study import InstanceTypeResult, Pricing, SearchSummary, StudyResult, Verdict
from analyzer.errors import AnalyzerError
from analyzer.measure.jobs import Executor, Job, JobResult, WorkerContext
from analyzer.search.context import WAIT_S, SearchContext
from analyzer.search.request import Progress
from analyzer.search.score import score_of
from analyzer.search.study import MakeTrials, run_search


@dataclass(frozen=True, slots=True, kw_only=True)
class TypePart:
    """The search on one instance type.

    Args:
        pricing: With the type's name.
        hardware: A short name of its machines, for people.
        workers: Load tests at the same time.
    """

    pricing: Pricing
    context: SearchContext
    make_trials: MakeTrials
    hardware: str
    workers: int

    @property
    def name(self) -> str:
        """The cloud's name of the machine."""
        return self.pricing.instance_type or ""


class PartExecutor:
    """The executor of a part: its thread can be told to end while it waits for a result.

    Args:
        stop: Once it is set, the next wait raises KeyboardInterrupt.
    """

    def __init__(self, inner: Executor, stop: threading.Event) -> None:
        self._inner = inner
        self._stop = stop

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel_all()

    @property
    def workers(self) -> int:
        return self._inner.workers

    def ready(self, timeout_s: float) -> bool:
        return self._inner.ready(timeout_s)

    @property
    def local(self) -> WorkerContext | None:
        return self._inner.local

    def submit(self, job: Job) -> None:
        self._inner.submit(job)

    def next_result(self, timeout_s: float) -> JobResult | None:
        if self._stop.is_set():
            raise KeyboardInterrupt
        return self._inner.next_result(timeout_s)

    def cancel_all(self) -> None:
        self._inner.cancel_all()


class PartProgress:
    """Progress of one part among others: what it tells begins with its name."""

    def __init__(self, inner: Progress, name: str) -> None:
        self._inner = inner
        self._name = name

    def phase(self, name: str, expected_s: float) -> None:
        self._inner.phase(f"{self._name}: {name}", expected_s)

    def detail(self, text: str) -> None:
        self._inner.detail(f"{self._name}: {text}")

    def warn(self, text: str) -> None:
        self._inner.warn(f"{self._name}: {text}")


def search_types(parts: Sequence[TypePart], stop: threading.Event) -> StudyResult:
    """Searches every instance type at the same time; the result compares them.

    A type whose search fails (nothing can be built there, its machines are gone) is told in the
    result.

    Args:
        stop: Set when this function is left by an exception: ends the executors' waits.

    Raises:
        AnalyzerError: The search failed on every type.
    """
    with ThreadPoolExecutor(len(parts), thread_name_prefix="instance type") as pool:
        running = {
            part.name: pool.submit(run_search, part.context, part.make_trials) for part in parts
        }
        try:
            left = set(running.values())
            while left:  # in short waits, between which the user can interrupt
                done, left = wait(left, WAIT_S, FIRST_EXCEPTION)
                _raise_faults(done)
        except BaseException:
            stop.set()
            raise
    found: dict[str, StudyResult | AnalyzerError] = {}
    for name, future in running.items():
        error = future.exception()
        found[name] = error if isinstance(error, AnalyzerError) else future.result()
    return compared(parts, found)


def _raise_faults(done: set[Future[StudyResult]]) -> None:
    """Raises what is no AnalyzerError: a fault of the program, or an interruption."""
    for future in done:
        error = future.exception()
        if error is not None and not isinstance(error, AnalyzerError):
            raise error


def compared(
    parts: Sequence[TypePart], found: Mapping[str, StudyResult | AnalyzerError]
) -> StudyResult:
    """The result of the study from those of its parts, in their order.

    Recommended is what costs least: for the target rate, else a million inferences; for the
    objectives latency and memory, what is best in these. A proof comes before an estimate.

    Raises:
        AnalyzerError: That of the first part, where every one failed.
    """
    results = {name: one for name, one in found.items() if isinstance(one, StudyResult)}
    failed = {name: one for name, one in found.items() if isinstance(one, AnalyzerError)}
    if not results:
        raise next(iter(failed.values()))
    answered = {name: one for name, one in results.items() if one.recommended_id is not None}
    best = min(answered, key=lambda name: _rank(answered[name]), default=None)
    lead = results[best] if best is not None else next(iter(results.values()))
    verdict: Verdict = lead.verdict
    if best is None:
        proven = not failed and all(one.verdict == "infeasible" for one in results.values())
        verdict = "infeasible" if proven else "undecided"
    everything = list(results.values())
    return replace(
        lead,
        verdict=verdict,
        outcomes=tuple(outcome for one in everything for outcome in one.outcomes),
        recommendable=tuple(key for one in everything for key in one.recommendable or ()),
        engines=tuple(engine for one in everything for engine in one.engines),
        speed_factors=tuple(factor for one in everything for factor in one.speed_factors),
        unmet_rates=tuple(rate for one in everything for rate in one.unmet_rates),
        taken_back=tuple(key for one in everything for key in one.taken_back),
        conditions=Conditions.pooled(one.conditions for one in everything),
        search=_summed(results),
        warnings=_warnings(results, failed),
        instance_types=tuple(_told(part, found[part.name]) for part in parts),
    )


def _rank(result: StudyResult) -> tuple[float, ...]:
    """Sorts the best first: by proof, then by the objective or the cost."""
    measurement = find(measured(result.outcomes), result.recommended_id)
    assert measurement is not None
    estimated = float(result.verdict != "found")
    if not result.sla.at_any_rate:
        return estimated, -(score_of(measurement, result.sla).value or 0.0)
    return estimated, *_costs(measurement, result)


def _costs(measurement: Measurement, result: StudyResult) -> tuple[float, float]:
    """US dollars an hour for the target rate, and a million inferences; infinite if unknown."""
    fleet = fleet_for(
        capacity_rps=measurement.capacity_rps or measurement.edge.at_least_rps,
        target_rate_rps=result.sla.target_rate_rps,
        price_per_hour=result.pricing.price_per_hour,
        devices_per_machine=result.pricing.devices_per_machine,
        request_batch_size=result.request_batch_size,
    )
    known = (fleet.cost_per_hour, fleet.cost_per_million_inferences) if fleet else (None, None)
    hour, million = (math.inf if cost is None else cost for cost in known)
    return hour, million


def _summed(results: Mapping[str, StudyResult]) -> SearchSummary:
    parts = [one.search for one in results.values()]
    sizes = [part.space_size for part in parts]
    needed = [part.budget_needed_s for part in parts if part.budget_needed_s is not None]
    bounds = [f"{name}: {one.search.bound}" for name, one in results.items() if one.search.bound]
    return replace(
        parts[0],
        space=", ".join(dict.fromkeys(part.space for part in parts)),
        space_size=sum(size for size in sizes if size is not None),
        evaluated_live=sum(part.evaluated_live for part in parts),
        evaluated_twin=sum(part.evaluated_twin or 0 for part in parts),
        failed=sum(part.failed for part in parts),
        load_test_seconds=sum(part.load_test_seconds for part in parts),
        wall_seconds=max(part.wall_seconds or 0.0 for part in parts),
        bound="; ".join(bounds) or None,
        budget_needed_s=max(needed, default=None),
    )


def _warnings(
    results: Mapping[str, StudyResult], failed: Mapping[str, AnalyzerError]
) -> tuple[str, ...]:
    """What failed; then each warning once, with the types that it is about unless it is all."""
    about: dict[str, list[str]] = {}
    for name, one in results.items():
        for warning in one.warnings:
            about.setdefault(warning, []).append(name)
    return (
        *(f"{name} could not be searched: {error.message}" for name, error in failed.items()),
        *(
            warning
            if len(names) == len(results) + len(failed)
            else f"{', '.join(names)}: {warning}"
            for warning, names in about.items()
        ),
    )


def _told(part: TypePart, found: StudyResult | AnalyzerError) -> InstanceTypeResult:
    if isinstance(found, AnalyzerError):
        return InstanceTypeResult(
            pricing=part.pricing,
            hardware=part.hardware,
            workers=part.workers,
            reason=" ".join(filter(None, (found.message, found.hint))),
        )
    return InstanceTypeResult(
        pricing=part.pricing,
        verdict=found.verdict,
        recommended_id=found.recommended_id,
        baseline_id=found.baseline_id,
        hardware=part.hardware,
        workers=part.workers,
        reason=" ".join((*_losses(found), *_taken_back(found))),
    )


def _losses(found: StudyResult) -> list[str]:
    """What a type's machines that were lost cost; at most one sentence."""
    lost = [
        outcome
        for outcome in found.outcomes
        if isinstance(outcome, Failure) and outcome.reason == "worker_lost"
    ]
    if not lost:
        return []
    return [f"Configurations that lost their worker: {len(lost)}. {lost[-1].message}"]


def _taken_back(found: StudyResult) -> list[str]:
    """Why a type has no recommendation though a certificate passed; at most one sentence."""
    if found.verdict == "found" or not set(found.recommendable or ()) & set(found.taken_back):
        return []
    why = "the machine was worse later than in its runs, or more confidence is asked for now"
    return [f"A certificate passed, but {why}: it is not upheld."]
