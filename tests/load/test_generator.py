"""The generators against targets whose behaviour is known."""

import gc
import sys
import time
from collections.abc import Iterable

import numpy as np
import pytest

from analyzer.domain.load_test import (
    STATUS_ERROR,
    STATUS_OK,
    STATUS_TIMEOUT,
    STATUS_UNFINISHED,
)
from analyzer.load.generator import AbortRule, run_closed_loop, run_open_loop
from analyzer.load.record import InFlightSampler
from analyzer.targets.null import NullTarget
from analyzer.targets.scripted import ScriptedTarget, constant_delay
from analyzer.targets.target import Completion


def open_loop(target, arrivals_s, batch_size=1, *, timeout_s=2.0, drain_s=2.0, **options):
    with target.connect() as connection:
        return run_open_loop(
            connection,
            np.asarray(arrivals_s, float),
            batch_size,
            timeout_s=timeout_s,
            drain_s=drain_s,
            **options,
        )


@pytest.mark.timing
def test_latency_is_the_delay_and_the_schedule_is_kept() -> None:
    arrivals = np.cumsum(np.random.default_rng(1).exponential(0.002, 200))
    run = open_loop(ScriptedTarget(constant_delay(0.02)), arrivals, 3)
    log = run.log
    np.testing.assert_allclose(log.intended_s, arrivals, atol=1e-8)
    assert (log.status == STATUS_OK).all()
    assert (log.send_lag_s >= 0).all()
    # A send is stamped when it has returned, so the target took a request at the earliest when it
    # was due and the send before it had returned. Latency counts from when it was due.
    sent_s = log.intended_s + log.send_lag_s
    taken_s = np.maximum(log.intended_s, np.append(0.0, sent_s[:-1]))
    assert (log.latency_s >= taken_s - log.intended_s + 0.02 - 1e-6).all()
    assert (log.batch_size == 3).all()
    np.testing.assert_allclose(log.compute_infer_s, 0.02, rtol=1e-5)
    assert not run.aborted
    assert run.strays == 0


@pytest.mark.timing
def test_a_stalled_target_cannot_hide_behind_late_sends() -> None:
    # The target blocks the generator in one send, as a full socket would.
    def delay(request: int, batch_size: int) -> float:
        if request == 10:
            time.sleep(0.2)
        return 0.0

    run = open_loop(ScriptedTarget(delay), np.arange(100) * 0.002)
    # Requests that were due during the stall are late by what was left of it.
    assert run.log.send_lag_s[11] >= 0.19
    assert run.log.latency_s[50] >= 0.11
    assert run.log.latency_s[11] >= run.log.latency_s[50]


@pytest.mark.timing
def test_failed_late_and_lost_requests_count_as_infinitely_late() -> None:
    def delay(request: int, batch_size: int) -> float:
        return {1: float("inf"), 2: 0.3, 49: float("inf")}.get(request, 0.001)

    target = ScriptedTarget(delay, status=lambda request: STATUS_ERROR * (request == 3))
    run = open_loop(target, np.arange(50) * 0.01, timeout_s=0.2, drain_s=0.1)
    expected = np.full(50, STATUS_OK)
    expected[[1, 2]] = STATUS_TIMEOUT
    expected[3] = STATUS_ERROR
    expected[49] = STATUS_UNFINISHED
    np.testing.assert_array_equal(run.log.status, expected)
    assert np.isinf(run.log.latency_s[[1, 2, 3, 49]]).all()
    assert np.isfinite(np.delete(run.log.latency_s, [1, 2, 3, 49])).all()
    assert run.in_flight_s_mean is None


@pytest.mark.timing
def test_numbers_in_flight_agree_with_littles_law() -> None:
    arrivals = np.cumsum(np.random.default_rng(2).exponential(0.001, 1000))
    run = open_loop(ScriptedTarget(constant_delay(0.03)), arrivals)
    window_s = run.wall_s - run.log.intended_s[0]
    expected = len(run.log) / window_s * run.in_flight_s_mean
    assert run.in_flight_mean == pytest.approx(expected, rel=0.05)


def test_samples_in_flight_fall_into_no_rhythm() -> None:
    sampler = InFlightSampler(0, 1000)
    instants = []
    for _ in range(2000):
        instants.append(sampler.next_ns)
        sampler.take(0)
    gaps = np.diff(instants)
    assert gaps.min() >= 499
    assert gaps.max() <= 1500
    assert 950 < gaps.mean() < 1050
    # Remainders by a period that divides the mean gap spread evenly.
    counts, _ = np.histogram(np.array(instants) % 500, bins=5)
    assert counts.min() > 250


@pytest.mark.timing
def test_a_hopeless_run_is_given_up() -> None:
    arrivals = np.arange(4000) * 0.001
    rule = AbortRule.hopeless(4000, 0.01)
    assert rule.over_max == 80
    run = open_loop(
        ScriptedTarget(constant_delay(0.05)), arrivals, budget_s=0.01, stop=rule, timeout_s=1
    )
    assert run.aborted
    assert run.wall_s < 2.0
    assert 80 < len(run.log) < 2000
    assert run.log.intended_s[-1] <= run.wall_s
    assert set(np.unique(run.log.status)) <= {STATUS_OK, STATUS_UNFINISHED}


