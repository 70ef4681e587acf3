"""What a machine's witness says of a claim."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from analyzer.domain.conditions import summary_of
from analyzer.domain.configuration import Configuration
from analyzer.domain.load_test import (
    Conditions,
    ExecutionTimes,
    LatencySummary,
    LoadTest,
    ResourceUse,
    Validity,
)
from analyzer.domain.measurement import (
    Certificate,
    Edge,
    Measurement,
    RateEvidence,
)
from analyzer.domain.sla import Sla
from analyzer.measure.slow_states import (
    met_share,
    met_slow_states,
    outweighs,
    tenable,
    unmet_rates,
)
from analyzer.measure.walk_claims import all_met
from analyzer.measure.witness import (
    SAFE_SHARE,
    STEADY_SHARE,
    SURE_SHARE,
    first_share,
    free_share,
    lasting_work_us,
    late_when_slow,
    rate_ceiling,
    slow_work_us,
    slower_before,
    stalls_too_long,
    steady,
    watched_times,
)

SLA = Sla(latency_budget_ms=40.0)
QUIET = Conditions(seconds=100.0, work_us=(100.0,) * 100)
SLOW = Conditions(seconds=100.0, work_us=(100.0,) * 90 + (200.0,) * 10)
STALLS = Conditions(seconds=100.0, stalls_ms=(500.0,) * 5, work_us=(100.0,) * 100)
EDGE = Edge(rate_rps=600.0, interval_rps=(590.0, 610.0), work_us=100.0)
PASS = Certificate(
    verdict="PASS", requests=100, over_budget=0, effective_requests=100.0, confidence=0.95,
    mlperf="PASS",
)  # fmt: skip
CLAIM = Measurement(configuration=Configuration(), edge=EDGE, capacity_rps=400.0, certificate=PASS)


def test_the_slow_state_is_what_more_than_the_allowed_share_of_seconds_exceeds() -> None:
    once = Conditions(seconds=200.0, work_us=(100.0,) * 198 + (300.0, 400.0))
    assert slow_work_us(once, 0.01) == 300.0
    assert slow_work_us(SLOW, 0.01) == 200.0 and slow_work_us(Conditions(seconds=1.0), 0.01) is None


def test_the_ceiling_is_the_edge_at_the_slow_state_s_speed() -> None:
    half = SURE_SHARE * 295.0
    assert rate_ceiling(EDGE, SLOW, SLA) == pytest.approx(half), "half of the lower end"
    for study in (QUIET, None, Conditions(seconds=9.0)):
        assert rate_ceiling(EDGE, study, SLA) == math.inf
    found_when_slow = Edge(rate_rps=300.0, interval_rps=(290.0, 310.0), work_us=200.0)
    assert rate_ceiling(found_when_slow, SLOW, SLA) == SURE_SHARE * 300.0, "the slow state's own"
    open_edge = Edge(rate_rps=None, interval_rps=(500.0, None), work_us=100.0)
    assert rate_ceiling(open_edge, SLOW, SLA) == pytest.approx(SURE_SHARE * 250.0)


def test_in_a_slow_state_as_many_may_be_late_as_its_share_of_the_time_allows() -> None:
    """A tenth of the time: a tenth of its requests may be, of which 1 % of all are."""
    late: list[float] = []

    def slow_edge(slowdown: float, share: float) -> float:
        late.append(share)
        return 0.5

    rate_ceiling(EDGE, SLOW, SLA, slow_edge)
    assert late == [pytest.approx(0.1)]
    assert late_when_slow(EDGE, QUIET, SLA, ()) == late_when_slow(EDGE, None, SLA, ()) == 0.01


def test_a_rate_above_the_slow_state_s_says_nothing_of_it_where_its_runs_did_not_meet_it() -> None:
    def kept(rate: float, watched: Conditions) -> RateEvidence:
        return RateEvidence(
            rate_rps=rate, requests=9000, over_budget=0, inflation=5.0, claim=1, blocks=1,
            conditions=watched,
        )  # fmt: skip

    seen = replace(CLAIM, evidence=(kept(200.0, QUIET), kept(400.0, QUIET), kept(500.0, SLOW)))
    assert unmet_rates(seen, SLOW, SLA) == (400.0,)
    assert unmet_rates(seen, QUIET, SLA) == ()


def test_an_edge_whose_rate_was_kept_in_slow_seconds_is_the_slow_state_s() -> None:
    """The median second of such a run may be a fast one; its edge was cut by a third once more."""
    met = replace(EDGE, slow_us=200.0)
    assert rate_ceiling(met, SLOW, SLA) == SURE_SHARE * 600.0
    assert met_share(SURE_SHARE * 590.0, met, SLOW, SLA, QUIET) == 1.0
    assert met_share(590.0, met, SLOW, SLA, QUIET) < 1.0, "an edge of short runs may be too high"
    slower = Conditions(seconds=100.0, work_us=(100.0,) * 90 + (300.0,) * 10)
    assert rate_ceiling(met, slower, SLA) == pytest.approx(SURE_SHARE * 590.0 / 1.5)


def test_a_rate_is_not_held_back_for_a_witness_that_only_the_light_load_slows() -> None:
    edge_run, light = (
        LoadTest(
            kind=kind,
            offered_rps=rate,
            achieved_rps=rate,
            throughput_ips=rate,
            requests=2000,
            over_budget=0,
            errors=0,
            duration_s=4.0,
            latency_ms=LatencySummary(),
            executions=(ExecutionTimes(batch_size=1, count=1000, mean_ms=2.0),),
            slowness=(1.0,) * 40,
            validity=Validity(valid=True),
            conditions=Conditions(seconds=4.0, work_us=(work_us,) * 4),
        )
        for kind, rate, work_us in (("edge", 600.0, 100.0), ("certify", 300.0, 180.0))
    )
    half = SURE_SHARE * 295.0
    assert rate_ceiling(EDGE, SLOW, SLA, tests=[edge_run]) == pytest.approx(half)
    assert rate_ceiling(EDGE, SLOW, SLA, tests=[edge_run, light]) == SURE_SHARE * 600.0
    # Four slow seconds of twelve: executions were slower by a fifth only.
    some = Conditions(seconds=12.0, work_us=(100.0,) * 8 + (200.0,) * 4)
    trace = (1.0,) * 80 + (1.2,) * 40
    slower = replace(edge_run, kind="certify", conditions=some, slowness=trace)
    assert rate_ceiling(EDGE, SLOW, SLA, tests=[edge_run, slower]) == pytest.approx(
        SURE_SHARE * 590.0 / 1.2, rel=0.1
    )
    unwatched = replace(EDGE, work_us=None)
    assert rate_ceiling(unwatched, SLOW, SLA, tests=[edge_run]) == math.inf
    # Where its own runs do not tell, executions of others do: those answer to half of it.
    found = rate_ceiling(EDGE, SLOW, SLA, tests=[edge_run], response=0.5)
    assert found == pytest.approx(SURE_SHARE * 590.0 / 2**0.5)
    own = rate_ceiling(EDGE, SLOW, SLA, tests=[edge_run, slower])
    assert rate_ceiling(EDGE, SLOW, SLA, tests=[edge_run, slower], response=0.5) == own
    assert met_share(370.0, EDGE, SLOW, SLA, QUIET, tests=[edge_run], response=0.5) == 1.0
    assert met_share(370.0, EDGE, SLOW, SLA, QUIET, tests=[edge_run]) < 1.0


def test_an_edge_that_slower_runs_lowered_is_not_lowered_for_that_state_once_more() -> None:
    lowered = replace(EDGE, rate_rps=380.0, interval_rps=(290.0, 610.0), before_rps=590.0)
    assert rate_ceiling(lowered, SLOW, SLA) == rate_ceiling(EDGE, SLOW, SLA)


def test_one_slow_second_is_no_state_of_the_machine() -> None:
    """A server that starts slows the canary for a second; 1 % of a short study is less than one."""
    one = Conditions(seconds=48.0, work_us=(100.0,) * 47 + (200.0,))
    two = Conditions(seconds=48.0, work_us=(100.0,) * 46 + (200.0,) * 2)
    assert rate_ceiling(EDGE, one, SLA) == math.inf
    assert rate_ceiling(EDGE, two, SLA) == pytest.approx(SURE_SHARE * 295.0)


def test_a_state_that_is_a_fifth_slower_caps_the_rate_as_well() -> None:
    """A drift of 1.2 times overloads a server at nine tenths of its edge."""
    fifth = Conditions(seconds=100.0, work_us=(100.0,) * 90 + (120.0,) * 10)
    assert rate_ceiling(EDGE, fifth, SLA) == pytest.approx(SURE_SHARE * 590.0 / 1.2)
    noise = Conditions(seconds=100.0, work_us=(100.0,) * 90 + (110.0,) * 10)
    assert rate_ceiling(EDGE, noise, SLA) == math.inf


def test_the_slowest_of_many_states_must_be_met_as_well() -> None:
    """A drift from 100 to 200: runs in its middle are slow seconds, and none of the slowest."""
    drift = Conditions(seconds=100.0, work_us=tuple(100.0 + second for second in range(100)))
    middle = Conditions(seconds=20.0, work_us=tuple(125.0 + second for second in range(20)))
    whole = Conditions(seconds=50.0, work_us=drift.work_us[::2])
    assert met_share(500.0, EDGE, drift, SLA, middle) < 1.0
    assert met_share(500.0, EDGE, drift, SLA, whole) == 1.0


def test_a_target_rate_is_held_against_the_state_of_the_edge_s_runs() -> None:
    """An edge that was found while the machine was slower says what that state carries."""
    found_when_slower = replace(EDGE, work_us=120.0)
    study = Conditions(seconds=60.0, work_us=(120.0,) * 10 + (100.0,) * 50)
    assert met_share(700.0, found_when_slower, study, SLA, QUIET) < 1.0
    assert met_share(605.0, found_when_slower, study, SLA, QUIET) < 1.0, "of its interval"
    assert met_share(530.0, found_when_slower, study, SLA, QUIET) == 1.0, (
        "the slower state carries it"
    )
    assert met_share(700.0, found_when_slower, study, SLA, study) == 1.0, (
        "met as often as by the study"
    )
    assert met_share(700.0, found_when_slower, study, SLA, None) < 1.0, "nobody knows what it met"


@pytest.mark.parametrize(
    ("work_us", "budget_s", "expected"),
    [
        ((100.0, 200.0, 200.0, 100.0, 100.0), 0.04, 200.0),
        ((100.0, 200.0, 100.0, 200.0, 100.0), 0.04, 100.0),  # each may be slow for half a second
        ((100.0, 200.0, 200.0, 100.0, 100.0), 1.0, 100.0),  # too short for a queue of a second
        ((100.0, *(200.0,) * 5, *(100.0,) * 8), 1.0, 200.0),
        ((200.0,), 0.04, 200.0),
        ((), 0.04, None),
    ],
)
def test_a_speed_counts_as_met_where_it_lasted_long_enough_to_show_an_overload(
    work_us: tuple[float, ...], budget_s: float, expected: float | None
) -> None:
    assert lasting_work_us(Conditions(seconds=9.0, work_us=work_us), budget_s) == expected


def test_an_edge_that_was_found_in_the_slow_state_says_nothing_above_it() -> None:
    edge = Edge(rate_rps=300.0, interval_rps=(290.0, 310.0), work_us=200.0)
    assert met_share(260.0, edge, SLOW, SLA, QUIET) == 1.0
    assert met_share(400.0, edge, SLOW, SLA, QUIET) < 1.0
    assert (
        met_share(400.0, edge, SLOW, SLA, SLOW) == met_share(400.0, edge, QUIET, SLA, None) == 1.0
    )


def test_stalls_count_beyond_what_the_budget_has_left() -> None:
    assert stalls_too_long(STALLS, SLA, 10.0)  # 5 times 470 ms in 100 s
    assert not stalls_too_long(QUIET, SLA, 10.0) and not stalls_too_long(None, SLA, 10.0)
    assert not stalls_too_long(STALLS, Sla(latency_budget_ms=450.0), 10.0)


def test_a_claim_stands_while_nothing_that_was_seen_speaks_against_it() -> None:
    test = LoadTest(
        kind="certify", offered_rps=400.0, achieved_rps=400.0, throughput_ips=400.0, requests=100,
        errors=0, duration_s=1.0, latency_ms=LatencySummary(p50=10.0),
        validity=Validity(valid=True),
    )  # fmt: skip
    claim = replace(CLAIM, headline=test)
    assert tenable(claim, QUIET, SLA) and tenable(claim, None, SLA)
    assert not tenable(claim, SLOW, SLA) and not tenable(claim, STALLS, SLA)
    met = replace(claim, headline=replace(test, conditions=SLOW))
    assert tenable(met, SLOW, SLA), "the certificate met the slow state as often"
    known = RateEvidence(
        rate_rps=400.0, requests=200, over_budget=0, inflation=1.0, claim=1, blocks=2,
        conditions=SLOW,
    )  # fmt: skip
    assert tenable(replace(claim, evidence=(known,)), SLOW, SLA), "of all walks together"
    quiet = replace(known, conditions=QUIET)
    assert not tenable(replace(met, evidence=(quiet,)), SLOW, SLA), "its runs met no slow state"
    more = replace(met, certificate=replace(PASS, requests=200))
    assert not tenable(more, SLOW, SLA), "nobody knows what its other runs met"


def test_a_claim_of_less_confidence_stands_where_its_requests_suffice_for_more() -> None:
    """One of a study of one type of instance counted in one of two, whose error is halved."""
    claim = replace(CLAIM, certificate=replace(PASS, confidence=0.95))
    stricter = replace(SLA, confidence=0.975)
    known = RateEvidence(
        rate_rps=400.0, requests=400, over_budget=0, inflation=1.0, claim=1, blocks=2
    )
    enough = replace(known, requests=600)
    assert tenable(claim, None, SLA) and not tenable(claim, None, stricter)
    assert not tenable(replace(claim, evidence=(known,)), None, stricter)
    assert tenable(replace(claim, evidence=(enough,)), None, stricter)
    assert tenable(replace(claim, certificate=replace(PASS, confidence=0.975)), None, stricter)


def known_of(rate_rps: float, conditions: Conditions | None, **changes: Any) -> RateEvidence:
    known = RateEvidence(
        rate_rps=rate_rps, requests=1000, over_budget=0, inflation=1.0, claim=1, blocks=2,
        conditions=conditions,
    )  # fmt: skip
    return replace(known, **changes)


def test_a_claim_whose_runs_met_fewer_slow_seconds_needs_more_requests() -> None:
    """A tenth of the study's seconds are slow, and a twentieth of the claim's: half as many count.

    A proof of 1,026/s was taken back whole where its runs met 0.84 of the slow seconds.
    """
    half = Conditions(seconds=100.0, work_us=(100.0,) * 95 + (200.0,) * 5)
    assert met_share(400.0, EDGE, SLOW, SLA, half) == pytest.approx(0.5)
    assert met_share(400.0, EDGE, SLOW, SLA, QUIET) == 0.0
    proven = known_of(400.0, half)
    assert outweighs(proven, 0.5, SLA) and outweighs(None, 1.0, SLA)
    assert not outweighs(proven, 0.3, SLA) and not outweighs(None, 0.5, SLA)
    assert not outweighs(replace(proven, over_budget=6), 0.5, SLA), "as if late in slow states"
    claim = replace(CLAIM, evidence=(proven,))
    assert tenable(claim, SLOW, SLA)
    assert not tenable(replace(claim, evidence=(replace(proven, requests=500),)), SLOW, SLA)


def test_slow_states_in_which_a_higher_rate_was_kept_count_for_a_lower_one() -> None:
    of = {"miss_rate_max": 0.01}
    own = known_of(400.0, QUIET)
    kept, broken = known_of(500.0, SLOW), known_of(500.0, SLOW, over_budget=20)
    both = Conditions.pooled([QUIET, SLOW])
    assert all_met(400.0, QUIET, [own, kept], **of) == (QUIET, both)
    assert all_met(400.0, QUIET, [own, broken], **of) == (QUIET,)
    assert all_met(400.0, QUIET, [own, replace(kept, claim=0)], **of) == (QUIET,), "handed down"
    assert all_met(500.0, QUIET, [own, kept], **of) == (QUIET,), "its own, and a lower one"
    assert all_met(400.0, None, [own, kept], **of) == (None,), "nobody knows what it met"
    run = ran(kind="certify", offered_rps=500.0, over_budget=0, conditions=SLOW)
    assert all_met(400.0, QUIET, [own], [run], **of) == (QUIET, both)
    late = replace(run, requests=500, over_budget=400)
    assert all_met(400.0, QUIET, [own], [run, late], **of) == (QUIET,), "of all runs at the rate"
    assert all_met(400.0, QUIET, [own, kept], [late], **of) == (QUIET,), "earlier ones as well"


def test_a_claim_is_held_against_earlier_studies_too() -> None:
    """A study that met quick seconds only; what it met itself counts all the same."""
    seconds = SLOW.work_us
    assert watched_times(QUIET, ()) == (QUIET,) and watched_times(None, seconds) == (None,)
    own, all_of_them = watched_times(QUIET, seconds)
    assert own == QUIET and all_of_them is not None and len(all_of_them.work_us) == 200
    assert all_of_them.seconds == QUIET.seconds, "earlier stalls are none of this study's"
    claim = CLAIM
    assert tenable(claim, QUIET, SLA)
    assert not tenable(claim, QUIET, SLA, earlier_us=seconds)
    assert tenable(replace(claim, capacity_rps=260.0), QUIET, SLA, earlier_us=seconds)
    quick = (100.0,) * 5000
    assert not tenable(claim, SLOW, SLA, earlier_us=quick), "slow for 0.2 % of all, 10 % of its own"
    assert slower_before(QUIET, seconds, SLA) == pytest.approx(2.0)
    assert slower_before(SLOW, seconds, SLA) is None and slower_before(QUIET, (), SLA) is None


def test_pooled_conditions_add_up() -> None:
    both = Conditions.pooled([SLOW, None, STALLS])
    assert both is not None and both.seconds == 200.0
    assert len(both.stalls_ms) == 5 and len(both.work_us) == 200
    assert Conditions.pooled([None]) is None


def test_of_more_stalls_than_are_kept_the_rest_counts_as_the_shortest_kept() -> None:
    """600 stalls in ten minutes counted as the longest hundred."""
    part = Conditions(seconds=100.0, stalls_ms=(30.0,) * 100)
    pooled = Conditions.pooled([part] * 6)
    assert pooled is not None
    assert (len(pooled.stalls_ms), pooled.stalls_cut) == (100, 500)
    assert pooled.stalled_share(10.0) == pytest.approx(600 * 0.020 / 600)
    told = summary_of([pooled])
    assert told is not None and told.stalls == 600
    assert told.stalled_fraction == pytest.approx(0.03)


def test_a_first_rate_is_bold_only_where_the_machine_was_never_slower_than_in_the_edge_s_runs() -> (
    None
):
    assert first_share(EDGE, [QUIET]) == STEADY_SHARE
    assert first_share(EDGE, [QUIET, SLOW]) == SAFE_SHARE, "an earlier study was"
    assert first_share(EDGE, [None]) == SAFE_SHARE
    assert first_share(EDGE, [Conditions(seconds=9.0)]) == SAFE_SHARE
    assert first_share(replace(EDGE, work_us=None), [QUIET]) == SAFE_SHARE
    assert first_share(replace(EDGE, work_us=200.0), [SLOW]) == STEADY_SHARE
    hardly = Conditions(seconds=100.0, work_us=(100.0,) * 90 + (120.0,) * 10)
    assert SAFE_SHARE < first_share(EDGE, [hardly]) < STEADY_SHARE


def test_runs_met_slow_states_where_they_had_at_least_half_as_many_of_them() -> None:
    """The tenth of SLOW's seconds: what no run met is only supposed."""
    assert not met_slow_states(SLOW, SLA, QUIET)
    assert not met_slow_states(SLOW, SLA, None)
    few, enough = (
        Conditions(seconds=50.0, work_us=(100.0,) * (50 - slow) + (200.0,) * slow)
        for slow in (2, 3)
    )
    assert not met_slow_states(SLOW, SLA, few) and met_slow_states(SLOW, SLA, enough)
    assert met_slow_states(QUIET, SLA, QUIET) and not met_slow_states(None, SLA, None)


