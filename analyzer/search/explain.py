"""Why the winner wins: steps from the simplest configuration, what-if, importance, the limit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import Failure, Measurement
from analyzer.domain.space import PARAMETER_NAMES
from analyzer.domain.study import Explanation, Step, WhatIf
from analyzer.domain.twin_error import with_errors
from analyzer.domain.units import counted
from analyzer.search.screening import Screening

# A configuration's predicted edge, corrected by what was measured; None if unknown.
PredictEdge = Callable[[Configuration], float | None]

# In the order of the steps to the winner; that of batching sets the largest batch too.
_STEPS = tuple(name for name in PARAMETER_NAMES if name not in ("quantization", "max_batch_size"))
_SETTINGS = (*_STEPS, "max_batch_size")
# Of these the values have no order: each is told, not only the neighbours of the winner's.
_WITHOUT_ORDER = (
    "precision",
    "backend",
    "accelerator",
    "graph_level",
    "execution_mode",
    "cuda_graphs",
    "pinned_memory",
    "cudnn_search",
    "dynamic_batching",
    "preferred_batch_size",
)
# Told by their name and value.
_NAMED = ("graph_level", "execution_mode", "cuda_graphs", "pinned_memory", "cudnn_search")
# A preferred size varies with the largest batch, of which it is a part.
_IMPORTANT = tuple(name for name in _SETTINGS if name != "preferred_batch_size")
# Of the cores: what other processes took above this share is worth a sentence.
_OTHERS_TOLD = 0.1
# Above this utilization of the cores a server is limited by them.
_BUSY = 0.85


def contributions(
    winner: Configuration,
    outcomes: Sequence[Measurement | Failure],
    predict: PredictEdge,
    *,
    request_batch_size: int = 1,
) -> tuple[Step, ...]:
    """From fp32, one instance, one thread and no batching to ``winner``, one setting at a time."""
    measured = {
        outcome.configuration.config_id: outcome.edge.rate_rps
        for outcome in outcomes
        if isinstance(outcome, Measurement) and outcome.edge.interval_rps != (None, None)
    }
    at = Configuration(
        device=winner.device,
        max_batch_size=request_batch_size if winner.max_batch_size else 0,
        intra_op_threads=1 if winner.device == "cpu" else None,
    ).canonical()
    steps = [_step("fp32, one instance, no batching", at, measured, predict)]
    for setting in _STEPS:
        after = _towards(at, winner, setting)
        if after.config_id != at.config_id:
            steps.append(_step(_phrase(setting, after), after, measured, predict))
            at = after
    if at.config_id != winner.config_id:
        steps.append(_step("everything else", winner, measured, predict))
    return tuple(steps)


def _towards(at: Configuration, winner: Configuration, setting: str) -> Configuration:
    if setting == "precision":
        changed = replace(at, precision=winner.precision, quantization=winner.quantization)
    elif setting == "dynamic_batching":
        changed = replace(
            at,
            dynamic_batching=winner.dynamic_batching,
            max_batch_size=winner.max_batch_size,
            preferred_batch_size=None,
        )
    else:
        changed = replace(at, **{setting: getattr(winner, setting)})
    return changed.canonical()


def _phrase(setting: str, configuration: Configuration) -> str:
    if setting == "precision":
        return configuration.variant.label
    if setting == "dynamic_batching":
        return f"batches of up to {configuration.max_batch_size}"
    if setting == "max_queue_delay_us":
        return f"queue delay {configuration.max_queue_delay_us} us"
    if setting == "preferred_batch_size":
        return f"preferred batches {list(configuration.preferred_batch_size or ())}"
    if setting == "backend":
        return configuration.backend
    if setting == "accelerator":
        return configuration.accelerator or "no accelerator"
    if setting in _NAMED:
        return f"{setting.replace('_', ' ')} {_value(configuration, setting)}"
    if setting == "inter_op_threads":
        return counted(configuration.inter_op_threads or 0, "inter-op thread")
    if setting == "intra_op_threads" and not configuration.intra_op_threads:
        return "one thread per core"  # what a runtime takes by itself
    noun = {"instance_count": "instance", "intra_op_threads": "thread"}[setting]
    return counted(getattr(configuration, setting), noun)


def _step(
    phrase: str,
    configuration: Configuration,
    measured: Mapping[str, float | None],
    predict: PredictEdge,
) -> Step:
    config_id = configuration.config_id
    known = config_id in measured
    return Step(
        setting=phrase,
        config_id=config_id,
        edge_rps=measured[config_id] if known else predict(configuration),
        measured=known,
    )


def what_if(
    winner: Configuration, candidates: Sequence[Configuration], predict: PredictEdge
) -> tuple[WhatIf, ...]:
    """What the twin expects of each candidate that differs from ``winner`` in one setting.

    Of the values of one setting only the neighbours of the winner's are told.
    """
    base = predict(winner)
    found: dict[str, list[Configuration]] = defaultdict(list)
    for candidate in candidates:
        names = {name for name in _SETTINGS if _value(candidate, name) != _value(winner, name)}
        if winner.dynamic_batching and "max_batch_size" in names:
            # With no preferred list of its own the preferred size is the maximum itself.
            names -= {"preferred_batch_size"}
        if len(names) == 1:
            found[names.pop()].append(candidate)
    rows = []
    for setting, others in sorted(found.items()):
        for other in _neighbours(winner, others, setting):
            edge = predict(other)
            rows.append(
                WhatIf(
                    setting=setting,
                    from_value=_shown(winner, setting),
                    to_value=_shown(other, setting),
                    predicted_edge_rps=edge,
                    change_fraction=edge / base - 1.0 if edge is not None and base else None,
                )
            )
    return tuple(rows)


def _neighbours(
    winner: Configuration, others: Sequence[Configuration], setting: str
) -> list[Configuration]:
    if setting in _WITHOUT_ORDER:
        return list(others)
    own = getattr(winner, setting) or 0

    def value(configuration: Configuration) -> int:
        return int(getattr(configuration, setting) or 0)

    below = [other for other in others if value(other) < own]
    above = [other for other in others if value(other) > own]
    return [
        *([max(below, key=value)] if below else []),
        *([min(above, key=value)] if above else []),
    ]


def _value(configuration: Configuration, setting: str) -> str:
    """A setting's value; the precision together with how int8 was made."""
    if setting == "precision":
        return f"{configuration.precision}-{configuration.quantization}"
    value = getattr(configuration, setting)
    return str(list(value) if isinstance(value, tuple) else value)


