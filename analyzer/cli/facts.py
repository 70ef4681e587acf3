"""A study's facts to the store and back: what report, export and verify start from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzer.domain.configuration import baseline_configuration
from analyzer.domain.measurement import Failure, Measurement
from analyzer.domain.study import Explanation, Pricing, SearchSummary, StudyResult
from analyzer.errors import UsageError

if TYPE_CHECKING:
    from analyzer.store.records import StudyRecord
    from analyzer.store.results import ResultStore

REPORT_FORMATS = ("html", "md", "csv", "json")


def save_facts(store: ResultStore, facts: StudyResult) -> None:
    """Stores what the outcomes do not tell, and the result document."""
    from analyzer.report.document import build_document
    from analyzer.store import codec

    record = store.study(facts.name)
    rest = {
        "arrivals": facts.arrivals,
        "request_batch_size": facts.request_batch_size,
        "server": facts.server,
        "recommended_id": facts.recommended_id,
        "baseline_id": facts.baseline_id,
        "pricing": json.loads(codec.dumps(facts.pricing)),
        "search": json.loads(codec.dumps(facts.search)),
        "explanation": json.loads(codec.dumps(facts.explanation)),
        "warnings": list(facts.warnings),
    }
    store.update_study(facts.name, options={**record.options, "facts": rest})
    store.finish_study(facts.name, facts.verdict, build_document(facts))


def load_facts(store: ResultStore, name: str | None) -> StudyResult:
    """The facts of study ``name`` (the newest if None), also of one that did not end.

    Raises:
        StoreError: There is no such study.
    """
    from analyzer.store import codec

    record = store.study(name) if name else store.newest_study()
    rest: dict[str, Any] = record.options.get("facts") or _unfinished(record)
    outcomes: dict[str, Measurement | Failure] = {}
    seconds = 0.0
    for stored in store.outcomes(record.name):
        outcome = stored.outcome
        seconds += outcome.load_test_seconds if stored.role == "trial" else 0.0
        config_id = outcome.configuration.config_id
        if isinstance(outcome, Failure) and isinstance(outcomes.get(config_id), Measurement):
            continue
        outcomes[config_id] = outcome
    search = codec.loads(json.dumps(rest["search"]), SearchSummary)
    return StudyResult(
        name=record.name,
        verdict=record.verdict or "undecided",
        model=record.model,
        sla=record.sla,
        arrivals=rest["arrivals"],
        request_batch_size=rest["request_batch_size"],
        server=rest["server"],
        outcomes=tuple(outcomes.values()),
        recommended_id=rest["recommended_id"],
        baseline_id=rest["baseline_id"],
        pricing=codec.loads(json.dumps(rest["pricing"]), Pricing),
        search=search,
        explanation=codec.loads(json.dumps(rest["explanation"]), Explanation),
        provenance=record.provenance,
        verifications=tuple(store.verifications(record.name)),
        warnings=tuple(rest["warnings"]),
    )


def _unfinished(record: StudyRecord) -> dict[str, Any]:
    """What stands in for the facts of a study that was interrupted."""
    baseline = baseline_configuration(batchable=record.model.batchable)
    note = (
        "The study did not end; this is what was measured until then. Go on with "
        f"--study {record.name} --resume."
    )
    return {
        "arrivals": record.options.get("arrivals", "poisson"),
        "request_batch_size": record.options.get("request_batch_size", 1),
        "server": record.options.get("server", "embedded"),
        "recommended_id": None,
        "baseline_id": baseline.config_id,
        "pricing": {},
        "search": {"sampler": record.options.get("sampler", "twin")},
        "explanation": {},
        "warnings": [note],
    }


def format_of(
    path: Path,
    chosen: str | None,
    *,
    hint: str = "End the file in .html, .md, .csv or .json, or give --format.",
) -> str:
    """The report's format: ``chosen``, else from the file's ending.

    Raises:
        UsageError: The ending names no format.
    """
    if chosen:
        return chosen
    ending = path.suffix.lower().lstrip(".")
    names = {"htm": "html", "markdown": "md"}
    found = names.get(ending, ending)
    if found not in REPORT_FORMATS:
        raise UsageError(
            f"{path}: {path.suffix or 'no ending'} names no report format.",
            hint=hint,
        )
    return found


def render_report(facts: StudyResult, kind: str) -> str:
    """The report of ``facts`` as ``html``, ``md``, ``csv`` or ``json``."""
    if kind == "csv":  # without the document, which takes longer than the table
        from analyzer.report.csv import render_csv

        return render_csv(facts)
    from analyzer.report.document import build_document, render_json

    document = build_document(facts)
    if kind == "json":
        return render_json(document)
    if kind == "md":
        from analyzer.report.markdown import render_markdown

        return render_markdown(document)
    from analyzer.report.html import render_html

    return render_html(facts, document, config_pbtxt=_config_pbtxt(facts))


def _config_pbtxt(facts: StudyResult) -> str | None:
    from analyzer.modelconfig.render import render_config

    for outcome in facts.outcomes:
        if outcome.configuration.config_id == facts.recommended_id:
            return render_config(facts.model, outcome.configuration)
    return None


def write_report(path: Path, text: str) -> None:
    """Writes ``text`` to ``path`` in one step: the whole file or nothing.

    Raises:
        UsageError: It cannot be written.
    """
    temporary = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UsageError(
            f"The report {path} cannot be written: {error.strerror}.",
            hint="Choose another file with -o; the study itself is stored.",
        ) from error
