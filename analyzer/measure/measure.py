"""Strategies on a loaded target: find its edge, certify a rate, measure at a fixed rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import (
    SLOWNESS_BIN_S,
    Certificate,
    Conditions,
    Edge,
    LoadTest,
    Measurement,
    RateEvidence,
)
from analyzer.errors import TargetError
from analyzer.measure.certify import CertifyGoal, certify_capacity
from analyzer.measure.edge import EdgeGoal, EdgeSearch, RateOutcome
from analyzer.measure.judge import judge_runs, merge_tests
from analyzer.measure.plan import STREAM_EDGE, CertifyPlan, EdgePlan, LoadPlan
from analyzer.measure.session import Session
from analyzer.measure.virtual_session import VirtualSession
from analyzer.measure.witness import carried, rate_ceiling
from analyzer.stats.certificate import claim_confidence, expected_requests
from analyzer.twin.pace import path_of, slowness
from analyzer.twin.server_model import ServerModel

# Invalid runs before the configuration is given up, and the factor to the next rate: 12 of them
# reach 0.3 of the first one.
_INVALID_MAX = 12
_INVALID_EASE = 0.9
_EDGE_REQUESTS_MIN = 20  # in the longest run at the lowest rate of an edge: as of any load test
# The first step down from a prediction that is good to a few percent.
_STEP_DOWN_TRUSTED = 1.12
# Without a twin: the inflation that a first plan supposes (docs/statistics.md: 6 and 13
# at 0.5 and 0.7 of saturation), and the share of the allowed miss rate. The runs correct both.
INFLATION_GUESS = 10.0
MISS_GUESS_SHARE = 0.2
# The lead-in of a certificate's run without a twin, in latency budgets.
_LEAD_IN_BUDGETS = 5.0
# However light the load, a machine has slow moments that no twin of the queue knows.
_INFLATION_FLOOR = 1.5
# Repeats of the twin's search with other service noise, and how far it may correct an edge: short
# runs flatter it; a larger correction would be the twin's own error.
_CONTROL_RUNS = 5
_CONTROL_RANGE = (0.75, 1.1)
# Simulated requests behind one inflation and one miss rate: fractions of a second. At a high load
# overloads are so rare that 400,000 requests see few: an inflation of 86 at 0.9 of saturation comes
# out between 46 and 300.
_INFLATION_REQUESTS = 400_000
_INFLATION_REQUESTS_HIGH = 1_600_000
_HIGH_LOAD = 0.8
_MISS_RATE_REQUESTS = 50_000
# The speeds that were met count anew when the runs are so many times as long: each time costs some
# tenths of a second.
_REFRESH_FACTOR = 1.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What certifying came to.

    Args:
        rate_rps: The certified rate; None if none was.
        certificate: Of that rate, or of the one tried last.
        headline: All of this walk's runs at that rate as one load test; None without any.
        evidence: By rate in ascending order, what was known included.
    """

    rate_rps: float | None = None
    certificate: Certificate | None = None
    headline: LoadTest | None = None
    evidence: tuple[RateEvidence, ...] = ()


