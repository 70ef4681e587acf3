"""Strategies on a loaded target: find its edge, certify a rate, measure at a fixed rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import Certificate, Edge, LoadTest, Measurement
from analyzer.errors import TargetError
from analyzer.measure.certify import CertifyGoal, certify_capacity
from analyzer.measure.edge import EdgeGoal, EdgeSearch, RateOutcome
from analyzer.measure.judge import judge_runs, merge_tests
from analyzer.measure.plan import STREAM_EDGE, CertifyPlan, EdgePlan, LoadPlan
from analyzer.measure.session import Session
from analyzer.measure.virtual_session import VirtualSession
from analyzer.stats.certificate import expected_requests
from analyzer.twin.server_model import ServerModel

# Invalid runs before the configuration is given up, and the factor to the next rate: 12 of them
# reach 0.3 of the first one.
_INVALID_MAX = 12
_INVALID_EASE = 0.9
_EDGE_REQUESTS_MIN = 20
# Without a twin: the inflation that a first plan supposes (docs/statistics.md: 6 and 13
# at 0.5 and 0.7 of saturation), and the share of the allowed miss rate. The runs correct both.
_INFLATION_GUESS = 10.0
_MISS_GUESS_SHARE = 0.2
# However light the load, a machine has slow moments that no twin of the queue knows.
_INFLATION_FLOOR = 1.5
# Repeats of the twin's search with other service noise, and how far it may correct an edge: short
# runs flatter it; a larger correction would be the twin's own error.
_CONTROL_RUNS = 5
_CONTROL_RANGE = (0.75, 1.1)
# Simulated requests behind one inflation and one miss rate: fractions of a second.
_INFLATION_REQUESTS = 400_000
_MISS_RATE_REQUESTS = 50_000


def measure_edge(session: Session, plan: EdgePlan, load: LoadPlan, saturation_rps: float) -> Edge:
    """The edge of the target, from runs of at most ``plan.seconds`` in all.

    Args:
        saturation_rps: What a closed loop achieved: where the search starts without a prediction.

    Raises:
        TargetError: Not one run was valid.
    """
    sla = load.sla
    low_s, high_s = plan.run_seconds
    search = EdgeSearch(
        EdgeGoal(
            budget_ms=sla.latency_budget_ms,
            miss_rate_max=sla.miss_rate_max,
            # A little below the prediction, where a run is most informative about both sides.
            start_rps=0.97 * plan.start_rps if plan.start_rps else 0.8 * saturation_rps,
            step=_step(plan),
            precision=1.04,
            floor_rps=_EDGE_REQUESTS_MIN / high_s,
        )
    )
    spent_s = 0.0
    invalid: list[LoadTest] = []
    ease = 1.0
    while (rate := search.next_rate_rps()) is not None and spent_s < plan.seconds:
        rate = max(ease * rate, search.floor_rps)
        seconds = float(np.clip(500 / rate, low_s, high_s))
        test = session.run(rate, seconds, kind="edge", stream=STREAM_EDGE)
        spent_s += test.duration_s
        outcome = RateOutcome(
            rate_rps=rate,
            requests=test.requests,
            over_budget=test.over_budget or 0,
            latency_ms=test.latency_ms.sla,
            aborted=test.aborted,
        )
        # The generator's lag is inside the latency already: a rate that keeps the SLA keeps it.
        if not test.validity.valid and not search.keeps(outcome):
            # An overload of a shared machine makes the generator late as well; a lower one may not.
            invalid.append(test)
            ease *= _INVALID_EASE
            if len(invalid) >= _INVALID_MAX:
                break
            continue
        ease = 1.0
        search.record(outcome)
    edge = search.edge()
    if invalid and edge.rate_rps is None and edge.interval_rps == (None, None):
        reasons = "; ".join(invalid[-1].validity.reasons)
        raise TargetError(
            f"None of {len(invalid)} load tests was valid: {reasons}.",
            hint="Something else keeps this machine busy; run it again when it is quiet.",
        )
    return edge


def long_run_edge(edge: Edge, plan: EdgePlan, load: LoadPlan) -> Edge:
    """``edge`` without the optimism of short runs; itself where there is no twin.

    Near the edge the misses come in rare bursts, which most runs of a second do not see. The twin
    goes through the same search on the same arrivals; how far that lies above its own long-run
    edge is how far the live search lies above the live one (a control variate).
    """
    twin, predicted = plan.twin, plan.twin_edge_rps
    if twin is None or not predicted or not edge.rate_rps:
        return edge
    ratios = []
    for repeat in range(_CONTROL_RUNS):
        session = VirtualSession(twin, load, noise_seed=repeat)
        same = replace(plan, start_rps=predicted, twin=None)
        found = measure_edge(session, same, load, predicted).rate_rps
        if found:
            ratios.append(predicted / found)
    if not ratios:
        return edge
    ratio = float(np.clip(np.median(ratios), *_CONTROL_RANGE))
    low, high = edge.interval_rps
    return Edge(
        rate_rps=edge.rate_rps * ratio,
        interval_rps=(
            low * ratio if low is not None else None,
            high * ratio if high is not None else None,
        ),
    )


def _step(plan: EdgePlan) -> float:
    """The first factor between rates: what the start may be off by."""
    if plan.trusted:
        return 1.06
    return 1.1 if plan.start_rps else 1.25


def certify_target(
    session: Session, load: LoadPlan, plan: CertifyPlan, *, edge_rps: float
) -> tuple[float | None, Certificate | None, LoadTest | None]:
    """Certifies the plan's rate, or the highest share of ``edge_rps`` that its time allows.

    Returns:
        The rate that was certified (None if none was), the last certificate, and the headline: all
        valid runs at that rate as one load test.
    """
    sla = load.sla
    inflation = cache(inflation_at(plan.twin, load))
    miss_rate = cache(miss_rate_at(plan.twin, load))

    def requests_needed(rate: float) -> float | None:
        found = inflation(rate)
        share = miss_rate(rate)
        return expected_requests(
            miss_rate=share if share is not None else _MISS_GUESS_SHARE * sla.miss_rate_max,
            inflation=max(found, _INFLATION_FLOOR) if found is not None else _INFLATION_GUESS,
            percentile=sla.percentile,
            confidence=sla.confidence,
        )

    first = len(session.tests)

    def judge(rate: float, indices: Sequence[int]) -> Certificate:
        return judge_runs(
            [session.tests[first + index] for index in indices],
            [session.logs[first + index] for index in indices],
            load,
            inflation(rate),
        )

    result = certify_capacity(
        CertifyGoal(
            edge_rps=edge_rps,
            seconds=plan.seconds,
            requests_needed=requests_needed,
            percentile=sla.percentile,
            fixed_rps=plan.rate_rps,
            shares=plan.shares,
        ),
        lambda rate, length: session.run(
            rate, length, kind=plan.kind, stream=plan.stream, abort=False
        ),
        judge,
    )
    headline = None
    if result.blocks:
        logs = [
            log
            for test, log in zip(session.tests[first:], session.logs[first:], strict=True)
            if any(test is block for block in result.blocks)
        ]
        headline = merge_tests(result.blocks, logs, percentile=sla.percentile)
    return (result.rate_rps if result.passed else None), result.certificate, headline


def inflation_at(model: ServerModel | None, load: LoadPlan) -> Callable[[float], float | None]:
    """The simulated variance inflation by live rate; None without a model."""
    if model is None:
        return lambda rate_rps: None
    arrivals = load.unit_arrivals(_INFLATION_REQUESTS)
    return lambda rate_rps: model.inflation(
        arrivals,
        rate_rps,
        budget_ms=load.sla.latency_budget_ms,
        percentile=load.sla.percentile,
    )


def miss_rate_at(model: ServerModel | None, load: LoadPlan) -> Callable[[float], float | None]:
    """The simulated fraction of requests over budget by live rate; None without a model."""
    if model is None:
        return lambda rate_rps: None
    arrivals = load.unit_arrivals(_MISS_RATE_REQUESTS, seed=load.seed)
    return lambda rate_rps: model.miss_rate(
        arrivals, rate_rps, budget_ms=load.sla.latency_budget_ms
    )


def measure_configuration(
    session: Session,
    configuration: Configuration,
    load: LoadPlan,
    *,
    edge_plan: EdgePlan | None = None,
    certify: CertifyPlan | None = None,
    target_seconds: float | None = None,
) -> Measurement:
    """Measures what the plans ask for, in this order: warm-up, edge, target rate, certificate.

    Args:
        edge_plan: How the edge is searched; None to leave it out.
        certify: What is proven; None for nothing.
        target_seconds: How long to run at the SLA's target rate; None for not at all.

    Raises:
        TargetError: The server failed, or not one run was valid.
    """
    saturation = session.warm_up(concurrency=_concurrency(configuration, load, edge_plan, certify))
    edge = Edge(rate_rps=None, interval_rps=(None, None))
    headline = None
    if certify is not None and certify.edge is not None:
        edge = certify.edge
    elif edge_plan is not None:
        edge = long_run_edge(measure_edge(session, edge_plan, load, saturation), edge_plan, load)
    if target_seconds is not None and load.sla.target_rate_rps is not None:
        headline = session.run(
            load.sla.target_rate_rps, target_seconds, kind="target", stream=STREAM_EDGE
        )
    capacity, certificate = None, None
    if certify is not None and (certify.rate_rps or edge.rate_rps):
        capacity, certificate, proven = certify_target(
            session, load, certify, edge_rps=edge.rate_rps or certify.rate_rps or 0.0
        )
        headline = proven or headline
    return Measurement(
        configuration=configuration.canonical(),
        edge=edge,
        capacity_rps=capacity,
        certificate=certificate,
        headline=headline,
        load_tests=tuple(session.tests),
        load_test_seconds=session.seconds,
        resources=session.peak(),
        notes=session.notes,
    )


def _concurrency(
    configuration: Configuration,
    load: LoadPlan,
    edge_plan: EdgePlan | None,
    certify: CertifyPlan | None,
) -> int:
    """Enough to reach every instance; enough to saturate where nobody predicts the edge."""
    known = certify is not None and (certify.edge or certify.rate_rps)
    if known or (edge_plan is not None and edge_plan.start_rps):
        return 2 * configuration.instance_count
    return load.saturating_concurrency(configuration)
