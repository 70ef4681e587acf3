"""A simulated server under load: a session in virtual time."""

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
from analyzer.measure.plan import LoadPlan
from analyzer.measure.session import Schedule, Session
from analyzer.stats.percentiles import summarize_latency
from analyzer.twin.server_model import ServerModel
from analyzer.twin.simulator import OpenWorkload


class VirtualSession(Session):
    """Load tests against a simulated server; seconds under load count as if they had passed.

    Args:
        server: The server, with its true service times.
        memory_bytes: What it is said to use.
        drift: How much slower the server is after each run, as a factor.
        noise_seed: Tells sessions apart whose arrivals are the same.
    """

    def __init__(
        self,
        server: ServerModel,
        plan: LoadPlan,
        *,
        memory_bytes: int = 100 << 20,
        drift: float = 1.0,
        noise_seed: int = 0,
    ) -> None:
        super().__init__(plan)
        self._server = server
        self._memory_bytes = memory_bytes
        self._drift = drift
        self._noise_seed = noise_seed

    @property
    def notes(self) -> tuple[str, ...]:
        """Nothing qualifies a simulation."""
        return ()

    def warm_up(self, *, concurrency: int, seconds: float = 0.3) -> float:
        """The saturation throughput, requests per second, at most 1e7."""
        self.seconds += seconds
        return min(self._server.saturation_rps(self._plan.batch_sizes()), 1e7)

    def run(
        self, rate_rps: float, seconds: float, *, kind: str, stream: int, abort: bool = True
    ) -> LoadTest:
        """As :meth:`Session.run`; the latencies are the simulator's."""
        sla = self._plan.sla
        schedule = self._schedule(rate_rps, seconds, stream, abort=abort)
        result = self._server.simulate(
            OpenWorkload(
                arrival_ns=(schedule.arrival_s * 1e9).astype(np.int64),
                batch_size=schedule.batch_size,
            ),
            seed=np.random.SeedSequence([int(schedule.rng.integers(2**31)), self._noise_seed]),
        )
        self._slow_down()
        latency_s = result.latency_ms() / 1e3
        over = latency_s > sla.latency_budget_ms / 1e3
        count = len(latency_s)
        if schedule.abort is not None:
            beyond = np.flatnonzero(np.cumsum(over) > schedule.abort.over_max)
            count = int(beyond[0]) + 1 if len(beyond) else count
        log = _log(schedule, latency_s, count)
        duration = float(log.intended_s[-1] - log.intended_s[0]) + 1e-9
        test = LoadTest(
            kind=kind,
            offered_rps=rate_rps,
            achieved_rps=count / duration,
            throughput_ips=float(log.batch_size.sum()) / duration,
            requests=count,
            over_budget=int(over[:count].sum()),
            errors=int(np.isinf(log.latency_s).sum()),
            duration_s=duration,
            latency_ms=summarize_latency(log.latency_s, sla.percentile),
            send_lag_ms_p99=0.0,
            executions=result.execution_times(),
            resources=ResourceUse(memory_bytes_peak=self._memory_bytes),
            validity=Validity(valid=True),
            aborted=count < len(latency_s),
            seed=self._plan.seed,
        )
        self.seconds += duration
        self.tests.append(test)
        self.logs.append(log)
        return test

    def _slow_down(self) -> None:
        if self._drift != 1.0:
            slower = tuple(ms * self._drift for ms in self._server.service.service_ms)
            service = replace(self._server.service, service_ms=slower)
            self._server = replace(self._server, service=service)


def _log(
    schedule: Schedule, latency_s: np.ndarray[tuple[int], np.dtype[np.float64]], count: int
) -> RequestLog:
    """The first ``count`` requests of a run."""
    unknown = np.full(count, np.nan, dtype=np.float32)
    latency_s = latency_s[:count]
    sizes = np.broadcast_to(schedule.batch_size, schedule.arrival_s.shape)
    return RequestLog(
        intended_s=schedule.arrival_s[:count],
        send_lag_s=np.zeros(count),
        latency_s=latency_s,
        batch_size=sizes[:count].astype(np.int32),
        status=np.where(np.isfinite(latency_s), STATUS_OK, STATUS_UNFINISHED).astype(np.uint8),
        queue_s=unknown,
        compute_input_s=unknown,
        compute_infer_s=unknown,
        compute_output_s=unknown,
    )
