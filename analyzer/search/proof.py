"""The proofs at a search's end: of the winner, of the baseline, and that nothing can be found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from analyzer.domain import answer
from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import Edge, Failure, Measurement, Prediction
from analyzer.measure.certify import AT_ONCE, CLIMBING
from analyzer.measure.edge import revised_edge
from analyzer.measure.jobs import Executor, Job
from analyzer.measure.plan import CertifyPlan, EdgePlan, LoadPlan
from analyzer.measure.tasks import Assets, MeasureTask
from analyzer.search.guide import Guide
from analyzer.search.infeasible import ruled_out
from analyzer.search.ledger import Ledger, describe, merged, outcome_of, plainness
from analyzer.search.prepare import Prepared
from analyzer.search.request import Progress, SearchRequest
from analyzer.twin.server_model import ServerModel
from analyzer.twin.twin import Twin

# The baseline's share of the time that is left for certificates; what it leaves is the winner's.
_BASELINE_SHARE = 0.45
# Of that, the share of the search for its edge.
_EDGE_SHARE = 0.25
# Share of its edge at which a baseline is proven well enough to be compared with.
_BASELINE_ENOUGH = 0.75
_WINNERS_MAX = 3
_TIME_MIN_S = 3.0


def server_start_s(server: str) -> float:
    """Seconds that starting a server (or loading a model) and warming it up take, by and large."""
    return 1.2 if server == "embedded" else 2.2


@dataclass(slots=True, kw_only=True)
class Prover:
    """Certifies configurations on the workers.

    Args:
        allowed: Ids of the configurations that may be recommended.
        left_s: Seconds left of the budget.
        reserve_s: What the search kept back for certificates.
    """

    request: SearchRequest
    ledger: Ledger
    executor: Executor
    progress: Progress
    assets: Assets
    load: LoadPlan
    prepared: Prepared
    oracle: Twin
    guide: Guide
    candidates: dict[str, Configuration]
    allowed: frozenset[str]
    baseline: Configuration
    labels: dict[str, str]
    hardware: str
    left_s: Callable[[], float]
    reserve_s: float

    @property
    def _start_s(self) -> float:
        return server_start_s(self.request.server)

    def winner(self) -> Measurement | None:
        """The best configuration that could be certified; the next one where the best cannot."""
        total_s = max(self.left_s(), 0.25 * self.reserve_s)
        deadline_s = self.left_s() - total_s
        self.progress.phase("certifying the best", total_s)
        for position, best in enumerate(self.ledger.ranked(self.allowed)[:_WINNERS_MAX]):
            if self.ledger.certified_before(best.configuration.config_id):
                return best
            # A second candidate gets what the best leaves when it cannot be proven.
            seconds = self.left_s() - deadline_s - self._start_s
            if position > 0 and seconds < _TIME_MIN_S:
                break
            certified = self._certify(
                best.configuration,
                measured=best,
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
        known = self.ledger.done.get(self.baseline.config_id)
        measured = known if isinstance(known, Measurement) else None
        if measured is not None and measured.certificate is not None:
            return
        best = self.ledger.ranked(self.allowed)[:1]
        if best and best[0].configuration.config_id == self.baseline.config_id:
            return
        share_s = _BASELINE_SHARE * max(self.left_s(), 0.25 * self.reserve_s)
        seconds = max(share_s - self._start_s, _TIME_MIN_S)
        self.progress.phase("measuring the baseline", seconds)
        known_edge = measured is not None and measured.edge.rate_rps
        self._certify(
            self.baseline,
            measured=measured,
            edge=measured.edge if measured is not None and known_edge else None,
            seconds=seconds,
            role="baseline",
        )

    def measure_baseline_again(self) -> None:
        """Spends what the winner left on a baseline that was proven far below its edge, or not."""
        measured = self.ledger.done.get(self.baseline.config_id)
        seconds = self.left_s() - self._start_s
        if not isinstance(measured, Measurement) or not measured.edge.rate_rps:
            return
        proven = (measured.capacity_rps or 0.0) / measured.edge.rate_rps
        failed = measured.certificate is not None and measured.certificate.verdict == "FAIL"
        if failed or proven >= _BASELINE_ENOUGH or seconds < _TIME_MIN_S:
            return
        self.progress.phase("certifying the baseline", seconds)
        self._certify(
            self.baseline,
            measured=measured,
            edge=measured.edge,
            seconds=seconds,
            role="baseline",
        )

    def infeasibility(self) -> str | None:
        """The sentence that rules every configuration out; None where one may keep the SLA."""
        if not self.ledger.ranked(self.allowed):
            self._prove_failure()
        return ruled_out(
            self.request,
            self.prepared,
            [self.candidates[config_id] for config_id in sorted(self.allowed)],
            self.ledger.done,
            trusted=self.guide.trusted,
            predicted=self.expected,
        )

    def expected(self, configuration: Configuration) -> float | None:
        """The twin's edge, corrected by what was measured."""
        predicted = self.oracle.edges([configuration])[0]
        return self.guide.corrected(configuration.config_id, predicted)

    def _prove_failure(self) -> None:
        """Certifies that what came closest fails where it is easiest: at a rate without queues."""
        sla = self.request.sla
        closest = answer.closest_miss(self.ledger.outcomes, sla)
        best = closest[0] if closest is not None else None
        if best is None or best.configuration.config_id not in self.allowed:
            usable = [
                outcome
                for outcome in self.ledger.outcomes
                if isinstance(outcome, Measurement)
                and outcome.configuration.config_id in self.allowed
            ]
            best = min(usable, key=lambda m: plainness(m.configuration), default=None)
        if best is None or (best.certificate is not None and best.certificate.verdict == "FAIL"):
            return
        medians = [test.latency_ms.p50 for test in best.load_tests if test.latency_ms.p50]
        rate = min(0.3e3 / max(min(medians, default=1.0), 1.0), 50.0)
        fixed = sla.target_rate_rps if sla.objective in ("latency", "memory") else None
        self._certify(
            best.configuration,
            measured=best,
            edge=best.edge,
            seconds=max(min(60.0 / rate, self.left_s()), _TIME_MIN_S),
            role="trial",
            rate_rps=fixed or rate,
        )

    def _certify(
        self,
        configuration: Configuration,
        *,
        measured: Measurement | None,
        edge: Edge | None,
        seconds: float,
        role: str,
        rate_rps: float | None = None,
    ) -> Measurement | None:
        """Certifies a configuration, stores what came of it, and takes it in.

        Args:
            measured: What was measured of it before; it becomes part of the record.
            edge: Its edge; None to search it first.
            rate_rps: The one rate to certify; None for the target rate or the highest possible.
        """
        sla = self.request.sla
        if rate_rps is None and sla.objective in ("latency", "memory"):
            rate_rps = sla.target_rate_rps
        self.progress.detail(describe(configuration))
        predicted = self.oracle.edges([configuration])[0]
        search_s = 0.0 if edge is not None else float(np.clip(_EDGE_SHARE * seconds, 2.0, 12.0))
        report = self.prepared.variants.get(configuration.variant)
        task = MeasureTask(
            assets=self.assets,
            configuration=configuration,
            load=self.load,
            server=self.request.server,
            edge_plan=None
            if edge is not None
            else EdgePlan(
                seconds=search_s,
                start_rps=self.guide.corrected(configuration.config_id, predicted),
                trusted=self.guide.measured >= 2 and self.guide.trusted,
                run_seconds=(0.8, max(1.5, search_s / 2)),
                twin=self._twin(configuration, predicted, None),
                twin_edge_rps=predicted,
            ),
            certify=CertifyPlan(
                seconds=max(seconds - search_s, 1.5),
                edge=edge,
                rate_rps=rate_rps,
                twin=self._twin(configuration, predicted, edge),
                # A baseline proven far below its edge would flatter the winner.
                shares=AT_ONCE if role == "baseline" else CLIMBING,
            ),
            predicted=Prediction(edge_rps=predicted),
            accuracy=report.accuracy if report is not None else None,
            hardware=self.hardware,
            label=self.labels.get(configuration.config_id, ""),
        )
        self.executor.submit(Job(f"certify-{role}", task, 180.0 + 4 * seconds, role))
        result = None
        while result is None:
            result = self.executor.next_result(1.0)
        outcome, logs = outcome_of(result, configuration)
        if isinstance(outcome, Measurement) and measured is not None:
            outcome = merged(measured, outcome)
        # The guide compares edges from short runs; the answer has the best there is.
        if measured is None or measured.certificate is None:
            self.guide.tell(configuration.config_id, outcome)
        if isinstance(outcome, Measurement):
            edge = revised_edge(outcome.edge, outcome.load_tests, miss_rate_max=sla.miss_rate_max)
            if edge != outcome.edge:
                self.ledger.warn(
                    f"{describe(configuration)}: the certificate's runs broke the SLA below the "
                    f"edge that shorter runs gave ({outcome.edge.rate_rps:,.0f}/s), so it was "
                    "lowered. This machine's speed may drift."
                )
            outcome = self.oracle.completed(replace(outcome, edge=edge))
        self.ledger.record(outcome, role=role, logs=logs)
        if isinstance(outcome, Failure):
            if measured is not None:
                text = f"{describe(configuration)} could not be certified: {outcome.message}"
                self.ledger.warn(text)
            return None
        return outcome

    def _twin(
        self, configuration: Configuration, predicted: float | None, edge: Edge | None
    ) -> ServerModel | None:
        """The twin for the correlation of requests, unless it has shown that it is wrong."""
        if not self.guide.trusted:
            return None
        measured = edge.rate_rps if edge is not None else None
        scale = predicted / measured if predicted and measured else 1.0
        return self.oracle.server_model(configuration, rate_scale=scale)
