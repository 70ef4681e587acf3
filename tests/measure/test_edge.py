"""The search for the edge: on analytic servers, on simulated ones, on hopeless ones."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.domain.configuration import Configuration
from analyzer.domain.load_test import (
    Conditions,
    InvalidityKind,
    LatencySummary,
    LoadTest,
    RequestLog,
    Validity,
)
from analyzer.domain.measurement import (
    Edge,
    Measurement,
    RateEvidence,
)
from analyzer.domain.sla import Sla
from analyzer.domain.speeds import edge_over_speeds
from analyzer.domain.workload import Poisson
from analyzer.engine.policy import BatchingPolicy
from analyzer.errors import TargetError
from analyzer.measure.edge import (
    EdgeGoal,
    EdgeSearch,
    RateOutcome,
    broken_despite_lag,
    only_stalled,
    raised_edge,
    revised_edge,
    telling,
)
from analyzer.measure.measure import long_run_edge, measure_edge
from analyzer.measure.plan import STREAM_EDGE, EdgePlan, LoadPlan
from analyzer.measure.session import Schedule
from analyzer.measure.virtual_session import VirtualSession
from analyzer.twin.arrivals import UnitArrivals
from analyzer.twin.server_model import ServerModel
from analyzer.twin.service import SerialCost, ServiceTime
from analyzer.twin.speed import SpeedPath


def search(
    latency_ms: Callable[[float], float], start_rps: float, **goal: float
) -> tuple[EdgeSearch, list[float]]:
    """Runs a search on a server whose percentile is a function of the rate."""
    found = EdgeSearch(EdgeGoal(budget_ms=50.0, miss_rate_max=0.01, start_rps=start_rps, **goal))
    tried: list[float] = []
    while (rate := found.next_rate_rps()) is not None:
        tried.append(rate)
        assert len(tried) < 60, "it does not end"
        late = latency_ms(rate) > 50.0
        found.record(
            RateOutcome(
                rate_rps=rate,
                requests=1000,
                over_budget=500 if late else 0,
                latency_ms=latency_ms(rate),
            )
        )
    return found, tried


def queue(capacity_rps: float) -> Callable[[float], float]:
    """A latency that grows without end towards the capacity: 50 ms at 0.8 of it."""
    return lambda rate: 10.0 / (1.0 - rate / capacity_rps) if rate < capacity_rps else 1e9


@given(capacity=st.floats(5.0, 5e4), guess=st.floats(0.05, 20.0))
def test_any_guess_ends_at_the_edge(capacity: float, guess: float) -> None:
    truth = 0.8 * capacity
    found, tried = search(queue(capacity), truth * guess)
    estimate = found.edge()
    assert estimate.rate_rps == pytest.approx(truth, rel=0.05)
    low, high = estimate.interval_rps
    assert low is not None and high is not None and low <= truth <= high
    assert len(tried) <= 25


def test_a_good_guess_needs_few_rates() -> None:
    _, tried = search(queue(1000.0), 790.0, step=1.07)
    assert len(tried) <= 4


def test_what_keeps_everything_has_no_upper_end() -> None:
    found = EdgeSearch(EdgeGoal(budget_ms=50.0, miss_rate_max=0.01, start_rps=100.0))
    for _ in range(5):
        rate = found.next_rate_rps()
        assert rate is not None
        found.record(RateOutcome(rate_rps=rate, requests=1000, over_budget=0, latency_ms=1.0))
    assert found.edge() == Edge(rate_rps=None, interval_rps=(pytest.approx(0.97 * rate), None))
    assert found.edge().at_least_rps == pytest.approx(0.97 * rate)


def test_downwards_it_goes_by_halves() -> None:
    _, tried = search(queue(100.0), 4000.0)
    assert tried[:6] == [4000.0, 2000.0, 1000.0, 500.0, 250.0, 125.0]


def test_a_side_with_few_requests_is_open() -> None:
    found = EdgeSearch(EdgeGoal(budget_ms=50.0, miss_rate_max=0.01, start_rps=100.0))
    low = RateOutcome(rate_rps=98.0, requests=200, over_budget=0, latency_ms=40.0)
    high = RateOutcome(rate_rps=100.0, requests=200, over_budget=4, latency_ms=60.0)
    for outcome in (low, high):
        found.record(outcome)
    assert found.edge() == Edge(rate_rps=None, interval_rps=(pytest.approx(0.97 * 98.0), None))
    assert found.next_rate_rps() == 98.0, "what is missing is gathered"
    found.record(replace(low, rate_rps=140.0, over_budget=9))
    assert found.edge().bounds_rps == (pytest.approx(0.97 * 98.0), pytest.approx(1.03 * 140.0))
    found.record(low)
    assert found.next_rate_rps() == 100.0
    found.record(replace(high, requests=60, over_budget=20, aborted=True))
    assert found.next_rate_rps() is None
    assert found.edge().rate_rps == pytest.approx(99.0, rel=0.01)


@pytest.mark.parametrize("enough", [True, False])
def test_an_estimate_rests_on_enough_requests_or_the_edge_is_open(enough: bool) -> None:
    """It had no estimate but both ends, where the highest rate that was kept had few requests."""
    found = EdgeSearch(EdgeGoal(budget_ms=50.0, miss_rate_max=0.01, start_rps=100.0))
    requests = 60 if enough else 40  # those of the higher rate are behind the lower one, too
    below = RateOutcome(rate_rps=300.0, requests=requests, over_budget=0, latency_ms=None)
    few = RateOutcome(rate_rps=356.0, requests=255, over_budget=0, latency_ms=None)
    late = RateOutcome(rate_rps=424.0, requests=535, over_budget=124, latency_ms=None)
    for outcome in (below, few, late):
        found.record(outcome)
    edge = found.edge()
    assert edge.interval_rps[0] == pytest.approx(356.0, rel=0.05)
    if enough:
        assert edge.rate_rps == pytest.approx((300.0 * 424.0) ** 0.5, rel=0.01)
        assert edge.interval_rps[1] == pytest.approx(424.0, rel=0.05)
    else:
        assert edge.rate_rps is None and edge.interval_rps[1] is None
        assert edge.bounds_rps == (edge.interval_rps[0], pytest.approx(424.0, rel=0.05))


def test_what_clearly_broke_is_the_upper_end_where_a_nearer_rate_has_few_requests() -> None:
    """Its upper end was open though both ends had enough requests behind them."""
    found = EdgeSearch(EdgeGoal(budget_ms=1200.0, miss_rate_max=0.01, start_rps=14.0))
    for rate, requests, late in ((15.6, 205, 0), (16.4, 216, 0), (21.1, 62, 11)):
        found.record(
            RateOutcome(rate_rps=rate, requests=requests, over_budget=late, latency_ms=None)
        )
    far = found.edge()
    assert far.rate_rps == pytest.approx((15.6 * 21.1) ** 0.5, rel=0.01)
    few = RateOutcome(rate_rps=17.2, requests=172, over_budget=0, latency_ms=None, growing=True)
    found.record(few)
    near = found.edge()
    assert near.interval_rps == far.interval_rps == (pytest.approx(15.9, 0.01), 1.03 * 21.1)
    assert near.rate_rps == pytest.approx((15.6 * 17.2) ** 0.5, rel=0.01)


def test_it_never_ends_without_a_rate_that_was_kept(
    session: VirtualSession, load: LoadPlan
) -> None:
    """A prediction that is sixteen times too high, and a second to find out."""
    plan = EdgePlan(seconds=1.0, start_rps=20_000.0, run_seconds=(0.8, 1.5))
    found = measure_edge(session, plan, load, 500.0)
    assert found.at_least_rps is not None and 300.0 < found.at_least_rps < 1300.0
    assert found.work_us == 100.0


def test_where_no_rate_was_kept_the_lowest_one_that_clearly_broke_is_the_upper_end() -> None:
    """Three late of 88 at a lower rate left it open, and a search's gain untold."""
    found = EdgeSearch(EdgeGoal(budget_ms=50.0, miss_rate_max=0.01, start_rps=85.0))
    few = RateOutcome(rate_rps=43.0, requests=88, over_budget=3, latency_ms=57.0)
    found.record(few)
    assert found.edge().interval_rps == (0.0, None)
    clear = RateOutcome(rate_rps=85.0, requests=68, over_budget=18, latency_ms=None, aborted=True)
    found.record(clear)
    assert found.edge().interval_rps == (0.0, pytest.approx(1.03 * 85.0))
    found.record(replace(few, rate_rps=60.0, requests=300, over_budget=4))
    assert found.edge().interval_rps == (0.0, pytest.approx(1.03 * 60.0))


