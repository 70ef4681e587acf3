"""A search from its request to its result, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import (
    OUT_OF_TIME,
    Failure,
    Measurement,
    load_tested,
    without_claims,
)
from analyzer.domain.study import Explanation, SearchSummary, StudyResult, Verdict
from analyzer.domain.units import format_duration
from analyzer.domain.workload import inferences_per_request
from analyzer.errors import BudgetEndedError
from analyzer.measure.witness import slower_before
from analyzer.search.budget_advice import (
    budget_needed_s,
    enough_for_a_proof_s,
    keep_time_for_a_slow_model,
    plan_proof,
    tell_at_start,
)
from analyzer.search.build import BuiltVariants, build
from analyzer.search.context import SearchContext
from analyzer.search.designer import Designer
from analyzer.search.engines import keep_engines, with_measured_engines
from analyzer.search.explain import explanation, others_sentence, slower_sentence
from analyzer.search.infeasible import misses_for_good, prove_infeasible
from analyzer.search.measuring import Measuring
from analyzer.search.probing import probe
from analyzer.search.score import score_of
from analyzer.search.screening import Screening, screen
from analyzer.search.wording import scaled_together

if TYPE_CHECKING:
    from analyzer.search.optuna_trials import OptunaTrials

# How much longer than what is missing a completion may take.
_OVERRUN_CAUTION = 1.1
# A loss by the machine's varying speed above 5 % is worth a sentence.
_SPEED_TOLD = 0.95
# So is what a server does for a request, one at a time, above this share of its execution.
_SERVER_TOLD = 0.25

MakeTrials = Callable[[frozenset[str], Designer], "OptunaTrials"]
"""Opens the Optuna study, once the ids of the allowed configurations are known."""


def run_search(context: SearchContext, make_trials: MakeTrials) -> StudyResult:
    """Runs a whole search: build, probe, screen, measure and certify, explain.

    The speeds that it met are kept for later ones.

    Raises:
        AnalyzerError: Nothing could be built, or the store or the workers failed.
    """
    result = _searched(context, make_trials)
    if result.conditions is not None:
        context.speeds.keep(context.request.part, result.conditions.work_us)
    return result


def _searched(context: SearchContext, make_trials: MakeTrials) -> StudyResult:
    """From the first build to the answer, whatever the budget allowed."""
    # Where nothing is measured it is told at the start and at the end: one figure.
    enough_s = enough_for_a_proof_s(context)
    try:
        context.plan.left_before_s("workers")
        context = with_measured_engines(context)
        tell_at_start(context, enough_s)
        keep_time_for_a_slow_model(context)
        built = build(context)
        context = keep_engines(context, built)
        with context.watch:
            if context.watch.error:
                context.log.warn(context.watch.error)
            probe(context, built)
            context.plan.left_before_s("measurement")
            return _search(context, built, make_trials)
    except BudgetEndedError:
        return _unmeasured(context, enough_s)


def _search(context: SearchContext, built: BuiltVariants, make_trials: MakeTrials) -> StudyResult:
    """From the first prediction on."""
    screening = screen(context, built)
    plan_proof(context, screening)
    space, allowed = screening.allowed, screening.recommendable
    trials = make_trials(frozenset(space), screening.designer) if space else None
    measuring = Measuring(context, built, screening, trials)
    measuring.run()
    if context.log.certified(allowed) is None:
        _overrun(context, measuring)
    if context.log.certified(allowed) is not None:
        _tell_gain(context, measuring)
    _note_unmeasured_baseline(context)
    winner = context.log.settled(allowed)
    verdict: Verdict = "found" if winner is not None else "undecided"
    accepted = context.request.accept == "estimated"
    proven = None
    if winner is None and not (accepted and context.log.best_by_evidence(allowed)):
        proven = prove_infeasible(context, built, screening)
    estimate = context.log.best_by_evidence(allowed) if winner is None else None
    if estimate is not None and accepted and proven is None:
        winner, verdict = estimate, "estimated"
    context.progress.phase("explaining", 1.0)
    sentence = _bound(context, built, screening, winner)
    explained = explanation(
        winner,
        screening,
        context.log.outcomes,
        cores=context.cores,
        request_batch_size=int(context.request.batch_sizes.max()),
    )
    factors = {
        outcome.configuration.config_id: screening.speed_factor(outcome.configuration)
        for outcome in context.log.outcomes
        if isinstance(outcome, Measurement)
    }
    taken_back = context.log.taken_back
    unmet_rates = context.log.unmet_rates
    shares = context.log.restate(factors, unmet_rates)
    if told := others_sentence(context.log.outcomes):
        context.log.warn(told)
    if winner is not None:
        factor = shares[winner.configuration.config_id]
        explained = explained.scaled(factor, shares)
        winner = context.log.measurement(winner.configuration.config_id)
        if factor < _SPEED_TOLD:
            context.log.warn(
                "This machine's speed varied while it was measured; edges are told over all of "
                f"that time, {1 - factor:.0%} below those that short runs found."
            )
        if winner is not None:
            _tell_server(context, winner)
            if together := scaled_together(winner.configuration):
                context.log.warn(together)
        if verdict == "found":
            context.log.take_back_doubts()
            _tell_slower_before(context)
    if proven is not None:
        verdict, sentence = "infeasible", proven
    open_ = verdict in ("undecided", "estimated") and not misses_for_good(context, screening)
    needed_s = budget_needed_s(context, measuring, estimate) if open_ else None
    result = _result(context, allowed, screening.predicted, taken_back)
    return replace(
        result,
        verdict=verdict,
        recommended_id=winner.configuration.config_id if winner is not None else None,
        search=replace(result.search, bound=sentence, budget_needed_s=needed_s),
        explanation=explained,
        speed_factors=tuple(factors.items()),
        unmet_rates=unmet_rates,
    )


def _tell_slower_before(context: SearchContext) -> None:
    """Says that earlier studies met slower states of this machine."""
    sla, log = context.request.sla, context.log
    slower = slower_before(log.conditions, log.earlier_us, sla)
    if slower is not None:
        log.warn(slower_sentence(slower, fixed=bool(sla.fixed_rps)))


def _tell_server(context: SearchContext, winner: Measurement) -> None:
    """Tells that the embedded server shapes the answer where a model is about as quick as it."""
    serial, test = context.constants.serial, winner.headline
    if serial is None or test is None:
        return
    batches = sum(of.count for of in test.executions)
    inferences = sum(of.count * of.batch_size for of in test.executions)
    model_ms = sum(of.count * of.mean_ms for of in test.executions)
    requests = inferences / context.request.batch_sizes.mean()
    server_ms = serial.execution_ms * batches + serial.request_ms * requests
    if server_ms > _SERVER_TOLD * model_ms:
        context.log.warn(
            f"The model takes {model_ms / requests:.2g} ms of a request here, and the embedded "
            f"server's own work, one request at a time, about {server_ms / requests:.2g} ms (an "
            "estimate): on a Triton other rates hold, and another configuration may be better. "
            "--server triton measures there."
        )


def _unmeasured(context: SearchContext, enough_s: float) -> StudyResult:
    """The answer where the budget leaves no time for a measurement: from what was stored before."""
    log = context.log
    _note_unmeasured_baseline(context)
    if any(isinstance(outcome, Measurement) for outcome in log.outcomes):
        # Where nothing was measured before either, that is the answer itself.
        budget = format_duration(context.request.budget_s)
        log.warn(f"--budget {budget} did not suffice for measuring anything more.")
    refused = {
        outcome.configuration.variant
        for outcome in log.outcomes
        if isinstance(outcome, Failure) and outcome.stage == "build"
    }
    allowed = {
        config_id: configuration
        for config_id, configuration in context.recommendable.items()
        if configuration.precision in context.request.precisions
        and configuration.variant not in refused
    }
    verdict: Verdict = "undecided"
    if (winner := log.settled(allowed)) is not None:
        verdict = "found"
        log.take_back_doubts()
    elif context.request.accept == "estimated":
        winner = log.best_by_evidence(allowed)
        verdict = "estimated" if winner is not None else verdict
    result = _result(context, allowed, {}, log.taken_back)
    return replace(
        result,
        verdict=verdict,
        recommended_id=winner.configuration.config_id if winner is not None else None,
        search=replace(result.search, budget_needed_s=None if verdict == "found" else enough_s),
    )


def _overrun(context: SearchContext, measuring: Measuring) -> None:
    """Tries to complete a first proof beyond the budget, by at most a quarter of it."""
    missing_s = measuring.missing_s
    if missing_s is None:
        return
    plan, start_s = context.plan, context.server_start_s
    left_s, all_s = max(plan.left_s, 0.0), plan.overrun_s
    expected_s = start_s + _OVERRUN_CAUTION * missing_s
    if not left_s < expected_s <= all_s:
        return
    # An attempt: it may end sooner, or without a proof.
    context.progress.warn(
        "Nothing is proven yet: one more run tries to complete a first proof, and may take about "
        f"{max(expected_s - left_s, 1.0):.0f} s beyond --budget, {all_s - left_s:.0f} s at most."
    )
    # A last run that is cut short by a few requests would waste them all; a PASS ends it sooner.
    plan.grant(all_s - plan.left_s)
    measuring.complete(all_s - start_s)
    plan.revoke()
    if (beyond_s := -plan.left_s) >= 1.0:
        context.log.warn(f"A run to complete a first proof took {beyond_s:.0f} s beyond --budget.")


def _tell_gain(context: SearchContext, measuring: Measuring) -> None:
    """Measures the baseline beyond the budget where a late proof left no time for it."""
    plan, log, config_id = context.plan, context.log, context.baseline.config_id
    beyond_s = measuring.baseline_s - plan.left_s
    tried = log.measurement(config_id) is not None or log.failed(config_id)
    if tried or not 0.0 < beyond_s <= plan.beyond_s:
        return
    context.log.warn(
        "The proof left no time for the baseline, so that its edge is measured beyond --budget: "
        f"about {max(beyond_s, 1.0):.0f} s."
    )
    plan.grant(beyond_s)
    measuring.measure_baseline()
    plan.revoke()


def _bound(
    context: SearchContext,
    built: BuiltVariants,
    screening: Screening,
    winner: Measurement | None,
) -> str | None:
    """What may be said of the other configurations, from the edges as they were found."""
    sla, designer = context.request.sla, screening.designer
    for config_id, outcome in context.log.latest.items():
        # What was measured again, and the baseline.
        if outcome is not context.log.first[config_id] or config_id not in screening.allowed:
            score = score_of(outcome, sla)
            designer.update(config_id, score.value, feasible=score.feasible, exact=score.exact)
    recommended = winner.configuration.config_id if winner is not None else None
    bound = designer.bound(sla.confidence, recommended=recommended)
    if bound is None:
        return None
    late = {key for key, failure in built.excluded.items() if failure.reason == OUT_OF_TIME}
    unbuilt = sum(candidate.variant in late for candidate in context.candidates.values())
    return str(replace(bound, unbuilt=unbuilt))


def _note_unmeasured_baseline(context: SearchContext) -> None:
    """Records that the budget ended before the baseline's turn; ``--resume`` measures it then."""
    baseline = context.baseline
    if baseline.config_id not in context.log.latest:
        failure = Failure(
            configuration=baseline,
            stage="search",
            reason=OUT_OF_TIME,
            message="The search ended before the baseline was measured.",
            hint="Give it more time with --budget.",
        )
        context.log.record(failure, role="baseline")


