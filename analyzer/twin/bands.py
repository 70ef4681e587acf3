"""At which rates a configuration keeps a latency budget, as the twin sees it.

A rate is feasible if in the long run at most 1 - p/100 of the requests are over budget. With a
queue delay that is no monotone question: the feasible rates can be a band, or several.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.workload import ArrivalProcess, Trace
from analyzer.engine.policy import BatchingPolicy
from analyzer.twin.service import ServiceTime
from analyzer.twin.simulator import Prepared

#: Rates above this are not looked at: one request per nanosecond of virtual time is no load test.
_RATE_RPS_MAX = 1e8
_BLOCKS = 32
_NOISE_POOL = 1 << 16
#: Requests per rate: to scan, to pin an edge, and at most to pin it.
_SCAN, _PIN, _PIN_MAX = 16_000, 64_000, 2_048_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitArrivals:
    """Arrivals at one request per second, to be scaled: the same for whatever is compared.

    Args:
        time_s: Arrival times, float64 [n].
        batch_size: Inferences of each request, int64 [n], or [1] if all are equal.
        quantile: Quantiles of the service times' noise, taken in turn by the executions: evenly
            spread over (0, 1) and shuffled, float64 [k].
    """

    time_s: NDArray[np.float64]
    batch_size: NDArray[np.int64]
    quantile: NDArray[np.float64]

    @classmethod
    def draw(
        cls,
        process: ArrivalProcess,
        *,
        request_batch_size: int = 1,
        seed: int = 0,
        count: int = _PIN_MAX,
    ) -> UnitArrivals:
        """``count`` arrivals of ``process``; a trace brings its own batch sizes if it has any.

        Raises:
            DataError: A trace without two arrivals at different times.
        """
        rng = np.random.default_rng(seed)
        gaps = process.interarrival_s(count, 1.0, rng)
        sizes = np.array([request_batch_size], dtype=np.int64)
        if isinstance(process, Trace) and process.batch_size.max() > 1:
            sizes = process.batch_sizes(count)
        quantile = (rng.permutation(_NOISE_POOL) + 0.5) / _NOISE_POOL
        return cls(time_s=np.cumsum(gaps), batch_size=sizes, quantile=quantile)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a run at one rate showed.

    Args:
        rate_rps: The rate.
        over: Fraction of requests over budget.
        over_error: Standard error of ``over``, from block means.
        requests: Requests that were counted.
    """

    rate_rps: float
    over: float
    over_error: float
    requests: int


class _Memory:
    """Arrays that runs write to, kept because fresh memory costs as much as the simulation."""

    def __init__(self) -> None:
        self._scaled = np.empty(0)
        self._arrival = np.empty(0, dtype=np.int64)
        self.workspace = np.empty((5, 0), dtype=np.int64)

    def arrival_ns(self, time_s: NDArray[np.float64], rate_rps: float) -> NDArray[np.int64]:
        """The unit arrivals ``time_s`` at ``rate_rps``, valid until the next call."""
        n = len(time_s)
        if len(self._scaled) < n:
            self._scaled = np.empty(n)
            self._arrival = np.empty(n, dtype=np.int64)
            self.workspace = np.empty((5, n), dtype=np.int64)
        np.multiply(time_s, 1e9 / rate_rps, out=self._scaled[:n])
        arrival = self._arrival[:n]
        arrival[:] = self._scaled[:n]
        return arrival


