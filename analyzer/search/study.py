"""The search: build, probe, ask the twin, measure the promising few, certify, explain."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from analyzer.domain import answer
from analyzer.domain.configuration import Configuration, VariantKey, baseline_configuration
from analyzer.domain.measurement import (
    Accuracy,
    Edge,
    Failure,
    Measurement,
    Prediction,
    RequestLog,
)
from analyzer.domain.space import Params
from analyzer.domain.study import SearchSummary, StudyFacts, Verdict
from analyzer.errors import AnalyzerError
from analyzer.evaluate.failures import as_failure
from analyzer.evaluate.jobs import Executor, Job, JobResult
from analyzer.evaluate.measure import TwinOfOne
from analyzer.evaluate.plan import EdgePlan, LoadPlan
from analyzer.evaluate.tasks import Assets, CertifyPlan, MeasureResult, MeasureTask
from analyzer.search.explain import explanation
from analyzer.search.guide import Guide
from analyzer.search.prepare import (
    Prepared,
    ProbeCache,
    TwinOracle,
    build_variants,
    probe_variants,
)
from analyzer.search.proposals import Proposal, Proposals, feasible, guided_value
from analyzer.search.request import Progress, SearchRequest

# Shares of the budget: what is kept back for certificates, and how much of that is the winner's.
_CERTIFY_SHARE = 0.42
_WINNER_SHARE = 0.62
_SERVER_START_S = 1.2


class TrialStore(Protocol):
    """What a search needs of the results database."""

    def add_outcome(
        self,
        study: str,
        trial_number: int,
        params: Mapping[str, Any],
        outcome: Measurement | Failure,
        *,
        role: str = "trial",
        logs: Sequence[RequestLog] = (),
    ) -> None:
        """Commits one outcome."""

    def put_cache(self, kind: str, key: str, value: Mapping[str, Any]) -> None:
        """Keeps a value for later studies."""

    def get_cache(self, kind: str, key: str) -> dict[str, Any] | None:
        """A kept value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """An outcome that an earlier run of the same study stored."""

    trial_number: int
    role: str
    params: Params
    outcome: Measurement | Failure