def test_what_keeps_nothing_ends_at_the_floor() -> None:
    found, tried = search(lambda rate: 60.0, 100.0)
    assert min(tried) == 1.0
    assert found.edge().rate_rps is None
    low, high = found.edge().interval_rps
    assert low == 0.0 and high == pytest.approx(1.03)


def test_nothing_recorded_says_nothing() -> None:
    silent = EdgeSearch(EdgeGoal(budget_ms=50.0, miss_rate_max=0.01, start_rps=100.0))
    assert silent.edge().rate_rps is None
    assert silent.edge().interval_rps == (None, None)


def test_of_a_band_the_upper_end_is_found() -> None:
    """A queue delay fails low rates: requests wait for company that does not come."""

    def band(rate: float) -> float:
        return 60.0 if rate < 200.0 else queue(1000.0)(rate)

    found, _ = search(band, 400.0)
    assert found.edge().rate_rps == pytest.approx(800.0, rel=0.05)


def test_an_aborted_run_never_counts_as_kept() -> None:
    found = EdgeSearch(EdgeGoal(budget_ms=50.0, miss_rate_max=0.01, start_rps=100.0))
    aborted = RateOutcome(rate_rps=100.0, requests=10, over_budget=0, latency_ms=None, aborted=True)
    assert not found.keeps(aborted)
    assert not found.keeps(replace(aborted, aborted=False, requests=0))


