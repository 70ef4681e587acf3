"""Warm-up: found where it is, not invented where there is none."""

import numpy as np
import pytest

from analyzer.load.warmup import detect_warmup


def queue_latencies(rng: np.random.Generator, count: int, load: float) -> np.ndarray:
    """Lindley's recursion of an M/M/1 queue with service time 1: strongly correlated."""
    service = rng.exponential(1.0, count)
    gaps = rng.exponential(1.0 / load, count)
    waits = np.zeros(count)
    for i in range(1, count):
        waits[i] = max(waits[i - 1] + service[i - 1] - gaps[i], 0.0)
    return waits + service


@pytest.mark.parametrize("length", [20, 100, 300])
def test_slow_first_requests_are_found(length: int) -> None:
    rng = np.random.default_rng(length)
    latency = rng.gamma(4.0, 0.001, 1000)
    latency[:length] += 0.05
    found = detect_warmup(latency)
    assert length <= found <= length + 25


def test_independent_latencies_have_no_warmup() -> None:
    rng = np.random.default_rng(0)
    found = [detect_warmup(rng.exponential(0.01, 500)) for _ in range(200)]
    assert np.count_nonzero(found) <= 6


def test_correlated_latencies_are_seldom_taken_for_warmup() -> None:
    rng = np.random.default_rng(1)
    runs = [detect_warmup(queue_latencies(rng, 2000, 0.8)[200:]) for _ in range(100)]
    assert sum(run > 0 for run in runs) <= 25
    assert max(runs) <= 900


def test_half_of_a_growing_queue_is_left_out() -> None:
    rng = np.random.default_rng(2)
    latency = np.linspace(0.01, 1.0, 1000) + rng.exponential(0.005, 1000)
    assert detect_warmup(latency) == 500


def test_never_more_than_half() -> None:
    latency = np.full(1000, 0.001)
    latency[:700] = 0.05
    assert detect_warmup(latency) <= 500


def test_short_or_hopeless_runs_keep_everything() -> None:
    assert detect_warmup(np.full(10, 0.1)) == 0
    assert detect_warmup(np.full(100, np.inf)) == 0
    assert detect_warmup(np.full(100, 0.1)) == 0


def test_failures_at_the_start_are_not_hidden_as_warmup_of_nothing() -> None:
    latency = np.full(1000, 0.01) + np.random.default_rng(3).exponential(0.001, 1000)
    latency[::200] = np.inf
    assert detect_warmup(latency) <= 205