class Search:
    """One search from its request to its facts. Used once.

    Args:
        proposals: Makes the Optuna study once the candidates are known.
        known: Outcomes of an interrupted run of this study; none of them is measured again.
        hardware: A short name of the machine, and ``hardware_key`` what tells machines apart.
        baseline: The configuration to compare with; None for Triton's automatic one.
    """

    def __init__(
        self,
        request: SearchRequest,
        *,
        executor: Executor,
        store: TrialStore,
        progress: Progress,
        make_proposals: Callable[[frozenset[str], Guide], Proposals],
        known: Sequence[Known] = (),
        hardware: str = "",
        hardware_key: str = "",
        cores: int = 1,
        baseline: Configuration | None = None,
        started: float | None = None,
    ) -> None:
        self._request = request
        self._executor = executor
        self._store = store
        self._progress = progress
        self._make_proposals = make_proposals
        self._known = list(known)
        self._hardware = hardware
        self._hardware_key = hardware_key
        self._cores = cores
        self._started = time.monotonic() if started is None else started
        self._deadline = self._started + request.budget_s
        self._baseline = (
            baseline
            or baseline_configuration(batchable=request.model.batchable, device=request.device)
        ).canonical()
        if self._baseline.backend == "onnxruntime":
            self._baseline = replace(self._baseline, backend=request.space.onnx_backend)
        self._candidates = {
            config_id: configuration
            for config_id, (configuration, _) in request.space.candidates().items()
        }
        self._labels = request.space.labels()
        self._done: dict[str, Measurement | Failure] = {}
        self._warnings: list[str] = []
        self._load_plan = LoadPlan(
            sla=request.sla,
            arrivals=request.arrivals,
            request_batch_size=request.request_batch_size,
            seed=request.seed,
        )
        sizes = {c.max_batch_size for c in self._candidates.values()} | {
            self._baseline.max_batch_size,
            request.request_batch_size,
        }
        self._assets = Assets(
            model=request.model,
            calibration_path=str(request.calibration_path) if request.calibration_path else None,
            confidence=request.sla.confidence,
            seed=request.seed % 2**32,
            batch_sizes=tuple(sorted(size for size in sizes if size > 0)),
        )

    # --- the line --------------------------------------------------------------------------------

    def run(self) -> StudyFacts:
        """Runs the whole search.

        Raises:
            AnalyzerError: Nothing could be built, or the store or the workers failed.
        """
        prepared = self._prepare()
        oracle = self._oracle(prepared)
        allowed = self._allowed(prepared)
        predictions = self._predict(oracle, allowed)
        assignments = self._request.space.candidates()
        guide = Guide(
            {config_id: assignments[config_id] for config_id in allowed},
            predictions,
            measured_value=lambda outcome: guided_value(outcome, self._request.sla),
            values=self._predicted_values(oracle, prepared, allowed, predictions),
            seed=self._request.seed,
        )
        for known in self._known:
            self._take_in(known.outcome, guide)
        if allowed:
            proposals = self._make_proposals(frozenset(allowed), guide)
            self._trials(proposals, guide, prepared)
        return self._answer(prepared, oracle, guide, allowed)

    def _left_s(self) -> float:
        return self._deadline - time.monotonic()

    @property
    def _reserve_s(self) -> float:
        """Time that the trials leave to the certificates."""
        return _CERTIFY_SHARE * self._request.budget_s

    def _prepare(self) -> Prepared:
        request, progress = self._request, self._progress
        keys: dict[VariantKey, Configuration] = {}
        for configuration in (*self._candidates.values(), self._baseline):
            plain = keys.get(configuration.variant)
            if plain is None or _plainness(configuration) < _plainness(plain):
                keys[configuration.variant] = configuration
        progress.phase("building variants", 3.0 * len(keys))
        prepared = build_variants(request, self._assets, list(keys), keys, self._executor, progress)
        if self._baseline.variant not in prepared.variants:
            failure = prepared.excluded[self._baseline.variant]
            raise AnalyzerError(
                f"The model itself cannot be served: {failure.message}", hint=failure.hint
            )
        for failure in prepared.excluded.values():
            self._done[failure.configuration.config_id] = failure
            self._record(-1, {}, failure, role="variant")
            progress.warn(failure.message)
        for report in prepared.variants.values():
            self._warnings += [f"{report.key.label}: {note}" for note in report.notes]
        if self._assets.calibration_path is None:
            self._warn(
                "No real data was given (--calibration-data): accuracy was not measured, and "
                "requests carry made-up inputs."
            )
        progress.phase("probing service times", min(20.0, 0.25 * request.budget_s))
        cache = ProbeCache(
            lambda key: self._store.get_cache("probes", key),
            lambda key, value: self._store.put_cache("probes", key, value),
            self._hardware_key,
        )
        configurations = [*self._candidates.values(), self._baseline]
        for problem in probe_variants(
            request,
            self._assets,
            prepared,
            configurations,
            self._executor,
            progress,
            cache,
            seconds=float(np.clip(request.budget_s / 500, 0.1, 0.4)),
        ):
            self._warn(problem)
        return prepared

    def _oracle(self, prepared: Prepared) -> TwinOracle:
        request = self._request
        return TwinOracle(
            prepared.calibrations,
            request.sla,
            request.arrivals,
            request_batch_size=request.request_batch_size,
            seed=request.seed % 2**32,
        )

    def _allowed(self, prepared: Prepared) -> list[str]:
        """Ids of the candidates whose variant is there and keeps the accuracy limit."""
        return [
            config_id
            for config_id, configuration in self._candidates.items()
            if configuration.variant in prepared.variants
            and configuration.variant not in prepared.excluded
            and configuration.precision in self._request.precisions
        ]

    def _predict(self, oracle: TwinOracle, allowed: Sequence[str]) -> dict[str, float | None]:
        self._progress.phase("asking the twin", 0.03 * len(allowed))
        configurations = [self._candidates[config_id] for config_id in allowed]
        edges = oracle.predict([*configurations, self._baseline])
        return dict(zip([*allowed, self._baseline.config_id], edges, strict=True))

    def _predicted_values(
        self,
        oracle: TwinOracle,
        prepared: Prepared,
        allowed: Sequence[str],
        edges: Mapping[str, float | None],
    ) -> dict[str, float | None] | None:
        """The predicted objective where it is not the edge: one over latency or memory."""
        sla = self._request.sla
        if sla.objective in ("capacity", "cost"):
            return None
        assert sla.target_rate_rps is not None
        values: dict[str, float | None] = {}
        for config_id in allowed:
            configuration = self._candidates[config_id]
            if (edges[config_id] or 0.0) < sla.target_rate_rps:
                values[config_id] = None
            elif sla.objective == "latency":
                latency_ms = oracle.latency_ms(configuration, sla.target_rate_rps)
                values[config_id] = 1.0 / latency_ms if latency_ms else None
            else:
                # Each instance holds the weights; what else a server needs hardly varies.
                weights = prepared.variants[configuration.variant].size_bytes
                values[config_id] = 1.0 / (150e6 + 1.5 * weights * configuration.instance_count)
        return values

    # --- trials ----------------------------------------------------------------------------------

    def _trials(self, proposals: Proposals, guide: Guide, prepared: Prepared) -> None:
        request = self._request
        seconds = float(np.clip(0.08 * request.budget_s, 2.5, 20.0))
        for known in self._known:
            proposals.reconcile(known.trial_number, known.outcome)
        pending: dict[str, Proposal] = {}
        finished_trials = sum(1 for known in self._known if known.role == "trial")
        self._progress.phase("measuring", max(0.0, self._left_s() - self._reserve_s))
        exhausted = False
        while True:
            # One trial is always made, also where the preparations used the budget up.
            enough = (
                self._left_s() - self._reserve_s < seconds + _SERVER_START_S
                and finished_trials + len(pending) > 0
            ) or (
                request.trials_max is not None
                and finished_trials + len(pending) >= request.trials_max
            )
            while not (enough or exhausted) and len(pending) < self._executor.workers:
                if request.sampler == "twin" and guide.finished(request.sla.confidence):
                    exhausted = True
                    break
                ids = frozenset(p.configuration.config_id for p in pending.values())
                proposal = proposals.ask(self._done, ids)
                if proposal is None:
                    exhausted = True
                    break
                job_id = f"trial-{proposal.trial_number}"
                task = self._trial_task(proposal.configuration, guide, prepared, seconds)
                timeout = 120.0 + 10 * seconds
                pending[job_id] = proposal
                self._executor.submit(Job(job_id, task, timeout, proposal.configuration.config_id))
                self._progress.detail(_describe(proposal.configuration))
            if not pending:
                break
            result = self._executor.next_result(1.0)
            if result is None:
                continue
            proposal = pending.pop(result.job_id)
            outcome, logs = self._outcome(result, proposal.configuration)
            self._record(proposal.trial_number, proposal.params, outcome, role="trial", logs=logs)
            self._take_in(outcome, guide)
            proposals.tell(proposal.trial_number, outcome)
            finished_trials += 1
        proposals.abandon()

    def _trial_task(
        self, configuration: Configuration, guide: Guide, prepared: Prepared, seconds: float
    ) -> MeasureTask:
        start = guide.expected(configuration.config_id)
        rate = self._request.sla.target_rate_rps
        fixed = self._request.sla.objective in ("latency", "memory") and rate is not None
        return MeasureTask(
            assets=self._assets,
            configuration=configuration,
            load=self._load_plan,
            server=self._request.server,
            edge_plan=EdgePlan(
                seconds=seconds * (0.6 if fixed else 1.0),
                start_rps=start,
                trusted=guide.measured >= 2 and guide.trusted,
                run_seconds=(max(0.7, seconds / 5), max(1.5, seconds / 2)),
            ),
            target_seconds=seconds * 0.5 if fixed else None,
            predicted=Prediction(edge_rps=guide.predicted(configuration.config_id)),
            accuracy=self._accuracy(prepared, configuration.variant),
            hardware=self._hardware,
            label=self._labels.get(configuration.config_id, ""),
        )

    def _accuracy(self, prepared: Prepared, variant: VariantKey) -> Accuracy | None:
        report = prepared.variants.get(variant)
        return report.accuracy if report is not None else None

    def _outcome(
        self, result: JobResult, configuration: Configuration
    ) -> tuple[Measurement | Failure, Sequence[RequestLog]]:
        if result.error is not None:
            failure = as_failure(configuration, result.error, stage="load", lost=result.lost)
            return failure, ()
        assert isinstance(result.value, MeasureResult)
        return with_error(result.value.outcome), result.value.logs

    def _record(
        self,
        trial_number: int,
        params: Params,
        outcome: Measurement | Failure,
        *,
        role: str,
        logs: Sequence[RequestLog] = (),
    ) -> None:
        """Commits an outcome before anybody is told of it."""
        if not any(k.outcome == outcome and k.role == role for k in self._known):
            self._store.add_outcome(
                self._request.study, trial_number, params, outcome, role=role, logs=logs
            )

    def _take_in(self, outcome: Measurement | Failure, guide: Guide) -> None:
        config_id = outcome.configuration.config_id
        self._done[config_id] = outcome
        guide.tell(config_id, outcome)

    def _warn(self, text: str) -> None:
        self._warnings.append(text)
        self._progress.warn(text)

    # --- the answer ------------------------------------------------------------------------------

    def _answer(
        self,
        prepared: Prepared,
        oracle: TwinOracle,
        guide: Guide,
        allowed: Sequence[str],
    ) -> StudyFacts:
        request = self._request
        winner = self._certify_winner(prepared, oracle, guide)
        self._certify_baseline(prepared, oracle, guide)
        verdict: Verdict = "found" if winner is not None else "undecided"
        bound = guide.bound_sentence(request.sla.confidence)
        if winner is None:
            self._prove_failure(prepared, oracle, guide)
            ruled_out = self._ruled_out(prepared, oracle, guide, allowed)
            if ruled_out:
                verdict, bound = "infeasible", ruled_out
        outcomes = tuple(self._done.values())
        failed = sum(isinstance(outcome, Failure) for outcome in outcomes)
        trusted = guide.trusted if guide.measured else None
        self._progress.phase("explaining", 1.0)
        configurations = [self._candidates[config_id] for config_id in allowed]
        return StudyFacts(
            name=request.study,
            verdict=verdict,
            model=request.model,
            sla=request.sla,
            arrivals=request.arrivals.name,
            request_batch_size=request.request_batch_size,
            server=request.server,
            outcomes=outcomes,
            recommended_id=winner.configuration.config_id if winner is not None else None,
            baseline_id=self._baseline.config_id,
            pricing=request.pricing,
            search=SearchSummary(
                sampler=request.sampler,
                space=request.space.name,
                space_size=len(self._candidates),
                evaluated_live=len(outcomes) - failed,
                evaluated_twin=guide.candidates,
                failed=failed,
                load_test_seconds=sum(outcome.load_test_seconds for outcome in outcomes),
                wall_seconds=time.monotonic() - self._started,
                bound=bound,
            ),
            explanation=explanation(
                winner=winner,
                outcomes=outcomes,
                candidates=configurations,
                predict=lambda configuration: guide.corrected(
                    configuration.config_id, oracle.predict([configuration])[0]
                ),
                cores=self._cores,
                request_batch_size=request.request_batch_size,
                trusted=trusted,
                trust_reason=guide.reason,
                error_median=guide.error_median(),
            ),
            provenance=request.provenance,
            warnings=tuple(self._warnings),
        )

    def _ranked(self) -> list[Measurement]:
        sla = self._request.sla
        ranked = answer.rank(
            list(self._done.values()),
            sla,
            devices_per_machine=self._request.pricing.devices_per_machine,
        )
        allowed = set(self._candidates)
        return [
            m
            for m in ranked
            if feasible(m, sla)
            and (m.configuration.config_id in allowed)
            and m.configuration.precision in self._request.precisions
        ]

    def _certify_winner(
        self, prepared: Prepared, oracle: TwinOracle, guide: Guide
    ) -> Measurement | None:
        """The best configuration that could be certified; the next one where the best cannot."""
        self._progress.phase("certifying the best", max(3.0, self._left_s()))
        total_s = max(self._left_s(), 0.25 * self._reserve_s)
        for position, best in enumerate(self._ranked()[:3]):
            known = [k for k in self._known if k.role == "recommendation"]
            certified_before = any(k.outcome.configuration == best.configuration for k in known)
            if certified_before and best.capacity_rps is not None:
                return best
            seconds = total_s * _WINNER_SHARE / (1 + position) - _SERVER_START_S
            if position > 0 and self._left_s() < 3.0:
                break
            self._progress.detail(_describe(best.configuration))
            certified = self._certify(
                best, best.edge, max(seconds, 2.0), prepared, oracle, guide, role="recommendation"
            )
            if certified is not None and certified.capacity_rps is not None:
                return certified
        return None

    def _prove_failure(self, prepared: Prepared, oracle: TwinOracle, guide: Guide) -> None:
        """Certifies that what came closest fails where it is easiest: at a rate without queues."""
        sla = self._request.sla
        if self._ranked():
            return
        closest = answer.closest_miss(list(self._done.values()), sla)
        if closest is None or closest[0].configuration.config_id not in self._candidates:
            candidates = [o for o in self._done.values() if isinstance(o, Measurement)]
            usable = [m for m in candidates if m.configuration.config_id in self._candidates]
            best = min(usable, key=lambda m: _plainness(m.configuration), default=None)
        else:
            best = closest[0]
        if best is None or (best.certificate is not None and best.certificate.verdict == "FAIL"):
            return
        tests = [test for test in best.load_tests if test.latency_ms.p50]
        alone_ms = min((test.latency_ms.p50 or 0.0 for test in tests), default=0.0)
        rate = min(0.3e3 / max(alone_ms, 1.0), 50.0)
        self._certify(
            best,
            best.edge,
            max(min(60.0 / rate, self._left_s()), 3.0),
            prepared,
            oracle,
            guide,
            role="trial",
            rate_rps=sla.target_rate_rps if sla.objective in ("latency", "memory") else rate,
        )

    def _certify_baseline(self, prepared: Prepared, oracle: TwinOracle, guide: Guide) -> None:
        known = self._done.get(self._baseline.config_id)
        if isinstance(known, Measurement) and known.certificate is not None:
            return
        seconds = max(self._left_s() - _SERVER_START_S, 4.0, 0.1 * self._reserve_s)
        self._progress.phase("measuring the baseline", seconds)
        edge = known.edge if isinstance(known, Measurement) else None
        self._certify(
            known if isinstance(known, Measurement) else None,
            edge if edge is not None and edge.rate_rps else None,
            seconds,
            prepared,
            oracle,
            guide,
            role="baseline",
        )

    def _certify(
        self,
        measured: Measurement | None,
        edge: Edge | None,
        seconds: float,
        prepared: Prepared,
        oracle: TwinOracle,
        guide: Guide,
        *,
        role: str,
        rate_rps: float | None = None,
    ) -> Measurement | None:
        """Certifies a configuration, stores what came of it, and takes it in.

        Args:
            edge: Its edge; None to search it first.
            rate_rps: The one rate to certify; None for the target rate or the highest possible.
        """
        request = self._request
        configuration = measured.configuration if measured is not None else self._baseline
        config_id = configuration.config_id
        fixed = rate_rps
        if fixed is None and request.sla.objective in ("latency", "memory"):
            fixed = request.sla.target_rate_rps
        predicted = oracle.predict([configuration])[0]
        search_s = 0.0 if edge is not None else float(np.clip(0.4 * seconds, 2.0, 12.0))
        scale = predicted / edge.rate_rps if predicted and edge and edge.rate_rps else 1.0
        candidate = oracle.candidate(configuration)
        twin = None
        if candidate is not None and (guide.trusted or guide.measured < 3):
            twin = TwinOfOne(
                policy=candidate.policy,
                service=candidate.service,
                overhead_ms=candidate.overhead_ms,
                rate_scale=scale,
            )
        task = MeasureTask(
            assets=self._assets,
            configuration=configuration,
            load=self._load_plan,
            server=request.server,
            edge_plan=None
            if edge is not None
            else EdgePlan(
                seconds=search_s,
                start_rps=guide.corrected(config_id, predicted),
                trusted=guide.measured >= 2 and guide.trusted,
                run_seconds=(0.8, max(1.5, search_s / 2)),
            ),
            certify=CertifyPlan(
                seconds=max(seconds - search_s, 1.5), edge=edge, rate_rps=fixed, twin=twin
            ),
            predicted=Prediction(edge_rps=predicted),
            accuracy=self._accuracy(prepared, configuration.variant),
            hardware=self._hardware,
            label=self._labels.get(config_id, ""),
        )
        self._executor.submit(Job(f"certify-{role}", task, 180.0 + 4 * seconds, role))
        result = None
        while result is None:
            result = self._executor.next_result(1.0)
        outcome, logs = self._outcome(result, configuration)
        if isinstance(outcome, Measurement) and measured is not None:
            outcome = merged(measured, outcome)
        self._record(-1, {}, outcome, role=role, logs=logs)
        if isinstance(outcome, Failure) and measured is not None:
            self._warn(f"{_describe(configuration)} could not be certified: {outcome.message}")
            return None
        self._take_in(outcome, guide)
        return outcome if isinstance(outcome, Measurement) else None

    def _ruled_out(
        self,
        prepared: Prepared,
        oracle: TwinOracle,
        guide: Guide,
        allowed: Sequence[str],
    ) -> str | None:
        """Why no configuration can keep the SLA; None if that is not known."""
        from analyzer.search.infeasible import ruled_out

        return ruled_out(
            self._request,
            prepared,
            [self._candidates[config_id] for config_id in allowed],
            self._done,
            trusted=guide.trusted,
            predicted=lambda configuration: guide.corrected(
                configuration.config_id, oracle.predict([configuration])[0]
            ),
        )