@pytest.mark.parametrize("start", [None, 300.0, 3000.0])
@pytest.mark.parametrize("short", [False, True], ids=["long runs", "short runs and the twin"])
def test_the_edge_of_a_simulated_server(
    session: VirtualSession,
    policy: BatchingPolicy,
    service: ServiceTime,
    load: LoadPlan,
    start: float | None,
    short: bool,
) -> None:
    """Short runs end before a queue has grown; the twin knows by how much that flatters."""
    model = ServerModel(policy=policy, service=service)
    truth = model.edge(UnitArrivals.draw(Poisson(), count=400_000), budget_ms=40.0)
    assert truth is not None
    plan = EdgePlan(
        seconds=20.0 if short else 2000.0,
        start_rps=start,
        run_seconds=(2.0, 6.0) if short else (60.0, 120.0),
        twin=model if short else None,
        twin_edge_rps=truth if short else None,
    )
    found = measure_edge(session, plan, load, session.warm_up(concurrency=16))
    found = long_run_edge(found, plan, load)
    assert found.rate_rps == pytest.approx(truth, rel=0.05)


def test_what_the_server_does_one_at_a_time_is_no_optimism_of_short_runs(
    policy: BatchingPolicy, service: ServiceTime, load: LoadPlan
) -> None:
    """The twin's runs do not know of it, and keep rates above it."""
    bound_rps = 0.8 * ServerModel(policy=policy, service=service).saturation_rps()
    serial = SerialCost(execution_ms=0.0, request_ms=1e3 / bound_rps)
    model = ServerModel(policy=policy, service=replace(service, serial=serial))
    plan = EdgePlan(
        seconds=20.0, run_seconds=(2.0, 6.0), start_rps=bound_rps, twin=model,
        twin_edge_rps=bound_rps,
    )  # fmt: skip
    found = Edge(rate_rps=bound_rps, interval_rps=(0.97 * bound_rps, 1.03 * bound_rps))
    assert long_run_edge(found, plan, load).rate_rps == pytest.approx(bound_rps, rel=0.02)


def test_what_long_runs_keep_of_an_open_edge_is_told_beside_it(
    policy: BatchingPolicy, service: ServiceTime, load: LoadPlan
) -> None:
    """A search compares the rate that short runs kept; the answer tells less."""
    model = ServerModel(policy=policy, service=service)
    truth = model.edge(UnitArrivals.draw(Poisson(), count=400_000), budget_ms=40.0)
    assert truth is not None
    plan = EdgePlan(
        seconds=4.0, run_seconds=(1.0, 2.0), start_rps=truth, twin=model, twin_edge_rps=truth
    )
    kept = Edge(interval_rps=(1.1 * truth, None))
    found = long_run_edge(kept, plan, load)
    assert replace(found, long_share=1.0) == kept
    assert 0.75 <= found.long_share < 0.98
    told = partial(edge_over_speeds, miss_rate_max=0.01)
    measured = Measurement(configuration=Configuration(), edge=found)
    assert told(measured, 1.0) == Edge(
        interval_rps=(pytest.approx(found.long_share * 1.1 * truth), None)
    )
    proven = replace(measured, capacity_rps=1.05 * truth)
    assert told(proven, 0.9).interval_rps == (1.05 * truth, None), "what a certificate kept stands"
    assert long_run_edge(kept, replace(plan, twin=None), load) == kept
    assert long_run_edge(Edge(interval_rps=(0.0, None)), plan, load).long_share == 1.0


def test_the_time_is_kept(session: VirtualSession, load: LoadPlan) -> None:
    measure_edge(session, EdgePlan(seconds=3.0, run_seconds=(1.0, 1.5)), load, 500.0)
    assert sum(test.duration_s for test in session.tests) <= 3.0 + 1.6


def test_an_open_edge_is_closed_by_going_on_from_the_runs_that_left_it_open(
    session: VirtualSession, load: LoadPlan, policy: BatchingPolicy, service: ServiceTime
) -> None:
    model = ServerModel(policy=policy, service=service)
    truth = model.edge(UnitArrivals.draw(Poisson(), count=400_000), budget_ms=40.0)
    assert truth is not None
    plan = EdgePlan(seconds=4.0, start_rps=0.5 * truth, run_seconds=(2.0, 6.0))
    left_open = measure_edge(session, plan, load, truth)
    assert left_open.rate_rps is None
    known, first = tuple(session.tests), len(session.tests)
    longer = replace(plan, seconds=400.0, run_seconds=(20.0, 60.0), known=known)
    closed = measure_edge(session, longer, load, truth)
    assert closed.rate_rps == pytest.approx(truth, rel=0.1)
    again = [test.offered_rps for test in session.tests[first:]]
    assert min(again) > max(test.offered_rps for test in known if not test.aborted)


