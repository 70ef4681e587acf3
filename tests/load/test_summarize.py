"""From a run to the facts of a load test."""

import math
from dataclasses import replace

import numpy as np
import pytest

from analyzer.domain.load_test import STATUS_ERROR, STATUS_TIMEOUT, ExecutionTimes
from analyzer.engine.counters import ServerStatistics
from analyzer.load.generator import run_closed_loop, run_open_loop
from analyzer.load.summarize import set_warmup_apart, statistics_between, summarize
from analyzer.targets.scripted import ScriptedTarget, constant_delay


@pytest.fixture(scope="module")
def run():
    arrivals = np.cumsum(np.random.default_rng(4).exponential(0.002, 500))
    target = ScriptedTarget(
        constant_delay(0.01), status=lambda request: STATUS_ERROR * (request % 100 == 99)
    )
    with target.connect() as connection:
        return run_open_loop(connection, arrivals, 2, timeout_s=1, drain_s=1)


@pytest.mark.timing
def test_the_facts_of_an_open_loop(run) -> None:
    test = summarize(run, kind="edge", offered_rps=500.0, budget_ms=1000.0, warmup=100, seed=3)
    assert (test.kind, test.requests, test.errors, test.over_budget) == ("edge", 400, 4, 4)
    assert test.concurrency is None
    assert test.duration_s == pytest.approx(400 / 500, rel=0.2)
    assert test.achieved_rps == pytest.approx(396 / test.duration_s)
    assert test.throughput_ips == pytest.approx(2 * test.achieved_rps)
    assert test.latency_ms.p50 >= 10
    assert test.latency_ms.p99 is not None, "1 % failed: the 99th still stands"
    assert test.breakdown_ms.compute_infer == pytest.approx(10, rel=1e-3)
    assert test.breakdown_ms.overhead < test.latency_ms.mean
    assert test.started_at > 1e9
    assert test.seed == 3


def test_little_fails_where_replies_were_lost(run) -> None:
    wrong = replace(run, in_flight_mean=run.in_flight_mean * 3 + 3)
    test = summarize(wrong, kind="edge", offered_rps=500.0, budget_ms=1000.0)
    assert not test.validity.valid
    assert any("Little" in reason for reason in test.validity.reasons)


def test_a_late_generator_is_invalid(run) -> None:
    log = replace(run.log, send_lag_s=run.log.send_lag_s + 0.2)
    test = summarize(replace(run, log=log), kind="edge", offered_rps=500.0, budget_ms=100.0)
    assert not test.validity.valid
    assert test.send_lag_ms_p99 >= 200


@pytest.mark.timing
def test_a_closed_loop_offers_what_it_achieves() -> None:
    with ScriptedTarget(constant_delay(0.005)).connect() as connection:
        run = run_closed_loop(connection, 4, requests=200)
    test = summarize(run, kind="measure")
    assert test.concurrency == 4
    assert test.offered_rps == test.achieved_rps
    assert test.over_budget is None
    assert test.validity.valid, test.validity.reasons


def lost(run, which: slice):
    """``run`` without the replies to some requests, which were waited for for half a minute."""
    latency_s, status = run.log.latency_s.copy(), run.log.status.copy()
    latency_s[which], status[which] = math.inf, STATUS_TIMEOUT
    return replace(run, log=replace(run.log, latency_s=latency_s, status=status), wall_s=30.0)


def test_waiting_for_a_lost_reply_is_no_time_in_which_the_server_was_slow(run) -> None:
    """One of 500 was lost: the rate fell to a thirtieth."""
    whole = summarize(run, kind="measure", offered_rps=500.0, warmup=0)
    test = summarize(lost(run, slice(100, 101)), kind="measure", offered_rps=500.0, warmup=0)
    assert test.errors == whole.errors + 1
    assert test.achieved_rps == pytest.approx(whole.achieved_rps * 494 / 495)
    assert test.throughput_ips == pytest.approx(2 * test.achieved_rps)


def test_a_server_that_falls_silent_is_not_judged_by_the_time_before(run) -> None:
    """The first tenth was answered: that is a tenth of the rate."""
    test = summarize(lost(run, slice(50, None)), kind="measure", offered_rps=500.0, warmup=0)
    seconds = run.log.intended_s[-1] - run.log.intended_s[0]
    assert test.achieved_rps == pytest.approx(50 / seconds)


