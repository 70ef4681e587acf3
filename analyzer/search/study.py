"""The search: build, probe, ask the twin, measure the promising few, certify, explain."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from analyzer.domain.configuration import Configuration, VariantKey, baseline_configuration
from analyzer.domain.measurement import Failure, Prediction
from analyzer.domain.study import SearchSummary, StudyResult, Verdict
from analyzer.domain.workload import inferences_per_request
from analyzer.errors import AnalyzerError
from analyzer.measure.jobs import Executor, Job
from analyzer.measure.plan import EdgePlan, LoadPlan
from analyzer.measure.tasks import Assets, MeasureTask
from analyzer.search.explain import explanation
from analyzer.search.guide import Guide
from analyzer.search.ledger import Known, Ledger, TrialStore, describe, outcome_of, plainness
from analyzer.search.prepare import (
    Prepared,
    build_variants,
    probe_variants,
)
from analyzer.search.proof import Prover, server_start_s
from analyzer.search.proposals import Proposal, Proposals, guided_value
from analyzer.search.request import Progress, SearchRequest
from analyzer.twin.probe_cache import ProbeCache
from analyzer.twin.twin import Twin

# Configurations whose saturation throughput, which no edge exceeds, is below this share of the best
# edge are not computed: a twin that may be trusted is not off by so much.
_HOPELESS_SHARE = 0.5
# The share of the budget that the trials leave to the certificates.
_CERTIFY_SHARE = 0.55


class Search:
    """One search from its request to its facts. Used once.

    Args:
        proposals: Makes the Optuna study once the candidates are known.
        known: Outcomes of an interrupted run of this study; none of them is measured again.
        hardware: A short name of the machine, and ``hardware_key`` what tells machines apart.
        baseline: The configuration to compare with; None for Triton's automatic one.
        clock: Seconds; virtual where the executor is.
        started: When the budget began to run, on that clock; now if None.
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
        clock: Callable[[], float] = time.monotonic,
        started: float | None = None,
    ) -> None:
        self._clock = clock
        self._request = request
        self._executor = executor
        self._store = store
        self._progress = progress
        self._make_proposals = make_proposals
        self._hardware = hardware
        self._hardware_key = hardware_key
        self._cores = cores
        self._started = clock() if started is None else started
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
        self._ledger = Ledger(request, store, progress, known=known)
        self._load_plan = LoadPlan(
            sla=request.sla,
            arrivals=request.arrivals,
            request_batch_size=request.request_batch_size,
            seed=request.seed,
        )
        sizes = {c.max_batch_size for c in self._candidates.values()} | {
            self._baseline.max_batch_size,
            int(request.batch_sizes.max()),
        }
        self._assets = Assets(
            model=request.model,
            calibration_path=str(request.calibration_path) if request.calibration_path else None,
            confidence=request.sla.confidence,
            batch_sizes=tuple(sorted(size for size in sizes if size > 0)),
        )

    # --- the line --------------------------------------------------------------------------------

    def run(self) -> StudyResult:
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
        for config_id, outcome in self._ledger.done.items():
            guide.tell(config_id, outcome)
        if allowed:
            proposals = self._make_proposals(frozenset(allowed), guide)
            self._trials(proposals, guide, prepared, oracle)
        return self._answer(prepared, oracle, guide, allowed)

    def _left_s(self) -> float:
        return self._deadline - self._clock()

    @property
    def _reserve_s(self) -> float:
        """Time that the trials leave to the certificates."""
        return _CERTIFY_SHARE * self._request.budget_s

    def _trials_reserve_s(self, guide: Guide) -> float:
        """The reserve; half of it while there is nothing to certify."""
        return self._reserve_s * (1.0 if guide.measured else 0.5)

    def _prepare(self) -> Prepared:
        request, progress = self._request, self._progress
        keys: dict[VariantKey, Configuration] = {}
        for configuration in (*self._candidates.values(), self._baseline):
            plain = keys.get(configuration.variant)
            if plain is None or plainness(configuration) < plainness(plain):
                keys[configuration.variant] = configuration
        progress.phase("building variants", 3.0 * len(keys))
        prepared = build_variants(request, self._assets, list(keys), keys, self._executor, progress)
        if self._baseline.variant not in prepared.variants:
            failure = prepared.excluded[self._baseline.variant]
            raise AnalyzerError(
                f"The model itself cannot be served: {failure.message}", hint=failure.hint
            )
        for failure in prepared.excluded.values():
            self._ledger.record(failure, role="variant")
            progress.warn(failure.message)
        for report in prepared.variants.values():
            self._ledger.warnings += [f"{report.key.label}: {note}" for note in report.notes]
        if self._assets.calibration_path is None:
            self._ledger.warn(
                "No real data was given (--calibration-data): accuracy was not measured, and "
                "requests carry made-up inputs."
            )
        progress.phase("probing service times", min(20.0, 0.25 * request.budget_s))
        cache = ProbeCache(self._store.get_cache, self._store.put_cache, self._hardware_key)
        for problem in probe_variants(
            request,
            self._assets,
            prepared,
            list(self._candidates.values()),
            self._baseline,
            self._executor,
            progress,
            cache,
            seconds=float(np.clip(request.budget_s / 500, 0.1, 0.4)),
        ):
            self._ledger.warn(problem)
        return prepared

    def _oracle(self, prepared: Prepared) -> Twin:
        request = self._request
        return Twin(
            prepared.calibrations,
            request.sla,
            request.arrivals,
            request_batch_size=request.request_batch_size,
            seed=request.seed % 2**32,
            cores=self._cores,
            clock=self._clock,
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

    def _predict(self, oracle: Twin, allowed: Sequence[str]) -> dict[str, float | None]:
        self._progress.phase("asking the twin", 0.03 * len(allowed))
        configurations = [self._candidates[config_id] for config_id in allowed]
        oracle.edges([self._baseline])
        edges = oracle.edges(
            [*configurations, self._baseline],
            seconds_max=2.0 + 0.1 * self._request.budget_s,
            hopeless_share=_HOPELESS_SHARE,
        )
        return dict(zip([*allowed, self._baseline.config_id], edges, strict=True))

    def _predicted_values(
        self,
        oracle: Twin,
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

    def _trials(self, proposals: Proposals, guide: Guide, prepared: Prepared, oracle: Twin) -> None:
        request = self._request
        seconds = float(np.clip(0.08 * request.budget_s, 2.5, 20.0))
        trial_s = seconds + server_start_s(request.server)
        trials = [known for known in self._ledger.known if known.role == "trial"]
        proposals.reconcile({known.trial_number: known.outcome for known in trials})
        pending: dict[str, Proposal] = {}
        finished_trials = len(trials)
        self._progress.phase("measuring", max(0.0, self._left_s() - self._reserve_s))
        exhausted = False
        while True:
            # One trial is always made, also where the preparations used the budget up.
            enough = (
                self._left_s() - self._trials_reserve_s(guide) < trial_s
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
                proposal = proposals.ask(self._ledger.done, ids)
                if proposal is None:
                    exhausted = True
                    break
                job_id = f"trial-{proposal.trial_number}"
                task = self._trial_task(proposal.configuration, guide, prepared, oracle, seconds)
                timeout = 120.0 + 10 * seconds
                pending[job_id] = proposal
                self._executor.submit(Job(job_id, task, timeout, proposal.configuration.config_id))
                self._progress.detail(describe(proposal.configuration))
            if not pending:
                break
            result = self._executor.next_result(1.0)
            if result is None:
                continue
            proposal = pending.pop(result.job_id)
            outcome, logs = outcome_of(result, proposal.configuration)
            outcome = oracle.completed(outcome)
            self._ledger.record(
                outcome,
                role="trial",
                trial_number=proposal.trial_number,
                params=proposal.params,
                logs=logs,
            )
            guide.tell(proposal.configuration.config_id, outcome)
            proposals.tell(proposal.trial_number, outcome)
            finished_trials += 1
        proposals.abandon()

    def _trial_task(
        self,
        configuration: Configuration,
        guide: Guide,
        prepared: Prepared,
        oracle: Twin,
        seconds: float,
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
                twin=oracle.server_model(configuration) if guide.trusted else None,
                twin_edge_rps=guide.predicted(configuration.config_id),
            ),
            target_seconds=seconds * 0.5 if fixed else None,
            predicted=Prediction(edge_rps=guide.predicted(configuration.config_id)),
            accuracy=prepared.variants[configuration.variant].accuracy,
            hardware=self._hardware,
            label=self._labels.get(configuration.config_id, ""),
        )

    # --- the answer ------------------------------------------------------------------------------

    def _answer(
        self, prepared: Prepared, oracle: Twin, guide: Guide, allowed: Sequence[str]
    ) -> StudyResult:
        request, ledger = self._request, self._ledger
        prover = Prover(
            request=request,
            ledger=ledger,
            executor=self._executor,
            progress=self._progress,
            assets=self._assets,
            load=self._load_plan,
            prepared=prepared,
            oracle=oracle,
            guide=guide,
            candidates=self._candidates,
            allowed=frozenset(allowed),
            baseline=self._baseline,
            labels=self._labels,
            hardware=self._hardware,
            left_s=self._left_s,
            reserve_s=self._reserve_s,
        )
        prover.measure_baseline()
        winner = prover.winner()
        prover.measure_baseline_again()
        verdict: Verdict = "found" if winner is not None else "undecided"
        bound = guide.bound_sentence(request.sla.confidence)
        if winner is None and (proven := prover.infeasibility()):
            verdict, bound = "infeasible", proven
        outcomes = ledger.outcomes
        failed = sum(isinstance(outcome, Failure) for outcome in outcomes)
        self._progress.phase("explaining", 1.0)
        return StudyResult(
            name=request.study,
            verdict=verdict,
            model=request.model,
            sla=request.sla,
            arrivals=request.arrivals.name,
            request_batch_size=inferences_per_request(request.arrivals, request.request_batch_size),
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
                wall_seconds=self._clock() - self._started,
                bound=bound,
            ),
            explanation=explanation(
                winner=winner,
                outcomes=outcomes,
                candidates=[self._candidates[config_id] for config_id in allowed],
                predict=prover.expected,
                cores=self._cores,
                request_batch_size=int(request.batch_sizes.max()),
                trusted=guide.trusted if guide.measured else None,
                trust_reason=guide.reason,
                error_median=guide.error_median(),
            ),
            provenance=request.provenance,
            warnings=tuple(ledger.warnings),
        )