def measure_edge(session: Session, plan: EdgePlan, load: LoadPlan, saturation_rps: float) -> Edge:
    """The edge of the target, from runs of ``plan.seconds`` in all; longer until a rate is kept.

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
            step_down=_STEP_DOWN_TRUSTED if plan.trusted else 2.0,
            precision=1.04,
            floor_rps=_EDGE_REQUESTS_MIN / high_s,
        )
    )
    spent_s = 0.0
    invalid: list[LoadTest] = []
    ease = 1.0
    speeds: dict[float, Conditions | None] = {}
    while (rate := search.next_rate_rps()) is not None:
        if spent_s >= plan.seconds and search.kept_rps is not None:
            break
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
        speeds[rate] = test.conditions
    edge = search.edge()
    if (seen := speeds.get(search.kept_rps or 0.0)) is not None and seen.work_us:
        edge = replace(edge, work_us=float(np.median(seen.work_us)))
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
    predicted = plan.twin_edge_rps
    # Short runs mostly meet the usual speed; what the others cost is told of all edges alike.
    twin = replace(plan.twin, path=None) if plan.twin is not None else None
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
    return replace(
        edge,
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


def certify_target(session: Session, load: LoadPlan, plan: CertifyPlan, *, edge: Edge) -> Proof:
    """Certifies the plan's rate, or the highest share of ``edge`` that its time allows."""
    sla = load.sla
    correlation = _Correlation(session, plan, load)
    earlier = {known.rate_rps: known for known in plan.earlier}
    first = len(session.tests)

    def requests_needed(rate: float, claim: int) -> float | None:
        found, share = correlation.inflation(rate), correlation.miss_rate(rate)
        known = earlier.get(rate)
        return expected_requests(
            miss_rate=share if share is not None else MISS_GUESS_SHARE * sla.miss_rate_max,
            inflation=max(
                found if found is not None else INFLATION_GUESS,
                (known.inflation if known is not None else None) or _INFLATION_FLOOR,
            ),
            percentile=sla.percentile,
            confidence=claim_confidence(sla.confidence, claim),
            requests=known.requests if known is not None else 0,
            over_budget=known.over_budget if known is not None else 0,
        )

    def study() -> Conditions | None:
        return Conditions.pooled([plan.conditions, *(test.conditions for test in session.tests)])

    def judge(rate: float, indices: Sequence[int], claim: int) -> Certificate:
        tests, watched = [session.tests[first + index] for index in indices], study()
        found = judge_runs(
            tests,
            [session.logs[first + index] for index in indices],
            load,
            correlation.inflation(rate) if indices else None,
            earlier=earlier.get(rate),
            claim=claim,
            study=watched,
        )
        seen = None if rate in earlier else Conditions.pooled(test.conditions for test in tests)
        if found.verdict == "PASS" and not carried(rate, edge, watched, sla, seen):
            return replace(found, verdict="UNDECIDED")
        return found

    result = certify_capacity(
        CertifyGoal(
            edge_rps=edge.at_least_rps or plan.rate_rps or 0.0,
            seconds=plan.seconds,
            requests_needed=requests_needed,
            percentile=sla.percentile,
            fixed_rps=plan.rate_rps,
            shares=plan.shares,
            above_rps=plan.above_rps,
            earlier=plan.earlier,
            open_claims=plan.open_claims,
            lead_in_s=lambda rate: relaxation_s(plan.twin, load, rate),
            ceiling_rps=lambda: rate_ceiling(edge, study(), sla),
        ),
        lambda rate, lead_s, length_s: session.run(
            rate, length_s, kind=plan.kind, stream=plan.stream, abort=False, lead_in_s=lead_s
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
    return Proof(
        rate_rps=result.rate_rps if result.passed else None,
        certificate=result.certificate,
        headline=headline,
        evidence=tuple(known for _, known in sorted(result.evidence.items())),
    )


class _Correlation:
    """What the twin expects of late requests by rate, at the speeds that were met so far."""

    def __init__(self, session: Session, plan: CertifyPlan, load: LoadPlan) -> None:
        self._session = session
        self._plan = plan
        self._load = load
        self._seconds = -math.inf
        self._refreshed()

    def inflation(self, rate_rps: float) -> float | None:
        """As :func:`inflation_at`."""
        self._refreshed()
        return self._inflation(rate_rps)

    def miss_rate(self, rate_rps: float) -> float | None:
        """As :func:`miss_rate_at`."""
        self._refreshed()
        return self._miss_rate(rate_rps)

    def _refreshed(self) -> None:
        """Takes in the speeds of further runs, as soon as they are a part of what was known."""
        met_s = SLOWNESS_BIN_S * sum(len(test.slowness) for test in self._session.tests)
        if met_s < _REFRESH_FACTOR * self._seconds:
            return
        self._seconds = met_s or math.inf
        model = self._plan.twin
        if model is not None:
            own = slowness(self._session.tests)
            model = replace(model, path=path_of((*self._plan.slowness, *own)))
        self._inflation = cache(inflation_at(model, self._load))
        self._miss_rate = cache(miss_rate_at(model, self._load))


def relaxation_s(model: ServerModel | None, load: LoadPlan, rate_rps: float) -> float:
    """How long a queue that starts empty takes to forget it, seconds.

    In heavy traffic the relaxation time is about the service time over (1 - sqrt(load))². Source:
    Abate and Whitt 1987, "Transient behavior of the M/M/1 queue". Without a model it is guessed
    from the latency budget, which longer queues would not keep.
    """
    if model is None:
        return _LEAD_IN_BUDGETS * load.sla.latency_budget_ms / 1e3
    share = min(rate_rps / model.saturation_rps(load.batch_sizes()), 0.999)
    batch_s = model.service.service_ms[-1] / 1e3
    return float(batch_s / (1.0 - np.sqrt(share)) ** 2)


def inflation_at(model: ServerModel | None, load: LoadPlan) -> Callable[[float], float | None]:
    """The simulated variance inflation by live rate; None without a model."""
    if model is None:
        return lambda rate_rps: None
    saturation_rps = model.saturation_rps(load.batch_sizes())
    arrivals = cache(load.unit_arrivals)

    def inflation(rate_rps: float) -> float:
        high = rate_rps > _HIGH_LOAD * saturation_rps
        return model.inflation(
            arrivals(_INFLATION_REQUESTS_HIGH if high else _INFLATION_REQUESTS),
            rate_rps,
            budget_ms=load.sla.latency_budget_ms,
            percentile=load.sla.percentile,
        )

    return inflation


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
    proof = Proof(evidence=certify.earlier if certify is not None else ())
    if certify is not None and (certify.rate_rps or edge.at_least_rps):
        proof = certify_target(session, load, certify, edge=edge)
    return Measurement(
        configuration=configuration.canonical(),
        edge=edge,
        capacity_rps=proof.rate_rps,
        certificate=proof.certificate,
        headline=proof.headline or headline,
        evidence=proof.evidence,
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
