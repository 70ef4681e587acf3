"""Strategies on a loaded target: find its edge, certify a rate, measure at a fixed rate."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace

import numpy as np

from analyzer.domain.configuration import Configuration
from analyzer.domain.load_test import LoadTest
from analyzer.domain.measurement import Edge, Measurement
from analyzer.domain.speeds import EVIDENCE_MIN
from analyzer.errors import TargetError
from analyzer.measure.edge import (
    EdgeGoal,
    EdgeSearch,
    RateOutcome,
    broken_despite_lag,
    only_stalled,
    raised_edge,
    telling,
)
from analyzer.measure.plan import REQUESTS_MIN, STREAM_EDGE, CertifyPlan, EdgePlan, LoadPlan
from analyzer.measure.prove import Proof, certify_target
from analyzer.measure.refute import refute_target
from analyzer.measure.session import Session
from analyzer.measure.virtual_session import VirtualSession
from analyzer.measure.warm_up import warm_up
from analyzer.measure.witness import (
    lasting_work_us,
    slower_rates,
)

# Invalid runs before the configuration is given up, at the lowest rate so many, and the factor to
# the next rate: the share of the requests that the server answered, within bounds. A run that was
# aborted was far too fast, and one after another that was invalid may be.
_INVALID_MAX = 12
_INVALID_LOWEST = 2
_INVALID_EASE_MIN = 0.25
_INVALID_EASE_MAX = 0.9
_ABORTED_EASE_MAX = 0.5
# A run of an edge that the least evidence takes: so much more than that, since its start does not
# count, and at most so many times the longest run.
_EVIDENCE_FACTOR = 1.15
_EVIDENCE_LONGER = 1.5
# Runs that broke the SLA only since the server stood still are made again, so many at most. Where
# the machine was slower in those above the edge than in the one that was kept, the search goes on
# as if they had not been, for so many times its seconds.
_STALLED_MAX = 3
_DOUBT_FACTOR = 1.5
# The first step up where both ends are to be found in the two or three runs that there is time for
# (1.1 and 1.25 were tried, bench/shares.py).
_STEP_WIDELY = 1.5
# The first step down from a prediction that is good to a few percent.
_STEP_DOWN_TRUSTED = 1.12
# Repeats of the twin's search with other service noise, and how far it may correct an edge: short
# runs flatter it; a larger correction would be the twin's own error.
_CONTROL_RUNS = 5
_CONTROL_RANGE = (0.75, 1.1)
# Of the time left, what the fewest requests of a load test take on average: that of 20 Poisson
# arrivals deviates by 22 %.
_IN_TIME_SHARE = 0.7
# After a proof: what a run leaves of the time to the end of the step, beside its last latencies.
_ENDING_S = 1.0
# A search that lacks nothing but a rate that breaks the SLA, or one in a wide gap, goes on, for so
# many times its seconds at most: the run of a rate that breaks is mostly short, since it is given
# up once it is hopeless.
_OPEN_FACTOR = 2.0
# Where the live search broke no rate, so many times its seconds: in them the twin's search mostly
# breaks one (docs/decisions/040-what-is-told-of-an-open-edge.md).
_CONTROL_LONGER = 4.0


def measure_edge(
    session: Session,
    plan: EdgePlan,
    load: LoadPlan,
    saturation_rps: float,
    *,
    known: Sequence[RateOutcome] = (),
) -> Edge:
    """The edge of the target, from runs of ``plan.seconds`` in all; longer until a rate is kept.

    Half as long again where the machine was slower in the runs above the edge than below it: these
    do not count then; up to twice as long where nothing but a rate that breaks the SLA is missing,
    or the two rates around the edge are far apart, unless ``plan.within``. A run that only a stall
    of the server broke is made again. No run is begun that would not end within the session's time.

    Args:
        saturation_rps: What a closed loop achieved: where the search starts without a prediction.
        known: What rates did before; the search starts where it would start anyway, but for
            ``plan.known``.

    Raises:
        TargetError: Not one run was valid.
    """
    low_s, high_s = plan.run_seconds
    search = _edge_search(plan, load, saturation_rps, known)
    spent_s, seconds_max = 0.0, plan.seconds
    invalid: list[LoadTest] = []
    stalled = 0
    again_rps: float | None = None
    runs = {test.offered_rps: test for test in plan.known}
    session.skip_arrivals(plan.known)
    while True:
        rate, again_rps = again_rps or search.next_rate_rps(), None
        longer = _OPEN_FACTOR if search.worth_longer and not plan.within else 1.0
        ended = spent_s >= max(seconds_max, longer * plan.seconds)
        if rate is None or (ended and search.kept_rps is not None):
            seconds_max = _DOUBT_FACTOR * plan.seconds
            doubtful = slower_rates(runs, search.kept_rps)
            if spent_s >= seconds_max or not search.forget_above(doubtful):
                break
            continue
        # Where that suffices, half as long again: a side with few requests leaves the edge open.
        enough_s = _EVIDENCE_FACTOR * EVIDENCE_MIN / rate
        longest_s = enough_s if high_s < enough_s <= _EVIDENCE_LONGER * high_s else high_s
        seconds = float(np.clip(500 / rate, low_s, longest_s))
        if plan.within:
            seconds = min(seconds, max(plan.seconds - spent_s, low_s))
        begun = search.tried or invalid or stalled
        if begun and not _in_time(session, load, rate, seconds):
            break
        test = session.run(rate, seconds, kind="edge", stream=STREAM_EDGE)
        spent_s += test.duration_s
        if only_stalled(test, load.sla.miss_rate_max) and stalled < _STALLED_MAX:
            stalled += 1
            again_rps = rate
            continue
        outcomes = telling([test], load.sla.miss_rate_max)
        if not outcomes and search.kept_rps is None:
            outcomes = [*filter(None, [broken_despite_lag(test, load.sla.miss_rate_max)])]
        if not outcomes:
            # An overload of a shared machine makes the generator late as well; a lower one may not.
            invalid.append(test)
            fast = test.aborted or len(invalid) > 1
            ease_max = _ABORTED_EASE_MAX if fast else _INVALID_EASE_MAX
            ease = np.clip(test.achieved_rps / rate, _INVALID_EASE_MIN, ease_max)
            search.record_overload(rate, float(ease))
            at_rate = sum(one.offered_rps == rate for one in invalid)
            if len(invalid) >= _INVALID_MAX or at_rate >= _INVALID_LOWEST:
                break
            continue
        search.record(outcomes[0])
        runs[rate] = test
    edge = search.edge()
    kept = runs.get(search.kept_rps or 0.0)
    if kept is not None and (seen := kept.conditions) is not None and seen.work_us:
        slow_us = lasting_work_us(seen, load.sla.latency_budget_ms / 1e3)
        edge = replace(edge, work_us=float(np.median(seen.work_us)), slow_us=slow_us)
    if invalid and edge.rate_rps is None and edge.interval_rps == (None, None):
        reasons = "; ".join(invalid[-1].validity.reasons) or "the server stood still meanwhile"
        raise TargetError(
            f"None of {len(invalid)} load tests was valid: {reasons}.",
            hint="Something else keeps this machine busy; run it again when it is quiet.",
        )
    return edge


def _in_time(session: Session, load: LoadPlan, rate_rps: float, seconds: float) -> bool:
    """Whether the replies to a run's requests, of which there are a few at least, come in time."""
    return max(seconds, REQUESTS_MIN / rate_rps) <= session.sending_s(load)


