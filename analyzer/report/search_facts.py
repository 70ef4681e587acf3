"""What was asked, how the search went and with what: rows for the reports."""

from __future__ import annotations

from typing import Any

from analyzer.domain.measurement import OUT_OF_TIME
from analyzer.domain.study import SearchSummary, StudyResult
from analyzer.report.entries import StudyReport
from analyzer.report.summary import Row, requirement
from analyzer.report.wording import GIVEN, NOT_MEASURED, number, percent, rate, size

# Beyond its budget by more than this factor, a search says so.
_OVERRUN = 1.02


def sla_rows(result: StudyResult) -> list[Row]:
    """The model and what is required of it."""
    sla, model = result.sla, result.model
    rows = [
        ("model", model.name),
        ("SHA-256", model.sha256[:16]),
        ("latency", requirement(sla)),
        ("confidence", f"{sla.confidence:g}"),
        ("objective", sla.objective),
        ("arrivals", result.arrivals),
        ("inferences per request", number(result.request_batch_size)),
        ("accuracy may drop by", percent(sla.max_accuracy_drop, GIVEN)),
    ]
    if sla.target_rate_rps is not None:
        rows.append(("target rate", rate(sla.target_rate_rps, GIVEN)))
    if sla.max_memory_bytes is not None:
        rows.append(("memory limit", size(sla.max_memory_bytes, GIVEN)))
    return rows


def left_out_and_failed(report: StudyReport) -> tuple[int, int]:
    """How many variants were left out before anything was measured, and how many trials failed."""
    left_out = [failure for failure in report.failures if failure.leaves_out]
    # What there was no time for is no failure in the search's own count.
    counted = sum(failure.reason != OUT_OF_TIME for failure in left_out)
    return len(left_out), max(report.result.search.failed - counted, 0)


def variants(count: int) -> str:
    """``1 variant``, ``3 variants``."""
    return f"{count} variant" if count == 1 else f"{count} variants"


def search_rows(report: StudyReport, conditions: str) -> list[Row]:
    """How the search went; ``conditions`` as in :class:`Summary`."""
    search = report.result.search
    left_out, failed = left_out_and_failed(report)
    rows = [
        ("sampler", search.sampler),
        ("search space", search.space or "–"),
        ("configurations in it", number(search.space_size, 9)),
        ("measured", number(search.evaluated_live, 9)),
        ("predicted", number(search.evaluated_twin, 9)),
        ("left out", variants(left_out)),
        ("failed", number(failed, 9)),
        ("time under load", f"{number(search.load_test_seconds)} s"),
        ("time in all", time_text(search)),
    ]
    if search.bound:
        rows.append(("bound", search.bound))
    if conditions:
        rows.append(("machine", conditions))
    return rows


def time_text(search: SearchSummary) -> str:
    """``56.7 s``; beside the budget where it took longer: ``68 s of 60 s``; a dash if unknown."""
    if search.wall_seconds is None:
        return NOT_MEASURED
    text = f"{number(search.wall_seconds)} s"
    if search.budget_s is not None and search.wall_seconds > _OVERRUN * search.budget_s:
        text += f" of {number(search.budget_s)} s"
    return text


def provenance_rows(result: StudyResult) -> list[Row]:
    """:func:`provenance` as rows."""
    own = provenance(result)
    return [row for key in own for row in _flatten(own[key], key)]


def provenance(result: StudyResult) -> dict[str, Any]:
    """Versions, seeds and hardware; what every study has comes first, None where unknown."""
    first = ("analyzer", "hardware", "libraries", "seeds", "started_at")
    return {key: result.provenance.get(key) for key in first} | result.provenance


def _flatten(value: Any, prefix: str) -> list[Row]:
    """Nested values as rows with dotted names; empty ones are left out."""
    if isinstance(value, dict):
        return [row for key, item in value.items() for row in _flatten(item, f"{prefix}.{key}")]
    if value is None or value == []:
        return []
    if isinstance(value, list) and isinstance(value[0], dict):
        numbered = enumerate(value, 1)
        return [row for number, item in numbered for row in _flatten(item, f"{prefix}.{number}")]
    if isinstance(value, list):
        return [(prefix, ", ".join(map(str, value)))]
    return [(prefix, str(value))]