class _Server:
    """One configuration under the common arrivals, looked at at any rate. Not thread-safe."""

    def __init__(
        self,
        policy: BatchingPolicy,
        service: ServiceTime,
        arrivals: UnitArrivals,
        *,
        budget_ms: float,
        percentile: float,
        overhead_ms: float,
        memory: _Memory | None = None,
    ) -> None:
        assert 0 < percentile <= 100, percentile
        assert int(arrivals.batch_size.max()) <= policy.batch_limit
        self._prepared = Prepared.of(policy, service, overhead_ms)
        self._arrivals = arrivals
        self._limit_ns = round(budget_ms * 1e6) - self._prepared.overhead_ns
        self._memory = memory or _Memory()
        self._noise = service.noise_at(arrivals.quantile)
        self.allowed = 1.0 - percentile / 100.0
        smallest = int(arrivals.batch_size.min())
        mean_size = float(arrivals.batch_size.mean())
        self.saturation_rps = min(
            _RATE_RPS_MAX,
            service.saturation_rps(policy, smallest) * smallest / mean_size
            if policy.dynamic_batching
            else service.saturation_rps(policy, max(1, math.floor(mean_size))),
        )
        alone_ms = float(self._prepared.table_ns[1, smallest]) / 1e6
        longest_ms = alone_ms + policy.max_queue_delay_us / 1e3 + overhead_ms
        # So rare that requests hardly ever meet: even the misses allowed are not due to company.
        self.rare_rps = min(
            self.saturation_rps / 100, 0.1 * max(self.allowed, 1e-4) / max(longest_ms, 1e-6) * 1e3
        )
        shortest_ns = float(self._prepared.table_ns[1, smallest:].min())
        #: Whether even executions of the fastest batch, without any wait, are too often too late.
        self.hopeless = bool(np.mean(self._noise * shortest_ns > self._limit_ns) > self.allowed)

    def look(self, rate_rps: float, requests: int) -> Look:
        """A run of ``requests`` at ``rate_rps``; the first fiftieth is not counted."""
        from analyzer.twin import kernel

        n = min(requests, len(self._arrivals.time_s))
        arrival_ns = self._memory.arrival_ns(self._arrivals.time_s[:n], rate_rps)
        sizes = self._arrivals.batch_size
        batch_of, executions = self._prepared.run_kernel(
            arrival_ns, sizes[:n], n, self._noise, self._memory.workspace
        )
        blocks = np.zeros(min(_BLOCKS, n), dtype=np.int64)
        first = n // 50
        kernel.count_over(arrival_ns, batch_of, executions[1], self._limit_ns, first, blocks)
        length = (n - first) // len(blocks)
        means = blocks / length
        # Long blocks see long correlations, short ones are many: the larger error counts.
        errors = [
            float(part.std(ddof=1) / math.sqrt(len(part)))
            for part in (means, means.reshape(-1, 4).mean(axis=1) if len(means) % 4 == 0 else means)
            if len(part) > 1
        ]
        return Look(
            rate_rps=rate_rps,
            over=float(means.mean()),
            over_error=max(errors, default=1.0),
            requests=length * len(means),
        )

    def excess(self, look: Look) -> float:
        """log(over / allowed), above 0 where infeasible; bounded where nothing was over."""
        least = 0.5 / look.requests
        return math.log(max(look.over, least) / max(self.allowed, 2 * least))

    def scan_requests(self) -> int:
        """Requests of a look that can tell feasible from not, by and large."""
        return min(max(_SCAN, round(100 / max(self.allowed, 1e-4))), len(self._arrivals.time_s))

    def pin(self, feasible: Look, infeasible: Look, accuracy: float) -> float:
        """The rate between the two where the long-run fraction over budget is the allowed one.

        Interpolates between two rates on either side of the edge and close to it, then corrects
        with runs as long as it takes for a standard error below ``accuracy`` (relative).
        """
        at, slope = self._narrow(feasible, infeasible, accuracy)
        last = len(self._arrivals.time_s)
        requests = min(max(_PIN, 4 * self.scan_requests()), last)
        # Wide enough to tell the two apart, narrow enough for a straight line.
        half = min(max(0.7 / slope, 0.5 * accuracy), 0.03)
        below, above = (self.look(math.exp(at + side * half), requests) for side in (-1, 1))
        low, high = self.excess(below), self.excess(above)
        measured = (high - low) / (2 * half)
        slope = measured if measured * slope > 0 else slope
        step = -0.5 * (low + high) / slope
        look = above
        for _ in range(20):
            at += max(-0.05, min(0.05, step))
            error = look.over_error / max(look.over, 0.5 / look.requests) / abs(slope)
            if requests >= last or (error < accuracy and abs(step) < max(2 * accuracy, 0.02)):
                break
            # The error falls with the root of the requests. Not at once to the number that it
            # takes: where the rate was still off, the longest run would be in vain.
            growth = 1.2 * (error / accuracy) ** 2 if error >= accuracy else 1.0
            requests = min(math.ceil(requests * min(growth, 4.0)), last)
            before, look = look, self.look(math.exp(at), requests)
            apart = math.log(look.rate_rps / before.rate_rps)
            if abs(apart) > 0.01:
                secant = (self.excess(look) - self.excess(before)) / apart
                slope = secant if secant * slope > 0 else slope
            step = -self.excess(look) / slope
        return math.exp(at)

    def _narrow(self, feasible: Look, infeasible: Look, accuracy: float) -> tuple[float, float]:
        """The logarithm of the edge's rate within about 2 %, and the slope of the excess there."""
        inner, outer = math.log(feasible.rate_rps), math.log(infeasible.rate_rps)
        low, high = self.excess(feasible), self.excess(infeasible)
        requests = 2 * self.scan_requests()
        for step in range(20):
            if abs(outer - inner) < max(0.02, accuracy) and (
                abs(outer - inner) < accuracy or high - low < 3
            ):
                break
            # Interpolation finds smooth edges at once; halving finds those that jump.
            share = -low / (high - low) if step % 2 == 0 and high > low else 0.5
            at = inner + min(max(share, 0.1), 0.9) * (outer - inner)
            value = self.excess(self.look(math.exp(at), requests))
            if value <= 0:
                inner, low = at, value
            else:
                outer, high = at, value
        slope = max(high - low, 0.02) / (outer - inner)
        return inner + max(0.0, min(1.0, -low / max(high - low, 1e-9))) * (outer - inner), slope