def _result(
    context: SearchContext,
    allowed: Mapping[str, Configuration],
    predicted: Mapping[str, float | None],
    taken_back: tuple[str, ...],
) -> StudyResult:
    """What a search ends with, its verdict and its explanation apart.

    Args:
        allowed: Those that may be recommended, by id, and ``predicted`` as of :class:`Screening`.
        taken_back: As of :class:`StudyResult`.
    """
    request, outcomes = context.request, context.log.outcomes
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    failed = sum(failure.reason != OUT_OF_TIME for failure in failures)
    return StudyResult(
        name=request.study,
        verdict="undecided",
        model=request.model,
        sla=request.sla,
        arrivals=request.arrivals.name,
        request_batch_size=inferences_per_request(request.arrivals, request.request_batch_size),
        server=request.server,
        outcomes=without_claims(outcomes, taken_back),
        recommended_id=None,
        baseline_id=context.baseline.config_id,
        pricing=request.pricing,
        search=SearchSummary(
            sampler=request.sampler,
            space=request.space.name,
            space_size=len(context.candidates),
            evaluated_live=load_tested(outcomes),
            evaluated_twin=sum(predicted.get(key) is not None for key in context.candidates),
            failed=failed,
            load_test_seconds=sum(outcome.load_test_seconds for outcome in outcomes),
            wall_seconds=context.plan.spent_s,
            budget_s=request.budget_s,
        ),
        explanation=Explanation(),
        provenance=request.provenance,
        warnings=tuple(context.log.warnings),
        accepted=request.accept,
        engines=context.assets.engines,
        conditions=context.log.conditions,
        taken_back=taken_back,
        recommendable=tuple(
            config_id
            for outcome in outcomes
            if (config_id := outcome.configuration.config_id) in allowed
        ),
    )
