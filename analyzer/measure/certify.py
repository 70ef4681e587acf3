"""Certifies a rate: a safe one first, then the highest that the time left can still prove.

Pure but for the runs, which the caller gives as a function. Near the edge correlated requests are
weak evidence (docs/statistics.md, section 5), so a part of the time goes to the highest rate that
it is expected to prove; what is left then climbs from a PASS, or goes down from a FAIL. A rate's
certificate counts every run that a walk makes at it, so that none is chosen by its luck.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from analyzer.domain.measurement import Certificate, LoadTest
from analyzer.stats.certificate import requests_to_pass

# Shares of the edge at which a certificate is tried, from close to safe.
_LADDER = (0.97, 0.94, 0.91, 0.88, 0.85, 0.82, 0.78, 0.74, 0.7, 0.65, 0.6, 0.5, 0.4, 0.3, 0.2)
# Runs that the first plan of a rate is split into, the shortest run, and the longest first one.
_BLOCKS = 2
_RUN_S_MIN = 0.3
_FIRST_BLOCK_S = 8.0
# How much more evidence than the plan says is expected to be needed before anything was run.
_CAUTION = 1.2
#: ``CertifyGoal.shares`` of a walk that leaves time to climb, and of one that spends it at once.
CLIMBING = (0.4, 0.65, 0.9)
AT_ONCE = (0.9,)


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifyGoal:
    """What is to be certified.

    Args:
        edge_rps: The estimated edge; every rate tried is a share of it.
        seconds: Time under load that may be spent.
        requests_needed: Requests that a PASS at a rate is expected to take, from the variance
            inflation and the miss rate expected there; None where no number is enough.
        percentile: The SLA's, 0 to 100.
        fixed_rps: The one rate to certify instead (the target rate); None for the highest possible.
        shares: Shares of the time left that a first proof may be planned to take; the first that
            suffices for a rate counts.
    """

    edge_rps: float
    seconds: float
    requests_needed: Callable[[float], float | None]
    percentile: float = 99.0
    fixed_rps: float | None = None
    shares: tuple[float, ...] = CLIMBING


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
    return _Certifying(goal, run, judge).certify()


class _Certifying:
    """One walk over the rates."""

    def __init__(
        self,
        goal: CertifyGoal,
        run: Callable[[float, float], LoadTest],
        judge: Callable[[float, Sequence[int]], Certificate],
    ) -> None:
        self._goal, self._run, self._judge = goal, run, judge
        self._result = Certified()
        self._left_s = goal.seconds
        # How much more evidence than planned the runs have needed so far: their own correlation
        # counts where it is larger than the twin's.
        self._factor = _CAUTION

    def certify(self) -> Certified:
        goal, result = self._goal, self._result
        # Highest first; those that may still be proven.
        rates = [goal.fixed_rps] if goal.fixed_rps else [goal.edge_rps * s for s in _LADDER]
        rates = [rate for rate in rates if rate]
        while rates and self._left_s > _RUN_S_MIN:
            rate, limit_s = self._choose(rates)
            if rate is None:
                break
            passed = self._attempt(rate, limit_s, [lower for lower in rates if lower < rate])
            rates = [other for other in rates if (other > rate if passed else other < rate)]
            if result.passed and result.rate_rps:
                rates = [other for other in rates if other > result.rate_rps]
        return result

    def _choose(self, rates: list[float]) -> tuple[float | None, float]:
        """The rate to try next, and the seconds that it may take.

        The highest whose expected need fits into the time. Where none fits, the one that needs the
        least: a lower rate needs fewer requests, but each takes longer to come. Nothing is tried
        above a proven rate that the time does not suffice for.
        """
        if self._result.passed:
            rate = self._affordable(rates, 0.9 * self._left_s)
            return rate, self._left_s
        if len(rates) == 1:
            return rates[0], self._left_s
        for share in self._goal.shares:
            rate = self._affordable(rates, share * self._left_s)
            if rate is not None:
                return rate, share * self._left_s
        return min(rates[::2], key=self._seconds), self._left_s

    def _affordable(self, rates: list[float], seconds: float) -> float | None:
        """The highest of ``rates`` whose expected need fits; None if none does.

        Bisects the list, since each rate costs a simulation.
        """
        low, high = 0, len(rates)
        while low < high:
            middle = (low + high) // 2
            if self._seconds(rates[middle]) <= seconds:
                high = middle
            else:
                low = middle + 1
        return rates[high] if high < len(rates) else None

    def _seconds(self, rate: float) -> float:
        """How long a PASS at ``rate`` is expected to take from nothing."""
        needed = self._goal.requests_needed(rate)
        return needed * self._factor / rate if needed is not None else math.inf

    def _attempt(self, rate: float, limit_s: float, lower: list[float]) -> bool:
        """Runs ``rate`` until it is decided, hopeless, or the time is better spent elsewhere."""
        runs, indices = self._result.runs, []
        needed = self._goal.requests_needed(rate) or 0.0
        # The first one is short: it shows whether the rate is hopeless.
        block_s = max(min(needed * 1.1 / rate / _BLOCKS, _FIRST_BLOCK_S), 0.5)
        while limit_s > _RUN_S_MIN:
            test = self._run(rate, min(block_s, limit_s))
            runs.append(test)
            indices.append(len(runs) - 1)
            self._left_s -= test.duration_s
            limit_s -= test.duration_s
            certificate = self._judge(rate, indices)
            passed = certificate.verdict == "PASS"
            if passed or not self._result.passed:
                self._keep(rate, certificate, indices)
            if passed:
                return True
            if certificate.verdict == "FAIL" or test.aborted:
                return False
            beyond = certificate.over_budget > certificate.requests * self._miss_rate_max
            missing = float(certificate.requests_missing or block_s * rate)
            if beyond:
                # What is missing is missing to a FAIL; the least that a PASS takes is what follows
                # if no further request is late.
                missing = self._to_pass(certificate)
            elif needed and certificate.requests_missing:
                self._factor = max(1.0, (certificate.requests + missing) / needed)
            stay_s = missing / rate
            if stay_s > limit_s:
                if self._result.passed:
                    return False
                # What was gathered here is lost elsewhere: only a lower rate that is proven
                # sooner, from nothing, is worth leaving for.
                if lower and min(map(self._seconds, lower[::3])) < stay_s:
                    return False
                limit_s = self._left_s
            # In parts, so that the correlation that the runs show counts in time.
            block_s = max(min(missing * 1.05 / rate, 0.5 * limit_s), 0.5)
        return False

    @property
    def _miss_rate_max(self) -> float:
        return 1.0 - self._goal.percentile / 100.0

    def _to_pass(self, certificate: Certificate) -> float:
        found = requests_to_pass(
            certificate.requests,
            certificate.over_budget,
            certificate.inflation or 1.0,
            percentile=self._goal.percentile,
            confidence=certificate.confidence,
        )
        return found if found is not None else math.inf

    def _keep(self, rate: float, certificate: Certificate, indices: Sequence[int]) -> None:
        """What may be said so far: of the highest rate that passed, else of the last one tried."""
        result = self._result
        result.rate_rps, result.certificate = rate, certificate
        result.passed = certificate.verdict == "PASS"
        result.blocks = [result.runs[index] for index in indices]
