"""The twin of a study: what each configuration would do, from the probed service times."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.answer import representative_test
from analyzer.domain.configuration import Configuration, VariantKey
from analyzer.domain.load_test import SLOWNESS_BIN_S
from analyzer.domain.measurement import (
    Edge,
    Failure,
    Measurement,
)
from analyzer.domain.sla import Sla
from analyzer.domain.workload import ArrivalProcess
from analyzer.twin.arrivals import UnitArrivals
from analyzer.twin.calibration import VariantCalibration
from analyzer.twin.learning import Observed, Place, ServiceCorrection, light_overhead_ms, observe
from analyzer.twin.machine_constants import FALLBACK, MachineConstants
from analyzer.twin.pace import level, mean_response, path_of, reference_us, responses, slowness
from analyzer.twin.probe_cache import ProbeCache
from analyzer.twin.probes import ProbeResult, speed_series
from analyzer.twin.screen import ScreenedEdge, screen
from analyzer.twin.server_model import ServerModel
from analyzer.twin.service import ServiceTime
from analyzer.twin.speed import SpeedPath
from analyzer.twin.variation import WINDOW_S, estimate

# After learning so many of the best configurations are simulated again.
_SIMULATED_AGAIN = 12
# Arrivals of the longest run: enough for an edge to 0.8 %.
_ARRIVALS = 400_000
# How well an edge over varying speeds is known at best: the speeds are a sample themselves.
_FACTOR_ACCURACY = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trace:
    """How the machine's speed varied in one run, over that in the runs of the edge."""

    kind: str
    started_at: float
    slowness: NDArray[np.float64]


