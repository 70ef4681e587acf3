"""Why a search has no certified answer, or a claim does not hold, and what would help.

Each sentence, and a command, is a line of its own.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzer.domain.units import format_duration
from analyzer.store.engine import file_url
from analyzer.store.results import open_store

if TYPE_CHECKING:
    from analyzer.service.result import Result

_LOG = logging.getLogger(__name__)


def why_unproven(snapshot: Path, study: str) -> tuple[str, str]:
    """What holds and what is missing, and what to do next, in the words of the search's report.

    Both are empty where that is not known.

    Args:
        snapshot: The file of the study.
    """
    from analyzer.report.entries import make_report
    from analyzer.report.summary import summarize

    try:
        with open_store(file_url(snapshot), create=False) as store:
            summary = summarize(make_report(store.load_result(study)))
    except Exception as error:
        # What is read was written by a job's command: nothing in it may end a worker.
        _LOG.warning("What the study %s came to is not told: %s", study, error)
        return "", ""
    why = [f"{summary.title}.", summary.subtitle, *summary.misses]
    # The command belongs to the first advice, which ends with a colon.
    first, *others = summary.advice or ("",)
    command = [summary.command] if summary.command else []
    return "\n".join(filter(None, why)), "\n".join([*filter(None, [first]), *command, *others])


def why_not_held(answer: Mapping[str, Any]) -> tuple[str, str]:
    """What a claim's measurement came to, and what to do next; both empty where that is not known.

    Args:
        answer: The document of ``verify --json``.
    """
    from analyzer.service.result import read_result

    try:
        result = read_result(json.dumps(answer).encode())
        why = _counted(result) if result is not None else ""
        return (why, _next_step(result)) if result is not None and why else ("", "")
    except Exception as error:
        _LOG.warning("What a claim came to is not told: %s", error)
        return "", ""


def _counted(result: Result) -> str:
    """How many requests were late, and what else the verdict rests on."""
    from analyzer.report.wording import percent, proven_rate

    claim, found = result.claim, result.certificate
    if claim is None or found is None or found.requests is None:
        return ""
    counts = f"{found.over_budget or 0:,} of {found.requests:,} requests"
    late = f"{counts} at {proven_rate(claim.rate_rps)}"
    allowed = percent(round(1 - claim.percentile / 100, 9))
    budget = result.promise.budget
    lines = [
        f"{result.verdict.capitalize()}: {late} failed or took longer than {budget}; {allowed} may."
    ]
    lines += [f"Void: {reason}." for reason in found.void_reasons]
    lines += [f"Different from when it was certified: {how}." for how in result.conditions_differ]
    return "\n".join(lines)


def _next_step(result: Result) -> str:
    from analyzer.report.advice import round_budget
    from analyzer.report.wording import number

    claim, found = result.claim, result.certificate
    if result.verdict == "refuted":
        return "Search again on this machine, or claim a lower rate (target_rate)."
    if claim is None or found is None or not found.requests_missing or not claim.rate_rps:
        return "Verify it again while nothing else runs on the machine."
    missing = found.requests_missing
    time = format_duration(round_budget(missing / claim.rate_rps))
    return (
        f"About {number(missing)} more requests would decide, {time} at that rate: give it a "
        "longer budget, or claim a lower rate (target_rate)."
    )
