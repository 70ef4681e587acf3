"""One load test: each request, and what all of them came to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from statistics import median
from typing import Literal

import numpy as np
from numpy.typing import NDArray

LoadTestKind = Literal["edge", "certify", "refute", "target", "verify", "measure"]
InvalidityKind = Literal["lag", "offered_rate", "littles_law", "throttled"]

# Outcome of one request, as the generator saw it.
STATUS_OK = 0
STATUS_ERROR = 1
STATUS_TIMEOUT = 2
STATUS_UNFINISHED = 3

# The longest stalls of a stretch of time; more say nothing else.
STALLS_KEPT = 100


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestLog:
    """Every request of one load test in order of its intended send time; arrays of length n.

    Args:
        intended_s: Intended send times, seconds from the run's start, float64.
        send_lag_s: How late each was sent, float64; NaN if it never was.
        latency_s: Intended send time to the reply's receipt, float64; inf for a request that
            failed, timed out or never came back.
        batch_size: Inferences of each request, int32.
        status: One of the STATUS codes, uint8.
        queue_s, compute_input_s, compute_infer_s, compute_output_s: The server's own breakdown of
            each request, float32; NaN where the target does not tell.
        warmup: How many of the first requests are warm-up, stored apart and not counted.
    """

    intended_s: NDArray[np.float64]
    send_lag_s: NDArray[np.float64]
    latency_s: NDArray[np.float64]
    batch_size: NDArray[np.int32]
    status: NDArray[np.uint8]
    queue_s: NDArray[np.float32]
    compute_input_s: NDArray[np.float32]
    compute_infer_s: NDArray[np.float32]
    compute_output_s: NDArray[np.float32]
    warmup: int = 0

    def __len__(self) -> int:
        return len(self.intended_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Validity:
    """Whether a run says anything.

    Args:
        reasons: Sentences, where it does not.
        kinds: The rule that each reason is about.
    """

    valid: bool
    reasons: tuple[str, ...] = ()
    kinds: tuple[InvalidityKind, ...] = ()

    @property
    def excused(self) -> bool:
        """Valid, or nothing but the generator late, which is inside the latencies."""
        return self.valid or set(self.kinds) == {"lag"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySummary:
    """Latency in milliseconds; nearest-rank percentiles, None where one falls among failures."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    sla: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Mean milliseconds a request spent in each stage; None where the target does not tell.

    ``overhead`` is what is left of the client's mean latency.
    """

    queue: float | None = None
    compute_input: float | None = None
    compute_infer: float | None = None
    compute_output: float | None = None
    overhead: float | None = None


STAGES = tuple(stage.name for stage in fields(Breakdown))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceUse:
    """Peaks and means over a load test; None where it was not measured.

    Args:
        memory_bytes_peak: Peak resident memory of the server's processes.
        gpu_memory_bytes_peak: Peak GPU memory, from ``gpu_memory_source``.
        gpu_memory_source: ``process`` (NVML, the server's own) or ``device`` (difference under the
            exclusive lease).
        gpu_utilization: Mean, 0 to 1.
        power_watts: Mean, of the whole GPU.
        energy_joules: Energy of the whole GPU, by its own counter.
        energy_joules_per_inference: That over the inferences that were answered meanwhile.
        gpu_clock_mhz: Mean clock of the streaming multiprocessors.
        gpu_clock_limits: What held the clocks down at any time, by NVML's names of the reasons
            (``sw_power_cap``, ``hw_thermal_slowdown``).
        gpu_throttled: Fraction of the time in which heat or the power supply did, 0 to 1.
        cpu_utilization: Mean CPU of the server's processes over the machine's cores, 0 to 1.
        other_utilization: The same of all other programs but the load generator, and of what the
            hypervisor gave to others; None where control groups limit the time on the cores.
    """

    memory_bytes_peak: int | None = None
    gpu_memory_bytes_peak: int | None = None
    gpu_memory_source: str | None = None
    gpu_utilization: float | None = None
    power_watts: float | None = None
    energy_joules: float | None = None
    energy_joules_per_inference: float | None = None
    gpu_clock_mhz: float | None = None
    gpu_clock_limits: tuple[str, ...] = ()
    gpu_throttled: float | None = None
    cpu_utilization: float | None = None
    other_utilization: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What the machine was like meanwhile, by a witness beside the load (``hardware.canary``).

    Args:
        seconds: Time that was watched.
        stalls_ms: Wake-ups that came late by 20 ms and more, the longest first, at most 100.
        stalls_cut: How many more there were, none of them longer than the last of these.
        work_us: CPU time of a fixed piece of work, microseconds, the median of each second in
            turn: twice as much is half the speed.
    """

    seconds: float
    stalls_ms: tuple[float, ...] = ()
    stalls_cut: int = 0
    work_us: tuple[float, ...] = ()

    def stalled_share(self, slack_ms: float) -> float:
        """Fraction of time in which a request that came would have been late by a stall alone.

        A request that arrives in a stall waits for its end: of a stall of length L those of its
        first L - ``slack_ms`` are over budget.

        Args:
            slack_ms: The latency budget less what a request takes on a quiet machine.
        """
        late = [max(0.0, stall - max(slack_ms, 0.0)) for stall in self.stalls_ms]
        late_ms = sum(late) + (self.stalls_cut * late[-1] if late else 0.0)
        return min(1.0, late_ms / 1e3 / self.seconds) if self.seconds > 0 else 0.0

    def after(self, earlier_us: Sequence[float]) -> Conditions:
        """These with the speeds of an earlier time: its ``work_us``, before their own."""
        return replace(self, work_us=(*earlier_us, *self.work_us))

    @classmethod
    def pooled(cls, parts: Iterable[Conditions | None]) -> Conditions | None:
        """What several watched stretches of time were like together; None without any."""
        known = [part for part in parts if part is not None]
        if not known:
            return None
        stalls = sorted((ms for part in known for ms in part.stalls_ms), reverse=True)
        return cls(
            seconds=sum(part.seconds for part in known),
            stalls_ms=tuple(stalls[:STALLS_KEPT]),
            stalls_cut=sum(part.stalls_cut for part in known) + len(stalls[STALLS_KEPT:]),
            work_us=tuple(work for part in known for work in part.work_us),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionTimes:
    """The server's own times of the executions of one batch size during a load test.

    Args:
        batch_size: Inferences of each execution.
        count: Executions.
        mean_ms: Their mean time, inputs and outputs included, milliseconds.
    """

    batch_size: int
    count: int
    mean_ms: float


SLOWNESS_BIN_S = 0.1
"""Length of the time bins of ``LoadTest.slowness``, seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTest:
    """One load test, summarised. Rates count requests per second, ``_ips`` inferences.

    Args:
        kind: Why it was run.
        offered_rps: Rate of the arrival schedule; for a closed loop the rate achieved.
        achieved_rps: Replies per second, from the first intended send to the last reply, or to the
            end of sending where that is later.
        concurrency: Requests kept in flight by a closed loop; None for an open one.
        requests: Requests counted (warm-up apart).
        over_budget: Requests whose latency exceeds the budget, or that failed, timed out or never
            came back; None without a budget.
        stalled_over: Of these, late since the server stood still for tens of milliseconds.
        errors: Requests that failed, timed out or never came back.
        duration_s: Length of the counted part.
        send_lag_ms_p99: How late the generator was.
        sent_late: Requests that it sent later than that may be in a valid run; None where unknown.
        batch_size_mean: Mean inferences per execution; None where the target does not tell.
        executions: By batch size, warm-up included; empty where the target does not tell.
        slowness: How slow the executions were that began in each bin of SLOWNESS_BIN_S, over the
            run's median bin: 1 where the machine had its usual speed. Empty where the target does
            not tell.
        aborted: The run ended early because its rate was hopeless.
        growing: Its latencies only grew, or its rate is above what its executions allow, so that a
            longer run would have broken the budget: no rate that was kept, however few of its
            requests were late.
        seed: Seed of the arrival schedule.
        started_at: Seconds since the epoch.
        conditions: What the machine was like meanwhile; None where nobody watched.
    """

    kind: LoadTestKind
    offered_rps: float
    achieved_rps: float
    throughput_ips: float
    concurrency: int | None = None
    requests: int
    over_budget: int | None = None
    stalled_over: int = 0
    errors: int
    duration_s: float
    latency_ms: LatencySummary
    breakdown_ms: Breakdown = Breakdown()
    send_lag_ms_p99: float | None = None
    sent_late: int | None = None
    batch_size_mean: float | None = None
    executions: tuple[ExecutionTimes, ...] = ()
    slowness: tuple[float, ...] = ()
    resources: ResourceUse = ResourceUse()
    validity: Validity
    aborted: bool = False
    growing: bool = False
    seed: int = 0
    started_at: float = 0.0
    conditions: Conditions | None = None

    @property
    def work_us(self) -> float | None:
        """CPU time of the witness's piece of work meanwhile, microseconds; None if unknown."""
        if self.conditions is None or not self.conditions.work_us:
            return None
        return float(median(self.conditions.work_us))
