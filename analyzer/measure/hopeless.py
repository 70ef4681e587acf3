"""Runs of a claim at a rate that is far too high: when one may end early, and what it still tells.

A run that was given up speaks for a FAIL alone (:func:`~.judge.judge_runs`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from analyzer.domain.load_test import (
    STATUS_OK,
    LoadTest,
    RequestLog,
)
from analyzer.domain.measurement import RateEvidence
from analyzer.measure.edge import telling


def may_abort(
    rate_rps: float,
    tests: Sequence[LoadTest],
    earlier: Sequence[RateEvidence],
    miss_rate_max: float,
) -> bool:
    """Whether a hopeless run at a rate that was only predicted may end early.

    Not where a rate as high was kept, by the walk's ``tests`` so far or as far as is known from
    ``earlier``: what looks hopeless there is a burst, which the whole of the run weighs.
    """
    kept = [of.rate_rps for of in telling(tests, miss_rate_max) if of.keeps(miss_rate_max)]
    kept += [of.rate_rps for of in earlier if of.over_budget <= miss_rate_max * of.requests]
    return rate_rps > max(kept, default=0.0)


def answered_rps(test: LoadTest, log: RequestLog, requests_min: int) -> float | None:
    """The throughput in a run that was given up, 1/s, which no edge exceeds; None if none tells it.

    That of the whole run: while what counts is sent, an overloaded server answers its lead-in.

    Args:
        requests_min: Replies that tell a throughput.
    """
    first_s, end_s = float(log.intended_s[0]), float(log.intended_s[-1])
    done_s = (log.intended_s + log.latency_s)[log.status == STATUS_OK]
    answered = int(np.count_nonzero(done_s <= end_s))
    if not test.aborted or answered < max(requests_min, 1):
        return None
    rate = answered / max(end_s - first_s, 1e-9)
    return rate if rate < test.offered_rps else None
