"""What to do where nothing was proven: what is missing, the budget that proves it, the command."""

from __future__ import annotations

import math
import shlex
import textwrap

from analyzer.domain.answer import Miss
from analyzer.domain.measurement import Failure
from analyzer.domain.sla import Sla
from analyzer.domain.study import StudyResult
from analyzer.domain.units import DURATION_S_MAX, format_duration
from analyzer.report.commands import (
    budget_options,
    command_of,
    export_command,
    store_options,
    without_options,
)
from analyzer.report.entries import Closest, StudyReport
from analyzer.report.unfinished import unfinished_advice
from analyzer.report.wording import (
    GIVEN,
    digits_apart,
    milliseconds,
    number,
    percent,
    rate,
    size,
)
from analyzer.stats.certificate import claim_confidence, expected_requests

# Options of the command that the next one sets anew, and those that take a value.
_SET_ANEW = {"--budget": True, "--store": True, "--study": True, "--resume": False}

# The next budget, where the one that suffices is unknown: this much more, and at least so much.
_MORE = 2.0
_LEAST_S = 60.0

# Of the message of what failed; analyze report has all of it.
_MESSAGE_CHARACTERS = 300

# A proof that needs so many times what was counted is out of reach: no figure helps.
_REACH = 1000.0
#: Nor is there one where it takes so many seconds.
REACH_S = 24 * 3600.0

_LIMITS = {
    "latency_budget_ms": ("the latency budget", milliseconds),
    "target_rate_rps": ("the target rate", rate),
    "max_memory_bytes": ("the memory limit", size),
    "max_accuracy_drop": ("the accuracy limit", percent),
    "certified_requests": ("the evidence", lambda value, digits=9: f"{number(value, 9)} requests"),
}


#: Of what has a certificate that passed, and nothing certified.
NOT_UPHELD = (
    "Its certificate passed, but the machine was worse later than in its runs, or more confidence "
    "is asked for now."
)


def miss_sentence(miss: Miss, sla: Sla, *, passed: bool = False) -> str:
    """A limit that what came closest misses.

    Args:
        passed: Whether it has a certificate that passed, which the search did not uphold.
    """
    name, show = _LIMITS[miss.limit]
    observed, required = miss.observed, miss.required
    if miss.limit == "certified_requests":
        if not observed:
            fewest = expected_requests(
                miss_rate=0.0,
                inflation=1.0,
                percentile=sla.percentile,
                confidence=claim_confidence(sla.confidence, 1),
            )
            return f"It has no certificate yet; one takes at least {number(fewest, 9)} requests."
        if passed:
            return NOT_UPHELD
        if required is None or required > _REACH * observed:
            return f"Its certificate counts {show(observed)}, and that did not decide."
        more = number(required - observed, 9)
        return f"Its certificate counts {show(observed)}; it needs about {more} more."
    if observed is None:
        lost = f"more than {percent(round(1 - sla.percentile / 100, 9))} of the requests failed"
        return f"It misses {name} of {show(required, GIVEN)}: {lost} or nothing valid was measured."
    found = show(observed, digits_apart(observed, required or 0.0))
    return f"It misses {name}: {found} where {show(required, GIVEN)} is required."


def advice(report: StudyReport) -> tuple[str, ...]:
    """What to do next, a sentence each; empty where a configuration is certified."""
    result, closest = report.result, report.closest
    if result.verdict == "found":
        return ()
    if result.unfinished:
        return unfinished_advice(report)
    sentences: list[str] = []
    if _time_helps(report):
        sentences.append(_more_time(report))
    if result.verdict == "undecided" and closest and _lacks_only_proof(closest):
        config_id = closest.entry.configuration.config_id
        command = export_command(result, report.store_url, config_id)
        sentences.append(
            f"To use it without a proof: {command} (or search with --accept estimated)."
        )
    for miss in closest.misses if closest else ():
        observed = miss.observed
        if miss.limit == "latency_budget_ms" and observed is not None:
            sentences.append(
                f"A latency budget of about {number(observed * 1.1, 2)} ms is within reach "
                f"(--latency-budget), or a lower --percentile."
            )
        elif miss.limit == "max_memory_bytes" and observed is not None:
            sentences.append(
                f"It needs {size(observed)}: raise --max-memory to about {size(observed * 1.1)}."
            )
        elif miss.limit == "max_accuracy_drop" and observed is not None:
            sentences.append(
                f"It may lose {percent(observed)}: raise --max-accuracy-drop to that, or score "
                "more rows (--calibration-data)."
            )
        elif miss.limit == "target_rate_rps":
            sentences.append("Lower --target-rate: one device does not carry it.")
    if nothing_allowed(report):
        if closest and _lacks_only_proof(closest):
            precision = closest.entry.configuration.precision
            sentences.append(f"It is kept as {precision}: add that to --precisions.")
        sentences.append("Where a variant breaks the accuracy limit: raise --max-accuracy-drop.")
        return tuple(sentences)
    late = closest is None or not all(miss.lasts for miss in closest.misses)
    if result.verdict == "infeasible" and late:
        sentences.append("A faster machine or a smaller model shortens every latency.")
    return tuple(sentences)