def ran(**changes: Any) -> LoadTest:
    """A run of an edge's search."""
    test = LoadTest(
        kind="edge", offered_rps=400.0, achieved_rps=400.0, throughput_ips=400.0, requests=4000,
        errors=0, duration_s=10.0, latency_ms=LatencySummary(p50=10.0),
        validity=Validity(valid=True),
    )  # fmt: skip
    return replace(test, **changes)


def test_a_first_rate_is_not_bold_where_executions_wait_for_a_neighbour() -> None:
    """The canary runs in real time, and does not see it."""
    waiting = ran(slowness=(*[1.0] * 80, *[1.4] * 20))
    assert first_share(EDGE, [QUIET], [waiting]) == SAFE_SHARE
    steady = replace(waiting, slowness=(*[1.0] * 95, *[1.4] * 5))
    for told in (steady, replace(waiting, kind="certify"), replace(waiting, slowness=())):
        assert first_share(EDGE, [QUIET], [told]) == STEADY_SHARE


def test_the_speed_was_steady_where_neither_the_canary_nor_executions_were_slower() -> None:
    """Nine of 24 simulated searches of a minute beside a neighbour were undecided: inflations of 7
    to 22 at thresholds below half of the budget, 1 to 4 by the twin, no request late."""
    quick = ran(slowness=(1.0,) * 100, conditions=QUIET)
    assert steady([quick]) and steady([replace(quick, slowness=())])
    assert not steady([replace(quick, conditions=SLOW)])
    assert not steady([quick, replace(quick, conditions=None)])
    assert not steady([quick, replace(quick, slowness=(*[1.0] * 70, *[1.4] * 30))])
    mostly_slow = (*[1.0] * 20, *[1.4] * 80)
    assert not steady([replace(quick, slowness=mostly_slow)]), "its median is slow"


def test_others_leave_less_of_the_cores_than_the_edge_s_rate_had() -> None:
    def beside(*others: float | None, **changes: Any) -> float:
        uses = [ResourceUse(other_utilization=other) for other in others]
        tests = [ran(resources=use, offered_rps=100.0 + at) for at, use in enumerate(uses)]
        return free_share([*tests[:-1], replace(tests[-1], **changes)], 0.01)

    assert beside(0.5, 0.0) == pytest.approx(0.5)
    assert beside(0.55, 0.1) == pytest.approx(0.5)
    assert beside(0.0, 0.5) == 1.0, "the edge is one beside the neighbour"
    assert beside(1.0, 1.0) == 1.0
    assert beside(None, None) == 1.0
    assert beside(0.05, 0.0) == 1.0, "an idle machine's own services"
    assert beside(0.0, 0.5, duration_s=0.2) == 1.0, "too short to tell"
    for broke in ({"aborted": True}, {"over_budget": 41}, {"kind": "certify"}):
        assert beside(0.0, 0.5, **broke) == pytest.approx(0.5)