def _plainness(configuration: Configuration) -> tuple[int, int, int]:
    return (
        configuration.instance_count,
        configuration.max_batch_size,
        configuration.intra_op_threads or 1 << 30,
    )


def _describe(configuration: Configuration) -> str:
    batching = (
        f"batches up to {configuration.max_batch_size}"
        f" (delay {(configuration.max_queue_delay_us or 0) / 1e3:g} ms)"
        if configuration.dynamic_batching
        else "no batching"
    )
    threads = (
        f" × {configuration.intra_op_threads} threads" if configuration.intra_op_threads else ""
    )
    count = configuration.instance_count
    return (
        f"{configuration.variant.label}, {count} instance{'s' * (count > 1)}{threads}, {batching}"
    )


def with_error(outcome: Measurement | Failure) -> Measurement | Failure:
    """The outcome with the twin's relative error, where both edges are known."""
    if isinstance(outcome, Failure):
        return outcome
    predicted, measured = outcome.predicted.edge_rps, outcome.edge.rate_rps
    if not predicted or not measured:
        return outcome
    error = predicted / measured - 1.0
    return replace(outcome, predicted=replace(outcome.predicted, error=error))


def merged(earlier: Measurement, later: Measurement) -> Measurement:
    """One record of a configuration that was measured twice: its edge, then its certificate."""
    from analyzer.evaluate.session import combine

    return replace(
        later,
        edge=later.edge if later.edge.rate_rps else earlier.edge,
        load_tests=(*earlier.load_tests, *later.load_tests),
        load_test_seconds=earlier.load_test_seconds + later.load_test_seconds,
        resources=combine([earlier.resources, later.resources]),
        predicted=earlier.predicted if earlier.predicted.edge_rps else later.predicted,
    )
