"""What a search does before its first trial: builds the variants, probes them, asks the twin."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from analyzer.domain.answer import representative_test
from analyzer.domain.configuration import Configuration, VariantKey
from analyzer.domain.measurement import Accuracy, Failure, Measurement
from analyzer.domain.sla import Sla
from analyzer.domain.workload import ArrivalProcess
from analyzer.errors import AnalyzerError
from analyzer.measure.failures import as_failure
from analyzer.measure.jobs import Executor, Job, JobResult
from analyzer.measure.plan import TwinOfOne
from analyzer.measure.tasks import Assets, BuildTask, ProbeTask
from analyzer.search.request import Progress, SearchRequest
from analyzer.twin.calibration import (
    OVERHEAD_MS_GUESS,
    VariantCalibration,
    service_of,
)
from analyzer.twin.probes import Probe, plan_probes

if TYPE_CHECKING:
    from analyzer.twin.bands import Candidate
    from analyzer.variants.build import Variant

# A variant that costs this many times the cheapest one's core time is not probed further.
_PRUNE_FACTOR = 2.0
_BUILD_TIMEOUT_S = 1800.0
# Configurations between two looks at the clock while the twin computes.
_CHUNK = 16


@dataclass(slots=True)
class Prepared:
    """What is known before the first trial.

    Args:
        variants: Those that were built, with their accuracy.
        excluded: Why a variant may not be recommended, as a failure of its plainest configuration.
        calibrations: Probed service times.
    """

    variants: dict[VariantKey, Variant] = field(default_factory=dict)
    excluded: dict[VariantKey, Failure] = field(default_factory=dict)
    calibrations: dict[VariantKey, VariantCalibration] = field(default_factory=dict)


def run_jobs(
    executor: Executor, jobs: Sequence[Job], on_result: Callable[[JobResult], None]
) -> None:
    """Runs ``jobs`` to their end, telling each result as it comes."""
    for job in jobs:
        executor.submit(job)
    waiting = len(jobs)
    while waiting:
        result = executor.next_result(1.0)
        if result is not None:
            waiting -= 1
            on_result(result)


def build_variants(
    request: SearchRequest,
    assets: Assets,
    keys: Sequence[VariantKey],
    plainest: Mapping[VariantKey, Configuration],
    executor: Executor,
    progress: Progress,
) -> Prepared:
    """Builds ``keys`` on the workers and sets apart those that break the accuracy limit."""
    prepared = Prepared()

    def finished(result: JobResult) -> None:
        if result.error is not None:
            raise result.error
        assert isinstance(result.value, dict)
        for key, built in result.value.items():
            if isinstance(built, AnalyzerError):
                prepared.excluded[key] = as_failure(plainest[key], built, stage="build")
                continue
            prepared.variants[key] = built
            reason = exclusion(built.accuracy, key, request)
            if reason:
                prepared.excluded[key] = Failure(
                    configuration=plainest[key], stage="build", reason="accuracy", message=reason
                )

    progress.detail(", ".join(key.label for key in keys))
    task = BuildTask(assets=assets, keys=tuple(keys))
    run_jobs(executor, [Job("build", task, _BUILD_TIMEOUT_S, "build variants")], finished)
    return prepared


def exclusion(accuracy: Accuracy | None, key: VariantKey, request: SearchRequest) -> str:
    """Why a variant may not be recommended; empty if it may."""
    if key.precision == "fp32" or accuracy is None:
        return ""
    limit = request.sla.max_accuracy_drop
    if accuracy.synthetic:
        if key.precision == "int8":
            if request.precisions_named:
                return ""
            return (
                f"{key.label} is not considered: without real data nobody knows its accuracy. "
                "Give --calibration-data, or name it with --precisions."
            )
        if accuracy.drop is not None and accuracy.drop > limit:
            return f"{key.label} is numerically off: {accuracy.metric} {accuracy.value}."
        return ""
    worst = accuracy.interval[1] if accuracy.interval is not None else accuracy.drop
    if worst is not None and worst > limit:
        return (
            f"{key.label} may lose {worst:.4f} of {accuracy.metric} (drop {accuracy.drop:.4f}, "
            f"limit {limit:g})."
        )
    return ""


class ProbeCache:
    """Where probes are kept between studies; the store behind two functions."""

    def __init__(
        self,
        read: Callable[[str], dict[str, object] | None],
        write: Callable[[str, dict[str, object]], None],
        hardware_key: str,
    ) -> None:
        self._read = read
        self._write = write
        self._hardware_key = hardware_key

    def load(self, report: Variant) -> VariantCalibration | None:
        """What earlier studies probed of this file on this hardware."""
        values = self._read(self._key(report))
        return VariantCalibration.from_dict(report.key, values) if values else None

    def save(self, report: Variant, calibration: VariantCalibration) -> None:
        """Keeps ``calibration`` for the next study."""
        self._write(self._key(report), calibration.to_dict())

    def _key(self, report: Variant) -> str:
        return f"{report.sha256}:{self._hardware_key}"


def probe_variants(
    request: SearchRequest,
    assets: Assets,
    prepared: Prepared,
    configurations: Sequence[Configuration],
    baseline: Configuration,
    executor: Executor,
    progress: Progress,
    cache: ProbeCache,
    *,
    seconds: float,
) -> list[str]:
    """Probes what the twin needs: a first look at every variant, then those that can still win.

    The baseline's deployment is always probed, since it is certified in any case.

    Returns:
        Sentences about variants that could not be probed.
    """
    problems: list[str] = []
    keys = [key for key in prepared.variants if key not in prepared.excluded]

    def probe(plans: Mapping[VariantKey, list[Probe]]) -> None:
        jobs = []
        for key, probes in plans.items():
            known = prepared.calibrations.get(key) or cache.load(prepared.variants[key])
            if known is not None:
                prepared.calibrations[key] = known
                probes = known.lacks(probes)
            if probes:
                task = ProbeTask(
                    assets=assets,
                    key=key,
                    device=request.device,
                    probes=tuple(probes),
                    batch_ms_max=request.sla.latency_budget_ms,
                    timeout_s=60.0 + 10.0 * len(probes),
                )
                jobs.append(
                    Job(f"probe-{key.label}", task, task.timeout_s + 60.0, f"probe {key.label}")
                )
        by_job = {f"probe-{key.label}": key for key in plans}

        def finished(result: JobResult) -> None:
            key = by_job[result.job_id]
            progress.detail(f"probed {key.label}")
            if result.error is not None:
                problems.append(f"{key.label} could not be probed: {result.error.message}")
                return
            assert isinstance(result.value, list)
            empty = VariantCalibration(variant=key, results=())
            merged = prepared.calibrations.get(key, empty).merged(result.value)
            prepared.calibrations[key] = merged
            cache.save(prepared.variants[key], merged)

        run_jobs(executor, jobs, finished)

    batch = request.request_batch_size

    def plan(chosen: Sequence[Configuration]) -> list[Probe]:
        return plan_probes(
            deployments=sorted({(c.instance_count, c.intra_op_threads or 0) for c in chosen}),
            batch_max=max(max(c.max_batch_size for c in chosen), 1),
            request_batch_size=batch,
            seconds=seconds,
        )

    by_variant = {key: [c for c in configurations if c.variant == key] for key in keys}
    by_variant = {key: chosen for key, chosen in by_variant.items() if chosen}
    probe({key: _first_look(plan(chosen)) for key, chosen in by_variant.items()})
    costs = {key: c.cost_ms() for key, c in prepared.calibrations.items()}
    cheapest = min((cost for cost in costs.values() if cost is not None), default=None)
    plans = {
        key: plan(chosen)
        for key, chosen in by_variant.items()
        if key in costs
        and (cheapest is None or (costs[key] or cheapest) <= _PRUNE_FACTOR * cheapest)
    }
    plans[baseline.variant] = [*plans.get(baseline.variant, []), *plan([baseline])]
    probe(plans)
    return problems


def _first_look(probes: Sequence[Probe]) -> list[Probe]:
    """Of the plainest deployment the smallest and a middle batch: they tell what is too dear."""
    alone = [p for p in probes if (p.threads, p.busy) == (probes[0].threads, 1)]
    return sorted({alone[0], alone[len(alone) // 2]}, key=lambda probe: probe.batch)


class TwinOracle:
    """The twin's predictions: the edge of a configuration from the probed service times."""

    def __init__(
        self,
        calibrations: Mapping[VariantKey, VariantCalibration],
        sla: Sla,
        arrivals: ArrivalProcess,
        *,
        request_batch_size: int,
        seed: int,
        overhead_ms: float = OVERHEAD_MS_GUESS,
    ) -> None:
        from analyzer.twin.bands import UnitArrivals

        self._calibrations = dict(calibrations)
        self._sla = sla
        self._request_batch_size = request_batch_size
        self.overhead_ms = overhead_ms
        self._unit = UnitArrivals.draw(
            arrivals, request_batch_size=request_batch_size, seed=seed, count=400_000
        )
        self._known: dict[str, float | None] = {}

    def candidate(self, configuration: Configuration) -> Candidate | None:
        """The configuration as the twin knows it; None without probes."""
        from analyzer.engine.policy import BatchingPolicy
        from analyzer.twin.bands import Candidate

        service = service_of(self._calibrations, configuration)
        if service is None:
            return None
        return Candidate(
            policy=BatchingPolicy.from_configuration(configuration),
            service=service,
            overhead_ms=self.overhead_ms,
        )

    def twin(self, configuration: Configuration, *, rate_scale: float = 1.0) -> TwinOfOne | None:
        """The configuration as a worker needs it; None without probes."""
        candidate = self.candidate(configuration)
        if candidate is None:
            return None
        return TwinOfOne(
            policy=candidate.policy,
            service=candidate.service,
            overhead_ms=candidate.overhead_ms,
            rate_scale=rate_scale,
        )

    def predict(
        self,
        configurations: Sequence[Configuration],
        *,
        seconds_max: float = math.inf,
        hopeless_share: float = 0.0,
    ) -> list[float | None]:
        """The edges of ``configurations``, requests per second; None where unknown or nowhere.

        Computes on all cores: no load test may run on this machine meanwhile. Those that could
        carry most come first.

        Args:
            seconds_max: What this does not suffice for stays unknown.
            hopeless_share: So does what saturates below this share of the best edge.
        """
        from analyzer.twin.bands import edges

        started = time.monotonic()
        best = 0.0
        waiting = []
        for configuration in configurations:
            if configuration.config_id in self._known:
                continue
            candidate = self.candidate(configuration)
            if candidate is None:
                continue
            limit = candidate.service.saturation_rps(candidate.policy, self._request_batch_size)
            waiting.append((limit, configuration, candidate))
        waiting.sort(key=lambda entry: -entry[0])
        for first in range(0, len(waiting), _CHUNK):
            chunk = waiting[first : first + _CHUNK]
            chunk = [entry for entry in chunk if entry[0] >= hopeless_share * best]
            if not chunk or time.monotonic() - started > seconds_max:
                break
            found = edges(
                [candidate for _, _, candidate in chunk],
                self._unit,
                budget_ms=self._sla.latency_budget_ms,
                percentile=self._sla.percentile,
                threads=os.cpu_count(),
            )
            for (_, configuration, _), edge in zip(chunk, found, strict=True):
                self._known[configuration.config_id] = edge
                best = max(best, edge or 0.0)
        return [self._known.get(configuration.config_id) for configuration in configurations]

    def completed(self, outcome: Measurement | Failure) -> Measurement | Failure:
        """A measurement with the p99 that the twin expects at the rate it is presented at."""
        if isinstance(outcome, Failure):
            return outcome
        test = representative_test(outcome, self._sla)
        if test is None or test.offered_rps is None:
            return outcome
        p99_ms = self.latency_ms(outcome.configuration, test.offered_rps, percentile=99.0)
        return replace(outcome, predicted=replace(outcome.predicted, latency_ms_p99=p99_ms))

    def latency_ms(
        self, configuration: Configuration, rate_rps: float, *, percentile: float | None = None
    ) -> float | None:
        """Latency at a percentile (the SLA's, if None) at ``rate_rps``; None without probes."""
        from analyzer.twin.simulator import OpenWorkload, simulate

        candidate = self.candidate(configuration)
        if candidate is None:
            return None
        count = 20_000
        workload = OpenWorkload(
            arrival_ns=(self._unit.time_s[:count] * (1e9 / rate_rps)).astype(np.int64),
            batch_size=self._unit.batch_size[:count],
        )
        result = simulate(
            candidate.policy, candidate.service, workload, overhead_ms=candidate.overhead_ms
        )
        return result.percentile_ms(percentile or self._sla.percentile)