def _edge_search(
    plan: EdgePlan, load: LoadPlan, saturation_rps: float, known: Sequence[RateOutcome]
) -> EdgeSearch:
    goal = EdgeGoal(
        budget_ms=load.sla.latency_budget_ms,
        miss_rate_max=load.sla.miss_rate_max,
        # A little below the prediction, where a run is most informative about both sides.
        start_rps=0.97 * plan.start_rps if plan.start_rps else 0.8 * saturation_rps,
        step=_step(plan),
        step_down=_STEP_DOWN_TRUSTED if plan.trusted else 2.0,
        precision=1.04,
        floor_rps=plan.floor_rps,
    )
    runs = telling(plan.known, load.sla.miss_rate_max)
    return EdgeSearch(goal, [*runs, *known], goes_on=bool(runs))


def long_run_edge(
    edge: Edge, plan: EdgePlan, load: LoadPlan, *, served: Configuration | None = None
) -> Edge:
    """``edge`` without the optimism of short runs; itself where there is no twin.

    Near the edge the misses come in rare bursts, which most runs of a second do not see. The twin
    goes through the same search on the same arrivals; how far that lies above its own long-run
    edge is how far the live search lies above the live one (a control variate). What the server
    does one at a time bounds both, but not the simulation. Of an edge that is open above the lower
    end stays, which searches compare, and the factor is kept beside it (``long_share``).

    Args:
        served: As :attr:`Session.served`, of the session that found it.
    """
    predicted = plan.twin_edge_rps
    # Short runs mostly meet the usual speed; what the others cost is told of all edges alike.
    twin = replace(plan.twin, path=None) if plan.twin is not None else None
    if twin is None or not predicted or not edge.at_least_rps:
        return edge
    seconds = plan.seconds * (1.0 if edge.rate_rps else _CONTROL_LONGER)
    bound_rps = twin.serial_bound_rps(load.batch_sizes())
    ratios = []
    for repeat in range(_CONTROL_RUNS):
        session = VirtualSession(twin, load, noise_seed=repeat)
        session.served = served
        same = replace(plan, seconds=seconds, start_rps=predicted, twin=None, known=())
        found = measure_edge(session, same, load, predicted).rate_rps
        if found:
            ratios.append(predicted / min(found, bound_rps))
    if not ratios:
        return edge
    ratio = float(np.clip(np.median(ratios), *_CONTROL_RANGE))
    if not edge.rate_rps:
        return replace(edge, long_share=min(ratio, 1.0))
    low, high = edge.interval_rps
    return replace(
        edge,
        rate_rps=edge.rate_rps * ratio,
        interval_rps=(
            # Of rates that were kept and broken it leaves none inside.
            low * min(ratio, 1.0) if low is not None else None,
            high * max(ratio, 1.0) if high is not None else None,
        ),
    )