@pytest.mark.parametrize("within", [False, True])
def test_a_search_that_broke_no_rate_goes_on_for_a_while(
    session: VirtualSession,
    load: LoadPlan,
    policy: BatchingPolicy,
    service: ServiceTime,
    within: bool,
) -> None:
    """Its seconds ended with two rates that were kept, and told an edge without an upper end."""
    model = ServerModel(policy=policy, service=service)
    truth = model.edge(UnitArrivals.draw(Poisson(), count=400_000), budget_ms=40.0)
    assert truth is not None
    plan = EdgePlan(seconds=4.0, start_rps=0.8 * truth, run_seconds=(2.0, 2.5), within=within)
    found = measure_edge(session, plan, load, truth)
    spent_s = sum(test.duration_s for test in session.tests)
    if within:
        assert found.rate_rps is None
        assert spent_s <= 4.1
    else:
        assert found.rate_rps == pytest.approx(truth, rel=0.15)
        assert 4.1 < spent_s <= 2 * 4.0 + 2.5


def test_a_search_that_halved_its_rate_tries_one_between(
    policy: BatchingPolicy, service: ServiceTime, load: LoadPlan
) -> None:
    """Its seconds ended with a rate that broke the SLA and half of it, which is no answer."""
    model = ServerModel(policy=policy, service=service)
    truth = model.edge(UnitArrivals.draw(Poisson(), count=400_000), budget_ms=40.0)
    assert truth is not None
    gaps = []
    for within in (True, False):
        session = VirtualSession(model, load)
        plan = EdgePlan(seconds=1.0, start_rps=1.4 * truth, run_seconds=(1.0, 1.0), within=within)
        measure_edge(session, plan, load, truth)
        tests = [test for test in session.tests if test.offered_rps]
        kept = [test.offered_rps for test in tests if RateOutcome.of(test).keeps(0.01)]
        broke = [test.offered_rps for test in tests if test.offered_rps > max(kept)]
        gaps.append(min(broke) / max(kept))
    assert gaps[0] == pytest.approx(2.0)
    assert gaps[1] < 1.5


def test_a_search_that_goes_on_elsewhere_draws_other_arrivals(
    policy: BatchingPolicy, service: ServiceTime, load: LoadPlan
) -> None:
    server = ServerModel(policy=policy, service=service)
    first, second = VirtualSession(server, load), VirtualSession(server, load)
    for session in (first, second):
        session.run(100.0, 1.0, kind="edge", stream=STREAM_EDGE)
    assert first.logs[0].intended_s[0] == second.logs[0].intended_s[0]
    third = VirtualSession(server, load)
    third.skip_arrivals(first.tests)
    third.run(100.0, 1.0, kind="edge", stream=STREAM_EDGE)
    assert third.logs[0].intended_s[0] != first.logs[0].intended_s[0]


def test_a_stalled_run_is_made_again_at_its_rate(
    policy: BatchingPolicy, service: ServiceTime, load: LoadPlan
) -> None:
    server = ServerModel(policy=policy, service=service)
    session = OnAMachine(server, load, slow_runs=0, stalls=(0,))
    measure_edge(session, EdgePlan(seconds=20.0, start_rps=500.0), load, 500.0)
    rates = [test.offered_rps for test in session.tests]
    assert rates[0] == rates[1] != rates[2]


@pytest.mark.parametrize("found", [None, 80.0])
def test_what_a_long_run_kept_lifts_both_ends(found: float | None) -> None:
    edge = Edge(rate_rps=found, interval_rps=(75.0, 90.0))
    lifted = raised_edge(edge, 100.0)
    assert lifted.interval_rps == (100.0, 100.0)
    assert lifted.rate_rps == (None if found is None else 100.0)
    assert raised_edge(edge, 70.0) == edge


def test_what_an_invalid_run_broke_is_not_known_and_runs_at_one_rate_count_together(
    session: VirtualSession, load: LoadPlan
) -> None:
    known = (
        load_test(100.0, 200, 0),
        load_test(150.0, 200, 100, valid=False),
        load_test(200.0, 299, 299),
        load_test(200.0, 301, 0),
    )
    plan = EdgePlan(seconds=4.0, start_rps=1.0, run_seconds=(2.0, 4.0), known=known)
    measure_edge(session, plan, load, 500.0)
    assert session.tests[0].offered_rps == pytest.approx((100.0 * 200.0) ** 0.5)
    kept = (load_test(150.0, 200, 1, valid=False), load_test(300.0, 100, 90), known[3])
    session.tests.clear()
    measure_edge(session, replace(plan, known=kept), load, 500.0)
    assert session.tests[0].offered_rps == pytest.approx((200.0 * 300.0) ** 0.5)


@pytest.mark.parametrize("kind", ["offered_rate", "littles_law"])
def test_a_rate_that_was_not_offered_is_not_kept(kind: InvalidityKind) -> None:
    """600/s were sent of 1,000, and none was late."""
    sent = replace(load_test(1000.0, 600, 0), achieved_rps=600.0)
    for kinds in (("lag",), ("lag", "throttled")):
        slow = replace(sent, validity=Validity(valid=False, reasons=("",) * 2, kinds=kinds))
        assert [of.rate_rps for of in telling([slow], 0.01)] == [1000.0]
    for kinds in ((kind,), ("lag", kind)):
        unsent = replace(sent, validity=Validity(valid=False, reasons=("",) * 2, kinds=kinds))
        assert not telling([unsent], 0.01)


