"""``analyze report``: a study's page, or its figures in another format."""

from __future__ import annotations

from pathlib import Path

import click

from analyzer.cli import options
from analyzer.errors import UsageError


@click.command()
@click.argument("study", required=False)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where to write it.  [default: standard output; report.html for html]",
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["html", "md", "csv", "json"]),
    help="Format of the report.  [default: from the file's ending, else html]",
)
@options.store
@options.common
def report(
    study: str | None,
    output: Path | None,
    kind: str | None,
    store_url: str,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> None:
    """Write the report of STUDY (default: the newest)."""
    from analyzer.report.files import format_of, render_report, write_report
    from analyzer.store.results import open_store

    if as_json and output is None:
        if kind in ("md", "csv"):
            raise UsageError(
                f"--json prints JSON, and --format {kind} would be printed in its place.",
                hint=f"Leave one of them out, or name a file for the {kind}: -o FILE.",
            )
        kind = kind or "json"
    chosen = format_of(output, kind) if output is not None else (kind or "html")
    with open_store(store_url, create=False) as store:
        result = store.load_result(study)
    store_url = options.hide_password(store_url)
    text = render_report(result, chosen, store_url=store_url)
    if output is None and chosen == "html":
        output = Path("report.html")
    if output is None:
        click.echo(text, nl=False)
        return
    write_report(output, text)
    if as_json:
        click.echo(render_report(result, "json", store_url=store_url), nl=False)
    elif not quiet:
        click.echo(f"{output}", err=True)
