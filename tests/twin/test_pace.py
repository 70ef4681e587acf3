"""The machine's speed as executions tell it, and the twin on a machine whose speed varies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from load_tests import load_test

from analyzer.domain.configuration import Configuration
from analyzer.domain.load_test import (
    STATUS_OK,
    ExecutionTimes,
    LoadTest,
    RequestLog,
)
from analyzer.domain.workload import Poisson
from analyzer.load.slowness import slowness_of
from analyzer.twin.arrivals import UnitArrivals
from analyzer.twin.pace import (
    executions_slowdown,
    level,
    mean_response,
    path_of,
    reference_us,
    responses,
    slowness,
    watched_seconds,
    witness_us,
)
from analyzer.twin.server_model import ServerModel
from analyzer.twin.service import ServiceTime
from analyzer.twin.speed import SpeedPath


def log(begin_s: np.ndarray, time_s: np.ndarray, sizes: np.ndarray | None = None) -> RequestLog:
    n = len(begin_s)
    return RequestLog(
        intended_s=begin_s,
        send_lag_s=np.zeros(n),
        latency_s=time_s,
        batch_size=np.ones(n, dtype=np.int32) if sizes is None else sizes,
        status=np.full(n, STATUS_OK, dtype=np.uint8),
        queue_s=np.zeros(n, dtype=np.float32),
        compute_input_s=np.zeros(n, dtype=np.float32),
        compute_infer_s=time_s.astype(np.float32),
        compute_output_s=np.zeros(n, dtype=np.float32),
    )


def test_a_slow_second_shows_in_its_bins() -> None:
    begin_s = np.arange(0.0, 4.0, 0.005)
    slow = (begin_s >= 1.0) & (begin_s < 2.0)
    rng = np.random.default_rng(1)
    time_s = np.where(slow, 0.003, 0.002) * rng.uniform(0.99, 1.01, len(begin_s))
    found = np.array(slowness_of(log(begin_s, time_s)))
    assert len(found) == 40
    # A hand-over of 0.1 ms is in both times: (3 + 0.1) / (2 + 0.1).
    np.testing.assert_allclose(found[10:20], 1.476, atol=0.02)
    np.testing.assert_allclose(np.delete(found, range(10, 20)), 1.0, atol=0.02)


def test_batches_are_held_against_batches_of_their_size() -> None:
    # Executions of one and of four requests in turns: a batch of four takes thrice as long.
    size = np.tile([1, 4], 200)
    begin_s = np.repeat(np.arange(400) * 0.01, size)
    rng = np.random.default_rng(2)
    time_s = np.repeat(np.where(size == 1, 0.002, 0.006) * rng.uniform(0.98, 1.02, 400), size)
    np.testing.assert_allclose(slowness_of(log(begin_s, time_s)), 1.0, atol=0.03)


def test_a_short_execution_that_waits_says_little_beside_long_ones() -> None:
    """Batches of 16 take 16 ms; once in a while one request alone takes 4 ms in place of 1."""
    size = np.tile([16, 16, 16, 16, 1], 40)
    usual_s = np.where(size == 1, 0.001, 0.016)
    begins_s = np.cumsum(usual_s) - usual_s
    rng = np.random.default_rng(3)
    taken_s = usual_s * rng.uniform(0.99, 1.01, len(size))
    taken_s[99] *= 4.0
    begin_s, time_s = np.repeat(begins_s, size), np.repeat(taken_s, size)
    np.testing.assert_allclose(
        slowness_of(log(begin_s, time_s, np.repeat(size, size))), 1, atol=0.06
    )


def test_executions_that_wait_now_and_then_all_the_time_are_the_usual_speed() -> None:
    """Every tenth execution of 0.1 ms waits for a core, eight times as long: in every bin."""
    begin_s = np.arange(0.0, 3.0, 0.0005)
    rng = np.random.default_rng(4)
    time_s = 1e-4 * rng.uniform(0.99, 1.01, len(begin_s))
    time_s[rng.random(len(begin_s)) < 0.1] *= 8.0
    slow = begin_s >= 2.0
    time_s[slow] *= 1.5
    found = np.array(slowness_of(log(begin_s, time_s)))
    assert np.median(found) == pytest.approx(1.0, abs=0.02)
    assert found[:20].mean() == pytest.approx(1.0, abs=0.06)
    # On average 0.17 and 0.255 ms, with a hand-over of 0.1 ms in both.
    assert found[20:].mean() == pytest.approx(0.355 / 0.27, abs=0.1)


def test_waits_of_a_hand_over_s_length_are_no_slow_machine() -> None:
    """Executions of 0.02 ms that take thrice as long in some bins, as threads meet there."""
    begin_s = np.arange(0.0, 3.0, 0.0002)
    rng = np.random.default_rng(6)
    met = (begin_s >= 1.0) & (begin_s < 1.5)
    time_s = np.where(met, 6e-5, 2e-5) * rng.uniform(0.99, 1.01, len(begin_s))
    found = np.array(slowness_of(log(begin_s, time_s)))
    np.testing.assert_allclose(found[10:15], 1.33, atol=0.05)


def test_what_few_executions_at_a_run_s_end_took_is_no_speed_of_its_own() -> None:
    begin_s = np.append(np.arange(0.0, 1.0, 0.01), 1.005)
    time_s = np.append(np.full(100, 0.002) * np.tile([0.99, 1.01], 50), 0.006)
    found = slowness_of(log(begin_s, time_s))
    assert len(found) == 11
    np.testing.assert_allclose(found, 1.0, atol=0.2)


def test_a_target_that_tells_no_times_tells_no_speed() -> None:
    begin_s = np.arange(0.0, 1.0, 0.01)
    assert slowness_of(log(begin_s, np.full(100, np.nan))) == ()


def test_runs_are_held_against_those_of_the_edge() -> None:
    edge, slow = load_test([1.0] * 30), load_test([1.0] * 40, kind="certify", mean_ms=3.0)
    busy = load_test([1.0] * 40, kind="certify", mean_ms=2.1)
    found = slowness([edge, slow, busy])
    assert [float(trace.mean()) for trace in found] == pytest.approx([1.0, 1.5, 1.0])


def test_batch_sizes_that_the_edge_lacks_say_nothing_of_the_speed() -> None:
    """A long run has sizes that the edge's short ones had too few of."""
    edge, slow = load_test([1.0] * 30), load_test([1.0] * 40, kind="certify", mean_ms=3.0)
    others = tuple(
        ExecutionTimes(batch_size=size, count=1000, mean_ms=3.0 + size) for size in (2, 3, 4)
    )
    found = slowness([edge, replace(slow, executions=(*slow.executions, *others))])
    assert [float(trace.mean()) for trace in found] == pytest.approx([1.0, 1.5])


