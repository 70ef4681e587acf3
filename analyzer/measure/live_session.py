"""One live target under load: warm-up, single load tests, peaks of memory."""

from __future__ import annotations

import numpy as np

from analyzer.domain.measurement import LoadTest, ResourceUse
from analyzer.engine.counters import ServerStatistics
from analyzer.errors import TargetCrashError
from analyzer.hardware.sampler import ResourceSampler
from analyzer.load.generator import LoadRun, run_closed_loop, run_open_loop
from analyzer.load.summarize import set_warmup_apart, summarize
from analyzer.load.warmup import Warmup, detect_warmup
from analyzer.measure.plan import LoadPlan
from analyzer.measure.session import Session
from analyzer.targets.target import Target

# A request that takes this many budgets is given up; it is over budget long before.
_TIMEOUT_BUDGETS = 20.0
_TIMEOUT_S_MIN = 2.0
_TIMEOUT_S_UNBUDGETED = 30.0


class LiveSession(Session):
    """Load tests against a real target.

    Args:
        target: Ready to answer.
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
        super().__init__(plan)
        self._target = target
        self._gpu_index = gpu_index
        self._gpu_base_bytes = gpu_base_bytes
        self._budgeted = budgeted

    @property
    def notes(self) -> tuple[str, ...]:
        """The target's."""
        return self._target.notes

    def warm_up(self, *, concurrency: int, seconds: float = 0.3) -> float:
        """As :meth:`Session.warm_up`."""
        run = self._closed_loop(concurrency, seconds)
        self.seconds += run.wall_s
        good = int(np.isfinite(run.log.latency_s).sum())
        if good == 0:
            raise TargetCrashError(
                f"Not one of {len(run.log)} warm-up requests was answered.",
                hint="Run it again with -v; the server's own messages are in the log.",
            )
        return good / max(run.wall_s, 1e-9)

    def run(
        self, rate_rps: float, seconds: float, *, kind: str, stream: int, abort: bool = True
    ) -> LoadTest:
        """As :meth:`Session.run`."""
        schedule = self._schedule(rate_rps, seconds, stream, abort=abort)
        before = self._target.statistics()
        with self._target.connect() as connection, self._sampler() as sampler:
            run = run_open_loop(
                connection,
                schedule.arrival_s,
                schedule.batch_size,
                timeout_s=self._timeout_s,
                drain_s=self._timeout_s,
                budget_s=self._plan.sla.latency_budget_ms / 1e3,
                stop=schedule.abort,
            )
        # A claim counts every request: the target was warmed up before, and what detection would
        # cut off could be an early overload.
        warmup: Warmup | int = 0 if not abort or run.aborted else detect_warmup(run.log.latency_s)
        return self._keep(run, kind, before, sampler.result(), warmup=warmup, rate_rps=rate_rps)

    def run_closed(self, concurrency: int, seconds: float, *, kind: str = "measure") -> LoadTest:
        """Keeps ``concurrency`` requests in flight for ``seconds``."""
        before = self._target.statistics()
        with self._sampler() as sampler:
            run = self._closed_loop(concurrency, seconds)
        warmup = detect_warmup(run.log.latency_s)
        return self._keep(run, kind, before, sampler.result(), warmup=warmup)

    @property
    def _timeout_s(self) -> float:
        if not self._budgeted:
            return _TIMEOUT_S_UNBUDGETED
        budget_s = self._plan.sla.latency_budget_ms / 1e3
        return max(_TIMEOUT_S_MIN, _TIMEOUT_BUDGETS * budget_s)

    def _closed_loop(self, concurrency: int, seconds: float) -> LoadRun:
        with self._target.connect() as connection:
            return run_closed_loop(
                connection,
                concurrency,
                duration_s=seconds,
                batch_size=self._plan.batch_size_typical,
                timeout_s=self._timeout_s,
            )

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
