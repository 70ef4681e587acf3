"""A server in virtual time under load: the fake of the session's seam."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from analyzer.domain.measurement import (
    STATUS_OK,
    STATUS_UNFINISHED,
    LoadTest,
    RequestLog,
    ResourceUse,
    Validity,
)
from analyzer.domain.workload import draw_arrivals_s
from analyzer.engine.policy import BatchingPolicy
from analyzer.measure.plan import STREAM_EDGE, LoadPlan
from analyzer.measure.session import combine
from analyzer.stats.percentiles import summarize_latency
from analyzer.twin.service import ServiceTime
from analyzer.twin.simulator import OpenWorkload, simulate

_REQUESTS_MIN = 20
_ABORT_FACTOR = 3.0


class VirtualSession:
    """The interface of :class:`~analyzer.measure.session.LoadSession`, in virtual time.

    Args:
        service: The true service times.
        drift: How much slower the server is after each run, as a factor.
        noise_seed: Tells sessions apart whose arrivals are the same.
    """

    def __init__(
        self,
        policy: BatchingPolicy,
        service: ServiceTime,
        plan: LoadPlan,
        *,
        overhead_ms: float = 0.0,
        memory_bytes: int = 100 << 20,
        drift: float = 1.0,
        noise_seed: int = 0,
    ) -> None:
        self._noise_seed = noise_seed
        self._policy = policy
        self._service = service
        self._plan = plan
        self._overhead_ms = overhead_ms
        self._memory_bytes = memory_bytes
        self._drift = drift
        self._draws = 0
        self.tests: list[LoadTest] = []
        self.logs: list[RequestLog] = []
        self.seconds = 0.0

    def warm_up(self, *, concurrency: int, seconds: float = 0.3) -> float:
        """The saturation throughput, requests per second."""
        self.seconds += seconds
        found = self._service.saturation_rps(self._policy, self._plan.request_batch_size)
        return min(found, 1e7)

    def run(
        self, rate_rps: float, seconds: float, *, kind: str, stream: int, abort: bool = True
    ) -> LoadTest:
        """As the real one; the latencies are the simulator's."""
        plan, sla = self._plan, self._plan.sla
        count = max(round(rate_rps * seconds), _REQUESTS_MIN)
        position = 0 if stream == STREAM_EDGE else self._draws
        self._draws += 1
        rng = np.random.default_rng([plan.seed, stream, position])
        arrivals_s = draw_arrivals_s(plan.arrivals, rate_rps=rate_rps, count=count, rng=rng)
        result = simulate(
            self._policy,
            self._service,
            OpenWorkload(
                arrival_ns=(arrivals_s * 1e9).astype(np.int64),
                batch_size=np.array([plan.request_batch_size]),
            ),
            overhead_ms=self._overhead_ms,
            seed=np.random.SeedSequence([int(rng.integers(2**31)), self._noise_seed]),
        )
        self._slow_down()
        latency_s = result.latency_ms() / 1e3
        over = latency_s > sla.latency_budget_ms / 1e3
        aborted = False
        if abort:
            limit = max(int(_ABORT_FACTOR * sla.miss_rate_max * count), 10)
            beyond = np.flatnonzero(np.cumsum(over) > limit)
            if len(beyond):
                aborted = True
                count = int(beyond[0]) + 1
        log = _log(arrivals_s[:count], latency_s[:count], plan.request_batch_size)
        duration = float(arrivals_s[count - 1] - arrivals_s[0]) + 1e-9
        test = LoadTest(
            kind=kind,
            offered_rps=rate_rps,
            achieved_rps=count / duration,
            throughput_ips=count / duration * plan.request_batch_size,
            requests=count,
            over_budget=int(over[:count].sum()),
            errors=int(np.isinf(latency_s[:count]).sum()),
            duration_s=duration,
            latency_ms=summarize_latency(latency_s[:count], sla.percentile),
            send_lag_ms_p99=0.0,
            resources=ResourceUse(memory_bytes_peak=self._memory_bytes),
            validity=Validity(valid=True),
            aborted=aborted,
            seed=plan.seed,
        )
        self.seconds += duration
        self.tests.append(test)
        self.logs.append(log)
        return test

    @property
    def target_notes(self) -> tuple[str, ...]:
        """Nothing qualifies a simulation."""
        return ()

    def _slow_down(self) -> None:
        if self._drift != 1.0:
            slower = tuple(ms * self._drift for ms in self._service.service_ms)
            self._service = replace(self._service, service_ms=slower)

    def peak(self) -> ResourceUse:
        """As the real one."""
        return combine([test.resources for test in self.tests])


def _log(
    arrivals_s: np.ndarray[tuple[int], np.dtype[np.float64]],
    latency_s: np.ndarray[tuple[int], np.dtype[np.float64]],
    batch_size: int,
) -> RequestLog:
    count = len(arrivals_s)
    unknown = np.full(count, np.nan, dtype=np.float32)
    return RequestLog(
        intended_s=arrivals_s,
        send_lag_s=np.zeros(count),
        latency_s=latency_s,
        batch_size=np.full(count, batch_size, dtype=np.int32),
        status=np.where(np.isfinite(latency_s), STATUS_OK, STATUS_UNFINISHED).astype(np.uint8),
        queue_s=unknown,
        compute_input_s=unknown,
        compute_infer_s=unknown,
        compute_output_s=unknown,
    )