def test_the_speed_that_is_one_is_told_by_the_witness() -> None:
    """Runs of two configurations are held against each other by it, whichever state was usual."""
    mostly_fast = load_test((1.0, 1.0, 1.4), mean_ms=2.0 * 3.4 / 3, work_us=(100.0, 100.0, 140.0))
    mostly_slow = load_test((0.71, 1.0, 1.0), mean_ms=2.8 * 2.71 / 3, work_us=(100.0, 140.0, 140.0))
    unseen = load_test((0.71, 1.0, 1.0), mean_ms=2.8 * 2.71 / 3)
    for tests in (
        [mostly_fast, mostly_slow, mostly_slow],
        [mostly_fast, mostly_fast, mostly_slow],
        [mostly_slow, mostly_fast, unseen],
        [load_test((), work_us=(100.0, 100.0, 140.0))],
    ):
        one_us = reference_us(tests)
        assert one_us is not None
        for test, trace in zip(tests, slowness(tests), strict=True):
            seen = test.conditions.work_us if test.conditions is not None else (100.0, 140.0, 140.0)
            bins = trace.reshape(3, -1).mean(axis=1)
            assert one_us * bins == pytest.approx(seen, rel=0.02)
    assert reference_us([load_test((1.0, 1.0, 1.4))]) is None


