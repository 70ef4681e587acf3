"""What was measured: load tests, measurements of a configuration, and failures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from statistics import median
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.configuration import Configuration

CertificateVerdict = Literal["PASS", "FAIL", "UNDECIDED"]
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What the machine was like meanwhile, by a witness beside the load (``hardware.canary``).

    Args:
        seconds: Time that was watched.
        stalls_ms: Wake-ups that came late by 20 ms and more, the longest first, at most 100.
        work_us: CPU time of a fixed piece of work, microseconds, the median of each second in
            turn: twice as much is half the speed.
    """

    seconds: float
    stalls_ms: tuple[float, ...] = ()
    work_us: tuple[float, ...] = ()

    def stalled_share(self, slack_ms: float) -> float:
        """Fraction of time in which a request that came would have been late by a stall alone.

        A request that arrives in a stall waits for its end: of a stall of length L those of its
        first L - ``slack_ms`` are over budget.

        Args:
            slack_ms: The latency budget less what a request takes on a quiet machine.
        """
        late_ms = sum(max(0.0, stall - max(slack_ms, 0.0)) for stall in self.stalls_ms)
        return min(1.0, late_ms / 1e3 / self.seconds) if self.seconds > 0 else 0.0

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
        achieved_rps: Replies per second, from the first intended send to the last reply.
        concurrency: Requests kept in flight by a closed loop; None for an open one.
        requests: Requests counted (warm-up apart).
        over_budget: Requests whose latency exceeds the budget, or that failed, timed out or never
            came back; None without a budget.
        stalled_over: Of these, late since the server stood still for tens of milliseconds.
        errors: Requests that failed, timed out or never came back.
        duration_s: Length of the counted part.
        send_lag_ms_p99: How late the generator was.
        batch_size_mean: Mean inferences per execution; None where the target does not tell.
        executions: By batch size, warm-up included; empty where the target does not tell.
        slowness: How slow the executions were that began in each bin of SLOWNESS_BIN_S, over the
            run's median bin: 1 where the machine had its usual speed. Empty where the target does
            not tell.
        aborted: The run ended early because its rate was hopeless.
        seed: Seed of the arrival schedule.
        started_at: Seconds since the epoch.
        notes: What else should be known of the run (it was not stationary).
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
    batch_size_mean: float | None = None
    executions: tuple[ExecutionTimes, ...] = ()
    slowness: tuple[float, ...] = ()
    resources: ResourceUse = ResourceUse()
    validity: Validity
    aborted: bool = False
    seed: int = 0
    started_at: float = 0.0
    notes: tuple[str, ...] = ()
    conditions: Conditions | None = None

    @property
    def work_us(self) -> float | None:
        """CPU time of the witness's piece of work meanwhile, microseconds; None if unknown."""
        if self.conditions is None or not self.conditions.work_us:
            return None
        return float(median(self.conditions.work_us))


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """How well a variant answers, against labels or against the fp32 reference.

    Args:
        metric: ``label_accuracy``, ``top1_agreement``, ``cosine`` or ``relative_error``.
        value: The metric of this variant, 0 to 1.
        drop: Reference minus variant (absolute); 0 for the reference itself.
        interval: Confidence interval of ``drop``.
        samples: Rows that scored (none of them calibrated).
        synthetic: The inputs were made up, so that only the numerical error means anything.
    """

    metric: str
    value: float | None = None
    drop: float | None = None
    interval: tuple[float, float] | None = None
    samples: int = 0
    synthetic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """What may be claimed of a rate, and on how much evidence.

    Args:
        verdict: PASS, FAIL or UNDECIDED, never more certain than the data.
        requests: Requests counted.
        over_budget: Of these, over budget.
        effective_requests: ``requests`` over the variance inflation of correlated requests.
        confidence: Confidence of the verdict.
        mlperf: The verdict of MLPerf's early-stopping rule, which takes requests for independent.
        inflation: The variance inflation used, and where it comes from.
        inflation_source: ``batch_means``, ``twin``, ``lower_threshold`` or ``none``.
        requests_missing: Requests still needed for a decision; None if decided or unknown.
        conditions: What the machine was like during the runs; None where nobody watched.
        void_reasons: Why runs of it prove nothing, a sentence each (the GPU throttled).
    """

    verdict: CertificateVerdict
    requests: int
    over_budget: int
    effective_requests: float
    confidence: float
    mlperf: CertificateVerdict
    inflation: float | None = None
    inflation_source: str = "none"
    requests_missing: int | None = None
    conditions: Conditions | None = None
    void_reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RateEvidence:
    """What all runs of one configuration at one rate came to, over every walk and resume.

    Args:
        rate_rps: The rate.
        requests, over_budget: Counted in all of its runs.
        inflation: The variance inflation of these requests; None where none could be found.
        claim: The rate's number among the claims of its family, from 1.
        blocks: Runs that were made; the next ones draw later arrivals.
        conditions: What the machine was like in all of these runs; None where unknown.
    """

    rate_rps: float
    requests: int
    over_budget: int
    inflation: float | None
    claim: int
    blocks: int
    conditions: Conditions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """The highest rate that keeps the SLA, estimated: requests per second and an interval.

    Args:
        rate_rps: The estimate; None where the edge is not bracketed.
        interval_rps: From a rate that was kept to one that was not; None for an open end.
        work_us: The machine's usual speed meanwhile, as in :class:`Conditions`; None where unknown.
        slow_us: The slowest that it was for long in the very run that kept a rate; None likewise.
        before_rps: The lower end at these speeds, where only runs of a slower machine lowered it
            since; None where nothing did.
    """

    rate_rps: float | None = None
    interval_rps: tuple[float | None, float | None]
    work_us: float | None = None
    slow_us: float | None = None
    before_rps: float | None = None

    @property
    def at_least_rps(self) -> float | None:
        """The estimate, else the lower end of the interval; None where no rate was kept."""
        return self.rate_rps or self.interval_rps[0] or None

    @property
    def own_speed_rps(self) -> float | None:
        """The lower end at the speeds of the edge's own runs; None where no rate was kept."""
        return max(self.before_rps or 0.0, self.interval_rps[0] or 0.0) or self.rate_rps

    def within(self, rate_rps: float) -> float:
        """``rate_rps``, or the end of the interval that it lies beyond."""
        low, high = self.interval_rps
        return max(min(rate_rps, high or rate_rps), low or 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What the twin says of a configuration, and how far off it was where both are known.

    Args:
        error: Predicted over measured edge - 1.
        model_error: What it would be at the study's usual speed of the machine, and ``drift``
            how much slower the machine was than that; None where nobody watched
            (:mod:`analyzer.domain.twin_error`).
    """

    edge_rps: float | None = None
    latency_ms_p99: float | None = None
    error: float | None = None
    model_error: float | None = None
    drift: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """All that was measured of one configuration on a live target.

    Args:
        configuration: The canonical configuration.
        edge: Estimated from ``load_tests``.
        capacity_rps: The certified rate; None if none was certified.
        certificate: Of ``capacity_rps`` (or of the rate tried last); None if none was.
        headline: The load test at the certified rate, or at the target rate for the objectives
            latency and memory; None if there is none.
        load_tests: Every load test in order, the invalid ones included.
        load_test_seconds: Time under load, warm-up included.
        memory_bytes_peak: Peak over all load tests.
        evidence: What certificates rest on, by rate in ascending order.
        watched: What the machine was like from the study's outcome before to this one, load tests
            included; None where nobody watched.
    """

    configuration: Configuration
    edge: Edge
    capacity_rps: float | None = None
    certificate: Certificate | None = None
    headline: LoadTest | None = None
    load_tests: tuple[LoadTest, ...] = ()
    load_test_seconds: float = 0.0
    resources: ResourceUse = ResourceUse()
    accuracy: Accuracy | None = None
    predicted: Prediction = Prediction()
    hardware: str = ""
    notes: tuple[str, ...] = field(default=())
    evidence: tuple[RateEvidence, ...] = ()
    watched: Conditions | None = None

    @property
    def real_accuracy(self) -> Accuracy | None:
        """None without real data: agreement on made-up inputs says nothing about accuracy."""
        return None if self.accuracy is None or self.accuracy.synthetic else self.accuracy


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A configuration that could not be measured, and why.

    Args:
        stage: ``build``, ``start``, ``load``, ``worker``.
        reason: A short class for tables: ``build``, ``out_of_memory``, ``timeout``, ``crash``,
            ``start``, ``worker_lost``, ``invalid``, ``accuracy``, ``budget`` (no time).
        message: The sentence for people.
        watched: As in :class:`Measurement`.
    """

    configuration: Configuration
    stage: str
    reason: str
    message: str
    hint: str = ""
    load_test_seconds: float = 0.0
    watched: Conditions | None = None

    @property
    def leaves_out(self) -> bool:
        """Whether it tells why a whole variant is left out; its configuration stands for that."""
        return self.stage == "build"

    @property
    def is_fault(self) -> bool:
        """Whether a measurement went wrong: no variant that is left out, and no lack of time."""
        return not self.leaves_out and self.reason != "budget"
