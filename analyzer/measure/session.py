"""One target under load: warm-up, single load tests, peaks of memory; knows no strategy."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from analyzer.domain.measurement import LoadTest, RequestLog, ResourceUse
from analyzer.domain.workload import Trace, draw_arrivals_s
from analyzer.engine.counters import ServerStatistics
from analyzer.errors import TargetCrashError
from analyzer.hardware.sampler import ResourceSampler
from analyzer.load.generator import AbortRule, LoadRun, run_closed_loop, run_open_loop
from analyzer.load.summarize import set_warmup_apart, summarize
from analyzer.load.warmup import Warmup, detect_warmup
from analyzer.measure.plan import STREAM_EDGE, LoadPlan
from analyzer.targets.target import Target

_REQUESTS_MIN = 20
_REQUESTS_MAX = 2_000_000
# A request that takes this many budgets is given up; it is over budget long before.
_TIMEOUT_BUDGETS = 20.0
_TIMEOUT_S_MIN = 2.0
_TIMEOUT_S_UNBUDGETED = 30.0


class Session(Protocol):
    """One target under load, real or virtual."""

    tests: list[LoadTest]
    logs: list[RequestLog]
    seconds: float

    @property
    def target_notes(self) -> tuple[str, ...]:
        """What qualifies everything measured here."""

    def warm_up(self, *, concurrency: int, seconds: float = 0.3) -> float:
        """A short closed loop; replies per second."""

    def run(
        self, rate_rps: float, seconds: float, *, kind: str, stream: int, abort: bool = True
    ) -> LoadTest:
        """One open-loop load test."""

    def peak(self) -> ResourceUse:
        """Peaks and means over all load tests so far."""


class LoadSession:
    """Runs load tests against one target, one at a time, and keeps all of them.

    Args:
        target: Ready to answer.
        plan: How it is loaded.
        gpu_index: The GPU whose memory and power are sampled; None for none.
        gpu_base_bytes: What of its memory was in use before the target started.
        budgeted: Whether the plan's latency budget is one, or only a bound on time-outs.
    """

    def __init__(
        self,
        target: Target,
        plan: LoadPlan,
        *,
        gpu_index: int | None = None,
        gpu_base_bytes: int | None = None,
        budgeted: bool = True,
    ) -> None:
        self._budgeted = budgeted
        self._target = target
        self._plan = plan
        self._gpu_index = gpu_index
        self._gpu_base_bytes = gpu_base_bytes
        self._draws = 0
        self.tests: list[LoadTest] = []
        self.logs: list[RequestLog] = []
        self.seconds = 0.0

    def warm_up(self, *, concurrency: int, seconds: float = 0.3) -> float:
        """Runs a short closed loop, whose latencies are not kept; returns replies per second."""
        with self._target.connect() as connection:
            run = run_closed_loop(
                connection,
                concurrency,
                duration_s=seconds,
                batch_size=self._plan.request_batch_size,
                timeout_s=self._timeout_s,
            )
        self.seconds += run.wall_s
        good = int(np.isfinite(run.log.latency_s).sum())
        if good == 0:
            raise TargetCrashError(
                f"Not one of {len(run.log)} warm-up requests was answered.",
                hint="Run it again with -v; the server's own messages are in the log.",
            )
        return good / max(run.wall_s, 1e-9)

    @property
    def target_notes(self) -> tuple[str, ...]:
        """What qualifies everything measured here (another backend than the configuration's)."""
        return self._target.notes

    @property
    def _timeout_s(self) -> float:
        if not self._budgeted:
            return _TIMEOUT_S_UNBUDGETED
        budget_s = self._plan.sla.latency_budget_ms / 1e3
        return max(_TIMEOUT_S_MIN, _TIMEOUT_BUDGETS * budget_s)

    def run(
        self, rate_rps: float, seconds: float, *, kind: str, stream: int, abort: bool = True
    ) -> LoadTest:
        """Offers ``rate_rps`` for ``seconds`` (at least 20 requests) and keeps what came of it.

        Args:
            stream: Which arrivals: runs of the same stream and position share them.
            abort: Whether a hopeless run may end early.
        """
        plan, sla = self._plan, self._plan.sla
        count = int(np.clip(rate_rps * seconds, _REQUESTS_MIN, _REQUESTS_MAX))
        position = 0 if stream == STREAM_EDGE else self._draws
        self._draws += 1
        rng = np.random.default_rng([plan.seed, stream, position])
        arrivals_s = draw_arrivals_s(plan.arrivals, rate_rps=rate_rps, count=count, rng=rng)
        sizes: int | np.ndarray[tuple[int], np.dtype[np.int64]] = plan.request_batch_size
        if isinstance(plan.arrivals, Trace):
            sizes = plan.arrivals.batch_sizes(count)
        before = self._target.statistics()
        with (
            self._target.connect() as connection,
            self._sampler() as sampler,
        ):
            run = run_open_loop(
                connection,
                arrivals_s,
                sizes,
                timeout_s=self._timeout_s,
                drain_s=self._timeout_s,
                budget_s=sla.latency_budget_ms / 1e3,
                stop=AbortRule.hopeless(count, sla.miss_rate_max, factor=3.0) if abort else None,
            )
        # A claim counts every request: the target was warmed up before, and what detection would
        # cut off could be an early overload.
        warmup: Warmup | int = (
            0 if abort is False or run.aborted else detect_warmup(run.log.latency_s)
        )
        return self._keep(run, kind, before, sampler.result(), warmup=warmup, rate_rps=rate_rps)

    def run_closed(self, concurrency: int, seconds: float, *, kind: str = "measure") -> LoadTest:
        """Keeps ``concurrency`` requests in flight for ``seconds``."""
        before = self._target.statistics()
        with (
            self._target.connect() as connection,
            self._sampler() as sampler,
        ):
            run = run_closed_loop(
                connection,
                concurrency,
                duration_s=seconds,
                batch_size=self._plan.request_batch_size,
                timeout_s=self._timeout_s,
            )
        warmup = detect_warmup(run.log.latency_s)
        return self._keep(run, kind, before, sampler.result(), warmup=warmup)

    def _sampler(self) -> ResourceSampler:
        return ResourceSampler(
            self._target.pids, gpu_index=self._gpu_index, gpu_base_bytes=self._gpu_base_bytes
        )

    def _keep(
        self,
        run: LoadRun,
        kind: str,
        before: ServerStatistics | None,
        resources: ResourceUse,
        *,
        warmup: Warmup | int,
        rate_rps: float | None = None,
    ) -> LoadTest:
        sla = self._plan.sla
        test = summarize(
            run,
            kind=kind,
            offered_rps=rate_rps,
            budget_ms=sla.latency_budget_ms if self._budgeted else None,
            percentile=sla.percentile,
            warmup=warmup,
            resources=resources,
            statistics=(before, self._target.statistics()),
            seed=self._plan.seed,
        )
        self.seconds += run.wall_s
        self.tests.append(test)
        self.logs.append(set_warmup_apart(run.log, warmup))
        return test

    def peak(self) -> ResourceUse:
        """Peaks and means over all load tests so far."""
        return combine([test.resources for test in self.tests])


def combine(uses: list[ResourceUse]) -> ResourceUse:
    """The peaks of memory and the means of everything else; None where nothing was measured."""

    def values(name: str) -> list[float]:
        return [value for use in uses if (value := getattr(use, name)) is not None]

    def peak(name: str) -> int | None:
        found = values(name)
        return int(max(found)) if found else None

    def mean(name: str) -> float | None:
        found = values(name)
        return float(np.mean(found)) if found else None

    sources = [use.gpu_memory_source for use in uses if use.gpu_memory_source is not None]
    return ResourceUse(
        memory_bytes_peak=peak("memory_bytes_peak"),
        gpu_memory_bytes_peak=peak("gpu_memory_bytes_peak"),
        gpu_memory_source=sources[-1] if sources else None,
        gpu_utilization=mean("gpu_utilization"),
        power_watts=mean("power_watts"),
        cpu_utilization=mean("cpu_utilization"),
    )
