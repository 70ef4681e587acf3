"""The simulated server of one configuration: what it would do at any rate."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.configuration import Configuration
from analyzer.domain.sla import tail_share
from analyzer.engine.policy import BatchingPolicy
from analyzer.stats.percentiles import nearest_rank
from analyzer.twin.arrivals import UnitArrivals
from analyzer.twin.bands import RateScan, ScanMemory
from analyzer.twin.inflation import late_inflation
from analyzer.twin.service import ServiceTime
from analyzer.twin.simulator import (
    OpenWorkload,
    Prepared,
    SimulationResult,
    Workload,
    simulate,
)
from analyzer.twin.speed import SpeedPath

# Requests behind a percentile of the latency: 200 of them beyond p99.
_LATENCY_REQUESTS = 20_000
# What is held for ever is the speed of spells of so many latency budgets: of shorter ones, an
# overload by a twentieth (5 % more work than the server does) adds no half a budget to the queue.
# Single tenths of a second, in which a stall of 20 ms hit two executions, read 1.5 times slower.
_SPELL_BUDGETS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerModel:
    """A configuration as the twin knows it; can be pickled for a worker.

    Args:
        overhead_ms: What a request takes outside of queue and model.
        rate_scale: Simulated over live rate: where the twin's edge is known to be off, rates are
            multiplied by this before they are simulated, and edges divided by it.
        path: The machine's speed over time, for everything but :meth:`simulate`; None for 1.
    """

    policy: BatchingPolicy
    service: ServiceTime
    overhead_ms: float = 0.0
    rate_scale: float = 1.0
    path: SpeedPath | None = None

    @classmethod
    def of(
        cls,
        configuration: Configuration,
        service: ServiceTime,
        *,
        overhead_ms: float,
        rate_scale: float = 1.0,
        path: SpeedPath | None = None,
    ) -> ServerModel:
        """The model of ``configuration`` with these service times."""
        return cls(
            policy=BatchingPolicy.from_configuration(configuration),
            service=service,
            overhead_ms=overhead_ms,
            rate_scale=rate_scale,
            path=path,
        )

    def saturation_rps(self, request_batch_size: int | NDArray[np.int64] = 1) -> float:
        """As :meth:`ServiceTime.saturation_rps`: the rate that no edge exceeds, 1/s."""
        return self.service.saturation_rps(self.policy, request_batch_size) / self.rate_scale

    def serial_bound_rps(self, request_batch_size: int | NDArray[np.int64] = 1) -> float:
        """The saturation where the server's own serial work is what it comes from, 1/s; else inf.

        Simulated runs know nothing of that work.
        """
        bound_rps = self.saturation_rps(request_batch_size)
        unbound = replace(self, service=replace(self.service, serial=None))
        return bound_rps if bound_rps < unbound.saturation_rps(request_batch_size) else math.inf

    def execution_s(self, rate_rps: float, request_batch_size: int = 1) -> float:
        """Seconds of an execution of the smallest batches that carry ``rate_rps``, alone."""
        policy, rate = self.policy, rate_rps * self.rate_scale
        limit = policy.batch_limit if policy.dynamic_batching else request_batch_size
        sizes = np.arange(request_batch_size, limit + 1, request_batch_size, dtype=np.int64)
        seconds = self.service.curve_ms(sizes) / 1e3
        requests_s = rate * seconds / (sizes / request_batch_size)
        carrying = np.flatnonzero(requests_s <= policy.instance_count)
        return float(seconds[carrying[0]] if len(carrying) else seconds[-1])

    def simulate(
        self, workload: Workload, *, seed: int | np.random.SeedSequence = 0
    ) -> SimulationResult:
        """What happens to each request of ``workload``, whose times are taken as they are."""
        return simulate(
            self.policy, self.service, workload, overhead_ms=self.overhead_ms, seed=seed
        )

    def edge(
        self,
        arrivals: UnitArrivals,
        *,
        budget_ms: float,
        percentile: float = 99.0,
        accuracy: float = 0.008,
        memory: ScanMemory | None = None,
    ) -> float | None:
        """The upper end of the highest feasible band, 1/s; None if no rate is feasible.

        The quick way for screening: it goes from saturation downwards and stops at the first
        feasible rate. The steps are 6 % where the edge is near, up to 22 % where it is far; a band
        that is narrower than its step may be missed.
        """
        found = self._scan(arrivals, budget_ms, percentile, memory).edge(accuracy)
        return found / self.rate_scale if found is not None else None

    def feasible_bands(
        self,
        arrivals: UnitArrivals,
        *,
        budget_ms: float,
        percentile: float = 99.0,
        accuracy: float = 0.003,
    ) -> list[tuple[float, float]]:
        """All bands (from, to) of feasible rates, 1/s, ascending; empty if there is none.

        A band that reaches down to rates at which requests hardly ever meet starts at 0. Bands
        narrower than 3 % of the rate may be missed.
        """
        bands = self._scan(arrivals, budget_ms, percentile).bands(accuracy)
        return [(low / self.rate_scale, high / self.rate_scale) for low, high in bands]

    def miss_rate(
        self,
        arrivals: UnitArrivals,
        rate_rps: float,
        *,
        budget_ms: float,
        requests: int = 200_000,
    ) -> float:
        """The fraction of requests over ``budget_ms`` at ``rate_rps``."""
        return self._scan(arrivals, budget_ms).at(rate_rps * self.rate_scale, requests).over

    def latency_ms(
        self, arrivals: UnitArrivals, rate_rps: float, percentile: float
    ) -> float | None:
        """Latency at a percentile at ``rate_rps``; None if that request was not served."""
        time_s = arrivals.time_s[:_LATENCY_REQUESTS]
        begin_s = time_s / (rate_rps * self.rate_scale)
        path = self.path.sampled(float(begin_s[-1])) if self.path is not None else None
        work_s = path.work_s(begin_s) if path is not None else begin_s
        workload = OpenWorkload(
            arrival_ns=(work_s * 1e9).astype(np.int64),
            batch_size=arrivals.batch_size[:_LATENCY_REQUESTS],
        )
        latency_ms = self.simulate(workload).latency_ms()
        if path is not None:
            served = np.isfinite(latency_ms)
            ends_s = path.real_s(work_s[served] + latency_ms[served] / 1e3)
            latency_ms[served] = (ends_s - begin_s[served]) * 1e3
        return nearest_rank(latency_ms, percentile)

    def inflation(
        self,
        arrivals: UnitArrivals,
        rate_rps: float,
        *,
        budget_ms: float,
        percentile: float = 99.0,
        free_share: float = 1.0,
        kept_share: float = 1.0,
    ) -> float:
        """The variance inflation of late requests at ``rate_rps``, at least 1.

        Infinite where no queue can be stable. As :func:`late_inflation` of all ``arrivals`` but
        the first fiftieth. Over a path of speeds how long the states last counts only where the
        slowest speed of ten budgets, held for ever, would break the promise of ``kept_share`` of
        the budget. Where not even that does, what counts are the overloads at that speed, and what
        exceeds that share (docs/statistics.md, section 4).

        Args:
            free_share: Of the cores, what other programs leave at the worst: the slowest speed is
                no higher. Where the path met them, they are in its speeds already.
        """
        limit_ns = round((budget_ms - self.overhead_ms) * 1e6)
        latency_ns = self._latency_ns(arrivals, rate_rps)
        if latency_ns is None:
            return math.inf
        found = late_inflation(latency_ns, limit_ns=limit_ns, percentile=percentile)
        if self.path is None:
            return found
        late_share = tail_share(percentile)
        slow = self.path.undercut_for(late_share, span_s=_SPELL_BUDGETS * budget_ms / 1e3)
        slowest = replace(self, path=SpeedPath.constant(min(free_share, slow)))
        slow_ns = slowest._latency_ns(arrivals, rate_rps)
        kept_ns = round(kept_share * limit_ns)
        if slow_ns is None or np.mean(slow_ns > kept_ns) > late_share:
            return found
        over = late_inflation(
            latency_ns, limit_ns=limit_ns, percentile=percentile, least_ns=kept_ns
        )
        within = late_inflation(slow_ns, limit_ns=limit_ns, percentile=percentile)
        return max(over, min(found, within))

    def _latency_ns(self, arrivals: UnitArrivals, rate_rps: float) -> NDArray[np.int64] | None:
        """Of all requests but the first fiftieth; None where no queue can be stable."""
        rate_rps *= self.rate_scale
        speed = self.path.mean_speed if self.path is not None else 1.0
        if rate_rps >= speed * self.service.saturation_rps(self.policy, arrivals.batch_size):
            return None
        prepared = Prepared.of(self.policy, self.service, self.overhead_ms)
        begin_ns = (arrivals.time_s * (1e9 / rate_rps)).astype(np.int64)
        path = self.path.sampled(begin_ns[-1] / 1e9) if self.path is not None else None
        arrival_ns = begin_ns if path is None else path.work_ns(begin_ns)
        requests = len(arrival_ns)
        batch_of, executions = prepared.run_kernel(
            arrival_ns, arrivals.batch_size, requests, self.service.noise_at(arrivals.quantile)
        )
        end_ns = executions[1] if path is None else path.real_ns(executions[1])
        latency_ns = np.where(batch_of >= 0, end_ns[batch_of] - begin_ns, np.int64(2**62))
        return latency_ns[requests // 50 :]

    def _scan(
        self,
        arrivals: UnitArrivals,
        budget_ms: float,
        percentile: float = 99.0,
        memory: ScanMemory | None = None,
    ) -> RateScan:
        return RateScan(
            self.policy, self.service, arrivals, budget_ms=budget_ms, percentile=percentile,
            overhead_ms=self.overhead_ms, memory=memory, path=self.path,
        )  # fmt: skip


def edges(
    models: Sequence[ServerModel],
    arrivals: UnitArrivals,
    *,
    budget_ms: float,
    percentile: float = 99.0,
    cores: int,
    accuracy: float = 0.008,
) -> list[float | None]:
    """:meth:`ServerModel.edge` of each model, in order, on ``cores`` threads."""

    kept = threading.local()

    def of(model: ServerModel) -> float | None:
        if not hasattr(kept, "memory"):
            kept.memory = ScanMemory()
        return model.edge(
            arrivals,
            budget_ms=budget_ms,
            percentile=percentile,
            accuracy=accuracy,
            memory=kept.memory,
        )

    with ThreadPoolExecutor(max_workers=cores) as pool:
        return list(pool.map(of, models))
