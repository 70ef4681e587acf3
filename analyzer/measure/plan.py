"""What a worker is asked to measure; all of it can be pickled."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.configuration import Configuration
from analyzer.domain.load_test import (
    Conditions,
    LoadTest,
    LoadTestKind,
)
from analyzer.domain.measurement import Edge, Measurement, RateEvidence
from analyzer.domain.sla import Sla
from analyzer.domain.workload import ArrivalProcess, request_batch_sizes
from analyzer.measure.certify_goal import (
    CLIMBING,
)
from analyzer.twin.arrivals import UnitArrivals
from analyzer.twin.server_model import ServerModel

# Streams of random numbers drawn from the study's seed: edge searches share their arrivals, so that
# two configurations are compared on the same ones; every certificate gets fresh ones.
STREAM_EDGE = 1
STREAM_CERTIFY = 2
STREAM_VERIFY = 3
STREAM_MEASURE = 4

#: Requests of one load test at least: fewer say nothing.
REQUESTS_MIN = 20

# A warm-up's closed loop: more requests in flight would keep our own client busy.
_CONCURRENCY_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """How a target is loaded.

    Args:
        sla: The promise that is measured.
        arrivals: The process that arrivals are drawn from.
        request_batch_size: Inferences in each request; a trace with sizes of its own has those.
        seed: The study's seed.
        least_s: What proves a rate has run for so long, seconds: a machine's slow moments come no
            sooner since requests do.
    """

    sla: Sla
    arrivals: ArrivalProcess
    request_batch_size: int = 1
    seed: int = 0
    least_s: float = 0.0

    def batch_sizes(self) -> NDArray[np.int64]:
        """As :func:`request_batch_sizes` without a count."""
        return request_batch_sizes(self.arrivals, self.request_batch_size)

    @property
    def batch_size_typical(self) -> int:
        """Inferences of a request where all must be equal: in a closed loop."""
        return max(round(float(self.batch_sizes().mean())), 1)

    def saturating_concurrency(self, configuration: Configuration) -> int:
        """Requests in flight that fill two batches of every instance, at most 64."""
        per_batch = max(configuration.max_batch_size // self.batch_size_typical, 1)
        return min(2 * per_batch * configuration.instance_count, _CONCURRENCY_MAX)

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
            is the start.
        trusted: Whether ``start_rps`` is good to a few percent.
        widely: Whether steps up from a start that is not trusted are wide: both ends of the edge
            are wanted, however far apart.
        run_seconds: Shortest and longest single run.
        within: Whether no run lasts longer than ``seconds`` leaves, but for the shortest.
        known: Runs of an earlier search that ended with an open edge; this one goes on from there.
        twin: What takes the optimism of short runs out of the edge; None for nothing.
        twin_edge_rps: The twin's own long-run edge.
    """

    seconds: float
    start_rps: float | None = None
    trusted: bool = False
    widely: bool = False
    run_seconds: tuple[float, float] = (1.0, 5.0)
    within: bool = False
    known: tuple[LoadTest, ...] = ()
    twin: ServerModel | None = None
    twin_edge_rps: float | None = None

    @property
    def floor_rps(self) -> float:
        """The lowest rate whose fewest requests come within the longest run."""
        return REQUESTS_MIN / self.run_seconds[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefutePlan:
    """Runs that are to show that no rate keeps the SLA.

    Args:
        rates_rps: The rates, ascending; all are visited, then all once more.
        seconds: Of each visit at each rate.
        visits: How often each rate is visited.
        fixed: Whether the SLA is about this one rate, so that a queue at it is a failure too.
        expected_ms: Mean execution of one request as probes and earlier runs let expect,
            milliseconds; None if unknown.
    """

    rates_rps: tuple[float, ...]
    seconds: float
    visits: int = 2
    fixed: bool = False
    expected_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvenAnswer:
    """The study's answer so far, which a slower state of the machine may make untenable.

    Args:
        measurement: The certified configuration.
        twin: For its edge in a slower state; None where it is not trusted.
    """

    measurement: Measurement
    twin: ServerModel | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifyPlan:
    """A claim to be proven after (or instead of) the search for the edge.

    Args:
        seconds: Time under load for the certificate.
        edge: The edge, where it is known already (with an ``EdgePlan`` it is searched after the
            proof); else it is searched first.
        rate_rps: The one rate to certify; None for the highest that the time allows.
        supposed_rps: A rate that the edge is supposed to reach, where the proof comes first and
            the edge takes what time is left; None for the edge first.
        supposed_us: The witness's work at the speed that it is supposed of; None if unknown.
        kept_s, later_s: As in ``CertifyGoal``, of the session's time and after it.
        twin: For the requests' correlation; None where it is unknown or not trusted.
        shares: As in ``CertifyGoal``.
        above_rps: Lower rates are not worth a certificate; not asked of ``rate_rps``.
        certified_rps: What is certified of this configuration, on runs as long as were asked then.
        enough_rps: As in ``CertifyGoal``: one machine that carries the target rate is the cheapest.
        exceeds: Whether rates may be tried that the twin, or a slow state of the machine, lets
            expect no proof of (``CertifyGoal.may_exceed``).
        climb_gain, climbs_within_s, climb_kept_s: As in ``CertifyGoal``.
        stream, kind: Which arrivals, and what the load tests are called.
        earlier: What is known of this configuration, by rate: judged together with the new runs.
        open_claims: Claims that the family (the study's candidates, or a baseline that is none) has
            begun so far and that still have their part of the error
            (:func:`~analyzer.stats.certificate.is_open`).
        slowness: How the machine's speed varied in the study's runs so far (``twin.pace``).
        tells_speed: Whether this configuration's own runs tell it too.
        tests: Its valid runs so far; the machine's speed is held against those of its edge.
        runs_before: As of :func:`certifying_runs`: the next run draws the arrivals after theirs.
        response: How executions answer to the canary's work (``twin.pace.mean_response``).
        conditions: What the machine was like over the whole study so far, its speeds in load tests;
            None where unknown.
        earlier_us: The canary's work in earlier studies on the same machine: no rate is claimed
            that the slow states of those do not carry either. Empty where nothing is known.
        answer: Another configuration's proof, without which the time goes to a new one of that;
            None where nothing else is proven.
        refute: Runs that are to show the contrary, in place of a proof; None for a proof.
    """

    seconds: float
    edge: Edge | None = None
    rate_rps: float | None = None
    supposed_rps: float | None = None
    supposed_us: float | None = None
    kept_s: float = 0.0
    later_s: float = 0.0
    twin: ServerModel | None = None
    shares: tuple[float, ...] = CLIMBING
    above_rps: float = 0.0
    certified_rps: float = 0.0
    enough_rps: float = math.inf
    exceeds: bool = False
    climb_gain: float = 1.0
    climbs_within_s: float = 0.0
    climb_kept_s: float = 0.0
    stream: int = STREAM_CERTIFY
    kind: LoadTestKind = "certify"
    earlier: tuple[RateEvidence, ...] = ()
    open_claims: int = 0
    slowness: tuple[NDArray[np.float64], ...] = ()
    tells_speed: bool = True
    tests: tuple[LoadTest, ...] = ()
    runs_before: int = 0
    response: float = 1.0
    conditions: Conditions | None = None
    earlier_us: tuple[float, ...] = ()
    answer: ProvenAnswer | None = None
    refute: RefutePlan | None = None

    @property
    def edge_before(self) -> Edge | None:
        """The edge that a proof goes by: one that is known, or supposed."""
        if self.edge is not None or self.supposed_rps is None:
            return self.edge
        return Edge(interval_rps=(self.supposed_rps, None), work_us=self.supposed_us)


def certifying_runs(known: Measurement | None) -> int:
    """Runs of a configuration that drew from the certificate's arrivals, invalid ones included."""
    tests = known.load_tests if known is not None else ()
    return sum(test.kind in ("certify", "refute") for test in tests)