def test_a_hopeless_server_has_no_edge(service: ServiceTime, policy: BatchingPolicy) -> None:
    load = LoadPlan(sla=Sla(latency_budget_ms=3.0), arrivals=Poisson(), seed=7)
    session = VirtualSession(ServerModel(policy=policy, service=service), load)
    found = measure_edge(session, EdgePlan(seconds=60.0), load, 500.0)
    assert found.rate_rps is None
    assert all(test.aborted or test.over_budget for test in session.tests)


class Disturbed(VirtualSession):
    """Runs of which the generator says that they are not valid: it sent a share of them late."""

    late_share = 1.0

    def _offer(self, schedule: Schedule) -> tuple[LoadTest, RequestLog, float]:
        test, log, seconds = super()._offer(schedule)
        late = replace(
            test,
            sent_late=round(self.late_share * test.requests),
            validity=Validity(valid=False, reasons=("sent too late",), kinds=("lag",)),
        )
        return late, log, seconds


def test_invalid_runs_never_fail_a_rate(
    policy: BatchingPolicy, service: ServiceTime, load: LoadPlan
) -> None:
    """Requests sent late are late for that reason: only a rate that is kept counts."""
    model = ServerModel(policy=policy, service=service)
    never = replace(load, sla=Sla(latency_budget_ms=1.0))
    with pytest.raises(TargetError, match=r"None of \d+ load tests was valid: sent too late"):
        measure_edge(Disturbed(model, never), EdgePlan(seconds=60.0, start_rps=500.0), never, 500.0)
    found = measure_edge(
        Disturbed(model, load), EdgePlan(seconds=60.0, start_rps=100.0), load, 500.0
    )
    assert found.at_least_rps is not None and found.interval_rps[1] is None
    # Between the highest that was kept and an overload that was none, it looks in the middle.
    session = Disturbed(model, load)
    found = measure_edge(session, EdgePlan(seconds=60.0, start_rps=100.0), load, 500.0)
    rates = [test.offered_rps or 0.0 for test in session.tests]
    kept = found.interval_rps[0]
    assert kept is not None and max(rates) < 8.0 * kept
    assert min(rate for rate in rates if rate > kept / 0.97 * 1.001) < 1.1 * kept / 0.97


@pytest.mark.parametrize(("percentile", "late", "clear"), [(99.9, 1, 3), (99.9, 2, 3), (99, 8, 9)])
def test_one_late_request_breaks_no_rate_clearly(percentile: float, late: int, clear: int) -> None:
    """Of p99.9 a single one ended the search, and was the upper end of the edge."""
    miss_rate_max = Sla(latency_budget_ms=50.0, percentile=percentile).miss_rate_max
    found = EdgeSearch(EdgeGoal(budget_ms=50.0, miss_rate_max=miss_rate_max, start_rps=85.0))
    few = RateOutcome(rate_rps=60.0, requests=200, over_budget=late, latency_ms=None)
    found.record(few)
    assert found.edge().interval_rps == (0.0, None)
    found.record(replace(few, requests=1, over_budget=clear - late))
    assert found.edge().interval_rps == (0.0, pytest.approx(1.03 * 60.0))


@pytest.mark.parametrize(
    ("percentile", "over", "told"), [(99.9, 2, False), (99.9, 3, True), (99.0, 1, True)]
)
def test_a_few_late_requests_break_no_p999_despite_lag(
    percentile: float, over: int, told: bool
) -> None:
    miss_rate_max = Sla(latency_budget_ms=50.0, percentile=percentile).miss_rate_max
    test = replace(load_test(20.0, 30, over + 1, valid=False), sent_late=1)
    assert (broken_despite_lag(test, miss_rate_max) is not None) is told


def test_a_server_that_keeps_no_rate_is_left_by_halves_though_some_requests_were_sent_late(
    policy: BatchingPolicy, service: ServiceTime
) -> None:
    """Of 30 requests a single late one is the 99th percentile."""
    load = LoadPlan(sla=Sla(latency_budget_ms=3.0), arrivals=Poisson(), seed=7)
    session = Disturbed(ServerModel(policy=policy, service=service), load)
    session.late_share = 0.03
    found = measure_edge(session, EdgePlan(seconds=60.0, start_rps=500.0), load, 500.0)
    assert found.rate_rps is None and found.interval_rps[1] is not None
    rates = [test.offered_rps or 0.0 for test in session.tests]
    assert all(below <= 0.51 * rate for rate, below in pairwise(rates[:-1]))
    assert len(rates) <= 8


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, (97, 17)),
        ({"sent_late": None}, None),  # of an earlier version
        ({"sent_late": 11}, None),  # these come in bursts
        ({"sent_late": 3, "over_budget": 5}, None),
        ({"stalled_over": 15}, None),
    ],
)
def test_what_an_invalid_run_breaks_without_what_was_sent_late(
    changes: dict[str, int | None], told: tuple[int, int] | None
) -> None:
    test = replace(load_test(20.0, 100, 20, valid=False), **{"sent_late": 3, **changes})  # type: ignore[arg-type]
    found = broken_despite_lag(test, 0.01)
    assert (found and (found.requests, found.over_budget)) == told
    unsent = replace(test, validity=replace(test.validity, kinds=("lag", "offered_rate")))
    assert broken_despite_lag(unsent, 0.01) is None


