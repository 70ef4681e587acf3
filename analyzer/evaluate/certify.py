"""Certifies a rate: picks the highest that the time allows, and goes down where it fails.

Pure but for the runs, which the caller gives as a function. Near the edge correlated requests make
evidence dear (``field.md``), so the first rate tried is the highest whose expected need of requests
fits into the time that is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from analyzer.domain.measurement import Certificate, LoadTest

# Shares of the edge at which a certificate is tried, from close to safe.
_LADDER = (0.97, 0.94, 0.91, 0.88, 0.85, 0.82, 0.78, 0.74, 0.7, 0.65, 0.6, 0.5, 0.4, 0.3, 0.2)
_BLOCKS = 2
_RUN_S_MIN = 0.3
# How much more evidence than the plan says is expected to be needed before anything was run.
_CAUTION = 1.4
# The share of the time that the first rate may take.
_FIRST_SHARE = 0.62


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifyGoal:
    """What is to be certified.

    Args:
        edge_rps: The estimated edge; every rate tried is a share of it.
        seconds: Time under load that may be spent.
        requests_needed: Requests that a PASS at a rate is expected to take, from the variance
            inflation and the miss rate expected there; None where no number is enough.
        fixed_rps: The one rate to certify instead (the target rate); None for the highest possible.
    """

    edge_rps: float
    seconds: float
    requests_needed: Callable[[float], float | None]
    fixed_rps: float | None = None


@dataclass(slots=True)
class Certified:
    """What came of it.

    Args:
        rate_rps: The rate of ``certificate``; None if no run was made.
        passed: Whether ``rate_rps`` may be claimed.
        blocks: The valid runs at ``rate_rps``.
        runs: Every run made, in order.
    """

    rate_rps: float | None = None
    certificate: Certificate | None = None
    passed: bool = False
    blocks: list[LoadTest] = field(default_factory=list)
    runs: list[LoadTest] = field(default_factory=list)


def certify_capacity(
    goal: CertifyGoal,
    run: Callable[[float, float], LoadTest],
    judge: Callable[[float, Sequence[int]], Certificate],
) -> Certified:
    """Returns the highest rate that could be certified in the time, with its certificate.

    Args:
        goal: What is to be certified.
        run: Offers a rate (requests per second) for a number of seconds, with fresh arrivals.
        judge: The certificate of a rate from the runs with these indices in the order of ``run``.
    """
    result = Certified()
    left_s = goal.seconds
    rates = [goal.fixed_rps] if goal.fixed_rps else [goal.edge_rps * share for share in _LADDER]
    rates = [rate for rate in rates if rate]
    # How much more evidence than planned the runs have needed so far: their own correlation counts
    # where it is larger than the twin's.
    factor = _CAUTION
    first = True
    while rates and left_s > _RUN_S_MIN:
        # The first, high rate leaves enough time to prove a lower one.
        attempt_s = _FIRST_SHARE * left_s if first and len(rates) > 1 else left_s
        first = False
        rates = _affordable(goal, rates, attempt_s, factor)
        rate = rates.pop(0)
        needed = goal.requests_needed(rate) or 0.0
        block_s = max(needed * 1.1 / rate / _BLOCKS, 0.5)
        indices: list[int] = []
        while attempt_s > _RUN_S_MIN:
            test = run(rate, min(block_s, attempt_s))
            result.runs.append(test)
            left_s -= test.duration_s
            attempt_s -= test.duration_s
            indices.append(len(result.runs) - 1)
            certificate = judge(rate, indices)
            result.rate_rps, result.certificate = rate, certificate
            result.blocks = [result.runs[index] for index in indices]
            if certificate.verdict == "PASS":
                result.passed = True
                return result
            if certificate.verdict == "FAIL" or test.aborted:
                break
            missing = certificate.requests_missing
            if missing is None:
                continue
            if needed:
                factor = max(1.0, (certificate.requests + missing) / needed)
            stay_s = missing / rate
            if stay_s > attempt_s and rates:
                # What was gathered here is lost elsewhere: only a lower rate that is proven sooner,
                # from nothing, is worth leaving for.
                lower = _affordable(goal, rates, left_s, factor)[0]
                if _seconds(goal, lower, factor) < stay_s:
                    break
                attempt_s = left_s
            # In parts, so that what the runs show of their correlation is heard in time.
            block_s = max(min(missing * 1.05 / rate, 0.5 * attempt_s), 0.5)
    return result


def _affordable(goal: CertifyGoal, rates: list[float], left_s: float, factor: float) -> list[float]:
    """``rates`` from the first whose expected need fits into the time.

    Halves the list, since each look at a rate costs a simulation. Where none fits, the one that
    needs the least time: a lower rate needs fewer requests, but each takes longer to come.
    """

    if len(rates) < 2:
        return list(rates)
    low, high = 0, len(rates)
    while low < high:
        middle = (low + high) // 2
        if _seconds(goal, rates[middle], factor) <= 0.9 * left_s:
            high = middle
        else:
            low = middle + 1
    if high < len(rates):
        return rates[high:]
    quickest = min(range(0, len(rates), 2), key=lambda index: _seconds(goal, rates[index], factor))
    return rates[quickest:]


def _seconds(goal: CertifyGoal, rate: float, factor: float) -> float:
    """How long a PASS at ``rate`` is expected to take from nothing."""
    needed = goal.requests_needed(rate)
    return needed * factor / rate if needed is not None else math.inf
