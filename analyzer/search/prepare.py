"""What a search does before its first trial: builds the variants and probes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from analyzer.domain.configuration import Configuration, VariantKey
from analyzer.domain.measurement import Accuracy, Failure
from analyzer.errors import AnalyzerError
from analyzer.measure.failures import as_failure
from analyzer.measure.jobs import Executor, Job, JobResult
from analyzer.measure.tasks import Assets, BuildTask, ProbeTask
from analyzer.search.request import Progress, SearchRequest
from analyzer.twin.calibration import VariantCalibration
from analyzer.twin.probe_cache import ProbeCache
from analyzer.twin.probes import Probe, plan_probes

if TYPE_CHECKING:
    from analyzer.variants.build import Variant

# A variant that costs this many times the cheapest one's core time is not probed further.
_PRUNE_FACTOR = 2.0
_BUILD_TIMEOUT_S = 1800.0


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
            known = prepared.calibrations.get(key) or cache.load(key, prepared.variants[key].sha256)
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
            cache.save(prepared.variants[key].sha256, merged)

        run_jobs(executor, jobs, finished)

    smallest = int(request.batch_sizes.min())

    def plan(chosen: Sequence[Configuration]) -> list[Probe]:
        return plan_probes(
            deployments=sorted({(c.instance_count, c.intra_op_threads or 0) for c in chosen}),
            batch_max=max(max(c.max_batch_size for c in chosen), 1),
            request_batch_size=smallest,
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
