"""Which budget a proof takes: from one inference, from the screen, and from what was measured."""

from __future__ import annotations

import math

from analyzer.domain.measurement import Failure, Measurement
from analyzer.domain.units import format_duration
from analyzer.measure.correlation import SUPPOSED_LOAD, guessed_inflation, requests_needed
from analyzer.search.context import SearchContext
from analyzer.search.measuring import Measuring
from analyzer.search.probing import rough_proof_s
from analyzer.search.screening import Screening

# So many times one inference after the other is more than batches, instances and precisions make of
# it together where a budget matters: where an inference takes long, batches gain little.
_GAIN_MAX = 16.0
# The least by which a budget grows that brought no measurement: what a start takes varies by half
# on a busy machine.
_CLEARLY_MORE = 1.5
# So many times the least that a first measurement takes may be too little, since builds and the
# compilation of the simulator come on top where nothing is cached.
_SCARCE = 2.0


def tell_at_start(context: SearchContext, enough_s: float) -> None:
    """Tells the user at the start where the budget is too small for a proof, as far as is known.

    The budget that suffices (``enough_s``) is told, and not kept: at the end more is known, and
    the answer speaks of what came of it.
    """
    request, plan, proof_s = context.request, context.plan, _proof_guess_s(context)
    suffices = f"by what is known now, about {_spelled(enough_s)} suffices for a proof."
    if plan.left_s < _SCARCE * plan.least_s("workers"):
        budget = format_duration(request.budget_s)
        context.progress.warn(f"--budget {budget} may not suffice for a measurement; {suffices}")
        return
    inference_ms, budget_ms = request.inference_s * 1e3, request.sla.latency_budget_ms
    if request.device == "cpu" and inference_ms > budget_ms:
        context.log.warn(
            f"One inference took {inference_ms:,.0f} ms when the model was tried, and the latency "
            f"budget is {budget_ms:,.0f} ms: few configurations may keep that, if any.",
            until_proven=True,
        )
    elif proof_s > plan.left_s - plan.least_s("workers"):
        context.log.warn(
            f"One inference took {inference_ms:,.0f} ms: a proof is expected "
            f"to take {_spelled(proof_s)} under load, for which --budget leaves no room.",
            until_proven=True,
        )
        context.progress.warn(suffices.capitalize())


def keep_time_for_a_slow_model(context: SearchContext) -> None:
    """Lets builds and probes end sooner where a first proof will take most of the budget.

    Its rate is supposed to be one that one inference after the other would keep half busy; on a GPU
    nothing is known of that yet.
    """
    request = context.request
    request_s = request.inference_s * float(request.batch_sizes.mean())
    if request_s > 0.0 and request.device == "cpu":
        proof_s = rough_proof_s(context, 1.0 / request_s)
        context.plan.expect_proof_of_at_least(context.server_start_s + proof_s)


def plan_proof(context: SearchContext, screening: Screening) -> None:
    """Tells the plan what a first proof will take, and the user where too little is left."""
    proof_s = screening.proof_s()
    if proof_s is None:
        return
    needed_s = context.server_start_s + proof_s
    context.plan.expect_proof(needed_s)
    if context.plan.left_s < needed_s and context.log.certified(screening.recommendable) is None:
        context.log.warn(
            f"A first proof is expected to take {needed_s:.0f} s, its server's start included; "
            f"{max(context.plan.left_s, 0.0):.0f} s of --budget were left for it.",
            until_proven=True,
        )


def enough_for_a_proof_s(context: SearchContext) -> float:
    """The budget that suffices where this one does not, from what one inference took."""
    needed_s = context.server_start_s + _proof_guess_s(context)
    enough_s = context.plan.budget_that_suffices_s(needed_s, stage="workers")
    return max(enough_s, _CLEARLY_MORE * context.request.budget_s)


def budget_needed_s(
    context: SearchContext, measuring: Measuring, estimate: Measurement | None
) -> float | None:
    """The budget that is expected to prove ``estimate``, the best so far; None if unknown.

    Without one no measurement brought anything in this budget, so that its server and its load
    tests are still to come, as slow as this machine has turned out; not where a certificate failed.
    """
    if estimate is None and any(_failed(outcome) for outcome in context.log.outcomes):
        return None
    missing_s = measuring.missing_s_of(estimate)
    proof_s = None if missing_s is None else context.server_start_s + missing_s
    if proof_s is None and estimate is not None and estimate.certificate is None:
        # Too slow for any proof in this budget, as was expected of the best from the start.
        first_s = context.plan.first_proof_s or 0.0
        proof_s = first_s if first_s > context.request.budget_s else None
    if proof_s is None:
        return None
    if estimate is not None:
        return context.plan.budget_that_suffices_s(proof_s)
    enough_s = context.plan.budget_that_suffices_s(proof_s, stage="measurement")
    return max(enough_s, _CLEARLY_MORE * context.request.budget_s)


def _failed(outcome: Measurement | Failure) -> bool:
    """Whether a certificate shows that a rate is too high: no time proves it."""
    certificate = outcome.certificate if isinstance(outcome, Measurement) else None
    return certificate is not None and certificate.verdict == "FAIL"


def _proof_guess_s(context: SearchContext) -> float:
    """Seconds under load of a proof before anything but one inference was timed; 0 without that.

    The geometric mean of the least (no request late or correlated, the rate of the best that
    batches, instances and precisions may make of it) and of the most (one request after the other,
    as late and as correlated as is supposed without a twin).
    """
    request = context.request
    request_s = request.inference_s * float(request.batch_sizes.mean())
    least = requests_needed(request.sla, inflation=1.0, miss_rate=0.0, claim=1) or math.inf
    correlated = guessed_inflation(SUPPOSED_LOAD)
    most = requests_needed(request.sla, inflation=correlated, miss_rate=None, claim=1) or math.inf
    return request_s * math.sqrt(least / _GAIN_MAX * most) if request_s > 0.0 else 0.0


def _spelled(seconds: float) -> str:
    """In steps of five seconds where it is more than that."""
    return format_duration(math.ceil(seconds / 5.0) * 5.0 if seconds > 5.0 else seconds)