def miss_fraction(
    policy: BatchingPolicy,
    service: ServiceTime,
    arrivals: UnitArrivals,
    *,
    rate_rps: float,
    budget_ms: float,
    overhead_ms: float = 0.0,
    requests: int = 200_000,
) -> float:
    """The fraction of requests over ``budget_ms`` at ``rate_rps``."""
    server = _Server(
        policy, service, arrivals, budget_ms=budget_ms, percentile=99, overhead_ms=overhead_ms
    )
    return server.look(rate_rps, requests).over


def feasible_bands(
    policy: BatchingPolicy,
    service: ServiceTime,
    arrivals: UnitArrivals,
    *,
    budget_ms: float,
    percentile: float = 99.0,
    overhead_ms: float = 0.0,
    accuracy: float = 0.003,
) -> list[tuple[float, float]]:
    """All bands (from, to) of feasible rates, 1/s, ascending; empty if there is none.

    A band that reaches down to rates at which requests hardly ever meet starts at 0. Bands
    narrower than 3 % of the rate may be missed.
    """
    server = _Server(
        policy, service, arrivals, budget_ms=budget_ms, percentile=percentile,
        overhead_ms=overhead_ms,
    )  # fmt: skip
    if server.hopeless:
        return []
    top, bottom = server.saturation_rps, server.rare_rps
    count = max(2, math.ceil(math.log(top / bottom) / 0.03))
    looks = [server.look(float(rate), 2 * server.scan_requests())
             for rate in np.geomspace(bottom, top, count + 1)]  # fmt: skip
    for index, look in enumerate(looks):
        # Where a short run cannot tell, a longer one does.
        if abs(look.over - server.allowed) < 3 * look.over_error:
            looks[index] = server.look(look.rate_rps, 16 * server.scan_requests())
    bands: list[tuple[float, float]] = []
    start = 0.0 if looks[0].over <= server.allowed else None
    for below, above in pairwise(looks):
        was, now = below.over <= server.allowed, above.over <= server.allowed
        if now and not was:
            start = server.pin(above, below, accuracy)
            if bands and start <= bands[-1][1] * (1 + accuracy):
                start = bands.pop()[0]
        elif was and not now:
            assert start is not None
            bands.append((start, server.pin(below, above, accuracy)))
            start = None
    if start is not None:
        # Nothing keeps up beyond saturation, however good the last look was.
        bands.append((start, top))
    return [band for band in bands if band[1] > band[0]]


def edge(
    policy: BatchingPolicy,
    service: ServiceTime,
    arrivals: UnitArrivals,
    *,
    budget_ms: float,
    percentile: float = 99.0,
    overhead_ms: float = 0.0,
    accuracy: float = 0.008,
) -> float | None:
    """The upper end of the highest feasible band, 1/s; None if no rate is feasible.

    The quick way for screening: it looks from saturation downwards and stops at the first feasible
    rate. The steps are 6 % where the edge is near, up to 22 % where it is far; a band that is
    narrower than its step may be missed.
    """
    return _edge(
        _Server(
            policy, service, arrivals, budget_ms=budget_ms, percentile=percentile,
            overhead_ms=overhead_ms,
        ),
        accuracy,
    )  # fmt: skip


def _edge(server: _Server, accuracy: float) -> float | None:
    if server.hopeless:
        return None
    requests = server.scan_requests()
    above = Look(rate_rps=server.saturation_rps, over=1.0, over_error=0.0, requests=requests)
    step = 0.03
    while above.rate_rps > server.rare_rps:
        look = server.look(above.rate_rps * math.exp(-step), requests)
        if look.over <= server.allowed:
            return server.pin(look, above, accuracy)
        excess = server.excess(look)
        slope = (server.excess(above) - excess) / step
        # Less than half of the way to where a straight line would cross.
        step = min(max(0.4 * excess / slope if slope > 0.1 else 0.1, 0.06), 0.25)
        above = look
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A configuration as the twin knows it."""

    policy: BatchingPolicy
    service: ServiceTime
    overhead_ms: float = 0.0


def edges(
    candidates: Sequence[Candidate],
    arrivals: UnitArrivals,
    *,
    budget_ms: float,
    percentile: float = 99.0,
    accuracy: float = 0.008,
    threads: int | None = None,
) -> list[float | None]:
    """:func:`edge` of each candidate, in order, on ``threads`` threads (default: one per core)."""

    kept = threading.local()

    def of(candidate: Candidate) -> float | None:
        if not hasattr(kept, "memory"):
            kept.memory = _Memory()
        server = _Server(
            candidate.policy,
            candidate.service,
            arrivals,
            budget_ms=budget_ms,
            percentile=percentile,
            overhead_ms=candidate.overhead_ms,
            memory=kept.memory,
        )
        return _edge(server, accuracy)

    with ThreadPoolExecutor(max_workers=threads or os.cpu_count() or 1) as pool:
        return list(pool.map(of, candidates))