def test_batch_sizes_come_from_the_servers_counters(run) -> None:
    before = ServerStatistics(
        inference_count=10, execution_count=10, batches=((1, 10),), batches_ns=((1, 10**7),)
    )
    after = ServerStatistics(
        inference_count=50,
        execution_count=20,
        batches=((1, 10), (4, 10)),
        batches_ns=((1, 10**7), (4, 3 * 10**7)),
    )
    test = summarize(run, kind="edge", offered_rps=500.0, statistics=(before, after))
    assert test.batch_size_mean == 4.0
    assert test.executions == (ExecutionTimes(batch_size=4, count=10, mean_ms=3.0),)
    assert statistics_between(before, after).batches == ((4, 10),)
    assert summarize(run, kind="edge", offered_rps=500.0).batch_size_mean is None


@pytest.mark.parametrize(
    "after",
    [
        ServerStatistics(inference_count=9, success_count=9),
        ServerStatistics(inference_count=50, success_count=50, queue_ns=5),
        ServerStatistics(inference_count=50, success_count=50, queue_ns=99, batches=((1, 50),)),
        ServerStatistics(
            inference_count=50,
            success_count=50,
            queue_ns=99,
            batches=((4, 7),),
            batches_ns=((4, 9),),
        ),
    ],
)
def test_counters_that_fell_are_those_of_another_server(run, after: ServerStatistics) -> None:
    """Of another replica, or of a model that was loaded anew: the difference means nothing."""
    before = ServerStatistics(
        inference_count=10,
        success_count=10,
        queue_ns=20,
        batches=((1, 2), (4, 2)),
        batches_ns=((1, 9), (4, 9)),
    )
    assert statistics_between(before, after) is None
    test = summarize(run, kind="edge", offered_rps=500.0, statistics=(before, after))
    assert test.batch_size_mean is None and test.executions == ()


def test_stages_come_from_the_servers_counters_where_replies_do_not_tell_them(run) -> None:
    """As of a Triton: of all answered requests, those before the counted ones included."""
    silent = np.full(len(run.log), np.nan)
    stages = ("queue_s", "compute_input_s", "compute_infer_s", "compute_output_s")
    untold = dict.fromkeys(stages, silent)
    silently = replace(run, log=replace(run.log, **untold))
    after = ServerStatistics(
        success_count=495,
        queue_ns=495 * 2_000_000,
        compute_input_ns=495 * 100_000,
        compute_infer_ns=495 * 6_000_000,
        compute_output_ns=495 * 50_000,
    )
    test = summarize(
        silently, kind="edge", offered_rps=500.0, warmup=400, statistics=(ServerStatistics(), after)
    )
    told = test.breakdown_ms
    assert (told.queue, told.compute_input, told.compute_infer) == pytest.approx((2.0, 0.1, 6.0))
    mean_ms = 1e3 * run.log.latency_s[run.log.status == 0].mean()
    assert told.overhead == pytest.approx(mean_ms - 8.15, abs=1e-3)
    unknown = summarize(silently, kind="edge", offered_rps=500.0).breakdown_ms
    assert (
        unknown
        == summarize(
            silently, kind="edge", statistics=(ServerStatistics(), ServerStatistics())
        ).breakdown_ms
    )
    assert (unknown.queue, unknown.overhead) == (None, None)
    whole = summarize(run, kind="edge", offered_rps=500.0, statistics=(ServerStatistics(), after))
    assert whole.breakdown_ms.compute_infer == pytest.approx(10.0, rel=1e-3)


def test_the_log_keeps_its_warmup(run) -> None:
    assert set_warmup_apart(run.log, 7).warmup == 7
    assert len(set_warmup_apart(run.log, 7)) == 500


@pytest.mark.timing
def test_a_bursty_schedule_is_not_the_generators_fault() -> None:
    # 300 requests that took twice as long to come as their nominal rate says.
    arrivals = np.cumsum(np.random.default_rng(5).gamma(0.05, 1 / (500 * 0.05), 300)) * 2
    with ScriptedTarget(constant_delay(0.001)).connect() as connection:
        run = run_open_loop(connection, arrivals, timeout_s=1, drain_s=1)
    test = summarize(run, kind="edge", offered_rps=500.0, budget_ms=1000.0)
    assert not any("offered" in reason for reason in test.validity.reasons)


def test_a_rate_that_was_not_sent_is_invalid(run) -> None:
    late = np.linspace(0.0, float(run.log.intended_s[-1]), len(run.log))
    log = replace(run.log, send_lag_s=run.log.send_lag_s + late)
    test = summarize(replace(run, log=log), kind="edge", offered_rps=500.0, budget_ms=1e6)
    assert any("offered" in reason for reason in test.validity.reasons)
