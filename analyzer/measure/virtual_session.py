"""A simulated server under load: a session in virtual time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.load_test import (
    SLOWNESS_BIN_S,
    STALLS_KEPT,
    STATUS_OK,
    STATUS_UNFINISHED,
    Conditions,
    ExecutionTimes,
    LoadTest,
    RequestLog,
    ResourceUse,
    Validity,
)
from analyzer.load.growth import outgrows
from analyzer.load.slowness import SLOWNESS_MAX
from analyzer.load.stalls import late_by_stalls
from analyzer.measure.plan import LoadPlan
from analyzer.measure.session import Schedule, Session
from analyzer.stats.percentiles import summarize_latency
from analyzer.twin.server_model import ServerModel
from analyzer.twin.service import ServiceTime
from analyzer.twin.simulator import OpenWorkload
from analyzer.twin.speed import SpeedPath

Floats = NDArray[np.float64]

# A canary wakes up this often, and finds a machine of speed 1 to take so long for its work; what
# it takes for a stall.
_WAKE_S = 0.01
_WORK_US = 100.0
_STALL_MS = 20.0
_STALLED = 1e-3


class VirtualSession(Session):
    """Load tests against a simulated server; seconds under load count as if they had passed.

    Args:
        server: The server, with its true service times.
        memory_bytes: What it is said to use.
        drift: How much slower the server is after each run, as a factor.
        noise_seed: Tells sessions apart whose arrivals are the same.
        speed: How fast the machine is by time; None for always the same.
        neighbour, witness_power: As of :class:`~analyzer.measure.virtual.VirtualWorld`.
        at_rate: What service times are at an offered rate, 1/s; None for the same at every rate.
        start_s: When on that path the session begins.
        first, seconds_max: As of :class:`Session`.
    """

    def __init__(
        self,
        server: ServerModel,
        plan: LoadPlan,
        *,
        memory_bytes: int = 100 << 20,
        drift: float = 1.0,
        noise_seed: int = 0,
        speed: SpeedPath | None = None,
        neighbour: bool = False,
        witness_power: float = 1.0,
        at_rate: Callable[[float, ServiceTime], ServiceTime] | None = None,
        start_s: float = 0.0,
        first: int = 0,
        seconds_max: float = math.inf,
    ) -> None:
        super().__init__(plan, first=first, seconds_max=seconds_max)
        self._server = server
        self._memory_bytes = memory_bytes
        self._drift = drift
        self._noise_seed = noise_seed
        self._speed = speed
        self._neighbour = neighbour
        self._witness_power = witness_power
        self._at_rate = at_rate
        self._start_s = start_s

    @property
    def notes(self) -> tuple[str, ...]:
        """Nothing qualifies a simulation."""
        return ()

    @property
    def left_s(self) -> float:
        """Seconds until the session must end; only those under load pass."""
        return self._seconds_max - self.seconds

    def warm_up(self, *, concurrency: int, seconds: float = 0.3) -> float:
        """The saturation throughput, requests per second, at most 1e7."""
        self.seconds += seconds
        return min(self._server.saturation_rps(self._plan.batch_sizes()), 1e7)

    def _offer(self, schedule: Schedule) -> tuple[LoadTest, RequestLog, float]:
        """As :meth:`Session._offer`; the latencies are the simulator's."""
        sla = self._plan.sla
        latency_s, executions = self._simulate(schedule)
        self._slow_down()
        over = latency_s > sla.latency_budget_ms / 1e3
        count = len(latency_s)
        if schedule.abort is not None:
            judged = over & (schedule.arrival_s >= schedule.abort.skip_s)
            beyond = np.flatnonzero(np.cumsum(judged) > schedule.abort.over_max)
            count = int(beyond[0]) + 1 if len(beyond) else count
        skip = min(int(np.searchsorted(schedule.arrival_s, schedule.lead_in_s)), count - 1)
        log = _log(schedule, latency_s, count, warmup=skip)
        counted_s, end_s = log.latency_s[skip:], float(log.intended_s[-1])
        path = self._speed or SpeedPath.constant()
        seen, others = path, None
        if self._neighbour:
            seen, others = SpeedPath.constant(), _taken(path, self._now_s, self._now_s + end_s)
        duration = end_s - float(log.intended_s[skip]) + 1e-9
        test = LoadTest(
            kind=schedule.kind,
            offered_rps=schedule.rate_rps,
            achieved_rps=(count - skip) / duration,
            throughput_ips=float(log.batch_size[skip:].sum()) / duration,
            requests=count - skip,
            over_budget=int(over[skip:count].sum()),
            stalled_over=late_by_stalls(log, sla.latency_budget_ms / 1e3),
            errors=int(np.isinf(counted_s).sum()),
            duration_s=duration,
            latency_ms=summarize_latency(counted_s, sla.percentile),
            send_lag_ms_p99=0.0,
            sent_late=0,
            executions=executions,
            resources=ResourceUse(memory_bytes_peak=self._memory_bytes, other_utilization=others),
            validity=Validity(valid=True),
            aborted=count < len(latency_s),
            growing=outgrows(log.intended_s[skip:], counted_s, sla.latency_budget_ms / 1e3),
            seed=self._plan.seed,
            slowness=_slowness(path, self._now_s, self._now_s + end_s),
            conditions=_conditions(
                seen, self._now_s, self._now_s + end_s, power=self._witness_power
            ),
        )
        return test, log, end_s

    @property
    def _now_s(self) -> float:
        return self._start_s + self.seconds

    def _simulate(self, schedule: Schedule) -> tuple[Floats, tuple[ExecutionTimes, ...]]:
        """Latencies, seconds, and execution times, at the machine's mean speed.

        Simulated in work time, on which the speed is constant, and moved back.
        """
        path = self._speed or SpeedPath.constant()
        begin_s = schedule.arrival_s + self._now_s
        work_s = path.work_s(begin_s)
        origin_s = work_s[0] - schedule.arrival_s[0]
        server = self._server
        if self._at_rate is not None:
            server = replace(server, service=self._at_rate(schedule.rate_rps, server.service))
        result = server.simulate(
            OpenWorkload(
                arrival_ns=((work_s - origin_s) * 1e9).astype(np.int64),
                batch_size=schedule.batch_size,
            ),
            seed=np.random.SeedSequence([int(schedule.rng.integers(2**31)), self._noise_seed]),
        )
        latency_s = result.latency_ms() / 1e3
        served = np.isfinite(latency_s)
        latency_s[served] = path.real_s(work_s[served] + latency_s[served]) - begin_s[served]
        slowness = (begin_s[-1] - begin_s[0]) / max(work_s[-1] - work_s[0], 1e-9)
        executions = result.execution_times()
        if self._speed is not None:
            executions = tuple(replace(e, mean_ms=e.mean_ms * slowness) for e in executions)
        return latency_s, executions

    def _slow_down(self) -> None:
        if self._drift != 1.0:
            slower = tuple(ms * self._drift for ms in self._server.service.service_ms)
            service = replace(self._server.service, service_ms=slower)
            self._server = replace(self._server, service=service)