def _step(plan: EdgePlan) -> float:
    """The first factor between rates: what the start may be off by."""
    if plan.trusted:
        return 1.06
    if plan.widely:
        return _STEP_WIDELY
    return 1.1 if plan.start_rps else 1.25


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

    Where the certificate's plan knows an edge, or supposes one, the certificate comes before it.

    Args:
        edge_plan: How the edge is searched; None to leave it out.
        certify: What is proven; None for nothing.
        target_seconds: How long to run at the SLA's target rate, if that ends in time; None for not
            at all.

    Raises:
        TargetError: The server failed, or not one run was valid.
    """
    session.served = configuration
    known = certify is not None and (certify.edge or certify.rate_rps or certify.refute)
    known = known or (edge_plan is not None and edge_plan.start_rps)
    saturation = warm_up(session, configuration, load, saturating=not known)
    edge = Edge(rate_rps=None, interval_rps=(None, None))
    headline = proof = None
    if certify is not None and certify.refute is not None:
        refutation = refute_target(session, load, certify)
        edge = refutation.edge
        proof = Proof(
            certificate=refutation.certificate,
            headline=refutation.headline,
            evidence=refutation.evidence,
        )
    elif certify is not None and certify.edge_before is not None and edge_plan is not None:
        proof, edge = _proof_then_edge(session, load, certify, edge_plan, saturation)
    elif certify is not None and certify.edge is not None:
        edge = certify.edge
    elif edge_plan is not None:
        edge = long_run_edge(
            measure_edge(session, edge_plan, load, saturation),
            edge_plan,
            load,
            served=session.served,
        )
    target_rps = load.sla.target_rate_rps
    if (
        target_seconds is not None
        and target_rps is not None
        and _in_time(session, load, target_rps, target_seconds)
    ):
        headline = session.run(target_rps, target_seconds, kind="target", stream=STREAM_EDGE)
    if proof is None:
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
        notes=(*session.notes, *filter(None, [proof.trouble])),
    )


def _proof_then_edge(
    session: Session, load: LoadPlan, certify: CertifyPlan, plan: EdgePlan, saturation_rps: float
) -> tuple[Proof, Edge]:
    """A proof at a safe rate; the time that a PASS leaves goes to the edge.

    A gain compares edges, and the rate that a proof had time for says little of one: where little
    is left, one run may take what was kept for later. None is begun that might not end in time,
    since a step that is cut off loses its proof, nor does a server that fails in it take that back.
    Without such a run the edge is the one that was known, or what the certificate's runs say of it,
    with an open end. Where not even the shortest of these fitted, a rate is tried whose requests
    come in time, however many are late at it: something is measured then.
    """
    goes_by = certify.edge_before
    assert goes_by is not None
    before_s, tests_before = session.seconds, len(session.tests)
    proof = certify_target(session, load, certify, edge=goes_by)
    proven = proof.rate_rps is not None
    left_s = session.left_s - certify.kept_s
    left_s = min(certify.seconds - (session.seconds - before_s), left_s)
    if proven:
        # A run's last requests, and the end of the server.
        spare_s = session.sending_s(load) - _ENDING_S
        left_s = min(max(left_s, plan.run_seconds[1]), spare_s)
    known = [
        RateOutcome(
            rate_rps=found.rate_rps,
            requests=found.requests,
            over_budget=found.over_budget,
            latency_ms=None,
        )
        for found in proof.evidence
    ]
    plan = replace(plan, seconds=min(plan.seconds, left_s), within=True)
    untried = len(session.tests) == tests_before and not known
    if untried and left_s > 0.0:
        start_rps = max(goes_by.at_least_rps or 0.0, REQUESTS_MIN / (_IN_TIME_SHARE * left_s))
        low_s, high_s = plan.run_seconds
        runs_s = (low_s, max(high_s, REQUESTS_MIN / start_rps))
        plan = replace(plan, start_rps=start_rps, run_seconds=runs_s)
    edge = certify.edge or _edge_search(plan, load, saturation_rps, known).edge()
    if (untried or proven) and plan.seconds >= plan.run_seconds[0]:
        tests_before = len(session.tests)
        with suppress(TargetError) if proven else nullcontext():
            searched = measure_edge(session, plan, load, saturation_rps, known=known)
            if len(session.tests) > tests_before:
                edge = long_run_edge(searched, plan, load, served=session.served)
    # A rate that long runs kept is no noise.
    miss_rate_max = load.sla.miss_rate_max
    kept = [of.rate_rps for of in proof.evidence if of.over_budget <= miss_rate_max * of.requests]
    return proof, raised_edge(edge, max(kept, default=0.0))