def nothing_allowed(report: StudyReport) -> bool:
    """Whether nothing that may be recommended was left to measure, whatever else keeps the SLA."""
    return report.result.verdict == "infeasible" and report.result.recommendable == ()


def _time_helps(report: StudyReport) -> bool:
    """Whether to go on is worth it: unproven, and no limit is missed that more time leaves."""
    open_ = report.result.verdict in ("undecided", "estimated")
    return open_ and not (report.closest and any(miss.lasts for miss in report.closest.misses))


def _lacks_only_proof(closest: Closest) -> bool:
    """Whether a rate was kept, and no limit is missed but that of the evidence."""
    kept = closest.entry.measurement.edge.at_least_rps is not None
    return kept and all(miss.limit == "certified_requests" for miss in closest.misses)


def _more_time(report: StudyReport) -> str:
    """What the command to go on with is for; nothing measured leaves nothing to prove."""
    if faults := _all_faults(report):
        first = textwrap.shorten(faults[0].message, _MESSAGE_CHARACTERS, placeholder=" …")
        return f"All that was tried failed, the first with: {first} Once that is mended, go on:"
    budget_s, known = next_budget_s(report.result)
    budget = format_duration(budget_s)
    if known and report.shown is None:
        return f"A budget of {budget} is expected to suffice for a proof; what was built is kept:"
    if known:
        return f"A budget of {budget} is expected to prove it; nothing is measured twice:"
    if report.result.search.budget_needed_s is not None:
        return (
            "More than a day is expected to be needed for a proof: a looser --latency-budget or a "
            "lower --percentile needs less. To go on nevertheless:"
        )
    if report.closest and any(m.limit == "latency_budget_ms" for m in report.closest.misses):
        return (
            f"Whether another configuration keeps it takes more time to tell ({budget}, say); "
            "nothing is measured twice:"
        )
    return f"Give it more time ({budget}, say); nothing is measured twice:"


def _all_faults(report: StudyReport) -> list[Failure]:
    """What failed, where nothing was measured and it was not for want of time."""
    return [one for one in report.failures if one.is_fault and report.shown is None]


def next_budget_s(result: StudyResult) -> tuple[float, bool]:
    """The budget to give next, in round seconds, and whether it is known to suffice."""
    needed_s = result.search.budget_needed_s
    if needed_s is not None and needed_s <= REACH_S:
        return round_budget(needed_s), True
    more_s = round_budget(max(_MORE * (result.search.budget_s or 150.0), _LEAST_S))
    return min(more_s, DURATION_S_MAX), False


def round_budget(seconds: float) -> float:
    """A budget to name, in seconds: up to 5 s, from five minutes on to whole minutes."""
    step = 5.0 if seconds <= 300.0 else 60.0
    return math.ceil(seconds / step) * step


def next_command(report: StudyReport) -> str | None:
    """The command line that goes on with an unproven study; None where that is no use."""
    result = report.result
    unfinished = result.unfinished
    if not unfinished and not _time_helps(report):
        return None
    given = command_of(result)
    words = given or ["analyze", "search", result.model.path, *_sla_options(result.sla)]
    kept = without_options(words, _SET_ANEW)
    kept += [*store_options(result, report.store_url), "--study", result.name, "--resume"]
    if result.verdict == "estimated" and _exports(kept) and "--force" not in kept:
        kept.append("--force")  # what it exported lies there, and stays as an older version
    if unfinished or _all_faults(report):  # with the budget that was given: it was not too little
        return shlex.join([*kept, *budget_options(result)])
    return shlex.join([*kept, "--budget", format_duration(next_budget_s(result)[0])])


def _exports(words: list[str]) -> bool:
    return any(word.partition("=")[0] == "--export" for word in words)


def _sla_options(sla: Sla) -> list[str]:
    """The SLA as options, for studies that did not keep their command."""
    options = ["--latency-budget", f"{sla.latency_budget_ms:g}ms"]
    if sla.percentile != 99.0:
        options += ["--percentile", f"{sla.percentile:g}"]
    if sla.target_rate_rps is not None:
        options += ["--target-rate", f"{sla.target_rate_rps:g}/s", "--objective", sla.objective]
    return options