def _taken(path: SpeedPath, start_s: float, end_s: float) -> float:
    """The share of the cores that the neighbour had meanwhile, 0 to 1."""
    begun, ended = path.work_s(np.array([start_s, end_s]))
    return float(1.0 - (ended - begun) / max(end_s - start_s, 1e-9))


def _conditions(path: SpeedPath, start_s: float, end_s: float, *, power: float) -> Conditions:
    """What a canary would have seen of ``path``, without its noise.

    Args:
        power: Of the slow-down: how its work answers to what executions take so many times as long
            in.
    """
    ends_s = np.append(path.start_s[1:], np.inf)
    from_s, until_s = np.maximum(path.start_s, start_s), np.minimum(ends_s, end_s)
    stalled = (path.speed < _STALLED) & (until_s > from_s)
    length_ms = np.sort((until_s - from_s)[stalled] * 1e3)[::-1]
    length_ms = length_ms[length_ms >= _STALL_MS]
    wake_s = np.arange(start_s, max(end_s, start_s + _WAKE_S), _WAKE_S)
    speed = path.speed[np.searchsorted(path.start_s, wake_s, side="right") - 1]
    seconds = np.floor(wake_s - start_s)
    awake = speed >= _STALLED
    work_us = [
        float(np.median(_WORK_US / speed[awake & (seconds == second)] ** power))
        for second in np.unique(seconds[awake])
    ]
    return Conditions(
        seconds=end_s - start_s,
        stalls_ms=tuple(float(ms) for ms in length_ms[:STALLS_KEPT]),
        stalls_cut=len(length_ms[STALLS_KEPT:]),
        work_us=tuple(work_us),
    )


def _slowness(path: SpeedPath, start_s: float, end_s: float) -> tuple[float, ...]:
    """What executions would have told of ``path``, without their noise."""
    edges_s = np.arange(start_s, end_s, SLOWNESS_BIN_S)
    if len(edges_s) < 2:
        return ()
    speed = np.maximum(np.diff(path.work_s(edges_s)) / SLOWNESS_BIN_S, 1.0 / SLOWNESS_MAX)
    return tuple(round(float(value), 2) for value in np.median(speed) / speed)


def _log(schedule: Schedule, latency_s: Floats, count: int, *, warmup: int) -> RequestLog:
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
        warmup=warmup,
    )
