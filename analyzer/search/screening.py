"""What the twin expects of the whole space before the first trial, and what trials add to it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import Measurement
from analyzer.domain.sla import Sla
from analyzer.measure.correlation import (
    guessed_inflation,
    inflation_at,
    miss_rate_at,
    requests_needed,
    slow_edge_at,
)
from analyzer.measure.ladder import SAFER
from analyzer.measure.plan import EdgePlan, LoadPlan
from analyzer.measure.witness import (
    SAFE_SHARE,
    SlowEdge,
    late_when_slow,
    rate_ceiling,
    seconds_of_all,
    slow_state,
    watched_times,
)
from analyzer.search.build import BuiltVariants
from analyzer.search.context import SearchContext
from analyzer.search.designer import Candidate, Designer
from analyzer.search.outcome_log import OutcomeLog
from analyzer.search.score import reciprocal, score_of
from analyzer.twin.server_model import ServerModel
from analyzer.twin.twin import Twin

# Seconds that the twin may simulate: at most so many, and this share of the budget.
_SECONDS = 3.0
_BUDGET_SHARE = 0.05
# The same after each measurement.
_LEARN_SECONDS = 0.3
# Where no queue is stable it is infinite, and so is the need.
_INFLATION_MAX = 1e6
# Memory of a server: what any has, and its share for each copy of the weights.
_SERVER_BYTES = 150e6
_WEIGHTS_FACTOR = 1.5
# The power of what a queue delay leaves of the latency budget by which a configuration comes later.
# Half of it costs 3 %, which is what simulated edges differ by that are the same (0.05 was tried,
# docs/decisions/038-what-waits-less-comes-first.md).
_DELAY_POWER = 0.05
_LEFT_MIN = 0.01
# Measured edges from which a corrected one is good to a few percent.
_PRECISE_FROM = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Screening:
    """The configurations that may be measured, with what twin and designer say of them.

    Args:
        twin: Simulates any configuration, and ``load`` how it is loaded.
        designer: Learns the objective of the allowed ones.
        log: The outcomes so far.
        allowed: Those of the space whose variant is there and keeps the accuracy limit, by id.
        recommendable: These and the baseline, where its variant may be recommended: what Triton
            does alone is no worse an answer for being no part of the space.
        predicted: The twin's edges of ``allowed`` and the baseline by id, requests per second;
            0 where it sees no rate that keeps the SLA, None where nothing was probed.
        by_edge: Whether the objective is the edge itself.
    """

    twin: Twin
    load: LoadPlan
    designer: Designer
    log: OutcomeLog
    allowed: Mapping[str, Configuration]
    recommendable: Mapping[str, Configuration]
    predicted: dict[str, float | None]
    by_edge: bool
    _slow_edges: dict[str, SlowEdge] = field(default_factory=dict, init=False, repr=False)

    def learn(self, measurements: Sequence[Measurement], baseline: Configuration) -> None:
        """Fits the twin to measurements' load tests, and predicts every configuration anew.

        Some tenths of a second; where the objective is not the edge itself, the designer keeps the
        predictions that it has.
        """
        learned = [self.twin.learn(measurement) for measurement in measurements]
        self._slow_edges.clear()
        if not any(learned) or not self.designer.trusted:
            return
        configurations = [*self.allowed.values(), baseline]
        edges = self.twin.edges(configurations, seconds_max=_LEARN_SECONDS)
        for configuration, edge in zip(configurations, edges, strict=True):
            self.predicted[configuration.config_id] = edge
        if self.by_edge:
            self.designer.repredict(
                {config_id: self.predicted[config_id] for config_id in self.allowed}
            )

    @property
    def unrefuted(self) -> Mapping[str, Configuration]:
        """What each has to be ruled out before it is said that nothing keeps the SLA.

        All that may be recommended, but for a baseline that was measured beside others.
        """
        others = {key for key in self.recommendable if key not in self.allowed}
        measured = {key for key in others if self.log.measurement(key) is not None}
        left_out = measured if self.allowed else ()
        return {key: one for key, one in self.recommendable.items() if key not in left_out}

    @property
    def hopeless(self) -> bool:
        """Whether the twin sees no rate at which any allowed configuration keeps the SLA."""
        edges = [self.predicted.get(config_id) for config_id in self.allowed]
        return bool(edges) and all(edge == 0.0 for edge in edges)

    @property
    def compared(self) -> int:
        """Configurations whose predicted and measured edge are both known."""
        return len(self._log_ratios())

    def corrected(self, configuration: Configuration, predicted: float | None) -> float | None:
        """The measured edge; else ``predicted`` with what was learned; None without either.

        Outside the space, and where the objective is not the edge, that is the common correction.
        """
        if not predicted:
            return None
        config_id = configuration.config_id
        outcome = self.log.first.get(config_id)
        edge = outcome.edge if isinstance(outcome, Measurement) else None
        if edge is not None and edge.rate_rps:
            return edge.rate_rps
        found = self.designer.corrected(config_id) if self.by_edge else None
        if found is None:
            ratios = self._log_ratios()
            found = predicted * float(np.exp(np.median(ratios))) if ratios else predicted
        return edge.within(found) if edge is not None else found

    def expected(self, configuration: Configuration) -> float | None:
        """The corrected edge; outside the space simulated now, if that is quick."""
        predicted = self.predicted.get(configuration.config_id)
        if configuration.config_id not in self.predicted:
            (predicted,) = self.twin.edges([configuration], seconds_max=_LEARN_SECONDS)
        return self.corrected(configuration, predicted)

    def edge_plan(
        self,
        configuration: Configuration,
        predicted: float | None,
        *,
        seconds: float,
        run_seconds: tuple[float, float],
    ) -> EdgePlan:
        """How the edge of ``configuration`` is searched, from what is expected of it."""
        return EdgePlan(
            seconds=seconds,
            start_rps=self.corrected(configuration, predicted),
            trusted=self.compared >= _PRECISE_FROM and self.designer.trusted,
            run_seconds=run_seconds,
            twin=self.server_model(configuration),
            twin_edge_rps=predicted,
        )

    def proof_s(
        self, configuration: Configuration | None = None, *, share: float | None = None
    ) -> float | None:
        """Seconds under load that a first certificate is expected to take; None if unknown.

        Args:
            configuration: None for the one that is predicted best.
            share: Of the edge, that it is to certify; None for one that is safe. None is told where
                the slow states that were seen do not carry it.
        """
        if configuration is None:
            known = [key for key in self.allowed if self.predicted.get(key)]
            best = max(known, key=lambda key: self.predicted[key] or 0.0, default=None)
            if best is None:
                return None
            configuration = self.allowed[best]
        edge_rps = self.expected(configuration)
        if not edge_rps:
            return None
        model, sla = self.server_model(configuration), self.load.sla
        inflation = inflation_at(model, self.load)
        miss_rate = miss_rate_at(model, self.load)
        found: list[float] = []
        ceiling_rps = self._ceiling_rps(configuration)
        safe_rps = min(SAFE_SHARE * edge_rps, ceiling_rps)
        rates_rps = (safe_rps, SAFER * safe_rps) if share is None else (share * edge_rps,)
        for rate_rps in rates_rps:
            if rate_rps > ceiling_rps:
                continue
            expected = inflation(rate_rps) or guessed_inflation(rate_rps / edge_rps)
            needed = requests_needed(
                sla,
                inflation=min(expected, _INFLATION_MAX),
                miss_rate=miss_rate(rate_rps),
                claim=1,
            )
            if needed is not None:
                found.append(max(needed / rate_rps, self.load.least_s))
        return min(found, default=None)

    def _ceiling_rps(self, configuration: Configuration) -> float:
        """The rate that the slow states that were seen carry; infinite where nothing is known."""
        known, log = self.log.measurement(configuration.config_id), self.log
        if known is None:
            return math.inf
        return min(
            rate_ceiling(
                known.edge,
                watched,
                self.load.sla,
                self.slow_edge(configuration),
                known.load_tests,
                log.response(),
            )
            for watched in watched_times(log.conditions, log.holding_us)
        )

    def server_model(
        self, configuration: Configuration, *, rate_scale: float = 1.0
    ) -> ServerModel | None:
        """The simulated server; None without probes, or where the twin has shown to be wrong."""
        if not self.designer.trusted:
            return None
        return self.twin.server_model(configuration, rate_scale=rate_scale)

    def slow_edge(self, configuration: Configuration) -> SlowEdge:
        """What a slower machine leaves of the edge; simulated once until something is learned."""
        config_id = configuration.config_id
        if config_id not in self._slow_edges:
            model = self.server_model(configuration)
            self._slow_edges[config_id] = slow_edge_at(model, self.load)
        return self._slow_edges[config_id]

    def speed_factor(self, configuration: Configuration) -> float:
        """What the speeds that the study met make of an edge that short runs found.

        The twin replays what executions told in load tests of seconds; the canary tells of slow
        states all the time, and no rate is over all speeds that they do not carry.
        """
        factor = self.twin.long_run_factor(configuration) if self.designer.trusted else 1.0
        known = self.log.measurement(configuration.config_id)
        if known is None:
            return factor
        # A slow state is the machine's, so every configuration's runs tell how slow it is.
        measured = filter(None, map(self.log.measurement, self.log.latest))
        others = [(one.edge, one.load_tests) for one in measured if one is not known]
        seconds = seconds_of_all(known.edge, known.load_tests, others)
        study, sla = self.log.conditions, self.load.sla
        slower = slow_state(known.edge, study, sla, seconds, by_witness=False)
        share = factor
        if slower is not None:
            late = late_when_slow(known.edge, study, sla, seconds)
            share = min(factor, self.slow_edge(configuration)(slower, late))
        # What was lowered for a slower state is not lowered for it once more.
        stated, before = known.edge.at_least_rps, known.edge.before_rps
        if not stated or not before:
            return share
        return min(share * max(before / stated, 1.0), max(factor, 1.0))

    def _log_ratios(self) -> list[float]:
        """log(measured / predicted) of every edge that was measured."""
        return [
            math.log(outcome.edge.rate_rps / predicted)
            for config_id, outcome in self.log.first.items()
            if isinstance(outcome, Measurement)
            and outcome.edge.rate_rps
            and (predicted := self.predicted.get(config_id))
        ]


def screen(context: SearchContext, built: BuiltVariants) -> Screening:
    """Predicts every allowed configuration, and makes the designer, which learns what is known."""
    request = context.request
    failures = {
        key: failure
        for key, known in built.calibrations.items()
        if (failure := known.failure) is not None
    }
    for key, failure in failures.items():
        context.log.warn(
            f"{key.label} does not run batches of {failure.probe.batch}, which are left out with "
            f"larger ones: {failure.failed}"
        )

    def runs(configuration: Configuration) -> bool:
        failure = failures.get(configuration.variant)
        return failure is None or configuration.max_batch_size < failure.probe.batch

    def usable(configurations: Mapping[str, Configuration]) -> dict[str, Configuration]:
        return {
            config_id: configuration
            for config_id, configuration in configurations.items()
            if configuration.variant in built.variants
            and configuration.variant not in built.excluded
            and configuration.precision in request.precisions
            and runs(configuration)
        }

    allowed = usable(context.candidates)
    twin = Twin(
        built.calibrations,
        request.sla,
        request.arrivals,
        request_batch_size=request.request_batch_size,
        seed=request.seed % 2**32,
        cores=context.cores,
        clock=context.clock,
        constants=context.constants,
    )
    seconds = min(_SECONDS, _BUDGET_SHARE * request.budget_s)
    context.progress.phase("simulating the space", seconds)
    configurations = [*allowed.values(), context.baseline]
    edges = twin.edges(configurations, seconds_max=seconds)
    predicted = {c.config_id: edge for c, edge in zip(configurations, edges, strict=True)}
    unknown = sum(predicted[config_id] is None for config_id in allowed)
    if unknown:
        context.log.warn(
            f"{unknown} of {len(allowed)} configurations have no prediction, since their variants "
            "could not be probed; what is said of the space leaves them out."
        )
    # The most promising first: of the objective latency each is a simulation of its own.
    until = context.clock() + seconds
    order = sorted(allowed, key=lambda key: -(predicted[key] or 0.0))
    values = {
        key: _value(context, built, twin, allowed[key], predicted[key], until) for key in order
    }
    designer = Designer(
        [
            Candidate(
                config_id=config_id,
                features=features(configuration),
                groups=groups(configuration),
                preference=preference(configuration, request.sla),
                predicted=values[config_id],
            )
            for config_id, configuration in allowed.items()
        ],
        seed=request.seed % 2**32,
    )
    for config_id, outcome in context.log.first.items():
        score = score_of(outcome, request.sla)
        designer.update(config_id, score.value, feasible=score.feasible, exact=score.exact)
    screening = Screening(
        twin=twin,
        load=context.load,
        designer=designer,
        log=context.log,
        allowed=allowed,
        recommendable=usable(context.recommendable),
        predicted=predicted,
        by_edge=request.sla.at_any_rate,
    )
    known = [outcome for outcome in context.log.outcomes if isinstance(outcome, Measurement)]
    screening.learn(known, context.baseline)
    context.log.slow_edge = screening.slow_edge
    context.log.response = lambda: screening.twin.response
    return screening


def _value(
    context: SearchContext,
    built: BuiltVariants,
    twin: Twin,
    configuration: Configuration,
    edge_rps: float | None,
    until: float,
) -> float | None:
    """The predicted objective as :class:`~analyzer.search.score.Score` has it.

    0 where the SLA is kept at no rate, None where the twin cannot say, or not before ``until``.
    """
    sla = context.request.sla
    if edge_rps is None or sla.at_any_rate:
        return edge_rps
    assert sla.target_rate_rps is not None
    if edge_rps < sla.target_rate_rps:
        return 0.0
    if sla.objective == "latency":
        if context.clock() >= until:
            return None
        amount = twin.latency_ms(configuration, sla.target_rate_rps)
    else:
        # Each instance holds the weights; what else a server needs hardly varies.
        weights = built.variants[configuration.variant].size_bytes
        amount = _SERVER_BYTES + _WEIGHTS_FACTOR * weights * configuration.instance_count
    return reciprocal(amount, sla) if amount else 0.0


def preference(configuration: Configuration, sla: Sla) -> float:
    """What the order of candidates lowers their predictions by, as a logarithm: a queue delay.

    It changes an edge little, since batches are full there before it ends. At the lower rates that
    are certified every request waits for it, and a slow moment makes more of them late.
    """
    delay_ms = (configuration.max_queue_delay_us or 0) / 1e3
    left = max(1.0 - delay_ms / sla.latency_budget_ms, _LEFT_MIN)
    return _DELAY_POWER * math.log(left)


def groups(configuration: Configuration) -> tuple[str, ...]:
    """What shares its part of the twin's error: variant, deployment, way of batching."""
    variant = configuration.variant.label
    place = f"{configuration.instance_count} x {configuration.intra_op_threads}"
    return variant, f"{variant} {place}", f"{variant} {configuration.max_batch_size}"


def features(configuration: Configuration) -> NDArray[np.float64]:
    """What residuals are expected to depend on, float64 [14]."""
    variant = configuration.variant
    return np.array(
        [
            np.log2(configuration.instance_count),
            np.log2(max(configuration.intra_op_threads or 1, 1)),
            float(configuration.dynamic_batching),
            np.log2(max(configuration.max_batch_size, 1)) / 3.0,
            np.log1p((configuration.max_queue_delay_us or 0) / 1000.0) / 2.0,
            float(variant.precision in ("fp16", "bf16")),
            float(variant.quantization == "static" or variant.precision == "fp8"),
            float(variant.quantization == "dynamic"),
            float(variant.backend == "tensorrt"),
            float(variant.execution.accelerator is not None),
            float(variant.execution.graph_level or 0) / 2.0,
            float(variant.execution.execution_mode == "parallel"),
            float(variant.execution.cuda_graphs is True),
            float(variant.execution.cudnn_search is not None),
        ]
    )
