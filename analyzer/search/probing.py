"""Probes the service times that the twin needs, of the variants that can still win."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from analyzer.domain.configuration import Configuration, VariantKey
from analyzer.measure.jobs import Job
from analyzer.measure.tasks import ProbeTask
from analyzer.search.build import BuiltVariants
from analyzer.search.context import SearchContext
from analyzer.twin.calibration import VariantCalibration
from analyzer.twin.probes import Probe, plan_probes

# A variant that costs this many times the cheapest one's core time is not probed further.
_PRUNE_FACTOR = 2.0
# One probe takes this share of the budget, within limits (seconds); all of them are expected to
# take at most so much (share, seconds).
_PROBE_SHARE = 1 / 500
_PROBE_S = (0.1, 0.4)
_EXPECTED = (0.25, 20.0)
# Beyond these a worker that probes is held to hang: at its start, for each probe, and for the job.
_START_TIMEOUT_S = 60.0
_PROBE_TIMEOUT_S = 10.0
_JOB_TIMEOUT_S = 60.0


def probe(context: SearchContext, built: BuiltVariants) -> None:
    """Fills ``built.calibrations``: two probes of every variant, the rest where they may pay.

    The baseline's deployment is always probed, since it is certified in any case. A variant that
    cannot be probed is a warning.
    """
    budget_s = context.request.budget_s
    share, seconds_max = _EXPECTED
    context.progress.phase("probing service times", min(seconds_max, share * budget_s))
    by_variant = {
        key: [c for c in context.candidates.values() if c.variant == key]
        for key in built.variants
        if key not in built.excluded
    }
    plans = {key: _plan(context, chosen) for key, chosen in by_variant.items() if chosen}
    _probe(context, built, {key: _first_probes(plan) for key, plan in plans.items()})
    costs_ms = {key: c.cost_ms() for key, c in built.calibrations.items()}
    cheapest_ms = min((cost for cost in costs_ms.values() if cost is not None), default=0.0)
    rest = {
        key: plan
        for key, plan in plans.items()
        if key in costs_ms and (costs_ms[key] or 0.0) <= _PRUNE_FACTOR * cheapest_ms
    }
    baseline = context.baseline
    rest[baseline.variant] = [*rest.get(baseline.variant, []), *_plan(context, [baseline])]
    _probe(context, built, rest)


def _plan(context: SearchContext, configurations: Sequence[Configuration]) -> list[Probe]:
    seconds = float(np.clip(_PROBE_SHARE * context.request.budget_s, *_PROBE_S))
    return plan_probes(
        deployments=sorted({(c.instance_count, c.intra_op_threads or 0) for c in configurations}),
        batch_max=max(1, *(c.max_batch_size for c in configurations)),
        request_batch_size=int(context.request.batch_sizes.min()),
        seconds=seconds,
    )


def _first_probes(probes: Sequence[Probe]) -> list[Probe]:
    """Of the simplest deployment the smallest and a middle batch: they tell what is too dear."""
    alone = [p for p in probes if (p.threads, p.busy) == (probes[0].threads, 1)]
    return sorted({alone[0], alone[len(alone) // 2]}, key=lambda probe: probe.batch)


def _probe(
    context: SearchContext, built: BuiltVariants, plans: Mapping[VariantKey, Sequence[Probe]]
) -> None:
    """Runs the probes of ``plans`` that are neither known nor cached."""
    cache = context.probe_cache
    jobs = []
    by_job = {f"probe-{key.label}": key for key in plans}
    for job_id, key in by_job.items():
        probes = list(plans[key])
        known = built.calibrations.get(key) or cache.load(key, built.variants[key].sha256)
        if known is not None:
            built.calibrations[key] = known
            probes = known.lacks(probes)
        if probes:
            timeout_s = _START_TIMEOUT_S + _PROBE_TIMEOUT_S * len(probes)
            task = ProbeTask(
                assets=context.assets,
                key=key,
                device=context.request.device,
                probes=tuple(probes),
                batch_ms_max=context.request.sla.latency_budget_ms,
                timeout_s=timeout_s,
            )
            jobs.append(Job(job_id, task, timeout_s + _JOB_TIMEOUT_S, f"probe {key.label}"))
    for result in context.run(jobs):
        key = by_job[result.job_id]
        context.progress.detail(f"probed {key.label}")
        if result.error is not None:
            context.log.warn(f"{key.label} could not be probed: {result.error.message}")
            continue
        assert isinstance(result.value, list)
        empty = VariantCalibration(variant=key, results=())
        built.calibrations[key] = built.calibrations.get(key, empty).merged(result.value)
        cache.save(built.variants[key].sha256, built.calibrations[key])
