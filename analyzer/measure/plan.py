"""What a worker is asked to measure; everything in it travels between processes."""

from __future__ import annotations

from dataclasses import dataclass, field

from analyzer.domain.measurement import RequestLog
from analyzer.domain.sla import Sla
from analyzer.domain.workload import ArrivalProcess
from analyzer.engine.policy import BatchingPolicy
from analyzer.twin.service import ServiceTime

# Streams of random numbers drawn from the study's seed: edge searches share their arrivals, so that
# two configurations are compared on the same ones; every certificate gets fresh ones.
STREAM_EDGE = 1
STREAM_CERTIFY = 2
STREAM_VERIFY = 3
STREAM_MEASURE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """How a target is loaded.

    Args:
        sla: The promise that is measured.
        arrivals: The process that arrivals are drawn from.
        request_batch_size: Inferences in each request.
        seed: The study's seed.
    """

    sla: Sla
    arrivals: ArrivalProcess
    request_batch_size: int = 1
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TwinOfOne:
    """The twin of one configuration, as far as it is trusted.

    Args:
        rate_scale: Predicted over measured edge: what a live rate is to the twin.
    """

    policy: BatchingPolicy
    service: ServiceTime
    overhead_ms: float
    rate_scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgePlan:
    """How much one configuration's edge may cost.

    Args:
        seconds: Time under load, warm-up apart.
        start_rps: The expected edge; None if nobody knows, and then the saturation throughput
            tells.
        trusted: Whether ``start_rps`` is good to a few percent.
        run_seconds: Shortest and longest single run.
        twin: What takes the optimism of short runs out of the edge; None for nothing.
        twin_edge_rps: The twin's own long-run edge.
    """

    seconds: float
    start_rps: float | None = None
    trusted: bool = False
    run_seconds: tuple[float, float] = (1.0, 5.0)
    twin: TwinOfOne | None = None
    twin_edge_rps: float | None = None


@dataclass(slots=True)
class RunLogs:
    """Raw requests of the load tests, in their order."""

    logs: list[RequestLog] = field(default_factory=list)
