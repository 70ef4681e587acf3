from __future__ import annotations

from typing import Any

import pytest

from analyzer.stats.validity import judge

GOOD: dict[str, Any] = {
    "send_lag_ms_p99": 0.2,
    "budget_ms": 50.0,
    "offered_rps": 100.0,
    "achieved_offered_rps": 99.5,
    "in_flight_mean": 2.0,
    "throughput_rps": 100.0,
    "latency_s_mean": 0.02,
    "closed_loop": False,
    "requests": 2000,
}


def test_a_clean_run_is_valid() -> None:
    verdict = judge(**GOOD)
    assert verdict.valid and verdict.reasons == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"send_lag_ms_p99": 2.6}, "lag p99 2.6 ms, limit 2.5 ms"),
        ({"send_lag_ms_p99": 1.01, "budget_ms": None}, "limit 1 ms"),
        ({"send_lag_ms_p99": float("nan")}, "sent late"),
        ({"achieved_offered_rps": 80.0}, "80/s sent of 100/s"),
        ({"latency_s_mean": 0.028}, "Little's law"),
        ({"latency_s_mean": 0.004}, "Little's law"),
        (
            {"throttled": 0.25, "clock_limits": ("hw_thermal_slowdown",)},
            "the GPU throttled in 25% of the run (hw_thermal_slowdown)",
        ),
    ],
)
def test_each_fault_is_named(change: dict[str, Any], words: str) -> None:
    verdict = judge(**{**GOOD, **change})
    assert not verdict.valid
    assert any(words in reason for reason in verdict.reasons), verdict.reasons


def test_the_lag_limit_grows_with_the_budget() -> None:
    assert judge(**{**GOOD, "send_lag_ms_p99": 2.4}).valid
    assert not judge(**{**GOOD, "send_lag_ms_p99": 2.4, "budget_ms": 20.0}).valid


def test_a_closed_loop_has_no_schedule_but_obeys_little() -> None:
    assert judge(**{**GOOD, "closed_loop": True, "achieved_offered_rps": 3.0}).valid
    assert not judge(**{**GOOD, "closed_loop": True, "in_flight_mean": 8.0}).valid


def test_a_small_sample_gets_an_allowance() -> None:
    few = {**GOOD, "in_flight_mean": 2.3}
    assert judge(**{**few, "requests": 100}).valid
    assert not judge(**{**few, "requests": 20_000}).valid