def _shown(configuration: Configuration, setting: str) -> str:
    return configuration.variant.label if setting == "precision" else _value(configuration, setting)


def importance(
    candidates: Sequence[Configuration], edges: Sequence[float | None]
) -> tuple[tuple[str, float], ...]:
    """The share of the edges' variance that each setting alone explains, the largest first.

    The correlation ratio: the variance of the conditional means over the whole variance, over all
    candidates with equal weight; each is from 0 to 1. What only works together is in none of them.
    Where settings vary together (as instances and threads do on few cores) their shares overlap,
    and add up to more than 1; only where they vary independently are these the first-order indices
    of Sobol, which do not.
    """
    values = np.array([edge or 0.0 for edge in edges])
    total = float(values.var()) if len(values) else 0.0
    if total <= 0:
        return ()
    shares = []
    for setting in _IMPORTANT:
        groups: dict[str, list[float]] = defaultdict(list)
        for candidate, value in zip(candidates, values, strict=True):
            groups[_value(candidate, setting)].append(float(value))
        if len(groups) > 1:
            mean = float(values.mean())
            between = sum(len(g) * (np.mean(g) - mean) ** 2 for g in groups.values()) / len(values)
            shares.append((setting, float(between / total)))
    return tuple(sorted(shares, key=lambda pair: -pair[1]))