@pytest.mark.timing
def test_requests_that_never_come_back_make_a_run_hopeless() -> None:
    run = open_loop(
        ScriptedTarget(constant_delay(float("inf"))),
        np.arange(2000) * 0.001,
        budget_s=0.01,
        stop=AbortRule.hopeless(2000, 0.01),
        timeout_s=1,
    )
    assert run.aborted
    assert run.wall_s < 1.5


@pytest.mark.timing
def test_a_run_within_its_budget_is_not_given_up() -> None:
    def delay(request: int, batch_size: int) -> float:
        return 0.2 if request < 15 else 0.001

    run = open_loop(
        ScriptedTarget(delay),
        np.arange(600) * 0.001,
        budget_s=0.1,
        stop=AbortRule.hopeless(600, 0.02),
    )
    assert not run.aborted
    assert len(run.log) == 600


def test_strange_replies_are_counted_and_change_nothing() -> None:
    class Strange:
        failure = ""

        def __init__(self) -> None:
            self.queue: list[Completion] = []

        def prepare(self, batch_sizes: Iterable[int]) -> None:
            assert list(batch_sizes) == [1]

        def send(self, request: int, batch_size: int) -> None:
            self.queue += [Completion(request), Completion(request, STATUS_ERROR)]
            self.queue.append(Completion(10_000))

        def receive(self, timeout_s: float) -> list[Completion]:
            queue, self.queue = self.queue, []
            return queue

    run = run_open_loop(Strange(), np.arange(10) * 0.001, timeout_s=1, drain_s=1)
    assert (run.log.status == STATUS_OK).all()
    assert run.strays == 20
    assert np.isnan(run.log.queue_s).all(), "a target that does not tell its stages"


@pytest.mark.timing
def test_a_closed_loop_keeps_its_concurrency() -> None:
    target = ScriptedTarget(constant_delay(0.005))
    with target.connect() as connection:
        run = run_closed_loop(connection, 7, 2, requests=300)
    assert len(run.log) == 300
    assert run.concurrency == 7
    assert (np.diff(run.log.intended_s) >= 0).all()
    assert run.in_flight_samples.max() <= 7
    assert run.in_flight_mean == pytest.approx(7, rel=0.1)
    assert target.statistics().inference_count == 600


@pytest.mark.timing
def test_a_closed_loop_ends_with_its_time_or_without_replies() -> None:
    with NullTarget().connect() as connection:
        run = run_closed_loop(connection, 2, duration_s=0.1)
    assert 0.1 <= run.wall_s < 2
    with ScriptedTarget(constant_delay(float("inf"))).connect() as connection:
        run = run_closed_loop(connection, 3, duration_s=30, timeout_s=0.1)
    assert run.wall_s < 5
    assert run.log.status.tolist() == [STATUS_TIMEOUT] * 3


@pytest.mark.timing
def test_a_closed_loop_goes_on_where_single_replies_never_come() -> None:
    """Each took a place for good: the load fell, and ended with the last of them."""

    def delay(request: int, batch_size: int) -> float:
        return float("inf") if request % 10 == 0 else 0.002

    with ScriptedTarget(delay).connect() as connection:
        run = run_closed_loop(connection, 3, duration_s=1.0, timeout_s=0.05)
    lost = run.log.status == STATUS_TIMEOUT
    assert run.wall_s >= 1.0
    assert len(run.log) > 60
    assert lost[::10].all()
    assert run.in_flight_samples.max() <= 3


@pytest.mark.timing
def test_a_closed_loop_sends_a_slow_server_no_more_than_its_concurrency() -> None:
    """Every reply takes longer than the time-out; none is overtaken, so that none is lost."""
    free_s = 0.0

    def delay(request: int, batch_size: int) -> float:
        nonlocal free_s
        now_s = time.perf_counter()
        free_s = max(free_s, now_s) + 0.02
        return free_s - now_s

    with ScriptedTarget(delay).connect() as connection:
        run = run_closed_loop(connection, 5, duration_s=0.6, timeout_s=0.06)
    assert len(run.log) <= 5 + 0.6 / 0.02
    assert (run.log.status == STATUS_TIMEOUT).sum() > len(run.log) / 2


def test_the_interpreter_is_left_as_it_was() -> None:
    interval_s = sys.getswitchinterval()
    assert gc.isenabled()
    states = []

    def delay(request: int, batch_size: int) -> float:
        states.append(gc.isenabled())
        if request == 2:
            raise RuntimeError("stop")
        return 0.0

    with pytest.raises(RuntimeError, match="stop"):
        open_loop(ScriptedTarget(delay), np.arange(5) * 0.001)
    assert states == [False] * 3
    assert gc.isenabled()
    assert sys.getswitchinterval() == interval_s
