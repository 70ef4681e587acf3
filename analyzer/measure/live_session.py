"""One live target under load: warm-up, single load tests, peaks of memory."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from types import TracebackType
from typing import Self

import numpy as np

from analyzer.domain.load_test import (
    STATUS_ERROR,
    STATUS_OK,
    LoadTest,
    LoadTestKind,
    RequestLog,
    ResourceUse,
)
from analyzer.engine.counters import ServerStatistics
from analyzer.errors import TargetCrashError
from analyzer.hardware.canary import Canary
from analyzer.hardware.gpus import GpuIdentity
from analyzer.hardware.sampler import ResourceSampler
from analyzer.load.generator import LoadRun, run_closed_loop, run_open_loop
from analyzer.load.summarize import set_warmup_apart, summarize
from analyzer.load.warmup import detect_warmup
from analyzer.measure.plan import LoadPlan
from analyzer.measure.session import Schedule, Session
from analyzer.targets.target import Connection, Target

# A request that takes this many budgets is given up; it is over budget long before.
_TIMEOUT_BUDGETS = 20.0
_TIMEOUT_S_MIN = 2.0
# Where no budget is judged, and in a warm-up: a model that is far too slow is none that fails.
_TIMEOUT_S_UNBUDGETED = 30.0


class LiveSession(Session):
    """Load tests against a real target; entered, it watches the machine meanwhile.

    Args:
        target: Ready to answer.
        gpu: The GPU whose memory, power and clocks are sampled; None for none.
        gpu_base_bytes: What of its memory was in use before the target started.
        budgeted: Whether the plan's latency budget is one, or only a bound on time-outs.
        first, seconds_max: As of :class:`Session`.
    """

    def __init__(
        self,
        target: Target,
        plan: LoadPlan,
        *,
        gpu: GpuIdentity | None = None,
        gpu_base_bytes: int | None = None,
        budgeted: bool = True,
        first: int = 0,
        seconds_max: float = math.inf,
    ) -> None:
        super().__init__(plan, first=first, seconds_max=seconds_max)
        self._began = time.monotonic()
        self._target = target
        self._gpu = gpu
        self._gpu_base_bytes = gpu_base_bytes
        self._budgeted = budgeted
        self._canary: Canary | None = None
        self._unwatched: tuple[str, ...] = ()
        self._queued = False
        self._failure = ""

    def __enter__(self) -> Self:
        try:
            self._canary = Canary().__enter__()
        except OSError as error:
            self._unwatched = (f"Nothing watched the machine for stalls: {error}.",)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._canary is not None:
            self._canary.__exit__(kind, value, trace)
            self._canary = None

    @property
    def notes(self) -> tuple[str, ...]:
        """The target's, whether the machine was watched, and why requests failed."""
        failed = (f"Requests failed, the first with: {self._failure}",) if self._failure else ()
        return (*self._target.notes, *self._unwatched, *failed)

    @property
    def left_s(self) -> float:
        """Seconds until the session must end, by the clock."""
        return self._seconds_max - (time.monotonic() - self._began)

    def warm_up(self, *, concurrency: int, seconds: float = 0.3) -> float:
        """As :meth:`Session.warm_up`."""
        timeout_s = max(self._timeout_s, min(_TIMEOUT_S_UNBUDGETED, self.left_s))
        run = self._closed_loop(concurrency, seconds, timeout_s)
        self.seconds += run.wall_s
        self._require_alive(run.log)
        good = int(np.isfinite(run.log.latency_s).sum())
        if good == 0:
            silent = f" within {timeout_s:.3g} s."
            why = f": {self._failure}" if self._failure else silent
            raise TargetCrashError(
                f"Not one of {len(run.log)} warm-up requests was answered{why}",
                hint="Made-up inputs may be none that the model takes: --calibration-data FILE.npz "
                "gives real ones. The server's log says more (of one started here: -v).",
            )
        return good / max(run.wall_s, 1e-9)

    def _offer(self, schedule: Schedule) -> tuple[LoadTest, RequestLog, float]:
        """As :meth:`Session._offer`, from the target."""
        self._await_queued()
        before, started_ns = self._target.statistics(), time.monotonic_ns()
        with self._target.connect() as connection, self._sampler() as sampler:
            run = run_open_loop(
                connection,
                schedule.arrival_s,
                schedule.batch_size,
                timeout_s=self._timeout_s,
                # What is late after the latency budget stays late.
                drain_s=max(self.left_s - schedule.seconds, self._budget_s),
                budget_s=self._budget_s,
                stop=schedule.abort,
            )
            self._note_failure(connection, run.log)
        self._queued = run.aborted
        # A claim counts every request after its lead-in: the target was warmed up before, and what
        # detection would cut off could be an early overload.
        leading = int(np.searchsorted(run.log.intended_s, schedule.lead_in_s))
        warmup = min(leading, max(len(run.log) - 1, 0))
        if schedule.abort is not None and not schedule.claim and not run.aborted:
            warmup = detect_warmup(run.log.latency_s)
        return self._summarized(
            run, schedule.kind, before, sampler.result(), warmup=warmup, since_ns=started_ns,
            rate_rps=schedule.rate_rps,
        )  # fmt: skip

    def _await_queued(self) -> None:
        """Waits until what an aborted run left in the server's queue is answered.

        Triton goes on with the requests of a connection that was closed; the next run's would wait
        behind them and be late at any rate. Queues are served in order, so one more request is
        answered after them.
        """
        if not self._queued:
            return
        with self._target.connect() as connection:
            timeout_s = max(min(self._timeout_s, self.left_s), self._budget_s)
            run = run_closed_loop(connection, 1, requests=1, timeout_s=timeout_s)
        self.seconds += run.wall_s
        self._queued = False

    def run_closed(self, concurrency: int, seconds: float) -> LoadTest:
        """Keeps ``concurrency`` requests in flight for ``seconds``."""
        before, started_ns = self._target.statistics(), time.monotonic_ns()
        with self._sampler() as sampler:
            run = self._closed_loop(concurrency, seconds, self._timeout_s)
        warmup = detect_warmup(run.log.latency_s)
        resources = sampler.result()
        return self._keep(
            *self._summarized(run, "measure", before, resources, warmup=warmup, since_ns=started_ns)
        )

    @property
    def _timeout_s(self) -> float:
        if not self._budgeted:
            return _TIMEOUT_S_UNBUDGETED
        return max(_TIMEOUT_S_MIN, _TIMEOUT_BUDGETS * self._budget_s)

    @property
    def _budget_s(self) -> float:
        return self._plan.sla.latency_budget_ms / 1e3

    def _closed_loop(self, concurrency: int, seconds: float, timeout_s: float) -> LoadRun:
        with self._target.connect() as connection:
            run = run_closed_loop(
                connection,
                concurrency,
                duration_s=seconds,
                batch_size=self._plan.batch_size_typical,
                timeout_s=timeout_s,
            )
            self._note_failure(connection, run.log)
        return run

    def _note_failure(self, connection: Connection, log: RequestLog) -> None:
        """Keeps why the first request failed that did."""
        if STATUS_ERROR in log.status:
            self._failure = self._failure or connection.failure

    def _sampler(self) -> ResourceSampler:
        return ResourceSampler(
            self._target.pids, gpu=self._gpu, gpu_base_bytes=self._gpu_base_bytes
        )

    def _require_alive(self, log: RequestLog) -> None:
        """Raises TargetCrashError where requests failed and the target is not ready any more."""
        if STATUS_ERROR in log.status and not self._target.alive():
            failed = int((log.status != STATUS_OK).sum())
            why = self._target.why_gone()
            raise TargetCrashError(
                f"The model is not ready any more ({failed} of {len(log)} requests failed)"
                + (f": {why}" if why else "."),
                hint="Start its server anew; the server's log says more.",
            )

    def _summarized(
        self,
        run: LoadRun,
        kind: LoadTestKind,
        before: ServerStatistics | None,
        resources: ResourceUse,
        *,
        warmup: int,
        since_ns: int,
        rate_rps: float | None = None,
    ) -> tuple[LoadTest, RequestLog, float]:
        self._require_alive(run.log)
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
        if self._canary is not None:
            test = replace(test, conditions=self._canary.since(since_ns))
        return test, set_warmup_apart(run.log, warmup), run.wall_s
