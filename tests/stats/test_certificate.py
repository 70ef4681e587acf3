from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from analyzer.domain.measurement import Certificate, HigherRuns, RateEvidence
from analyzer.stats.batchmeans import lower_threshold_inflation, variance_inflation
from analyzer.stats.certificate import certify, decide, expected_requests, passes
from analyzer.stats.evidence import evidence_above, evidence_below


def clustered(rng: np.random.Generator, requests: int, share: float, run: int) -> NDArray[np.bool_]:
    """Flags in runs of ``run`` equal ones: a variance inflation of exactly ``run``."""
    return np.repeat(rng.random(-(-requests // run)) < share, run)[:requests]


def none_late(requests: int) -> NDArray[np.bool_]:
    return np.zeros(requests, dtype=bool)


def test_no_miss_at_inflation_one_needs_about_300() -> None:
    needed = expected_requests(miss_rate=0.0, inflation=1.0, percentile=99, confidence=0.95)
    assert needed is not None and 299 <= needed <= 350


def test_348_independent_requests_without_a_miss_pass() -> None:
    """The number that evidence.py names."""
    assert evidence_below(347, 0, 0.01) < 20 <= evidence_below(348, 0, 0.01)


def test_a_part_of_an_effective_late_request_costs_little() -> None:
    """One late request at an inflation of 7 is a seventh of one, which refutes no share."""
    needed = partial(
        expected_requests, miss_rate=0.0, inflation=7.0, percentile=99, confidence=0.95
    )
    without, further = needed(), needed(requests=1_000, over_budget=1)
    assert without is not None and further is not None
    assert without < 1_000 + further < 1.15 * without


def test_the_upper_estimate_is_exceeded_in_one_case_of_ten() -> None:
    """What batchmeans.py says of it: 40 batches of 400 independent flags, one batch count."""
    flags = np.random.default_rng(5).random((600, 16_000)) < 0.3
    upper = [variance_inflation([row], batches=(40,)) for row in flags]
    # An estimate below 1 is raised to 1; none of these can be exceeded by the true inflation of 1.
    raised = np.mean([found is not None and found.upper == 1.0 for found in upper])
    assert raised == pytest.approx(0.1, abs=0.025)


def test_no_miss_at_inflation_25_needs_about_7500() -> None:
    def verdict(requests: int) -> str:
        return certify(
            none_late(requests), percentile=99, confidence=0.95, twin_inflation=25.0
        ).verdict

    assert verdict(7_400) == "UNDECIDED"
    assert verdict(8_750) == "PASS"


def test_without_any_inflation_it_is_undecided_and_mlperf_stands_beside() -> None:
    found = certify(none_late(5_000), percentile=99, confidence=0.95)
    assert found.verdict == "UNDECIDED" and found.mlperf == "PASS"
    assert found.inflation is None and found.inflation_source == "none"
    assert found.requests_missing is None and found.effective_requests == 0.0


def test_few_misses_take_the_inflation_from_lower_thresholds() -> None:
    rng = np.random.default_rng(7)
    latency_s = np.repeat(rng.exponential(0.01, 400), 10)
    found = certify(none_late(4_000), percentile=99, confidence=0.95, latency_s=latency_s)
    assert found.inflation_source == "lower_threshold"
    assert found.inflation is not None and 10 <= found.inflation <= 40
    independent = certify(
        none_late(4_000),
        percentile=99,
        confidence=0.95,
        latency_s=rng.exponential(0.01, 4_000),
    )
    assert independent.verdict == "PASS"


def test_the_larger_inflation_counts() -> None:
    flags = clustered(np.random.default_rng(3), 40_000, 0.02, 50)
    found = certify(flags, percentile=99, confidence=0.95, twin_inflation=2.0)
    assert found.inflation_source == "batch_means"
    assert found.inflation == pytest.approx(60, rel=0.5)
    trusting = certify(flags, percentile=99, confidence=0.95, twin_inflation=500.0)
    assert trusting.inflation_source == "twin" and trusting.inflation == 500.0


def test_an_untold_or_infinite_twin_inflation_is_no_twin() -> None:
    flags = none_late(5_000)
    for value in (None, float("inf"), float("nan")):
        found = certify(flags, percentile=99, confidence=0.95, twin_inflation=value)
        assert found.inflation_source == "none"


def test_a_clear_failure_is_found_soon() -> None:
    late = np.arange(400) >= 200  # a growing queue: late from the middle on
    assert certify(late, percentile=99, confidence=0.95).verdict == "FAIL"
    everything = certify(np.ones(200, dtype=bool), percentile=99, confidence=0.95)
    assert everything.verdict == "FAIL"


def test_one_overload_is_no_failure() -> None:
    late = none_late(1_000)
    late[500:530] = True
    found = certify(late, percentile=99, confidence=0.95)
    assert found.verdict == "UNDECIDED" and found.mlperf == "FAIL"


def test_requests_missing_decide() -> None:
    first = certify(none_late(2_000), percentile=99, confidence=0.95, twin_inflation=20.0)
    assert first.verdict == "UNDECIDED" and first.requests_missing is not None
    total = 2_000 + first.requests_missing
    then = certify(none_late(total), percentile=99, confidence=0.95, twin_inflation=20.0)
    assert then.verdict == "PASS"


def test_a_rate_at_the_limit_is_never_decided() -> None:
    assert expected_requests(miss_rate=0.01, inflation=5.0, percentile=99, confidence=0.95) is None


def test_runs_count_together_and_batches_stay_within_them() -> None:
    rng = np.random.default_rng(11)
    blocks = [clustered(rng, size, 0.05, 10) for size in (3_000, 5_000, 1_700)]
    together = certify(blocks, percentile=99, confidence=0.95)
    assert together.requests == 9_700
    assert together.over_budget == sum(int(block.sum()) for block in blocks)
    assert together.verdict == "FAIL"


def test_no_requests_are_undecided() -> None:
    found = certify(none_late(0), percentile=99, confidence=0.95, twin_inflation=3.0)
    assert found.verdict == "UNDECIDED" and found.requests == 0


@given(st.integers(0, 3000), st.floats(0, 1), st.floats(1, 50), st.floats(1, 4))
def test_more_inflation_never_decides(
    requests: int, miss_rate: float, inflation: float, factor: float
) -> None:
    over = int(requests * miss_rate)
    verdict = decide(requests, over, inflation, percentile=99, confidence=0.95)
    if verdict == "UNDECIDED":
        more = decide(requests, over, inflation * factor, percentile=99, confidence=0.95)
        assert more == "UNDECIDED"


@pytest.mark.parametrize(("share", "true"), [(0.01, 0.01), (0.01, 0.011), (0.1, 0.1)])
def test_evidence_is_rarely_wrong_however_often_one_looks(share: float, true: float) -> None:
    rng = np.random.default_rng(5)
    passed = failed = 0
    for _ in range(300):
        over = np.cumsum(rng.random(3_000) < true)
        looks = range(50, 3_001, 50)
        passed += any(evidence_below(n, over[n - 1], share) >= 20 for n in looks)
        failed += any(evidence_above(n, over[n - 1], share) >= 20 for n in looks)
    assert passed <= 24  # 5 % of 300, and 2.4 standard deviations
    if true == share:
        assert failed <= 24


def test_inflation_of_clusters_is_their_length() -> None:
    flags = clustered(np.random.default_rng(1), 200_000, 0.05, 25)
    found = variance_inflation([flags])
    assert found is not None
    assert found.point == pytest.approx(28, rel=0.25)  # the largest of four estimates
    assert found.upper > found.point


def test_independent_flags_inflate_little() -> None:
    found = variance_inflation([np.random.default_rng(2).random(50_000) < 0.01])
    assert found is not None and 1.0 <= found.point < 2.0


def test_too_few_misses_or_requests_give_no_inflation() -> None:
    assert variance_inflation([none_late(10_000)]) is None
    assert variance_inflation([np.ones(50, dtype=bool)]) is None
    assert lower_threshold_inflation([np.zeros(0)]) is None
    assert lower_threshold_inflation([np.full(5_000, np.inf)]) is None


@settings(max_examples=30)
@given(st.lists(st.integers(0, 400), min_size=1, max_size=5), st.integers(0, 2**31))
def test_any_split_into_runs_is_survived(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    blocks = [rng.random(size) < 0.3 for size in sizes]
    latencies = [rng.exponential(size=size) for size in sizes]
    found = certify(blocks, percentile=90, confidence=0.9, latency_s=latencies)
    assert found.requests == sum(sizes)
    assert found.inflation is None or found.inflation >= 1.0


def test_beside_a_twin_the_drift_far_below_the_budget_is_no_overload() -> None:
    """Blocks of a machine that runs at two speeds, ten times quicker than promised."""
    rng = np.random.default_rng(3)
    speed = np.repeat(rng.choice([1.0, 2.0], 60), 200)
    latency_s = 0.003 * speed * rng.uniform(0.8, 1.2, len(speed))
    late = latency_s > 0.05
    assert not late.any()

    def verdict(twin: float | None, budget_s: float) -> str:
        return certify(
            late,
            percentile=99,
            confidence=0.95,
            twin_inflation=twin,
            latency_s=latency_s,
            budget_s=budget_s,
        ).verdict

    assert verdict(10.0, 0.05) == "PASS"
    assert verdict(None, 0.05) == "UNDECIDED", "without a twin nothing else tells of overloads"
    found = lower_threshold_inflation([latency_s], least_s=0.004)
    assert found is not None and found.point > 50, "at half the budget the same swings show"


def test_a_slow_state_counts_as_at_the_promise() -> None:
    """Slow for 200 requests, half of the time: the more, the more of them exceed a threshold."""
    rng = np.random.default_rng(4)
    slow = np.repeat(rng.random(400) < 0.5, 200)
    latency_s = np.where(slow, rng.uniform(0.8, 1.0, len(slow)), rng.uniform(0.0, 0.8, len(slow)))

    def inflation(requests: int, late_share: float | None) -> float:
        found = lower_threshold_inflation(
            [latency_s[:requests]], least_s=0.5, late_share=late_share
        )
        assert found is not None
        return found.point

    # A share of 1 %, all of it in the slow state: 1 + 200 · 0.01 · 0.5 / 0.5, and at half 100.
    assert 2 < inflation(len(slow), 0.01) < 8 < 80 < inflation(len(slow), None)
    assert inflation(1_000, 0.01) < 8 < 20 < inflation(1_000, None)


def test_where_the_speed_was_steady_the_largest_counts_by_half() -> None:
    """Which alone is known of a run whose thresholds differ by chance."""
    rng = np.random.default_rng(4)
    latency_s = np.repeat(rng.exponential(1.0, 400), rng.integers(1, 80, 400))
    split, steady, largest = (
        lower_threshold_inflation([latency_s], late_share=late_share, steady=known)
        for late_share, known in ((0.01, False), (0.01, True), (None, True))
    )
    assert split is not None and steady is not None and largest is not None
    assert split.point < steady.point < largest.point
    assert steady.point**2 == pytest.approx(split.point * largest.point, rel=0.1)


def test_overloads_count_fully_where_no_threshold_shows_slow_states() -> None:
    """Of 40 requests each: one inflation at all thresholds, which the promise's own has too."""
    rng = np.random.default_rng(5)
    latency_s = np.repeat(rng.exponential(1.0, 2_000), 40)
    found = lower_threshold_inflation([latency_s], late_share=0.01)
    assert found is not None and 30 < found.point < 50 and found.point <= found.upper
    alone = lower_threshold_inflation([latency_s], shares=(), late_share=0.001)
    assert alone is not None and 20 < alone.point < 60, "two thresholds"
    near = lower_threshold_inflation([latency_s], shares=(0.053, 0.05), late_share=0.049)
    assert near is not None and near.point > 30, "no slope of noise"
    median = lower_threshold_inflation([latency_s], late_share=0.5)
    assert median is not None and 20 < median.point < 60, "twice half is all of them"


def with_earlier(earlier: RateEvidence, requests: int, twin: float) -> Certificate:
    """The certificate of ``requests`` of which none is late, together with earlier ones."""
    return certify(
        none_late(requests),
        percentile=99,
        confidence=0.95,
        twin_inflation=twin,
        earlier=earlier,
        claim=earlier.claim,
    )


def test_later_runs_that_tell_less_of_correlation_do_not_take_on_the_earlier_ones() -> None:
    known = RateEvidence(
        rate_rps=1.0, requests=1_000, over_budget=0, inflation=900.0, claim=1, blocks=1
    )
    pooled = partial(with_earlier, known)

    assert pooled(99_000, 10.0).inflation == pytest.approx(0.01 * 900 + 0.99 * 10)
    assert pooled(99_000, 10.0).inflation_source == "twin"
    assert pooled(10, 10.0).inflation_source == "earlier"
    # What later runs find above counts for all.
    assert pooled(10, 1_000.0).inflation == 1_000.0


def test_what_the_generators_lag_made_late_says_nothing_for_a_fail() -> None:
    """Nor does it make a PASS any easier."""
    known = RateEvidence(
        rate_rps=1.0, requests=2_000, over_budget=60, inflation=1.0, claim=1, blocks=2
    )
    lagged = replace(known, lagged=(1_000, 60))
    assert with_earlier(known, 100, 1.0).verdict == "FAIL"
    found = with_earlier(lagged, 100, 1.0)
    assert found.verdict == "UNDECIDED" and found.over_budget == 60
    assert with_earlier(replace(lagged, over_budget=120), 100, 1.0).verdict == "FAIL"
    for further, verdict in ((5_000, "UNDECIDED"), (20_000, "PASS")):
        assert with_earlier(known, further, 1.0).verdict == verdict
        assert with_earlier(lagged, further, 1.0).verdict == verdict


HIGHER = HigherRuns(rate_rps=900.0, requests=6000, over_budget=0, inflation=20.0)


def evidence_with(higher: HigherRuns) -> RateEvidence:
    empty: dict[str, Any] = {"requests": 0, "over_budget": 0, "inflation": None, "blocks": 0}
    return RateEvidence(rate_rps=700.0, claim=1, higher=(higher,), **empty)


def test_runs_at_a_higher_rate_count_by_their_own_effective_number() -> None:
    judged = partial(with_earlier, evidence_with(HIGHER))
    found = judged(200, 2.0)
    assert found.verdict == "PASS" and found.effective_requests == pytest.approx(400.0)
    assert found.requests == 6200 and found.own_requests == 200 and found.inflation == 2.0
    short = judged(100, 2.0)
    assert short.verdict == "UNDECIDED" and short.requests_missing is not None
    assert judged(100 + short.requests_missing, 2.0).verdict == "PASS"
    # More correlated than at the higher rate: that was not known there.
    assert judged(200, 40.0).effective_requests == pytest.approx(155.0)


def test_runs_at_a_higher_rate_say_nothing_for_a_fail() -> None:
    late = replace(HIGHER, over_budget=900)
    found = with_earlier(evidence_with(late), 100, 1.0)
    assert found.verdict == "UNDECIDED" and found.over_budget == 900
    assert found.own_over_budget == 0


def test_runs_at_a_higher_rate_do_not_outweigh_what_is_late_at_the_rate_itself() -> None:
    """A clear proof above, and 2 of 100 late below: 100 further ones of which none is late."""
    above = replace(HIGHER, requests=40_000)
    counts: dict[str, Any] = {"percentile": 99.0, "confidence": 0.95, "higher": (above,)}
    assert decide(100, 2, 1.0, **counts) == "UNDECIDED"
    assert decide(200, 2, 1.0, **counts) == "PASS"
    more = expected_requests(miss_rate=0.0, inflation=1.0, requests=100, over_budget=2, **counts)
    assert more == pytest.approx(100, abs=1)


def test_what_counts_for_a_lower_rate_proves_the_higher_one_no_more() -> None:
    proven = RateEvidence(
        rate_rps=900.0, requests=9000, over_budget=0, inflation=20.0, claim=1, blocks=3
    )
    assert passes(proven, percentile=99, confidence=0.95)
    assert not passes(replace(proven, claim=0), percentile=99, confidence=0.95)
    assert passes(proven, percentile=99, confidence=0.95, share=0.99)
    assert not passes(proven, percentile=99, confidence=0.95, share=0.3)
    lower = proven.below(700.0)
    assert lower.claim == 1 and lower.requests == 0 and lower.blocks == 0
    assert lower.higher == (
        HigherRuns(rate_rps=900.0, requests=9000, over_budget=0, inflation=20.0),
    )
    assert not passes(lower, percentile=99, confidence=0.95), "not without a run of its own"


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**31), chance=st.sampled_from([0.0105, 0.012, 0.02]))
def test_a_claim_that_goes_down_while_both_rates_break_the_sla_stays_as_rare(
    seed: int, chance: float
) -> None:
    """Ville's inequality over the whole claim: of 400 claims at most so many pass wrongly."""
    rng = np.random.default_rng(seed)
    wrong = 0
    for _ in range(400):
        high = rng.random(rng.integers(100, 2000)) < 1.5 * chance
        low = rng.random(3000) < chance
        over = int(high.sum())
        runs = HigherRuns(rate_rps=900.0, requests=len(high), over_budget=over, inflation=1.0)
        wrong += any(
            decide(n, int(low[:n].sum()), 1.0, percentile=99, confidence=0.95, higher=(runs,))
            == "PASS"
            for n in range(100, 3001, 100)
        )
    assert wrong <= 20 + 14, "5 % and three deviations"