SECONDS = (1.0,) * 40  # bins of four seconds


def test_a_witness_that_is_slower_at_a_light_load_sees_no_slow_state() -> None:
    """Its core cools down between requests: 5 µs at full load were 7 at half of it."""
    edge = load_test(SECONDS, work_us=(5.0,) * 4)
    light = load_test(SECONDS, kind="certify", mean_ms=2.0, work_us=(7.0,) * 4)
    assert witness_us(watched_seconds([edge])) == pytest.approx(5.0)
    assert witness_us(watched_seconds([edge, light])) == pytest.approx(7.0)


@pytest.mark.parametrize("slow_from", ["the start", "the third second"])
def test_a_machine_that_is_slower_is_no_witness_s_load(slow_from: str) -> None:
    edge = load_test(SECONDS, work_us=(5.0,) * 4)
    if slow_from == "the start":
        slow = load_test(SECONDS, kind="certify", mean_ms=2.8, work_us=(7.0,) * 4)
    else:
        trace, work_us = (1.0,) * 20 + (1.4,) * 20, (5.0, 5.0, 7.0, 7.0)
        slow = load_test(trace, kind="certify", mean_ms=2.4, work_us=work_us)
    assert witness_us(watched_seconds([edge, slow])) == pytest.approx(5.0, rel=0.01)


def test_executions_tell_how_slow_a_slow_state_is() -> None:
    edge = load_test(SECONDS, work_us=(5.0,) * 4)
    slow = load_test((1.0,) * 10 + (1.1,) * 30, kind="certify", work_us=(5.0, 7.0, 7.0, 7.0))
    found = executions_slowdown(watched_seconds([edge, slow]), 5.0, 7.0)
    assert found == pytest.approx(1.1 / 1.075, rel=0.01), "the run's mean is 2 ms"
    assert executions_slowdown(watched_seconds([edge]), 5.0, 7.0) is None
    short = load_test((1.0,) * 20 + (1.1,) * 20, kind="certify", work_us=(5.0, 5.0, 7.0, 7.0))
    assert executions_slowdown(watched_seconds([edge, short]), 5.0, 7.0) is None


def test_a_state_slower_than_any_that_executions_met_is_told_by_how_they_answer() -> None:
    """They took 1.18 times as long where the witness took 1.4 times; its slow state is 1.94."""
    edge = load_test(SECONDS, work_us=(5.0,) * 4)
    trace = (1.0,) * 10 + (1.4**0.5,) * 30
    met = load_test(trace, kind="certify", mean_ms=2.0 * np.mean(trace), work_us=(5.0, *(7.0,) * 3))
    seconds = watched_seconds([edge, met])
    assert executions_slowdown(seconds, 5.0, 9.7) == pytest.approx(1.94**0.5, rel=0.01)
    assert executions_slowdown(seconds, 5.0, 7.0) == pytest.approx(1.4**0.5, rel=0.01)
    assert executions_slowdown(seconds, 5.0, 10.5) is None, "they were less than half as slow"


def test_how_executions_answer_to_the_witness() -> None:
    """Its work takes 1.6 times as long in the slow seconds, and executions 1.1 times."""

    def response(runs: Sequence[Sequence[LoadTest]]) -> float:
        return mean_response(power for own in runs for power in responses(own))

    work_us = (4.0,) * 3 + (6.4,) * 3
    slow = load_test((1.0,) * 30 + (1.1,) * 30, mean_ms=2.1, work_us=work_us)
    power = np.log(1.1) / np.log(1.6)
    supposed = (1.0 + power) / 2  # one more is supposed to follow it
    assert response([[slow]]) == pytest.approx(supposed, abs=0.01)
    as_much = load_test((1.0,) * 30 + (1.6,) * 30, mean_ms=2.6, work_us=work_us)
    assert response([[as_much]]) == pytest.approx(1.0)
    # What the lower load of a certificate does to the canary is no speed of the machine.
    edge = load_test(SECONDS, work_us=(4.0,) * 4)
    light = load_test(SECONDS, kind="certify", mean_ms=2.0, work_us=(9.0,) * 4)
    assert response([[slow, light]]) == pytest.approx(supposed, abs=0.01)
    assert response([[edge, light]]) == 1.0
    certified = replace(slow, kind="certify")
    assert response([[edge, certified]]) == pytest.approx(supposed, abs=0.01)
    assert response([[slow]] * 9) == pytest.approx(0.1 + 0.9 * power, abs=0.01)
    assert response([[load_test(SECONDS, work_us=(4.0,) * 4)], []]) == 1.0, "one speed"
    assert level(6.4, 4.0, power) == pytest.approx(1.1)


