"""What a worker is asked to measure; everything in it travels between processes."""

from __future__ import annotations

from dataclasses import dataclass

from analyzer.domain.sla import Sla
from analyzer.domain.workload import ArrivalProcess
from analyzer.twin.arrivals import UnitArrivals
from analyzer.twin.server_model import ServerModel

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

    def unit_arrivals(self, count: int, *, seed: int = 0) -> UnitArrivals:
        """``count`` arrivals at one request per second, for the twin."""
        return UnitArrivals.draw(
            self.arrivals, request_batch_size=self.request_batch_size, seed=seed, count=count
        )


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
    twin: ServerModel | None = None
    twin_edge_rps: float | None = None