def test_a_start_far_above_the_edge_is_left_in_a_few_invalid_runs(
    policy: BatchingPolicy, service: ServiceTime, load: LoadPlan
) -> None:
    session = Disturbed(ServerModel(policy=policy, service=service), load)
    found = measure_edge(session, EdgePlan(seconds=60.0, start_rps=50000.0), load, 500.0)
    assert found.at_least_rps is not None
    rates = [test.offered_rps or 0.0 for test in session.tests]
    assert next(number for number, rate in enumerate(rates) if rate < 1000.0) <= 6


class OnAMachine(VirtualSession):
    """Runs on a machine that is slow in the first so many of them, which the canary sees.

    Args:
        stalls: Runs, by number, in whose middle the server stands still for 0.2 s.
    """

    def __init__(
        self, server: ServerModel, plan: LoadPlan, *, slow_runs: int, stalls: Collection[int] = ()
    ) -> None:
        super().__init__(server, plan)
        self._slow_runs, self._stalls = slow_runs, stalls

    def _offer(self, schedule: Schedule) -> tuple[LoadTest, RequestLog, float]:
        number, usual = len(self.tests), self._server
        slow = number < self._slow_runs
        service = replace(
            usual.service, service_ms=tuple(3.0 * ms for ms in usual.service.service_ms)
        )
        self._server = replace(usual, service=service) if slow else usual
        self._speed = None
        if number in self._stalls:
            middle_s = self.seconds + schedule.seconds / 2
            self._speed = SpeedPath(
                start_s=np.array([0.0, middle_s, middle_s + 0.2]), speed=np.array([1.0, 0.0, 1.0])
            )
        test, log, seconds = super()._offer(schedule)
        self._server = usual
        seen = Conditions(seconds=test.duration_s, work_us=(9.0 if slow else 5.0,))
        return replace(test, conditions=seen), log, seconds


@pytest.mark.parametrize(("slow_runs", "stalls"), [(2, ()), (0, (0, 2)), (2, (3,))])
def test_neither_a_slow_moment_nor_a_stall_is_an_upper_end(
    policy: BatchingPolicy,
    service: ServiceTime,
    load: LoadPlan,
    slow_runs: int,
    stalls: tuple[int, ...],
) -> None:
    model = ServerModel(policy=policy, service=service)
    truth = model.edge(UnitArrivals.draw(Poisson(), count=400_000), budget_ms=40.0)
    assert truth is not None
    session = OnAMachine(model, load, slow_runs=slow_runs, stalls=stalls)
    plan = EdgePlan(seconds=200.0, start_rps=0.9 * truth, run_seconds=(10.0, 20.0))
    found = measure_edge(session, plan, load, truth)
    assert found.rate_rps == pytest.approx(truth, rel=0.1)
    broken = [test for test in session.tests if (test.over_budget or 0) > 0.01 * test.requests]
    assert any((test.offered_rps or 0.0) < 0.95 * truth for test in broken)


def test_a_run_that_breaks_the_sla_beside_its_stall_counts() -> None:
    broke = load_test(200.0, 1000, 100)
    assert not only_stalled(broke, 0.01)
    assert only_stalled(replace(broke, stalled_over=95), 0.01)
    assert not only_stalled(replace(broke, stalled_over=80), 0.01)
    assert not only_stalled(replace(load_test(200.0, 1000, 5), stalled_over=5), 0.01)
    runs = (*SHORT_RUNS, replace(load_test(900.0, 3000, 300), stalled_over=300))
    assert revised_edge(SHORT_EDGE, runs, miss_rate_max=0.01) == SHORT_EDGE


def load_test(rate: float, requests: int, over: int, *, valid: bool = True) -> LoadTest:
    return LoadTest(
        kind="certify",
        offered_rps=rate,
        achieved_rps=rate,
        throughput_ips=rate,
        requests=requests,
        over_budget=over,
        errors=0,
        duration_s=requests / rate,
        latency_ms=LatencySummary(mean=1, p50=1, p90=1, p95=1, p99=1, sla=1),
        send_lag_ms_p99=0.0,
        validity=Validity(
            valid=valid, reasons=() if valid else ("late",), kinds=() if valid else ("lag",)
        ),
    )


SHORT_RUNS = (load_test(1650.0, 1600, 0), load_test(1740.0, 1500, 160))
SHORT_EDGE = Edge(rate_rps=1600.0, interval_rps=(1560.0, 1700.0))


