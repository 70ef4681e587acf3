"""A search from its request to its result, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from analyzer.domain.measurement import Failure, Measurement
from analyzer.domain.study import SearchSummary, StudyResult, Verdict
from analyzer.domain.workload import inferences_per_request
from analyzer.search.build import build
from analyzer.search.certification import Certification
from analyzer.search.context import SearchContext
from analyzer.search.designer import Designer
from analyzer.search.explain import explanation
from analyzer.search.probing import probe
from analyzer.search.screening import Screening, screen
from analyzer.search.trials import TrialRun

if TYPE_CHECKING:
    from analyzer.search.optuna_trials import OptunaTrials

MakeTrials = Callable[[frozenset[str], Designer], "OptunaTrials"]
"""Opens the Optuna study, once the ids of the allowed configurations are known."""


def run_search(context: SearchContext, make_trials: MakeTrials) -> StudyResult:
    """Runs a whole search: build, probe, screen, measure, certify, explain.

    Raises:
        AnalyzerError: Nothing could be built, or the store or the workers failed.
    """
    built = build(context)
    probe(context, built)
    screening = screen(context, built)
    if screening.allowed:
        trials = make_trials(frozenset(screening.allowed), screening.designer)
        TrialRun(context, built, screening, trials).run()
    certification = Certification(context=context, built=built, screening=screening)
    certification.measure_baseline()
    winner = certification.winner()
    certification.measure_baseline_again()
    verdict: Verdict = "found" if winner is not None else "undecided"
    bound = screening.designer.bound(context.request.sla.confidence)
    sentence = str(bound) if bound is not None else None
    if winner is None and (proven := certification.infeasibility()):
        verdict, sentence = "infeasible", proven
    return _result(context, screening, winner, verdict, sentence)


def _result(
    context: SearchContext,
    screening: Screening,
    winner: Measurement | None,
    verdict: Verdict,
    bound: str | None,
) -> StudyResult:
    request, outcomes = context.request, context.log.outcomes
    failed = sum(isinstance(outcome, Failure) for outcome in outcomes)
    context.progress.phase("explaining", 1.0)
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
        baseline_id=context.baseline.config_id,
        pricing=request.pricing,
        search=SearchSummary(
            sampler=request.sampler,
            space=request.space.name,
            space_size=len(context.candidates),
            evaluated_live=len(outcomes) - failed,
            evaluated_twin=sum(1 for edge in screening.predicted.values() if edge),
            failed=failed,
            load_test_seconds=sum(outcome.load_test_seconds for outcome in outcomes),
            wall_seconds=context.clock() - context.started,
            bound=bound,
            budget_s=request.budget_s,
        ),
        explanation=explanation(
            winner,
            screening,
            outcomes,
            cores=context.cores,
            request_batch_size=int(request.batch_sizes.max()),
        ),
        provenance=request.provenance,
        warnings=tuple(context.log.warnings),
        accepted=request.accept,
        recommendable=tuple(
            config_id
            for outcome in outcomes
            if (config_id := outcome.configuration.config_id) in screening.allowed
        ),
    )
