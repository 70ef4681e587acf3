"""``analyze studies``: what the database holds."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from analyzer.cli import options

if TYPE_CHECKING:
    from analyzer.domain.study import Verdict
    from analyzer.report.entries import StudyReport
    from analyzer.store.records import StudyRecord, StudySummary, TrialRow

# Characters of a column; its head is shorter.
_COLUMN_MAX = 40


@click.group(invoke_without_command=True)
@click.option("--limit", type=click.IntRange(1), help="The newest so many.  [default: all]")
@options.store
@options.common
@click.pass_context
def studies(
    ctx: click.Context,
    limit: int | None,
    store_url: str,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> None:
    """List studies, the newest first; `studies show NAME` tells one trial by trial."""
    ctx.obj = {"store_url": store_url, "as_json": as_json}
    if ctx.invoked_subcommand is not None:
        return
    from analyzer.store.results import open_store

    with open_store(store_url, create=False) as store:
        found = store.list_studies(limit)
    if as_json:
        rows = [
            {
                "name": study.name,
                "model": study.model,
                "verdict": _verdict(study),
                "trials": study.trials,
                "started_at": study.started_at,
                "status": study.status,
            }
            for study in found
        ]
        click.echo(json.dumps({"schema": 1, "studies": rows}))
        return
    table = [("study", "model", "verdict", "trials", "status", "started at")]
    table += [(s.name, s.model, _verdict(s), str(s.trials), s.status, s.started_at) for s in found]
    click.echo(format_table(table))


def _verdict(study: StudySummary) -> Verdict:
    """The verdict as the study's document tells it.

    After a search that did not end only a verdict that recommends something stands.
    """
    if study.status == "finished" or study.verdict in ("found", "estimated"):
        return study.verdict or "undecided"
    return "undecided"


@studies.command()
@click.argument("name")
@click.option("--store", "store_url", metavar="URL", help="Database of the results.")
@options.common
@click.pass_context
def show(
    ctx: click.Context,
    name: str,
    store_url: str | None,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> None:
    """Tell study NAME trial by trial."""
    from analyzer.report.entries import make_report
    from analyzer.report.summary import summarize
    from analyzer.report.trials import trial_table
    from analyzer.store.results import open_store

    url = store_url or ctx.obj["store_url"]
    with open_store(url, create=False) as store:
        record = store.study(name)
        rows = store.trial_rows(name)
        report = make_report(store.load_result(name), store_url=options.hide_password(url))
    if as_json or ctx.obj["as_json"]:
        click.echo(json.dumps(_document(record, report, rows)))
        return
    summary = summarize(report)
    verdict = report.result.verdict
    click.echo(f"{record.name}: {record.model.name}, {record.status}, {verdict}")
    click.echo(f"{summary.title}.")
    click.echo(format_table(trial_table(report, rows)))
    for note in summary.notes:
        click.echo(f"Note: {note}")
    if summary.command:
        click.echo(f"Go on with it: {summary.command}")


def _document(record: StudyRecord, report: StudyReport, rows: Sequence[TrialRow]) -> dict[str, Any]:
    """The study with every stored outcome; ``stands`` marks those that the report tells of."""
    from analyzer.report.summary import notes_of
    from analyzer.report.trials import standing_rows

    standing = {row.number for row in standing_rows(rows).values()}
    trials = [row.document() | {"stands": row.number in standing} for row in rows]
    return {
        "schema": 1,
        "name": record.name,
        "model": record.model.name,
        "verdict": report.result.verdict,
        "status": record.status,
        "started_at": record.started_at,
        "sla": dataclasses.asdict(record.sla),
        "recommended_id": report.result.recommended_id,
        "trials": trials,
        "warnings": list(notes_of(report.result)),
    }


def format_table(rows: Sequence[tuple[str, ...]]) -> str:
    """``rows`` in columns, the first row as the head.

    A column is as wide as its widest cell; one that is wider than most displaces its own row alone.
    """
    cells = zip(*rows, strict=True)
    widths = [max(len(cell) for cell in column if len(cell) <= _COLUMN_MAX) for column in cells]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
             for row in rows]  # fmt: skip
    return "\n".join(lines)