def revised(*tests: LoadTest) -> Edge:
    return revised_edge(SHORT_EDGE, (*SHORT_RUNS, *tests), miss_rate_max=0.01)


def test_a_long_run_that_breaks_the_sla_below_the_edge_lowers_it() -> None:
    found = revised(
        load_test(1200.0, 3600, 170), load_test(1200.0, 9800, 2400), load_test(900.0, 6000, 0)
    )
    assert found.rate_rps == pytest.approx((1200.0 * 900.0) ** 0.5)
    assert found.interval_rps == (pytest.approx(0.97 * 900.0), 1700.0)


@pytest.mark.parametrize(
    ("work_us", "before_rps"), [(100.0, None), (110.0, None), (170.0, 1560.0), (None, None)]
)
def test_an_edge_that_a_slower_machine_lowered_keeps_what_it_was_at_its_own_speed(
    work_us: float | None, before_rps: float | None
) -> None:
    met = Conditions(seconds=4.0, work_us=(work_us,) * 4) if work_us else None
    broke = replace(load_test(1200.0, 13_400, 2570), conditions=met)
    edge = replace(SHORT_EDGE, work_us=100.0)
    found = revised_edge(edge, (*SHORT_RUNS, broke, load_test(900.0, 6000, 0)), miss_rate_max=0.01)
    assert found.rate_rps == pytest.approx((1200.0 * 900.0) ** 0.5)
    assert found.before_rps == before_rps
    again = replace(load_test(600.0, 90_000, 9000), conditions=met)
    runs = (*SHORT_RUNS, broke, load_test(900.0, 6000, 0), load_test(300.0, 900, 0), again)
    assert revised_edge(found, runs, miss_rate_max=0.01).before_rps == before_rps


def test_a_few_slow_seconds_do_not_explain_a_run_that_was_mostly_late() -> None:
    edge = replace(SHORT_EDGE, work_us=100.0)
    met = Conditions(seconds=11.0, work_us=(170.0,) * 2 + (100.0,) * 9)
    broke = replace(load_test(1200.0, 13_400, 8000), conditions=met)
    found = revised_edge(edge, (*SHORT_RUNS, broke, load_test(900.0, 6000, 0)), miss_rate_max=0.01)
    assert found.rate_rps and found.rate_rps < 1200.0 and found.before_rps is None


def test_what_the_edge_was_before_ends_where_a_run_at_its_own_speed_breaks_it() -> None:
    slow, usual = (Conditions(seconds=4.0, work_us=(us,) * 4) for us in (170.0, 100.0))
    broke = replace(load_test(1200.0, 13_400, 2570), conditions=slow)
    runs = [*SHORT_RUNS, broke, load_test(900.0, 6000, 0)]
    lowered = revised_edge(replace(SHORT_EDGE, work_us=100.0), runs, miss_rate_max=0.01)
    assert lowered.before_rps == 1560.0
    too_fast = replace(load_test(1400.0, 20_000, 900), conditions=usual)
    assert revised_edge(lowered, [*runs, too_fast], miss_rate_max=0.01).before_rps is None


def test_a_lowered_edge_is_near_the_rate_that_broke_the_sla_not_near_a_safe_one() -> None:
    found = revised(load_test(300.0, 3000, 0), load_test(1200.0, 13_400, 300))
    share = 0.02 * 13_400 / (13_400 + 1600)  # clipped, and joined with the run that kept 1,650/s
    assert found.rate_rps == pytest.approx(1200.0 * (0.01 / share) ** 0.5)
    assert found.interval_rps == (pytest.approx(0.97 * 300.0), 1700.0)


def test_an_edge_stays_where_the_long_runs_agree_or_say_less() -> None:
    assert revised() == SHORT_EDGE
    assert revised(load_test(1400.0, 8000, 20)) == SHORT_EDGE
    assert revised(load_test(1400.0, 1000, 200)) == SHORT_EDGE, "fewer requests than kept it above"
    assert revised(load_test(1400.0, 9000, 900, valid=False)) == SHORT_EDGE
    unknown = Edge(rate_rps=None, interval_rps=(0.0, 100.0))
    assert revised_edge(unknown, SHORT_RUNS, miss_rate_max=0.01) == unknown


def test_rates_that_contradict_each_other_count_together() -> None:
    """Each of the broken ones alone has fewer requests than what was kept above them."""
    found = revised(
        load_test(1500.0, 10_000, 300),
        load_test(1550.0, 11_000, 200),
        load_test(1580.0, 18_000, 90),
        load_test(1400.0, 9000, 20),
    )
    assert found.rate_rps == pytest.approx((1400.0 * 1500.0) ** 0.5)


def test_an_edge_without_a_rate_that_was_kept_is_unknown() -> None:
    assert revised(load_test(1200.0, 9000, 900)) == Edge(rate_rps=None, interval_rps=(0.0, 1700.0))


