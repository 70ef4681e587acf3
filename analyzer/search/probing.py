"""Probes the service times that the twin needs, of the variants that can still win."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from analyzer.domain.configuration import Configuration, VariantKey
from analyzer.engine.policy import BatchingPolicy
from analyzer.errors import AnalyzerError
from analyzer.measure.correlation import requests_needed
from analyzer.measure.jobs import Job
from analyzer.measure.tasks import ProbeTask
from analyzer.measure.witness import SAFE_SHARE
from analyzer.search.build import BuiltVariants
from analyzer.search.context import SearchContext
from analyzer.twin.arrivals import UnitArrivals
from analyzer.twin.calibration import VariantCalibration
from analyzer.twin.heavy_traffic import heavy_traffic_edges
from analyzer.twin.probes import Probe, plan_probes
from analyzer.twin.screen import dispersion

# The first look at a variant tells its edge to about a factor: it is not probed further where its
# edge times this is below the best one divided by this.
_UNCERTAINTY = 1.4
# A request that comes while such a batch runs waits for most of it: batches that take longer than
# this share of the latency budget keep no SLA, and larger ones are not probed.
_BATCH_SHARE = 0.5
# What a first proof takes by and large: a light load's variance inflation (docs/statistics.md,
# section 3). The screen knows better afterwards.
_ROUGH_INFLATION = 2.5
# One probe takes this share of the budget, within limits (seconds).
_PROBE_SHARE = 1 / 500
_PROBE_S = (0.1, 0.4)
# Of the time until the first proof must begin: what all probes may take, and where there is time no
# less than so many seconds each time.
_TIME_SHARE = 0.4
_SECONDS_MIN = 2.0
# Arrivals whose dispersion the approximation takes.
_DISPERSION_REQUESTS = 20_000
# What is expected of them, for the progress bar (share of the budget, seconds).
_EXPECTED = (0.25, 20.0)
# A worker is held to hang so long after its probes should have ended.
_JOB_GRACE_S = 120.0


def probe(context: SearchContext, built: BuiltVariants) -> None:
    """Fills ``built.calibrations``: two probes of every variant, the rest where they may pay.

    The baseline's deployment is always probed, since it is measured in any case. A variant that
    cannot be probed is a warning.

    Raises:
        BudgetEndedError: There is no time for a measurement after it.
    """
    plan = context.plan
    # Nothing of ours may run beside a probe: neither a start of workers nor a compilation.
    if not context.executor.ready(plan.left_before_s("probes")):
        raise plan.ended()
    if not context.settle(plan.left_before_s("probes")):
        raise plan.ended()
    share, seconds_max = _EXPECTED
    context.progress.phase("probing service times", min(seconds_max, share * plan.budget_s))
    deadline = context.clock() + _TIME_SHARE * plan.preparation_left_s
    by_variant = {
        key: [c for c in context.candidates.values() if c.variant == key]
        for key in built.variants
        if key not in built.excluded
    }
    plans = {key: _plan(context, chosen) for key, chosen in by_variant.items() if chosen}
    rest = plans
    if len(plans) > 1:  # a look at each, in a process of its own, before those that may win
        _probe(context, built, {key: _first_probes(plan) for key, plan in plans.items()}, deadline)
        edges = _first_edges(context, built, by_variant)
        best = max(edges.values(), default=0.0)
        if best:
            plan.expect_proof(context.server_start_s + rough_proof_s(context, best))
            left_s = max(plan.preparation_left_s, 0.0)
            deadline = min(deadline, context.clock() + _TIME_SHARE * left_s)
        every = context.request.sla.objective == "memory"
        least = best / _UNCERTAINTY**2
        rest = {key: plans[key] for key, edge in edges.items() if every or edge >= least}
    baseline = context.baseline
    rest[baseline.variant] = [*rest.get(baseline.variant, []), *_plan(context, [baseline])]
    _probe(context, built, rest, deadline)


def rough_proof_s(context: SearchContext, edge_rps: float) -> float:
    """Seconds under load of a first proof, by and large, where the best edge is about so high."""
    needed = requests_needed(
        context.request.sla, inflation=_ROUGH_INFLATION, miss_rate=0.0, claim=1
    )
    return max((needed or math.inf) / (SAFE_SHARE * edge_rps), context.load.least_s)


def _first_edges(
    context: SearchContext,
    built: BuiltVariants,
    by_variant: Mapping[VariantKey, Sequence[Configuration]],
) -> dict[VariantKey, float]:
    """The best edge of each variant after a first look, as the approximation has it."""
    sla, arrivals = context.request.sla, context.request.arrivals
    unit = UnitArrivals.draw(arrivals, count=_DISPERSION_REQUESTS, seed=0)
    edges: dict[VariantKey, float] = {}
    constants = context.constants
    for key, configurations in by_variant.items():
        known = built.calibrations.get(key)
        if known is None or not configurations:
            continue
        servers = [
            (BatchingPolicy.from_configuration(configuration), service, constants.overhead_ms)
            for configuration in configurations
            if (
                service := known.service_of(configuration, cores=context.cores, constants=constants)
            )
            is not None
        ]
        edges[key] = float(
            heavy_traffic_edges(
                servers,
                budget_ms=sla.latency_budget_ms,
                percentile=sla.percentile,
                request_batch_size=int(context.request.batch_sizes.min()),
                arrival_scv=dispersion(unit.time_s),
            ).max(initial=0.0)
        )
    return edges


def _plan(context: SearchContext, configurations: Sequence[Configuration]) -> list[Probe]:
    seconds = float(np.clip(_PROBE_SHARE * context.request.budget_s, *_PROBE_S))
    return plan_probes(
        deployments=sorted({(c.instance_count, c.intra_op_threads or 0) for c in configurations}),
        batch_max=max(1, *(c.max_batch_size for c in configurations)),
        request_batch_size=int(context.request.batch_sizes.min()),
        seconds=seconds,
        on_gpu=context.request.device == "gpu",
    )


def _first_probes(probes: Sequence[Probe]) -> list[Probe]:
    """Of the simplest deployment the smallest and a middle batch: they tell what is too dear."""
    alone = [p for p in probes if (p.threads, p.busy) == (probes[0].threads, 1)]
    return sorted({alone[0], alone[len(alone) // 2]}, key=lambda probe: probe.batch)


def _probe(
    context: SearchContext,
    built: BuiltVariants,
    plans: Mapping[VariantKey, Sequence[Probe]],
    deadline: float,
) -> None:
    """Runs the probes of ``plans`` that are neither known nor cached, in one process."""
    cache, request = context.probe_cache, context.request
    limit_ms = _BATCH_SHARE * request.sla.latency_budget_ms
    missing = []
    for key, plan in plans.items():
        sha256 = built.variants[key].sha256
        known = built.calibrations.get(key) or cache.load(key, sha256, request.device)
        probes = list(dict.fromkeys(plan))
        if known is not None:
            built.calibrations[key] = known
            probes = known.lacks(probes, limit_ms=limit_ms)
        if probes:
            missing.append((key, tuple(probes)))
    if not missing:
        return
    # Their process takes its time to start.
    left_s = context.plan.left_s - context.plan.least_s("probes")
    seconds = min(max(_SECONDS_MIN, deadline - context.clock()), left_s)
    if seconds <= 0.0:
        return
    task = ProbeTask(
        assets=context.assets,
        plans=tuple(missing),
        device=request.device,
        batch_ms_max=limit_ms,
        seconds_max=seconds,
    )
    context.progress.detail(", ".join(key.label for key, _ in missing))
    # Should one variant fail, each is probed alone.
    timeout_s = (1 + len(missing)) * (seconds + _JOB_GRACE_S)
    for result in context.run([Job("probe", task, timeout_s, "probe variants")]):
        if result.error is not None:
            context.log.warn(f"Nothing could be probed: {result.error.message}")
            continue
        assert isinstance(result.value, dict)
        for key, found in result.value.items():
            if isinstance(found, AnalyzerError):
                context.log.warn(f"{key.label} could not be probed: {found.message}")
                continue
            empty = VariantCalibration(variant=key, results=())
            built.calibrations[key] = built.calibrations.get(key, empty).merged(found)
            cache.save(built.variants[key].sha256, built.calibrations[key], request.device)
