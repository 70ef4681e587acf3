"""At which rates a configuration keeps a latency budget, as the twin sees it.

A rate is feasible if in the long run at most 1 - p/100 of the requests are over budget. With a
queue delay that is no monotone question: the feasible rates can be a band, or several.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.sla import tail_share
from analyzer.engine.policy import BatchingPolicy
from analyzer.twin.arrivals import UnitArrivals
from analyzer.twin.service import ServiceTime
from analyzer.twin.simulator import Prepared
from analyzer.twin.speed import SpeedPath

#: Rates above this are not simulated: one request per nanosecond of virtual time is no load test.
_RATE_RPS_MAX = 1e8
# Virtual time ends here: half of what int64 holds, so that what is added to it fits in.
_TIME_NS_MAX = 2.0**62
#: Blocks of a run whose means give its standard error.
_BLOCKS = 32
#: Requests per rate: to scan, and to pin an edge at first.
_SCAN, _PIN = 16_000, 64_000
# Rates below an edge that are looked at where they may fail: each so many times the one before.
_STEP_DOWN = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class RatePoint:
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


class ScanMemory:
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


class RateScan:
    """One configuration simulated under the same arrivals at any rate. Not thread-safe.

    Args:
        memory: What the runs write to; one for each thread.
        path: The machine's speed over time, which a run goes through, or, where its requests are
            too few for all of it, through stretches of it (:meth:`SpeedPath.sampled`); None for 1.
    """

    def __init__(
        self,
        policy: BatchingPolicy,
        service: ServiceTime,
        arrivals: UnitArrivals,
        *,
        budget_ms: float,
        percentile: float,
        overhead_ms: float,
        memory: ScanMemory | None = None,
        path: SpeedPath | None = None,
    ) -> None:
        assert 0 < percentile <= 100, percentile
        assert int(arrivals.batch_size.max()) <= policy.batch_limit
        self._prepared = Prepared.of(policy, service, overhead_ms)
        self._arrivals = arrivals
        self._limit_ns = round(budget_ms * 1e6) - self._prepared.overhead_ns
        self._memory = memory or ScanMemory()
        self._noise = service.noise_at(arrivals.quantile)
        self.allowed = tail_share(percentile)
        self._path = path
        speed = path.mean_speed if path is not None else 1.0
        self.saturation_rps = min(
            _RATE_RPS_MAX, speed * service.saturation_rps(policy, arrivals.batch_size)
        )
        smallest = int(arrivals.batch_size.min())
        alone_ms = float(self._prepared.table_ns[1, smallest]) / 1e6
        longest_ms = alone_ms + policy.max_queue_delay_us / 1e3 + overhead_ms
        # So rare that requests hardly ever meet: even the misses allowed are not due to each other.
        self.rare_rps = min(
            self.saturation_rps / 100, 0.1 * max(self.allowed, 1e-4) / max(longest_ms, 1e-6) * 1e3
        )
        alone_ns = self._prepared.table_ns[1, smallest:]
        fastest = smallest + np.array([np.argmin(alone_ns)])
        shortest_ns = 1e6 * service.noisy_ms(alone_ns.min() / 1e6, fastest, self._noise)
        #: Whether even executions of the fastest batch, without any wait, are too often too late.
        self.hopeless = bool(np.mean(shortest_ns > self._limit_ns) > self.allowed)

    def at(self, rate_rps: float, requests: int) -> RatePoint:
        """What ``requests`` at ``rate_rps`` show; the first fiftieth is not counted."""
        from analyzer.twin import kernel

        path = self._path
        if path is not None and math.isfinite(path.period_s):
            requests = max(requests, math.ceil(path.period_s * rate_rps))
        # At rare rates fewer: virtual time is in whole nanoseconds.
        within = int(np.searchsorted(self._arrivals.time_s, _TIME_NS_MAX * rate_rps / 1e9))
        n = min(requests, len(self._arrivals.time_s), max(within, 1))
        arrival_ns = self._memory.arrival_ns(self._arrivals.time_s[:n], rate_rps)
        due_ns, limit_ns = arrival_ns, self._limit_ns
        if path is not None:
            path = path.sampled(self._arrivals.time_s[n - 1] / rate_rps)
            # On the clock of the work done a request is late at a time of its own.
            due_ns, limit_ns = path.work_ns(arrival_ns + self._limit_ns), 0
            arrival_ns = path.work_ns(arrival_ns)
        sizes = self._arrivals.batch_size
        batch_of, executions = self._prepared.run_kernel(
            arrival_ns, sizes[:n], n, self._noise, self._memory.workspace
        )
        blocks = np.zeros(min(_BLOCKS, n), dtype=np.int64)
        first = n // 50
        kernel.count_over(due_ns, batch_of, executions[1], limit_ns, first, blocks)
        length = (n - first) // len(blocks)
        means = blocks / length
        # Long blocks see long correlations, short ones are many: the larger error counts.
        errors = [
            float(part.std(ddof=1) / math.sqrt(len(part)))
            for part in (means, means.reshape(-1, 4).mean(axis=1) if len(means) % 4 == 0 else means)
            if len(part) > 1
        ]
        return RatePoint(
            rate_rps=rate_rps,
            over=float(means.mean()),
            over_error=max(errors, default=1.0),
            requests=length * len(means),
        )

    def excess(self, point: RatePoint) -> float:
        """log(over / allowed), above 0 where infeasible; bounded where nothing was over."""
        least = 0.5 / point.requests
        return math.log(max(point.over, least) / max(self.allowed, 2 * least))

    def scan_requests(self) -> int:
        """Requests of a run that mostly tells feasible from infeasible."""
        return min(max(_SCAN, round(100 / max(self.allowed, 1e-4))), len(self._arrivals.time_s))

    def pin(self, feasible: RatePoint, infeasible: RatePoint, accuracy: float) -> float:
        """The rate between the two where the long-run fraction over budget is the allowed one.

        Interpolates between two rates on either side of the edge and close to it, then corrects
        with runs as long as it takes for a standard error below ``accuracy`` (relative). At most
        saturation: what bounds it may be no queue that a simulation sees.
        """
        at, slope = self._narrow(feasible, infeasible, accuracy)
        last = len(self._arrivals.time_s)
        requests = min(max(_PIN, 4 * self.scan_requests()), last)
        # Wide enough to tell the two apart, narrow enough for a straight line.
        half = min(max(0.7 / slope, 0.5 * accuracy), 0.03)
        below, above = (self.at(math.exp(at + side * half), requests) for side in (-1, 1))
        low, high = self.excess(below), self.excess(above)
        measured = (high - low) / (2 * half)
        slope = measured if measured * slope > 0 else slope
        step = -0.5 * (low + high) / slope
        point = above
        for _ in range(20):
            at += max(-0.05, min(0.05, step))
            error = point.over_error / max(point.over, 0.5 / point.requests) / abs(slope)
            if requests >= last or (error < accuracy and abs(step) < max(2 * accuracy, 0.02)):
                break
            # The error falls with the root of the requests. Not at once to the number that it
            # takes: where the rate was still off, the longest run would be in vain.
            growth = 1.2 * (error / accuracy) ** 2 if error >= accuracy else 1.0
            requests = min(math.ceil(requests * min(growth, 4.0)), last)
            before, point = point, self.at(math.exp(at), requests)
            apart = math.log(point.rate_rps / before.rate_rps)
            if abs(apart) > 0.01:
                secant = (self.excess(point) - self.excess(before)) / apart
                slope = secant if secant * slope > 0 else slope
            step = -self.excess(point) / slope
        return min(math.exp(at), self.saturation_rps)

    def _narrow(
        self, feasible: RatePoint, infeasible: RatePoint, accuracy: float
    ) -> tuple[float, float]:
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
            value = self.excess(self.at(math.exp(at), requests))
            if value <= 0:
                inner, low = at, value
            else:
                outer, high = at, value
        slope = max(high - low, 0.02) / (outer - inner)
        return inner + max(0.0, min(1.0, -low / max(high - low, 1e-9))) * (outer - inner), slope

    def bands(self, accuracy: float) -> list[tuple[float, float]]:
        """All bands (from, to) of feasible rates, 1/s, ascending; empty if there is none."""
        if self.hopeless:
            return []
        top, bottom = self.saturation_rps, self.rare_rps
        count = max(2, math.ceil(math.log(top / bottom) / 0.03))
        points = [self.at(float(rate), 2 * self.scan_requests())
                  for rate in np.geomspace(bottom, top, count + 1)]  # fmt: skip
        for index, point in enumerate(points):
            # Where a short run cannot tell, a longer one does.
            requests = 16 * self.scan_requests()
            while abs(points[index].over - self.allowed) < 3 * points[index].over_error:
                points[index] = self.at(point.rate_rps, requests)
                if requests >= len(self._arrivals.time_s):
                    break
                requests *= 4
        bands: list[tuple[float, float]] = []
        start = 0.0 if points[0].over <= self.allowed else None
        for below, above in pairwise(points):
            was, now = below.over <= self.allowed, above.over <= self.allowed
            if now and not was:
                start = self.pin(above, below, accuracy)
                if bands and start <= bands[-1][1] * (1 + accuracy):
                    start = bands.pop()[0]
            elif was and not now:
                assert start is not None
                bands.append((start, self.pin(below, above, accuracy)))
                start = None
        if start is not None:
            # Nothing keeps up beyond saturation, however good the last run was.
            bands.append((start, top))
        return [band for band in bands if band[1] > band[0]]

    def edge(self, accuracy: float) -> float | None:
        """The upper end of the highest feasible band, 1/s; None if no rate is feasible.

        Where changes of the batch size cost time, of the highest one below which no rate fails:
        close to saturation all batches are full and none changes, while far lower rates fail.
        """
        if self.hopeless:
            return None
        requests = self.scan_requests()
        above = RatePoint(rate_rps=self.saturation_rps, over=1.0, over_error=0.0, requests=requests)
        step = 0.03
        while above.rate_rps > self.rare_rps:
            point = self.at(above.rate_rps * math.exp(-step), requests)
            if point.over <= self.allowed:
                failing = self._failing_below(point.rate_rps, requests)
                if failing is None:
                    return self.pin(point, above, accuracy)
                above, step = failing, 0.03
                continue
            excess = self.excess(point)
            slope = (self.excess(above) - excess) / step
            # Less than half of the way to where a straight line would cross.
            step = min(max(0.4 * excess / slope if slope > 0.1 else 0.1, 0.06), 0.25)
            above = point
        return None

    def _failing_below(self, rate_rps: float, requests: int) -> RatePoint | None:
        """The lowest rate below ``rate_rps`` that was seen to fail; None where none can."""
        if not self._prepared.change_ns.any():
            return None
        found = None
        while (rate_rps := rate_rps * _STEP_DOWN) > self.rare_rps:
            point = self.at(rate_rps, requests)
            found = point if point.over > self.allowed else found
        return found