def test_what_broke_the_sla_bounds_an_edge_that_nothing_is_known_of() -> None:
    """A baseline beside a neighbour: short runs kept 50/s, a longer one broke 40/s."""
    opened = Edge(rate_rps=None, interval_rps=(50.0, None))
    runs = [load_test(400.0, 480, 52), load_test(100.0, 144, 15), load_test(40.0, 230, 6)]
    found = revised_edge(opened, runs, miss_rate_max=0.01)
    assert found.rate_rps is None and found.interval_rps == (0.0, pytest.approx(1.03 * 400.0)), (
        "of the rates that broke it, the one with 300 requests"
    )
    assert revised_edge(opened, runs[1:], miss_rate_max=0.01).interval_rps == (0.0, None)


def evidence(rate: float, requests: int, over: int) -> RateEvidence:
    return RateEvidence(
        rate_rps=rate, requests=requests, over_budget=over, inflation=5.0, claim=1, blocks=1
    )


def test_an_edge_over_all_speeds_is_no_lower_than_what_long_runs_kept() -> None:
    stated = partial(edge_over_speeds, miss_rate_max=0.01, proven=True)

    measured = Measurement(
        configuration=Configuration(),
        edge=Edge(rate_rps=1000.0, interval_rps=(950.0, 1050.0)),
        capacity_rps=300.0,
        evidence=(evidence(300.0, 9000, 10), evidence(700.0, 200, 0), evidence(800.0, 5000, 900)),
    )
    lowered = stated(measured, 0.5)
    assert lowered.rate_rps == 500.0 and lowered.interval_rps == (475.0, 1050.0)
    kept = stated(
        replace(measured, evidence=(*measured.evidence[:1], evidence(600.0, 4000, 20))), 0.5
    )
    assert kept.rate_rps == 600.0 and kept.interval_rps[0] == 600.0
    # Not where its runs met usual speeds alone, nor what was certified of such runs.
    kept_then = replace(measured, capacity_rps=600.0, evidence=(evidence(600.0, 4000, 20),))
    assert stated(kept_then, 0.5).rate_rps == 600.0
    assert stated(kept_then, 0.5, unmet_rps=(600.0,)).rate_rps == 500.0
    assert stated(measured, 1.0) == measured.edge
    # Open upwards, its lower end rests on few requests, and so do these.
    opened = replace(measured, edge=Edge(interval_rps=(950.0, None)), capacity_rps=None)
    assert stated(opened, 0.5).interval_rps == (700.0, None)
    found_when_slow = stated(measured, 1.2)
    assert found_when_slow.rate_rps == 1200.0
    # The lower end is a rate that was kept.
    assert found_when_slow.interval_rps == pytest.approx((950.0, 1260.0))


@pytest.mark.parametrize("factor", [1.0, 0.3])
def test_an_edge_over_all_speeds_is_below_what_long_runs_broke(factor: float) -> None:
    """A busy machine: short runs kept 3,137/s, a certificate's broke 1,189/s and then 476/s."""

    measured = Measurement(
        configuration=Configuration(),
        edge=Edge(rate_rps=2400.0, interval_rps=(2300.0, 3300.0)),
        evidence=(evidence(476.0, 2197, 31), evidence(1189.0, 1213, 51)),
    )
    found = edge_over_speeds(measured, factor, miss_rate_max=0.01)
    allowed_rps = pytest.approx(476.0 * (0.01 / (31 / 2197)) ** 0.5)
    assert found.rate_rps == allowed_rps and found.interval_rps == (allowed_rps, 3300.0)
    opened = replace(measured, edge=Edge(interval_rps=(2300.0, None)))
    assert edge_over_speeds(opened, factor, miss_rate_max=0.01) == Edge(
        interval_rps=(allowed_rps, None)
    )
    # A clear miss: the estimate is that of twice the allowed share, the lower end that of all.
    late = replace(measured, evidence=(evidence(476.0, 2000, 320),))
    found = edge_over_speeds(late, factor, miss_rate_max=0.01)
    assert found.rate_rps == pytest.approx(476.0 / 2**0.5)
    assert found.interval_rps[0] == pytest.approx(476.0 / 4)
    # What is certified, or kept below, stays; too few requests say nothing.
    kept = replace(measured, evidence=(evidence(450.0, 3000, 3), *measured.evidence))
    found = edge_over_speeds(kept, factor, miss_rate_max=0.01)
    assert found.rate_rps == pytest.approx((450.0 * 476.0) ** 0.5)
    assert found.interval_rps[0] == 450.0
    few = replace(measured, evidence=(evidence(476.0, 299, 31),))
    assert edge_over_speeds(few, factor, miss_rate_max=0.01).rate_rps == 2400.0 * factor
    # Without the run whose requests were sent late 3 of 2,000 were.
    sent_late = replace(
        measured,
        evidence=(evidence(476.0, 2197, 31),),
        load_tests=(load_test(476.0, 197, 28, valid=False), load_test(476.0, 2000, 3)),
    )
    found = edge_over_speeds(sent_late, factor, miss_rate_max=0.01)
    assert found.rate_rps == max(2400.0 * factor, 476.0)
