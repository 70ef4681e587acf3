"""``analyze studies``: what the database holds."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import click

from analyzer.cli import options


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
                "verdict": study.verdict,
                "trials": study.trials,
                "started_at": study.started_at,
                "status": study.status,
            }
            for study in found
        ]
        click.echo(json.dumps({"schema": 1, "studies": rows}))
        return
    table = [("study", "model", "verdict", "trials", "status", "started at")]
    table += [
        (s.name, s.model, s.verdict or "–", str(s.trials), s.status, s.started_at) for s in found
    ]
    click.echo(format_table(table))


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
    from analyzer.store.results import open_store

    with open_store(store_url or ctx.obj["store_url"], create=False) as store:
        record = store.study(name)
        rows = store.trial_rows(name)
    if as_json or ctx.obj["as_json"]:
        trials = [_trial(row) for row in rows]
        click.echo(
            json.dumps(
                {
                    "schema": 1,
                    "name": record.name,
                    "model": record.model.name,
                    "verdict": record.verdict,
                    "status": record.status,
                    "started_at": record.started_at,
                    "sla": dataclasses.asdict(record.sla),
                    "trials": trials,
                }
            )
        )
        return
    table = [("trial", "role", "state", "config", "variant", "edge/s", "certified/s", "reason")]
    table += [
        (
            str(row.trial_number) if row.trial_number >= 0 else "–",
            row.role,
            "left out" if (row.role, row.state) == ("variant", "failed") else row.state,
            row.config_id,
            row.variant,
            f"{row.edge_rps:.1f}" if row.edge_rps else "–",
            f"{row.capacity_rps:.1f}" if row.capacity_rps else "–",
            (row.message or row.reason or "")[:60],
        )
        for row in rows
    ]
    click.echo(
        f"{record.name}: {record.model.name}, {record.status}, {record.verdict or 'no verdict'}"
    )
    click.echo(format_table(table))


def _trial(row: Any) -> dict[str, Any]:
    values: dict[str, Any] = row._asdict()
    return {"number": values.pop("trial_number"), "position": values.pop("number"), **values}


def format_table(rows: Sequence[tuple[str, ...]]) -> str:
    """``rows`` in columns as wide as their widest cell, the first row as the head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
             for row in rows]  # fmt: skip
    return "\n".join(lines)
