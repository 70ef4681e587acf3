"""The proofs at a search's end: of the winner, of the baseline, and that nothing can be found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from analyzer.domain import answer
from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import Edge, Failure, Measurement, RequestLog
from analyzer.measure.certify import AT_ONCE, CLIMBING
from analyzer.measure.edge import revised_edge
from analyzer.measure.jobs import Job
from analyzer.measure.plan import CertifyPlan
from analyzer.measure.tasks import MeasureTask
from analyzer.search.build import BuiltVariants
from analyzer.search.context import SearchContext
from analyzer.search.infeasible import ruled_out
from analyzer.search.outcome_log import merged, outcome_of
from analyzer.search.score import score_of
from analyzer.search.screening import Screening
from analyzer.search.wording import complexity, describe

# The least share of the certificates' reserve that is used, where the trials took longer.
_RESERVE_MIN = 0.25
# The baseline's share of the time that is left for certificates; what it leaves is the winner's.
_BASELINE_SHARE = 0.45
# Of that, the share of the search for its edge, within limits (seconds).
_EDGE_SHARE = 0.25
_EDGE_S = (2.0, 12.0)
# Share of its edge at which a baseline is proven well enough to be compared with.
_BASELINE_ENOUGH = 0.75
_WINNERS_MAX = 3
_TIME_MIN_S = 3.0
_CERTIFY_MIN_S = 1.5
# A worker is held to hang after so many seconds, and these times the seconds under load.
_TIMEOUT_S = 180.0
_TIMEOUT_FACTOR = 4.0
# A rate without queues keeps a server busy for this share of the time; at most so many requests a
# second, of which so many refute a claim.
_QUIET_UTILIZATION = 0.3
_QUIET_RPS_MAX = 50.0
_QUIET_REQUESTS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Certification:
    """Certifies configurations on the workers."""

    context: SearchContext
    built: BuiltVariants
    screening: Screening

    def winner(self) -> Measurement | None:
        """The best configuration that could be certified; the next one where the best cannot."""
        context = self.context
        total_s = self._time_s
        deadline_s = context.left_s - total_s
        context.progress.phase("certifying the best", total_s)
        for position, best in enumerate(context.log.ranked(self.screening.allowed)[:_WINNERS_MAX]):
            if best.capacity_rps is not None:  # an earlier run of this study certified it
                return best
            # A second candidate gets what the best leaves when it cannot be proven.
            seconds = context.left_s - deadline_s - context.server_start_s
            if position > 0 and seconds < _TIME_MIN_S:
                break
            certified = self._certify(
                best.configuration,
                edge=best.edge,
                seconds=max(seconds, _TIME_MIN_S),
                role="recommendation",
            )
            if certified is not None and certified.capacity_rps is not None:
                return certified
        return None

    def measure_baseline(self) -> None:
        """Finds the baseline's edge, where it is not known, and certifies it.

        Before the winner, which can use nearly every second that is left. Nothing is done where
        the baseline is about to be certified as the winner.
        """
        context, baseline = self.context, self.context.baseline
        measured = context.log.measurement(baseline.config_id)
        if measured is not None and measured.certificate is not None:
            return
        best = context.log.ranked(self.screening.allowed)[:1]
        if best and best[0].configuration.config_id == baseline.config_id:
            return
        seconds = max(_BASELINE_SHARE * self._time_s - context.server_start_s, _TIME_MIN_S)
        context.progress.phase("measuring the baseline", seconds)
        edge = measured.edge if measured is not None and measured.edge.rate_rps else None
        self._certify(baseline, edge=edge, seconds=seconds, role="baseline")

    def measure_baseline_again(self) -> None:
        """Spends what the winner left on a baseline that was proven far below its edge, or not."""
        context = self.context
        measured = context.log.measurement(context.baseline.config_id)
        seconds = context.left_s - context.server_start_s
        if measured is None or not measured.edge.rate_rps:
            return
        proven = (measured.capacity_rps or 0.0) / measured.edge.rate_rps
        if _failed(measured) or proven >= _BASELINE_ENOUGH or seconds < _TIME_MIN_S:
            return
        context.progress.phase("certifying the baseline", seconds)
        self._certify(context.baseline, edge=measured.edge, seconds=seconds, role="baseline")

    def infeasibility(self) -> str | None:
        """The sentence that rules every configuration out; None where one may keep the SLA."""
        if not self.context.log.ranked(self.screening.allowed):
            self._prove_failure()
        return ruled_out(self.context, self.built, self.screening)

    @property
    def _time_s(self) -> float:
        """Seconds for certificates: what is left, and a part of the reserve in any case."""
        return max(self.context.left_s, _RESERVE_MIN * self.context.reserve_s)

    def _prove_failure(self) -> None:
        """Certifies that what came closest fails where it is easiest: at a rate without queues."""
        sla, log = self.context.request.sla, self.context.log
        closest = answer.closest_miss(log.outcomes, sla)
        best = closest[0] if closest is not None else None
        if best is None or best.configuration.config_id not in self.screening.allowed:
            usable = filter(None, (log.measurement(key) for key in self.screening.allowed))
            best = min(usable, key=lambda m: complexity(m.configuration), default=None)
        if best is None or _failed(best):
            return
        medians_ms = [test.latency_ms.p50 for test in best.load_tests if test.latency_ms.p50]
        median_s = max(min(medians_ms, default=1.0), 1.0) / 1e3
        rate = min(_QUIET_UTILIZATION / median_s, _QUIET_RPS_MAX)
        fixed = sla.target_rate_rps if sla.objective in ("latency", "memory") else None
        self._certify(
            best.configuration,
            edge=best.edge,
            seconds=max(min(_QUIET_REQUESTS / rate, self.context.left_s), _TIME_MIN_S),
            role="trial",
            rate_rps=fixed or rate,
        )

    def _certify(
        self,
        configuration: Configuration,
        *,
        edge: Edge | None,
        seconds: float,
        role: str,
        rate_rps: float | None = None,
    ) -> Measurement | None:
        """Certifies a configuration, and stores what came of it; None where that failed.

        Args:
            edge: Its edge; None to search it first.
            rate_rps: The one rate to certify; None for the target rate or the highest possible.
        """
        context, sla = self.context, self.context.request.sla
        if rate_rps is None and sla.objective in ("latency", "memory"):
            rate_rps = sla.target_rate_rps
        context.progress.detail(describe(configuration))
        task = self._task(configuration, edge=edge, seconds=seconds, role=role, rate_rps=rate_rps)
        timeout_s = _TIMEOUT_S + _TIMEOUT_FACTOR * seconds
        (result,) = context.run([Job(f"certify-{role}", task, timeout_s, role)])
        outcome, logs = outcome_of(result, configuration)
        return self._take_in(outcome, logs, role=role)

    def _task(
        self,
        configuration: Configuration,
        *,
        edge: Edge | None,
        seconds: float,
        role: str,
        rate_rps: float | None,
    ) -> MeasureTask:
        screening = self.screening
        predicted = screening.twin.edges([configuration])[0]
        edge_plan, search_s = None, 0.0
        if edge is None:
            search_s = float(np.clip(_EDGE_SHARE * seconds, *_EDGE_S))
            edge_plan = screening.edge_plan(
                configuration,
                predicted,
                seconds=search_s,
                run_seconds=(0.8, max(1.5, search_s / 2)),
            )
        measured = edge.rate_rps if edge is not None else None
        scale = predicted / measured if predicted and measured else 1.0
        return self.context.measure_task(
            configuration,
            accuracy=self.built.accuracy(configuration),
            predicted_rps=predicted,
            edge_plan=edge_plan,
            certify=CertifyPlan(
                seconds=max(seconds - search_s, _CERTIFY_MIN_S),
                edge=edge,
                rate_rps=rate_rps,
                twin=screening.server_model(configuration, rate_scale=scale),
                # A baseline proven far below its edge would flatter the winner.
                shares=AT_ONCE if role == "baseline" else CLIMBING,
            ),
        )

    def _take_in(
        self, outcome: Measurement | Failure, logs: Sequence[RequestLog], *, role: str
    ) -> Measurement | None:
        """Joins an outcome with what was measured before, teaches the designer, and stores it."""
        context, sla = self.context, self.context.request.sla
        name, config_id = describe(outcome.configuration), outcome.configuration.config_id
        measured = context.log.measurement(config_id)
        if isinstance(outcome, Measurement) and measured is not None:
            outcome = merged(measured, outcome)
        # The designer learns once of a configuration that works.
        if measured is None or isinstance(outcome, Failure):
            score = score_of(outcome, sla)
            self.screening.designer.update(config_id, score.value, feasible=score.feasible)
        if isinstance(outcome, Measurement):
            edge = revised_edge(outcome.edge, outcome.load_tests, miss_rate_max=sla.miss_rate_max)
            if edge != outcome.edge:
                context.log.warn(
                    f"{name}: the certificate's runs broke the SLA below the edge that shorter "
                    f"runs gave ({outcome.edge.rate_rps:,.0f}/s), so it was lowered. This "
                    "machine's speed may drift."
                )
            outcome = self.screening.twin.completed(replace(outcome, edge=edge))
        context.log.record(outcome, role=role, logs=logs)
        if isinstance(outcome, Measurement):
            return outcome
        if measured is not None:
            context.log.warn(f"{name} could not be certified: {outcome.message}")
        return None


def _failed(measurement: Measurement) -> bool:
    return measurement.certificate is not None and measurement.certificate.verdict == "FAIL"