def limited_by(winner: Measurement, cores: int) -> str:
    """What keeps the winner from more, from its headline; empty without one."""
    test = winner.headline
    if test is None:
        return ""
    queue, infer = test.breakdown_ms.queue, test.breakdown_ms.compute_infer
    cpu = test.resources.cpu_utilization
    if cpu is not None and cpu > _BUSY:
        return (
            f"Threads: the server keeps {cpu:.0%} of the {cores} cores busy; more instances or "
            "threads would only share them."
        )
    if queue is None or infer is None:
        return ""
    if queue > infer:
        return (
            f"Queue: a request waits {queue:.3g} ms for its turn and computes {infer:.3g} ms; "
            "a faster variant or a further device shortens both."
        )
    return (
        f"Compute: a request computes {infer:.3g} ms and waits {queue:.3g} ms; a faster variant "
        "is what would help."
    )


def drift_sentence(outcomes: Sequence[Measurement | Failure]) -> str:
    """How much of the twin's error is the model's, and how much the machine's changing speed.

    Empty where nobody watched the machine beside at least two measured edges.
    """
    measured = [outcome for outcome in outcomes if isinstance(outcome, Measurement)]
    found = [m.predicted for m in with_errors(measured)]
    models = [abs(p.model_error) for p in found if p.model_error is not None]
    if len(models) < 2:
        return ""
    model = float(np.median(models))
    drift = float(np.median([abs(p.drift) for p in found if p.drift is not None]))
    return (
        f" At one and the same speed of the machine it would be {model:.0%}; between these"
        f" measurements the speed differed by {drift:.0%}."
    )


def others_sentence(outcomes: Sequence[Measurement | Failure]) -> str:
    """Where other processes took a good part of the cores from the load tests; else empty."""
    known = [
        (test.duration_s, test.resources.other_utilization)
        for outcome in outcomes
        if isinstance(outcome, Measurement)
        for test in outcome.load_tests
        if test.resources.other_utilization is not None
    ]
    watched_s = sum(seconds for seconds, _ in known)
    share = sum(seconds * other for seconds, other in known) / watched_s if watched_s else 0.0
    if share <= _OTHERS_TOLD:
        return ""
    return (
        f"Other processes kept {share:.0%} of the cores busy during the load tests: rates are "
        "those beside them."
    )


def slower_sentence(slower: float, *, fixed: bool) -> str:
    """That earlier studies met slower states of this machine, and what that means.

    Args:
        slower: How many times slower than ever in this study.
        fixed: Whether a rate was asked for.
    """
    means = (
        "whether it carries the asked rate then is not known"
        if fixed
        else "what was certified is a rate that it is expected to carry then, too"
    )
    return (
        f"In earlier studies of the last week this machine was {slower:.2g} times slower for some "
        f"of the time than ever in this one: {means}."
    )


def explanation(
    winner: Measurement | None,
    screening: Screening,
    outcomes: Sequence[Measurement | Failure],
    *,
    cores: int,
    request_batch_size: int,
) -> Explanation:
    """All of it; without a winner only the importance and whether the twin was trusted.

    From the predictions that there are: only steps outside the space are simulated now.
    """
    designer, predict = screening.designer, screening.expected
    candidates = list(screening.allowed.values())
    edges = [predict(candidate) for candidate in candidates]
    found = Explanation(
        trusted=designer.trusted if designer.compared else None,
        trust_reason=designer.trust_reason + drift_sentence(outcomes),
        error_median=designer.error_median,
        importance=importance(candidates, edges) if any(edges) else (),
    )
    if winner is None:
        return found
    return replace(
        found,
        limited_by=limited_by(winner, cores),
        contributions=contributions(
            winner.configuration, outcomes, predict, request_batch_size=request_batch_size
        ),
        what_if=what_if(winner.configuration, candidates, predict),
    )
