"""Builds the variants of a search, and sets apart those that break the accuracy limit."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from analyzer.domain.configuration import Configuration, VariantKey
from analyzer.domain.measurement import Accuracy, Failure
from analyzer.errors import AnalyzerError, BuildTimeoutError, InputError
from analyzer.measure.failures import as_failure
from analyzer.measure.jobs import Job
from analyzer.measure.tasks import BuildTask
from analyzer.search.context import SearchContext
from analyzer.search.request import SearchRequest
from analyzer.search.wording import complexity
from analyzer.twin.calibration import VariantCalibration

if TYPE_CHECKING:
    from analyzer.variants.build import Variant

# Of the time until the first proof must begin: after the first share no further build is begun, and
# the one that runs then, the most promising of them, has until the second; where there is time, so
# many seconds in any case. What is not built by then is left out; the model itself has all the time
# that a first measurement does not take.
_BEGIN_SHARE = 0.5
_BUILD_SHARE = 0.9
_BUILD_S_MIN = 5.0
# A worker is held to hang so long after the builds should have ended.
_GRACE_S = 60.0
# Of one variant, for the progress bar.
_EXPECTED_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltVariants:
    """The variants of a study.

    Args:
        variants: Those that were built, with their accuracy.
        excluded: Why a variant may not be recommended, as a failure of its simplest configuration.
        calibrations: Probed service times; filled by :func:`~analyzer.search.probing.probe`.
    """

    variants: dict[VariantKey, Variant] = field(default_factory=dict)
    excluded: dict[VariantKey, Failure] = field(default_factory=dict)
    calibrations: dict[VariantKey, VariantCalibration] = field(default_factory=dict)

    def accuracy(self, configuration: Configuration) -> Accuracy | None:
        """The accuracy of a configuration's variant; None without one."""
        variant = self.variants.get(configuration.variant)
        return variant.accuracy if variant is not None else None


def build(context: SearchContext) -> BuiltVariants:
    """Builds every variant that a candidate or the baseline needs.

    Raises:
        AnalyzerError: The baseline's variant cannot be served, or the workers failed.
        InputError: No variant that may be recommended can be built.
        BudgetEndedError: There is no time for a measurement after it.
    """
    built = BuiltVariants()
    simplest: dict[VariantKey, Configuration] = {}
    for configuration in (*context.candidates.values(), context.baseline):
        known = simplest.get(configuration.variant)
        if known is None or complexity(configuration) < complexity(known):
            simplest[configuration.variant] = configuration
    for key in [key for key in simplest if unknowable(key, context.request)]:
        built.excluded[key] = Failure(
            configuration=simplest.pop(key),
            stage="build",
            reason="accuracy",
            message=f"{key.label} is not considered: without real data nobody knows its accuracy. "
            "Give --calibration-data, or name it with --precisions.",
        )
    context.progress.phase("building variants", _EXPECTED_S * len(simplest))
    context.progress.detail(", ".join(key.label for key in simplest))
    plan = context.plan
    left_s = plan.preparation_left_s
    begin_s, seconds = _BEGIN_SHARE * left_s, max(_BUILD_S_MIN, _BUILD_SHARE * left_s)
    seconds = min(seconds, plan.left_before_s("probes"))
    found = _run(context, tuple(simplest), seconds, begin_s=begin_s)
    baseline = context.baseline.variant
    if isinstance(found[baseline], AnalyzerError):
        found |= _run(context, (baseline,), plan.left_before_s("probes"))
    if isinstance(found[baseline], BuildTimeoutError):
        raise plan.ended()
    for key, variant in found.items():
        if isinstance(variant, AnalyzerError):
            built.excluded[key] = as_failure(simplest[key], variant, stage="build")
            continue
        built.variants[key] = variant
        if reason := exclusion(variant.accuracy, key, context.request):
            built.excluded[key] = Failure(
                configuration=simplest[key], stage="build", reason="accuracy", message=reason
            )
    _require_candidates(context, built)
    _tell(context, built)
    return built


def _run(
    context: SearchContext,
    keys: tuple[VariantKey, ...],
    seconds: float,
    *,
    begin_s: float = math.inf,
) -> dict[VariantKey, Variant | AnalyzerError]:
    """Builds beside the start of the workers where they are of this machine, else on one."""
    task = BuildTask(
        assets=context.assets, keys=keys, begin_seconds_max=begin_s, seconds_max=seconds
    )
    local = context.executor.local
    # Engines are for the GPU of a lease, on which nothing else runs then.
    engines = any(key.backend == "tensorrt" for key in keys)
    if local is not None and not engines:
        return task(local)
    found: dict[VariantKey, Variant | AnalyzerError] = {}
    for result in context.run([Job("build", task, seconds + _GRACE_S, "build variants")]):
        if result.error is not None:
            raise result.error
        assert isinstance(result.value, dict)
        found |= result.value
    return found


def _require_candidates(context: SearchContext, built: BuiltVariants) -> None:
    """Refuses a search whose precisions the model cannot have: nothing is to be searched.

    Raises:
        InputError: With what failed.
    """
    asked = {configuration.variant for configuration in context.candidates.values()}
    left_out = [built.excluded[key] for key in asked if key in built.excluded]
    if asked and len(left_out) == len(asked) and {of.reason for of in left_out} == {"build"}:
        raise InputError(
            f"Nothing that --precisions allows can be built: {left_out[0].message}",
            hint=left_out[0].hint or "--precisions fp32 measures the model as it is.",
        )


def _tell(context: SearchContext, built: BuiltVariants) -> None:
    """Records what was excluded, and warns of what qualifies the result."""
    baseline = context.baseline.variant
    if baseline not in built.variants:
        failure = built.excluded[baseline]
        raise AnalyzerError(
            f"The model itself cannot be served: {failure.message}", hint=failure.hint
        )
    for key, failure in built.excluded.items():
        context.log.record(failure, role="variant")
        named = key.label in failure.message
        context.progress.warn(failure.message if named else f"{key.label}: {failure.message}")
    for key, variant in built.variants.items():
        if key not in built.excluded:
            context.log.warnings += [f"{key.label}: {note}" for note in variant.notes]
    if context.assets.calibration_path is None:
        context.log.warn(
            "No real data was given (--calibration-data): accuracy was not measured, and "
            "requests carry made-up inputs."
        )


def unknowable(key: VariantKey, request: SearchRequest) -> bool:
    """Whether nothing could tell how well a variant that nobody named answers: it is not built."""
    return key.quantized and request.calibration_path is None and not request.precisions_named


def exclusion(accuracy: Accuracy | None, key: VariantKey, request: SearchRequest) -> str:
    """Why a variant may not be recommended; empty if it may."""
    as_it_is = key.precision == "fp32" and key.execution.accelerator is None
    if as_it_is or accuracy is None:
        return ""
    limit = request.sla.max_accuracy_drop
    if accuracy.synthetic:
        if not key.quantized and accuracy.drop is not None and accuracy.drop > limit:
            return f"{key.label} is numerically off: {accuracy.metric} {accuracy.value}."
        return ""
    worst = accuracy.interval[1] if accuracy.interval is not None else accuracy.drop
    if worst is not None and worst > limit:
        seen = accuracy.drop if accuracy.drop is not None else worst
        rows = " More rows (--calibration-data) may clear it." if seen <= limit else ""
        return (
            f"{key.label} is not considered: it may lose {worst:.4f} of {accuracy.metric} "
            f"(seen: {seen:.4f}, limit {limit:g}).{rows}"
        )
    return ""
