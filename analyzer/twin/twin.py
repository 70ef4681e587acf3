"""The twin of a study: what each configuration would do, from the probed service times."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from analyzer.domain.answer import representative_test
from analyzer.domain.configuration import Configuration, VariantKey
from analyzer.domain.measurement import Failure, Measurement
from analyzer.domain.sla import Sla
from analyzer.domain.workload import ArrivalProcess
from analyzer.twin.arrivals import UnitArrivals
from analyzer.twin.calibration import VariantCalibration
from analyzer.twin.fitted import OVERHEAD_MS_GUESS
from analyzer.twin.probe_cache import ProbeCache
from analyzer.twin.screen import screen
from analyzer.twin.server_model import ServerModel
from analyzer.twin.service import ServiceTime

# Configurations between two readings of the clock while edges are computed.
_CHUNK = 16
# Arrivals of the longest run: enough for an edge to 0.8 %.
_ARRIVALS = 400_000


class Twin:
    """Simulated servers of the configurations of one study, under its SLA and arrivals.

    Args:
        calibrations: What was probed of each variant.
        request_batch_size: Inferences of each request; a trace with sizes of its own has those.
        seed: Of arrivals and noise.
        cores: That servers may use, and this process for its computations.
        clock: Seconds, for the time limit.
        overhead_ms: What a request takes outside of queue and model.
    """

    def __init__(
        self,
        calibrations: Mapping[VariantKey, VariantCalibration],
        sla: Sla,
        arrivals: ArrivalProcess,
        *,
        request_batch_size: int = 1,
        seed: int,
        cores: int,
        clock: Callable[[], float] = time.monotonic,
        overhead_ms: float = OVERHEAD_MS_GUESS,
    ) -> None:
        self._calibrations = dict(calibrations)
        self._sla = sla
        self._cores = cores
        self._clock = clock
        self._overhead_ms = overhead_ms
        self._arrivals = UnitArrivals.draw(
            arrivals, request_batch_size=request_batch_size, seed=seed, count=_ARRIVALS
        )
        self._services: dict[tuple[VariantKey, str, int | None, int], ServiceTime | None] = {}
        self._edges: dict[str, float] = {}

    def server_model(
        self, configuration: Configuration, *, rate_scale: float = 1.0
    ) -> ServerModel | None:
        """The simulated server of ``configuration``; None without probes.

        Args:
            rate_scale: Predicted over measured edge, where that is known.
        """
        service = self._service(configuration)
        if service is None:
            return None
        return ServerModel.of(
            configuration, service, overhead_ms=self._overhead_ms, rate_scale=rate_scale
        )

    def _service(self, configuration: Configuration) -> ServiceTime | None:
        """Service times, computed once for all configurations that differ in batching only."""
        variant = configuration.variant
        place = (
            variant,
            configuration.device,
            configuration.intra_op_threads,
            configuration.instance_count,
        )
        if place not in self._services:
            known = self._calibrations.get(variant)
            self._services[place] = (
                known.service_of(configuration, cores=self._cores) if known is not None else None
            )
        return self._services[place]

    def edges(
        self, configurations: Sequence[Configuration], *, seconds_max: float = math.inf
    ) -> list[float | None]:
        """The edges of ``configurations``, requests per second; 0 for no rate, None without probes.

        Computes on all cores: no load test may run on this machine meanwhile.

        Args:
            seconds_max: For simulations; what they do not reach is approximated.
        """
        waiting = {
            configuration.config_id: model
            for configuration in configurations
            if configuration.config_id not in self._edges
            and (model := self.server_model(configuration)) is not None
        }
        found = screen(
            list(waiting.values()),
            self._arrivals,
            budget_ms=self._sla.latency_budget_ms,
            percentile=self._sla.percentile,
            cores=self._cores,
            clock=self._clock,
            seconds_max=seconds_max,
        )
        for config_id, edge in zip(waiting, found, strict=True):
            self._edges[config_id] = edge.rate_rps
        return [self._edges.get(configuration.config_id) for configuration in configurations]

    def latency_ms(
        self, configuration: Configuration, rate_rps: float, *, percentile: float | None = None
    ) -> float | None:
        """Latency at a percentile (the SLA's, if None) at ``rate_rps``; None without probes."""
        model = self.server_model(configuration)
        if model is None:
            return None
        return model.latency_ms(self._arrivals, rate_rps, percentile or self._sla.percentile)

    def completed(self, outcome: Measurement | Failure) -> Measurement | Failure:
        """A measurement with the p99 that the twin expects at the rate it is presented at."""
        if isinstance(outcome, Failure):
            return outcome
        test = representative_test(outcome, self._sla)
        if test is None or test.offered_rps is None:
            return outcome
        p99_ms = self.latency_ms(outcome.configuration, test.offered_rps, percentile=99.0)
        return replace(outcome, predicted=replace(outcome.predicted, latency_ms_p99=p99_ms))


def kept_server_model(
    cache: ProbeCache,
    configuration: Configuration,
    sha256: str,
    *,
    cores: int,
    rate_scale: float = 1.0,
) -> ServerModel | None:
    """The simulated server of a file that an earlier study probed on this machine; else None."""
    known = cache.load(configuration.variant, sha256)
    service = known.service_of(configuration, cores=cores) if known is not None else None
    if service is None:
        return None
    return ServerModel.of(
        configuration, service, overhead_ms=OVERHEAD_MS_GUESS, rate_scale=rate_scale
    )
