"""Requests that a stalled server made late, told from those of an overload."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from analyzer.domain.load_test import (
    STATUS_OK,
    STATUS_UNFINISHED,
    RequestLog,
)
from analyzer.load.stalls import late_by_stalls

BUDGET_S = 0.01


def served(
    rate_rps: float, seconds: float, service_s: float, stall: tuple[float, float]
) -> RequestLog:
    """One server, one request after the other, that does nothing within ``stall``."""
    rng = np.random.default_rng(5)
    sent_s = np.cumsum(rng.exponential(1.0 / rate_rps, int(rate_rps * seconds)))
    free_s, done_s = 0.0, np.empty(len(sent_s))
    for index, at_s in enumerate(sent_s):
        begin_s = max(at_s, free_s)
        end_s = begin_s + service_s
        if begin_s < stall[1] and end_s > stall[0]:
            end_s += stall[1] - max(begin_s, stall[0])
        done_s[index] = free_s = end_s
    n = len(sent_s)
    unknown = np.full(n, np.nan, dtype=np.float32)
    return RequestLog(
        intended_s=sent_s,
        send_lag_s=np.zeros(n),
        latency_s=done_s - sent_s,
        batch_size=np.ones(n, dtype=np.int32),
        status=np.full(n, STATUS_OK, dtype=np.uint8),
        queue_s=unknown,
        compute_input_s=unknown,
        compute_infer_s=unknown,
        compute_output_s=unknown,
    )


def late(log: RequestLog) -> int:
    return int(np.count_nonzero(log.latency_s[log.warmup :] > BUDGET_S))


def test_all_that_were_late_for_one_stall_are_counted() -> None:
    log = served(1000.0, 2.0, 0.0003, (1.0, 1.07))
    assert late(log) > 50
    assert late_by_stalls(log, BUDGET_S) == late(log)
    assert late_by_stalls(replace(log, warmup=1200), BUDGET_S) == late(replace(log, warmup=1200))


def test_an_overload_is_no_stall() -> None:
    log = served(4000.0, 2.0, 0.0003, (9.0, 9.0))
    assert late(log) > 1000
    assert late_by_stalls(log, BUDGET_S) == 0


@pytest.mark.parametrize("rate_rps", [2.0, 20.0])
def test_a_long_pause_between_arrivals_is_no_stall(rate_rps: float) -> None:
    log = served(rate_rps, 60.0, 0.012, (999.0, 999.0))
    assert late(log) == len(log)
    assert late_by_stalls(log, BUDGET_S) == 0


def test_a_run_that_was_given_up_may_end_in_its_stall() -> None:
    log = served(1000.0, 2.0, 0.0003, (1.0, 1.07))
    ended = log.intended_s < 1.06
    n = int(np.count_nonzero(ended))
    waiting = log.intended_s[:n] + log.latency_s[:n] > 1.06
    cut = replace(
        log,
        **{
            name: getattr(log, name)[:n]
            for name in (
                "intended_s", "send_lag_s", "batch_size", "queue_s", "compute_input_s",
                "compute_infer_s", "compute_output_s",
            )
        },
        latency_s=np.where(waiting, np.inf, log.latency_s[:n]),
        status=np.where(waiting, STATUS_UNFINISHED, STATUS_OK).astype(np.uint8),
    )  # fmt: skip
    assert late(cut) > 20
    assert late_by_stalls(cut, BUDGET_S) == late(cut)


def test_a_run_without_replies_or_lateness_has_none() -> None:
    log = served(1000.0, 1.0, 0.0003, (9.0, 9.0))
    assert late_by_stalls(log, BUDGET_S) == 0
    assert late_by_stalls(replace(log, latency_s=np.full(len(log), np.inf)), BUDGET_S) == 0