class Twin:
    """Simulated servers of the configurations of one study, under its SLA and arrivals.

    Args:
        calibrations: What was probed of each variant.
        request_batch_size: Inferences of each request; a trace with sizes of its own has those.
        seed: Of arrivals and noise.
        cores: That servers may use, and this process for its computations.
        clock: Seconds, for the time limit.
        constants: Of the machine that servers run on.
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
        constants: MachineConstants = FALLBACK,
    ) -> None:
        self._calibrations = dict(calibrations)
        self._sla = sla
        self._cores = cores
        self._clock = clock
        self._constants = constants
        # Until runs at light load tell.
        self._overhead_ms = constants.overhead_ms
        self._arrivals = UnitArrivals.draw(
            arrivals, request_batch_size=request_batch_size, seed=seed, count=_ARRIVALS
        )
        self._services: dict[tuple[VariantKey, str, int | None, int], ServiceTime | None] = {}
        self._edges: dict[str, float] = {}
        # What load tests told, by configuration, and what was learned from all of it.
        self._observed: dict[str, list[Observed]] = {}
        self._overheads_ms: dict[str, list[float]] = {}
        self._correction: ServiceCorrection | None = None
        # How the machine's speed varied in each run, by configuration.
        self._traces: dict[str, list[_Trace]] = {}
        # The witness's work at the speed that is 1 in these, and what the speed was in all runs.
        self._work_us: dict[str, float | None] = {}
        # How executions answered to that work.
        self._responses: dict[str, list[float]] = {}
        self._path: SpeedPath | None = None
        # The same before load tests told, from so many seconds of calibration and probes.
        probed = (result for known in self._calibrations.values() for result in known.results)
        self._before, self._before_s = _path_before(constants, probed, cores)
        # Of those whose edge was measured: the simulated edge over all speeds, and over its runs'.
        self._edges_met: dict[str, tuple[float | None, float | None]] = {}
        # Edges as they were before that, with the models behind them.
        self._earlier: dict[str, tuple[float, ServerModel]] = {}
        self._models: dict[str, ServerModel] = {}

    def server_model(
        self, configuration: Configuration, *, rate_scale: float = 1.0
    ) -> ServerModel | None:
        """The simulated server of ``configuration``; None without probes.

        Args:
            rate_scale: Predicted over measured edge, where that is known.
        """
        model = self._usual_model(configuration)
        if model is None:
            return None
        return replace(model, rate_scale=rate_scale, path=self._speeds)

    @property
    def _speeds(self) -> SpeedPath | None:
        """The machine's speed: as load tests met it; before they have told as much, as probed."""
        if self._path is not None or self._before is None:
            return self._path
        told_s = SLOWNESS_BIN_S * sum(map(len, self.slowness))
        return self._before if told_s < self._before_s else None

    @property
    def slowness(self) -> tuple[NDArray[np.float64], ...]:
        """How the machine's speed varied in each run that was learned from, in order of time."""
        runs = [
            (run.started_at, run.slowness * self.level(config_id))
            for config_id, known in self._traces.items()
            for run in known
        ]
        return tuple(trace for _, trace in sorted(runs, key=itemgetter(0)))

    @property
    def response(self) -> float:
        """How executions answered to the canary's work so far (``pace.mean_response``)."""
        return mean_response(power for found in self._responses.values() for power in found)

    def tells_speed(self, configuration: Configuration) -> bool:
        """Whether execution times tell the machine's speed: more threads than cores vary alone."""
        threads = configuration.intra_op_threads or self._cores
        return (
            configuration.device != "cpu" or threads * configuration.instance_count <= self._cores
        )

    def level(self, config_id: str) -> float:
        """How much slower than usual the machine was at the configuration's own speed 1; mostly 1.

        The usual speed is the highest of these.
        """
        known = [us for us in self._work_us.values() if us]
        return level(self._work_us.get(config_id), min(known, default=None), self.response)

    def long_run_factor(self, configuration: Configuration) -> float:
        """The edge over all speeds that the load tests met, over that at its own runs' speeds.

        1 where the speed was constant, or nothing is known.
        """
        everywhere, there = self._met(configuration)
        return everywhere / there if everywhere and there else 1.0

    def rate_scale(self, configuration: Configuration, edge: Edge) -> float:
        """Simulated over live rate, from the configuration's measured edge; 1 where unknown.

        What the speeds that the edge's own runs met explain of an edge below the prediction is no
        error of the twin, which replays them.
        """
        predicted = self.edges([configuration])[0]
        if not predicted:
            return 1.0
        found = edge.rate_rps or edge.within(predicted)
        _, there = self._met(configuration)
        if there and found < predicted:
            predicted = min(predicted, max(there, found))
        return predicted / found

    def _met(self, configuration: Configuration) -> tuple[float | None, float | None]:
        """The simulated edge over all speeds that load tests met, and over its own runs'."""
        config_id, model = configuration.config_id, self.server_model(configuration)
        if self._path is None or model is None:
            return None, None
        if config_id not in self._edges_met:
            self._edges_met[config_id] = self._simulated(config_id, model)
        return self._edges_met[config_id]

    def _simulated(self, config_id: str, model: ServerModel) -> tuple[float | None, float | None]:
        level = self.level(config_id)
        own = [
            run.slowness * level for run in self._traces.get(config_id, ()) if run.kind == "edge"
        ]
        met = path_of(own) or SpeedPath.constant(1.0 / level)
        everywhere, there = (
            each.edge(
                self._arrivals,
                budget_ms=self._sla.latency_budget_ms,
                percentile=self._sla.percentile,
                accuracy=_FACTOR_ACCURACY,
            )
            for each in (model, replace(model, path=met))
        )
        return everywhere, there

    def _usual_model(self, configuration: Configuration) -> ServerModel | None:
        """The simulated server at the machine's usual speed; None without probes."""
        service = self._service(configuration)
        if service is None:
            return None
        return ServerModel.of(configuration, service, overhead_ms=self._overhead_ms)

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
            service = self._probed(configuration)
            if service is not None and (correction := self._learned()) is not None:
                service = correction.applied(Place.of(configuration), service)
            self._services[place] = service
        return self._services[place]

    def _learned(self) -> ServiceCorrection | None:
        """What all runs told of service times, estimated when it is asked for; None of nothing."""
        if self._correction is None and any(self._observed.values()):
            self._correction = ServiceCorrection(
                [
                    replace(each, log_ratio=each.log_ratio - math.log(self.level(config_id)))
                    for config_id, found in self._observed.items()
                    for each in found
                ]
            )
        return self._correction

    def _probed(self, configuration: Configuration) -> ServiceTime | None:
        known = self._calibrations.get(configuration.variant)
        if known is None:
            return None
        return known.service_of(configuration, cores=self._cores, constants=self._constants)

    def learn(self, measurement: Measurement) -> bool:
        """Fits the service times and the overhead to what a measurement's load tests told.

        A later measurement of a configuration replaces the earlier one, so that it should carry
        all load tests. Afterwards :meth:`edges` tells what follows for every configuration.

        Returns:
            Whether anything was learned.
        """
        configuration = measurement.configuration
        probed = self._probed(configuration)
        tests = [test for test in measurement.load_tests if test.validity.valid]
        if probed is None or not tests:
            return False
        model = ServerModel.of(configuration, probed, overhead_ms=self._overhead_ms)
        traces = slowness(tests)
        self._traces[configuration.config_id] = [
            _Trace(kind=test.kind, started_at=test.started_at, slowness=trace)
            for test, trace in zip(tests, traces, strict=True)
            if self.tells_speed(configuration)
        ]
        self._work_us[configuration.config_id] = reference_us(tests)
        if self.tells_speed(configuration):
            self._responses[configuration.config_id] = responses(tests)
        self._path = path_of(self.slowness)
        self._edges_met.clear()
        self._observed[configuration.config_id] = observe(
            configuration,
            model,
            tests,
            self._arrivals,
            # What varies by itself says nothing of the machine's speed.
            traces if self.tells_speed(configuration) else None,
        )
        self._overheads_ms[configuration.config_id] = light_overhead_ms(
            model, tests, self._arrivals.batch_size
        )
        overheads = [ms for found in self._overheads_ms.values() for ms in found]
        if not any(self._observed.values()) and not overheads:
            return False
        if overheads:
            self._overhead_ms = float(np.median(overheads))
        self._correction = None
        self._services.clear()
        for config_id, edge in self._edges.items():
            self._earlier[config_id] = edge, self._models[config_id]
        self._edges.clear()
        return True

    def edges(
        self, configurations: Sequence[Configuration], *, seconds_max: float = math.inf
    ) -> list[float | None]:
        """The edges of ``configurations``, requests per second; 0 for no rate, None without probes.

        At the machine's usual speed, as short runs mostly find them.
        Computes on all cores: no load test may run on this machine meanwhile.

        Args:
            seconds_max: For simulations; what they do not reach is approximated.
        """
        waiting = {
            configuration.config_id: model
            for configuration in configurations
            if configuration.config_id not in self._edges
            and (model := self._usual_model(configuration)) is not None
        }
        found = self._changed(waiting, seconds_max)
        for config_id, edge_rps in zip(waiting, found, strict=True):
            self._edges[config_id] = edge_rps
            self._models[config_id] = waiting[config_id]
        return [self._edges.get(configuration.config_id) for configuration in configurations]

    def _changed(self, models: Mapping[str, ServerModel], seconds_max: float) -> list[float]:
        """Edges of models: those known before learning change as their approximations do.

        Only the best of these are simulated again, and what was never simulated or seemed to keep
        the SLA at no rate with longer times: nothing in proportion to 0 is more than that. What is
        not simulated then, for want of time or since others carry far more, stays at 0:
        approximations leave queue delays out.
        """
        new = [config_id for config_id in models if config_id not in self._earlier]
        old = [config_id for config_id in models if config_id in self._earlier]
        edges: dict[str, float] = {}
        none: list[str] = []
        if old:
            before = self._screen([self._earlier[config_id][1] for config_id in old], 0.0)
            after = self._screen([models[config_id] for config_id in old], 0.0)
            for config_id, earlier, later in zip(old, before, after, strict=True):
                was, is_now = earlier.rate_rps, later.rate_rps
                edge = self._earlier[config_id][0]
                if not edge and is_now > was:
                    none.append(config_id)
                else:
                    edges[config_id] = edge * is_now / was if was > 0 else is_now
            old = [config_id for config_id in old if config_id in edges]
            best = sorted(old, key=lambda config_id: -edges[config_id])[:_SIMULATED_AGAIN]
            if len(old) > len(best):
                again = self._screen([models[config_id] for config_id in best], seconds_max)
                edges |= {key: edge.rate_rps for key, edge in zip(best, again, strict=True)}
            else:
                new += old
        new += none
        found = self._screen([models[config_id] for config_id in new], seconds_max)
        for config_id, screened in zip(new, found, strict=True):
            known = screened.simulated or config_id not in none
            edges[config_id] = screened.rate_rps if known else 0.0
        return [edges[config_id] for config_id in models]

    def _screen(self, models: Sequence[ServerModel], seconds_max: float) -> list[ScreenedEdge]:
        return screen(
            models,
            self._arrivals,
            budget_ms=self._sla.latency_budget_ms,
            percentile=self._sla.percentile,
            cores=self._cores,
            clock=self._clock,
            seconds_max=seconds_max,
        )

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


def _path_before(
    constants: MachineConstants, probed: Iterable[ProbeResult], cores: int
) -> tuple[SpeedPath | None, float]:
    """How the machine's speed varies as far as calibration and probes tell, and their seconds."""
    series = [*constants.series, *speed_series(probed, cores=cores)]
    found = estimate(series)
    seconds = WINDOW_S * sum(int(np.isfinite(each).sum()) for each in series)
    return (found.path() if found is not None else None), seconds


def kept_server_model(
    cache: ProbeCache,
    configuration: Configuration,
    sha256: str,
    *,
    cores: int,
    rate_scale: float = 1.0,
    constants: MachineConstants = FALLBACK,
) -> ServerModel | None:
    """The simulated server of a file that an earlier study probed on this machine; else None."""
    known = cache.load(configuration.variant, sha256, configuration.device)
    if known is None:
        return None
    service = known.service_of(configuration, cores=cores, constants=constants)
    if service is None:
        return None
    path, _ = _path_before(constants, known.results, cores)
    return ServerModel.of(
        configuration,
        service,
        overhead_ms=constants.overhead_ms,
        rate_scale=rate_scale,
        path=path,
    )
