"""The certificate: PASS, FAIL or UNDECIDED for "the percentile keeps the budget".

Counts are deflated to effective numbers by the variance inflation (``batchmeans``) and judged by
evidence that stays valid however often one looks (``evidence``). Where neither the run nor the
twin can tell how correlated the requests were, the answer is UNDECIDED.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, isfinite
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.measurement import (
    Certificate,
    CertificateVerdict,
    HigherRuns,
    RateEvidence,
)
from analyzer.stats import mlperf
from analyzer.stats.batchmeans import (
    BATCHES,
    MISSES_MIN,
    lower_threshold_inflation,
    variance_inflation,
)
from analyzer.stats.evidence import evidence_above, evidence_below

# Beyond this no load test of any length would decide.
_REQUESTS_MAX = 1e10
#: Of the budget: what a request must take to count as part of an overload, and what it must where
#: the machine's speed was steady; wake-ups of a millisecond are no overload of a budget of seconds.
OVERLOAD_SHARE = 0.5
STEADY_SHARE = 0.1
#: Of an inflation: what runs show themselves.
OWN_SOURCES = ("batch_means", "lower_threshold")

T = TypeVar("T", bound=np.generic)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedInflation:
    """The variance inflation that a certificate rests on, and which source was the largest."""

    value: float
    source: str


def confidence_of_each(confidence: float, claims: int) -> float:
    """The confidence of each of some claims that together have ``confidence`` (Bonferroni)."""
    return 1.0 - (1.0 - confidence) / claims


def claim_confidence(confidence: float, claim: int) -> float:
    """Returns the confidence of the ``claim``-th of a family that is right with ``confidence``.

    The chance of error α is spent over the family: 3/4 of it on its first claim, 3/16 on the
    second, and so on; few studies have a second one that is left open. A claim that passes at the
    rate at which it began gives its part back: the next one has the number of those that are begun
    and open (``is_open``), plus one. Of the wrong claims that are begun before any of them passes,
    the j-th then has a number of at least j, so that one ever passes with probability at most
    3/4 α + 3/16 α + ... = α. Source: docs/statistics.md, section 5 (Holm 1979; Bretz et al. 2009,
    sequentially rejective procedures).

    Args:
        claim: From 1; 0 for a claim that stands alone.
    """
    return 1.0 - (1.0 - confidence) * (3.0 * 0.25**claim if claim else 1.0)


def certify(
    over_budget: NDArray[np.bool_] | Sequence[NDArray[np.bool_]],
    *,
    percentile: float,
    confidence: float,
    twin_inflation: float | None = None,
    latency_s: NDArray[np.floating] | Sequence[NDArray[np.floating]] | None = None,
    budget_s: float = 0.0,
    steady: bool = False,
    earlier: RateEvidence | None = None,
    claim: int = 0,
) -> Certificate:
    """Returns what may be claimed of the rate at which the requests were offered.

    The verdict may be asked for after every request and the run ended at the first decision: the
    chance of a wrong PASS (or FAIL) stays below 1 - confidence.

    Args:
        over_budget: True for a request over budget (failed ones included), shape (n,), in the
            order of the intended send times, warm-up left out; or one such array per run where
            several runs at one rate count together.
        percentile: The SLA's, 0 to 100, both exclusive.
        confidence: One-sided, between 0 and 1; of the whole family of claims.
        twin_inflation: Variance inflation of the over-budget indicator that the twin finds at this
            rate; at the simulated latency's own percentile if its miss rate is below 1 - p. None
            (or not finite) if there is no twin or it is not trusted.
        latency_s: Latencies of the same shape as ``over_budget``, seconds, inf for failures; what
            the inflation at lower thresholds is taken from. None if unknown.
        budget_s, steady: As in ``used_inflation``.
        earlier: What earlier runs at this rate came to, none of which is in ``over_budget``: counts
            add up, and a larger inflation of the new runs counts for all, as for its runs at higher
            rates.
        claim: As in ``claim_confidence``.
    """
    blocks = _as_blocks(over_budget)
    requests = sum(len(block) for block in blocks)
    misses = sum(int(np.count_nonzero(block)) for block in blocks)
    latencies = _as_blocks(latency_s) if latency_s is not None else None
    used = used_inflation(
        blocks,
        twin_inflation=twin_inflation,
        latency_s=latencies,
        budget_s=budget_s,
        steady=steady,
        late_share=mlperf.tail_share(percentile),
    )
    if earlier is not None:
        used = _pooled(used, requests, earlier)
        requests += earlier.requests
        misses += earlier.over_budget
    higher = earlier.higher if earlier is not None else ()
    lagged = earlier.lagged if earlier is not None else (0, 0)
    counted, late = all_counts(requests, misses, higher)
    found: CertificateVerdict = "UNDECIDED"
    missing: int | None = None
    if used is not None and requests:
        own = claim_confidence(confidence, claim)
        found = decide(
            requests,
            misses,
            used.value,
            percentile=percentile,
            confidence=own,
            higher=higher,
            lagged=lagged,
        )
        if found == "UNDECIDED":
            missing = expected_requests(
                miss_rate=late / counted,
                inflation=used.value,
                percentile=percentile,
                confidence=own,
                requests=requests,
                over_budget=misses,
                higher=higher,
                lagged=lagged,
            )
    effective = _effective(requests, misses, used.value, higher)[0] if used is not None else 0.0
    return Certificate(
        verdict=found,
        requests=counted,
        over_budget=late,
        effective_requests=effective,
        confidence=confidence,
        mlperf=mlperf.verdict(counted, late, percentile=percentile, confidence=confidence),
        inflation=used.value if used is not None else None,
        inflation_source=used.source if used is not None else "none",
        requests_missing=missing,
        higher=higher,
    )


def all_counts(requests: int, misses: int, higher: Sequence[HigherRuns]) -> tuple[int, int]:
    """Requests and those over budget, the runs at higher rates included."""
    return (
        requests + sum(of.requests for of in higher),
        misses + sum(of.over_budget for of in higher),
    )


def _effective(
    requests: float, over_budget: float, inflation: float, higher: Sequence[HigherRuns]
) -> tuple[float, float]:
    """Effective numbers of requests and of those over budget: each rate's over its own inflation.

    A likelihood ratio is multiplied by the power 1/inflation of each run's (``evidence``). Requests
    are no less correlated at a higher rate: a larger inflation at the lower one counts there too.
    """
    effective, late = requests / inflation, over_budget / inflation
    for of in higher:
        value = max(of.inflation, inflation)
        effective += of.requests / value
        late += of.over_budget / value
    return effective, late


def _pooled(
    used: UsedInflation | None, requests: int, earlier: RateEvidence
) -> UsedInflation | None:
    """The inflation of ``requests`` and the earlier ones together.

    Longer runs see more: what they find above the earlier one counts for all. Below it each keeps
    its own, and the variance of a sum of runs is the sum of theirs.
    """
    if earlier.inflation is None:
        return used
    known = UsedInflation(value=earlier.inflation, source="earlier")
    if used is None:
        return known
    if used.value >= known.value:
        return used
    own, theirs = requests * used.value, earlier.requests * known.value
    value = (own + theirs) / (requests + earlier.requests)
    return UsedInflation(value=value, source=used.source if own > theirs else known.source)


def passes(
    known: RateEvidence, *, percentile: float, confidence: float, share: float = 1.0
) -> bool:
    """Whether what is known of a rate proves it, as the claim that it is.

    Args:
        share: Of its requests that count, 0 to 1; of those over budget all do.
    """
    own = claim_confidence(confidence, known.claim)
    higher = [replace(of, requests=int(share * of.requests)) for of in known.higher]
    return (
        known.claim > 0
        and known.inflation is not None
        and decide(
            int(share * known.requests),
            known.over_budget,
            known.inflation,
            percentile=percentile,
            confidence=own,
            higher=higher,
        )
        == "PASS"
    )


def is_open(known: RateEvidence, *, percentile: float, confidence: float) -> bool:
    """Whether a claim still has its part of the error (``claim_confidence``).

    It passed at the rate at which it began, or a lower rate has its number now, where it has not.
    """
    if not known.claim:
        return False
    return bool(known.higher) or not passes(known, percentile=percentile, confidence=confidence)


def decide(
    requests: int,
    over_budget: int,
    inflation: float,
    *,
    percentile: float,
    confidence: float,
    higher: Sequence[HigherRuns] = (),
    lagged: tuple[int, int] = (0, 0),
) -> CertificateVerdict:
    """Returns the verdict on counts whose variance inflation is known.

    A larger inflation never turns UNDECIDED into a verdict (Jensen's inequality: a mixture of
    powers 1/f of ratios is at most the power 1/f of their mixture). Runs at ``higher`` rates do not
    speak for a FAIL, and do not suffice for a PASS where too many of those at the rate are late.

    Args:
        lagged: Of the requests, and of those over budget, what speaks for no FAIL
            (``RateEvidence.lagged``).
    """
    share = mlperf.tail_share(percentile)
    needed = 1.0 / (1.0 - confidence)
    if _for_pass(requests, over_budget, inflation, higher, share) >= needed:
        return "PASS"
    requests, over_budget = requests - lagged[0], over_budget - lagged[1]
    if evidence_above(requests / inflation, over_budget / inflation, share) >= needed:
        return "FAIL"
    return "UNDECIDED"


def _for_pass(
    requests: float,
    over_budget: float,
    inflation: float,
    higher: Sequence[HigherRuns],
    share: float,
) -> float:
    """The evidence for a PASS; none where runs at higher rates outweigh too many that are late."""
    if higher and over_budget > share * requests:
        return 0.0
    return evidence_below(*_effective(requests, over_budget, inflation, higher), share)


def used_inflation(
    blocks: Sequence[NDArray[np.bool_]],
    *,
    twin_inflation: float | None = None,
    latency_s: Sequence[NDArray[np.floating]] | None = None,
    budget_s: float = 0.0,
    steady: bool = False,
    late_share: float | None = None,
) -> UsedInflation | None:
    """Returns the largest inflation that any source finds; None where none can be trusted.

    With a twin, the run's own estimates are held against it as they are: they guard against a twin
    that is wrong, such as one that leaves an interference out. Without one their upper estimates
    count, since nothing else guards against a run too short to see its slow swings. Lower
    thresholds count beside batch means, because a short run sees more of those swings there than
    in its few misses.

    Args:
        blocks, twin_inflation, latency_s: As in ``certify``.
        budget_s: Latency budget, in the unit of ``latency_s``. Beside a twin only thresholds from
            half of it on count: what carries a request over the budget carries many that far, while
            far below it the machine's speed shows, and no overload; from a tenth of it on where the
            speed was steady.
        steady, late_share: Beside a twin, as in :func:`lower_threshold_inflation`.
    """
    least_s = (STEADY_SHARE if steady else OVERLOAD_SHARE) * budget_s
    twin = twin_inflation if twin_inflation is not None and isfinite(twin_inflation) else None
    own = variance_inflation(blocks)
    lower = None
    if latency_s is not None:
        lower = (
            lower_threshold_inflation(
                latency_s, least_s=least_s, late_share=late_share, steady=steady
            )
            if twin is not None
            else lower_threshold_inflation(latency_s)
        )
    candidates = []
    if twin is not None:
        candidates.append((max(twin, 1.0), "twin"))
    if own is not None:
        candidates.append((own.point if twin is not None else own.upper, "batch_means"))
    if lower is not None:
        candidates.append((lower.point if twin is not None else lower.upper, "lower_threshold"))
    if not candidates:
        # Nearly every request is late: no variance to see. The most that batch means could have
        # found is that a twentieth of the run is one observation.
        requests = sum(len(block) for block in blocks)
        misses = sum(int(np.count_nonzero(block)) for block in blocks)
        if requests >= BATCHES[0] and requests - misses < MISSES_MIN < misses:
            return UsedInflation(value=requests / BATCHES[0], source="batch_means")
        return None
    value, source = max(candidates)
    return UsedInflation(value=value, source=source)


def expected_requests(
    *,
    miss_rate: float,
    inflation: float,
    percentile: float,
    confidence: float,
    requests: int = 0,
    over_budget: int = 0,
    higher: Sequence[HigherRuns] = (),
    lagged: tuple[int, int] = (0, 0),
) -> int | None:
    """Returns how many further requests decide at ``miss_rate``; None where no number does.

    Args:
        miss_rate: Share over budget of the further requests, 0 to 1: below 1 - p they are a PASS,
            above it a FAIL. With 0 the answer is the least that a PASS can still take.
        inflation: Variance inflation, at least 1.
        percentile, confidence: As in ``decide``.
        requests, over_budget: What was counted so far.
        higher: What was counted at higher rates, which speaks for a PASS alone.
        lagged: As in ``decide``.
    """
    share = mlperf.tail_share(percentile)
    needed = 1.0 / (1.0 - confidence)

    def decided(further: float) -> bool:
        total, over = requests + further, over_budget + further * miss_rate
        if miss_rate < share:
            return _for_pass(total, over, inflation, higher, share) >= needed
        total, over = total - lagged[0], over - lagged[1]
        return evidence_above(total / inflation, over / inflation, share) >= needed

    further = _least(decided, _REQUESTS_MAX)
    return ceil(further) if further is not None else None


def _least(holds: Callable[[float], bool], limit: float) -> float | None:
    """The least number from which ``holds`` on, to a thousandth; None if above ``limit``."""
    high = 1.0
    while not holds(high):
        high *= 2.0
        if high > limit:
            return None
    low = high / 2.0
    while high - low > 1e-3 * high:
        middle = (low + high) / 2.0
        if holds(middle):
            high = middle
        else:
            low = middle
    return high


def _as_blocks(arrays: NDArray[T] | Sequence[NDArray[T]]) -> list[NDArray[T]]:
    return [arrays] if isinstance(arrays, np.ndarray) else list(arrays)
