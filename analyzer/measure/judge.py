"""What load tests at one rate say together: a certificate, and one load test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from analyzer.domain.load_test import (
    STAGES,
    Breakdown,
    Conditions,
    LoadTest,
    RequestLog,
    Validity,
)
from analyzer.domain.measurement import Certificate, RateEvidence
from analyzer.measure.plan import LoadPlan
from analyzer.measure.session import combine
from analyzer.measure.witness import stalls_too_long, steady
from analyzer.stats.certificate import certify
from analyzer.stats.percentiles import summarize_latency

_GROWING = "latencies grew until the run ended, as at a rate that the server does not carry"


def judge_runs(
    tests: Sequence[LoadTest],
    logs: Sequence[RequestLog],
    load: LoadPlan,
    twin_inflation: float | None,
    *,
    earlier: RateEvidence | None = None,
    claim: int = 0,
    study: Conditions | None = None,
) -> Certificate:
    """The certificate of all runs at one rate.

    The generator's lag is inside the latencies: with it a PASS stands, and a FAIL is UNDECIDED.
    With any other invalid run nothing is decided. Nor is there a PASS where stalls alone would
    break the SLA in the long run, nor with a run that was given up, or whose latencies only grew:
    it speaks for a FAIL alone.

    Args:
        earlier: What runs that are not in ``tests`` came to.
        claim: The number of the claim in its family; 0 for one that stands alone.
        study: What the machine was like over the study so far, these runs included; None for what
            the runs saw.
    """
    sla = load.sla
    study = study or Conditions.pooled(test.conditions for test in tests)
    certificate = certify(
        [log.latency_s[log.warmup :] > sla.latency_budget_ms / 1e3 for log in logs],
        percentile=sla.percentile,
        confidence=sla.confidence,
        twin_inflation=twin_inflation,
        latency_s=[log.latency_s[log.warmup :] for log in logs] or None,
        budget_s=sla.latency_budget_ms / 1e3,
        steady=steady(tests),
        earlier=earlier,
        claim=claim,
    )
    void = dict.fromkeys(
        reason for test in tests if not test.validity.excused for reason in test.validity.reasons
    )
    if any(test.growing for test in tests):
        void[_GROWING] = None
    certificate = replace(certificate, conditions=study, void_reasons=tuple(void))
    medians = [test.latency_ms.p50 for test in tests if test.latency_ms.p50 is not None]
    doubtful = {
        "PASS": not all(test.validity.excused for test in tests)
        or any(test.aborted or test.growing for test in tests)
        or stalls_too_long(study, sla, min(medians, default=None)),
        "FAIL": not all(test.validity.valid for test in tests),
    }
    if doubtful.get(certificate.verdict):
        return replace(certificate, verdict="UNDECIDED")
    return certificate


def merge_tests(
    tests: Sequence[LoadTest], logs: Sequence[RequestLog], *, percentile: float
) -> LoadTest:
    """Runs at one rate as one load test: counts add up, latencies are pooled."""
    if len(tests) == 1:
        return tests[0]
    weights = np.array([max(test.requests, 1) for test in tests], dtype=float)

    def mean(values: Sequence[float | None]) -> float | None:
        pairs = [(v, w) for v, w in zip(values, weights, strict=True) if v is not None]
        return sum(v * w for v, w in pairs) / sum(w for _, w in pairs) if pairs else None

    reasons = tuple(dict.fromkeys(r for test in tests for r in test.validity.reasons))
    kinds = tuple(dict.fromkeys(k for test in tests for k in test.validity.kinds))
    over, late = ([getattr(t, name) for t in tests] for name in ("over_budget", "sent_late"))
    pooled = np.concatenate([log.latency_s[log.warmup :] for log in logs])
    return replace(
        tests[0],
        achieved_rps=mean([test.achieved_rps for test in tests]) or 0.0,
        throughput_ips=mean([test.throughput_ips for test in tests]) or 0.0,
        requests=sum(test.requests for test in tests),
        over_budget=None if None in over else sum(over),
        stalled_over=sum(test.stalled_over for test in tests),
        errors=sum(test.errors for test in tests),
        duration_s=sum(test.duration_s for test in tests),
        latency_ms=summarize_latency(pooled, percentile),
        breakdown_ms=Breakdown(
            **{stage: mean([getattr(t.breakdown_ms, stage) for t in tests]) for stage in STAGES}
        ),
        send_lag_ms_p99=max(
            (test.send_lag_ms_p99 for test in tests if test.send_lag_ms_p99 is not None),
            default=None,
        ),
        sent_late=None if None in late else sum(late),
        batch_size_mean=mean([test.batch_size_mean for test in tests]),
        resources=combine([test.resources for test in tests]),
        validity=Validity(valid=all(t.validity.valid for t in tests), reasons=reasons, kinds=kinds),
        conditions=Conditions.pooled(test.conditions for test in tests),
        aborted=any(test.aborted for test in tests),
        growing=any(test.growing for test in tests),
    )
