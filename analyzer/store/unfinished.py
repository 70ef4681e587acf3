"""What stands in for the result of a study whose last search did not end."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from analyzer.domain.configuration import baseline_configuration
from analyzer.domain.load_test import Conditions
from analyzer.domain.measurement import OUT_OF_TIME, Failure, load_tested
from analyzer.domain.study import Explanation, Pricing, SearchSummary, StudyStatus
from analyzer.store.records import PRICING_KEY, StoredOutcome, StoredResult, StudyRecord
from analyzer.store.rows import standing

_WHAT: dict[StudyStatus, str] = {
    "finished": "ended without a result",
    "interrupted": "was interrupted",
    "failed": "was ended by a fault",
    "running": "has not ended (it still runs, or was killed)",
}


def unfinished(
    record: StudyRecord,
    outcomes: Sequence[StoredOutcome] = (),
    before: StoredResult | None = None,
) -> StoredResult:
    """What the study came to until now.

    Args:
        record: Of the study.
        outcomes: All that are stored of it.
        before: What an earlier search ended with, where this one resumed it: its recommendation
            stands; its figures of the search itself do not.
    """
    told = record.options
    stored = before or StoredResult(
        arrivals=told.get("arrivals", "poisson"),
        request_batch_size=told.get("request_batch_size", 1),
        server=told.get("server", "embedded"),
        baseline_id=_baseline_id(record, outcomes),
        pricing=Pricing(**told.get(PRICING_KEY, {})),
        explanation=Explanation(),
        search=SearchSummary(
            sampler=told.get("sampler", "twin"),
            space=told.get("space") or told.get("device", "cpu"),
            budget_s=told.get("budget_s"),
        ),
    )
    return dataclasses.replace(
        stored,
        search=_counted(stored.search, outcomes),
        explanation=stored.explanation if stored.recommended_id else Explanation(),
        warnings=(*stored.warnings, _note(record, stored)),
        recommendable=None,
        told=None,
        taken_back=stored.taken_back if stored.recommended_id else (),
        conditions=Conditions.pooled([item.outcome.watched for item in outcomes]),
    )


def _baseline_id(record: StudyRecord, outcomes: Sequence[StoredOutcome]) -> str:
    """The baseline that was tried last, a folder's own maybe; without one Triton's default."""
    tried = [item.outcome.configuration for item in outcomes if item.role == "baseline"]
    if tried:
        return tried[-1].config_id
    told = record.options
    return baseline_configuration(
        batchable=record.model.batchable,
        device=told.get("device", "cpu"),
        request_batch_size=told.get("request_batch_size", 1),
    ).config_id


def _counted(search: SearchSummary, outcomes: Sequence[StoredOutcome]) -> SearchSummary:
    """``search`` with what is stored counted; what is not stored is unknown."""
    found = standing(outcomes)
    failures = [outcome for outcome in found if isinstance(outcome, Failure)]
    return dataclasses.replace(
        search,
        evaluated_live=load_tested(found),
        evaluated_twin=None,
        failed=sum(failure.reason != OUT_OF_TIME for failure in failures),
        load_test_seconds=sum(outcome.load_test_seconds for outcome in found),
        wall_seconds=None,
        bound=None,
        budget_needed_s=None,
    )


def _note(record: StudyRecord, stored: StoredResult) -> str:
    """That the search did not end, and what that means for what is told."""
    what = _WHAT[record.status]
    if stored.recommended_id is not None:
        return (
            f"A later search on this study {what}: the recommendation is that of the search "
            f"before, the counts are of all that is stored. Go on with --study {record.name} "
            "--resume."
        )
    return (
        f"The search {what}: this is what was measured until then, and a better configuration "
        "may not have been tried yet."
    )
