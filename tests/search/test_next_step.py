"""The order of a search: first an answer, then a better one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.search.next_step import Standing, next_step

BEGIN = Standing(
    left_s=40.0,
    start_s=1.2,
    edge_s=4.0,
    begun=False,
    proven=False,
    best_share=None,
    disappointing=False,
    climbing=True,
    risked_share=None,
    baseline_share=None,
    baseline_open=True,
    baseline_comparable=True,
    baseline_edge_s=3.7,
    trials_wanted=True,
    trials_s=15.0,
)
PROVEN = replace(BEGIN, proven=True, best_share=0.6)


def test_first_a_candidate_with_its_proof_then_the_baseline_then_trials_then_a_climb() -> None:
    assert next_step(BEGIN) == "first"
    assert next_step(PROVEN) == "baseline"
    measured = replace(PROVEN, baseline_share=0.0)
    assert next_step(measured) == "trial"
    assert next_step(replace(measured, trials_s=3.0)) == "climb"
    assert next_step(replace(measured, trials_wanted=False)) == "climb"
    close = replace(measured, trials_s=0.0, best_share=0.95)
    assert next_step(close) == "baseline_proof"
    assert next_step(replace(close, baseline_share=0.9)) == "trial", "time is left for a trial"
    assert next_step(replace(close, baseline_share=0.9, trials_wanted=False)) is None


def test_a_proof_of_the_baseline_at_a_lower_share_comes_last() -> None:
    """A search of five minutes gave 66 s to one that ended at a third of the baseline's edge."""
    close = replace(PROVEN, baseline_share=0.0, trials_s=0.0, best_share=0.95)
    assert next_step(close) == "baseline_proof"
    alone = replace(close, baseline_comparable=False)
    assert next_step(alone) == "trial"
    assert next_step(replace(alone, risked_share=0.8)) == "climb_beyond"
    assert next_step(replace(alone, trials_wanted=False)) == "baseline_proof"
    assert next_step(replace(alone, trials_wanted=False, baseline_share=0.9)) is None
    assert next_step(replace(alone, trials_wanted=False, baseline_open=False)) is None


def test_what_is_not_expected_to_be_carried_is_tried_with_the_time_that_is_left() -> None:
    """A search of ten minutes spent its last 200 s on other candidates, at 0.78 of its edge."""
    ended = replace(PROVEN, baseline_share=0.0, trials_s=0.0, climbing=False, risked_share=0.78)
    assert next_step(ended) == "baseline_proof"
    assert next_step(replace(ended, climbing=True)) == "climb"
    compared = replace(ended, baseline_open=False)
    assert next_step(compared) == "climb_beyond"
    assert next_step(replace(compared, trials_s=15.0)) == "trial", "within the time of trials"
    assert next_step(replace(compared, risked_share=0.95)) == "trial"
    assert next_step(replace(compared, risked_share=None)) == "trial"
    assert next_step(replace(compared, pending=frozenset({"climb_beyond"}))) is None


def test_a_candidate_without_a_kept_rate_leads_to_the_next_and_one_with_a_rate_to_its_proof() -> (
    None
):
    assert next_step(replace(BEGIN, best_share=None)) == "first"
    assert next_step(replace(BEGIN, best_share=0.0)) == "proof"
    assert next_step(replace(BEGIN, best_share=0.0, trials_wanted=False)) == "proof"
    poor = replace(BEGIN, best_share=0.0, disappointing=True)
    assert next_step(poor) == "first"
    assert next_step(replace(poor, trials_wanted=False)) == "proof"
    assert next_step(replace(poor, left_s=6.0)) == "proof", "another one does not fit"
    assert next_step(replace(poor, proven=True, baseline_share=0.0)) != "first"


@pytest.mark.parametrize("share", [None, 0.0])
def test_what_an_open_proof_left_to_the_baselines_edge_goes_there(share: float | None) -> None:
    open_ = replace(BEGIN, begun=True, best_share=share)
    assert next_step(replace(open_, left_s=4.0)) == "baseline"
    assert next_step(replace(open_, left_s=2.6)) is None, "too little for that"
    assert next_step(replace(open_, left_s=8.0)) != "baseline", "another proof fits"
    assert next_step(replace(open_, left_s=4.0, begun=False)) != "baseline"
    assert next_step(replace(open_, left_s=4.0, baseline_share=0.0)) != "baseline"


def test_where_no_candidate_keeps_a_rate_the_baseline_may() -> None:
    none = replace(BEGIN, trials_wanted=False)
    assert next_step(none) == "baseline"
    assert next_step(replace(none, baseline_open=False)) is None
    assert next_step(replace(none, baseline_share=0.0)) is None
    assert next_step(replace(none, pending=frozenset({"trial"}))) is None, "a trial may keep one"


def test_other_workers_measure_candidates_meanwhile() -> None:
    assert next_step(replace(BEGIN, pending=frozenset({"first"}))) == "trial"
    assert next_step(replace(PROVEN, pending=frozenset({"climb"}))) == "trial"
    done = replace(PROVEN, trials_wanted=False, pending=frozenset({"climb"}))
    assert next_step(done) is None


@pytest.mark.parametrize("left_s", [-5.0, 0.0, 1.0, 2.0])
def test_nothing_is_begun_that_cannot_end_in_time(left_s: float) -> None:
    for standing in (BEGIN, PROVEN, replace(BEGIN, best_share=0.0)):
        assert next_step(replace(standing, left_s=left_s)) is None


@given(
    left_s=st.floats(-10, 600),
    edge_s=st.floats(1, 20),
    begun=st.booleans(),
    proven=st.booleans(),
    share=st.one_of(st.none(), st.floats(0, 1)),
    climbing=st.booleans(),
    risked=st.one_of(st.none(), st.floats(0, 1)),
    baseline=st.one_of(st.none(), st.floats(0, 1)),
    wanted=st.booleans(),
    trials_s=st.floats(-10, 600),
)
def test_whatever_is_begun_fits(
    left_s: float,
    edge_s: float,
    begun: bool,
    proven: bool,
    share: float | None,
    climbing: bool,
    risked: float | None,
    baseline: float | None,
    wanted: bool,
    trials_s: float,
) -> None:
    standing = replace(
        BEGIN,
        left_s=left_s,
        edge_s=edge_s,
        begun=begun,
        proven=proven,
        best_share=share,
        climbing=climbing,
        risked_share=risked,
        baseline_share=baseline,
        trials_wanted=wanted,
        trials_s=trials_s,
    )
    step = next_step(standing)
    if step is not None:
        assert left_s >= standing.start_s
    if step in ("first", "trial"):
        assert wanted
    if step == "climb":
        assert climbing and proven
    if step == "climb_beyond":
        assert risked is not None and proven


def test_an_open_edge_is_closed_after_the_trials_where_time_is_ample() -> None:
    past_trials = replace(PROVEN, baseline_share=0.0, trials_wanted=False)
    open_ = replace(past_trials, closing_s=(8.0, 6.0))
    assert next_step(open_) == "edge"
    assert next_step(replace(open_, closing_s=(None, 6.0))) == "baseline_edge"
    assert next_step(replace(open_, left_s=20.0)) == "climb", "a climb is worth more"