def test_runs_that_cannot_be_compared_tell_nothing_of_the_witness() -> None:
    light = load_test(SECONDS, kind="certify", work_us=(7.0,) * 4)
    other = replace(light, executions=(ExecutionTimes(batch_size=4, count=1000, mean_ms=9.0),))
    edge = load_test(SECONDS, work_us=(5.0,) * 4)
    assert witness_us(watched_seconds([edge, other])) == pytest.approx(5.0)
    assert (
        witness_us(watched_seconds([light])) is None
        and witness_us(watched_seconds([load_test(SECONDS)])) is None
    )


def test_the_witness_tells_where_the_target_does_not() -> None:
    edge = load_test([], work_us=(100.0, 101.0))
    later = load_test([], kind="certify", work_us=(102.0, 180.0))
    first, second = slowness([edge, later])
    assert first.tolist() == [1.0] * 20
    assert second == pytest.approx([1.0] * 10 + [180 / 100.5] * 10)
    assert level(120.0, 100.0) == 1.0 and level(180.0, 100.0) == 1.8 and level(None, 1.0) == 1.0


def test_a_path_needs_some_seconds_and_a_speed_that_varies() -> None:
    assert path_of([]) is None
    assert path_of([np.array([1.0, 2.0] * 5)]) is None
    assert path_of([np.full(100, 1.03)]) is None
    path = path_of([np.array([1.0] * 30 + [2.0] * 10)])
    assert path is not None and path.period_s == pytest.approx(4.0)
    assert path.mean_speed == pytest.approx((3.0 + 0.5) / 4.0)


def test_a_periodic_path_begins_again() -> None:
    path = SpeedPath(start_s=np.array([0.0, 3.0]), speed=np.array([1.0, 0.5]), period_s=4.0)
    real_s = np.linspace(0.0, 40.0, 401)
    work_s = path.work_s(real_s)
    assert work_s[-1] == pytest.approx(35.0)
    np.testing.assert_allclose(path.real_s(work_s), real_s, atol=1e-9)


def test_slow_episodes_cost_edge_and_correlate_misses() -> None:
    arrivals = UnitArrivals.draw(Poisson(), count=100_000)
    service = ServiceTime(batch_sizes=(1,), service_ms=(2.0,))
    configuration = Configuration(dynamic_batching=False, intra_op_threads=1)
    steady = ServerModel.of(configuration, service, overhead_ms=0.2)
    path = path_of([np.array([1.0] * 80 + [1.6] * 20)])
    varying = ServerModel.of(configuration, service, overhead_ms=0.2, path=path)
    usual = steady.edge(arrivals, budget_ms=30.0)
    found = varying.edge(arrivals, budget_ms=30.0, accuracy=0.02)
    assert usual is not None and found is not None
    # The slow state lasts far longer than the budget, so that it must carry the rate.
    assert found == pytest.approx(usual / 1.6, rel=0.07)
    rate = 0.5 * usual
    ratio = varying.inflation(arrivals, rate, budget_ms=30.0) / steady.inflation(
        arrivals, rate, budget_ms=30.0
    )
    assert ratio > 2.0
    assert varying.miss_rate(arrivals, 0.8 * usual, budget_ms=30.0) > 0.01
    slow_p99 = varying.latency_ms(arrivals, rate, 99.0)
    assert slow_p99 is not None and slow_p99 > 1.2 * (steady.latency_ms(arrivals, rate, 99.0) or 0)
