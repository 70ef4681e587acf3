"""``analyze export``: a configuration as a Triton model repository."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from analyzer.buckets.location import Location
from analyzer.cli import options
from analyzer.cli.streams import say
from analyzer.errors import UsageError

if TYPE_CHECKING:
    from analyzer.domain.study import StudyResult
    from analyzer.export.repository import ExportResult


def export_with_evidence(
    result: StudyResult,
    destination: Path | Location,
    *,
    config_id: str | None = None,
    backend: Any = "auto",
    compute_capabilities: str | None = None,
    force: bool = False,
    quiet: bool = False,
) -> ExportResult:
    """Writes a configuration of a study (the recommended one if None) with its evidence.

    Notes that qualify the export go to standard error.

    Raises:
        UsageError, RepositoryError: There is nothing to export, or it cannot be written.
    """
    from analyzer.export.repository import check_destination
    from analyzer.export.rtx import check_capabilities, export_rtx_engine
    from analyzer.export.study import chosen_measurement, export_study
    from analyzer.report.document import evidence_document

    rtx = backend == "tensorrt-rtx"
    if not rtx and compute_capabilities is not None:
        raise UsageError(
            "--compute-capabilities belongs to --backend tensorrt-rtx.",
            hint="An engine of TensorRT itself is for the GPU that the study measured.",
        )
    if rtx and force:
        raise UsageError(
            "--force has nothing to replace: each engine is a version of its own.",
            hint="Leave --force out.",
        )
    if rtx and isinstance(destination, Location):
        raise UsageError(
            f"--backend tensorrt-rtx: {destination} is for repositories that Triton reads.",
            hint="Write the engine to a folder of this machine.",
        )
    if isinstance(destination, Path):
        check_destination(destination)
    named = check_capabilities(compute_capabilities) if rtx else ()
    measurement = chosen_measurement(result, config_id)
    evidence = evidence_document(result, measurement)
    if rtx and isinstance(destination, Path):
        done = export_rtx_engine(
            result,
            measurement,
            destination,
            evidence=evidence,
            cache_dir=options.cache_dir(),
            compute_capabilities=named,
        )
    else:
        write = partial(
            export_study,
            result,
            measurement,
            evidence=evidence,
            cache_dir=options.cache_dir(),
            backend=backend,
            force=force,
        )
        if isinstance(destination, Location):
            from analyzer.export.remote import export_remote

            done = export_remote(destination, result.model.name, write)
        else:
            done = write(destination)
    for note in () if quiet else done.notes:
        say(f"Note: {note}")
    return done


@click.command()
@click.argument("study", required=False)
@click.option(
    "--repository",
    type=options.Place(),
    required=True,
    metavar="DIR|URL",
    help="The model repository, here or in an object store (s3://BUCKET/PATH, "
    "s3://HOST:PORT/BUCKET/PATH, gs://, az://, as://); made if it is not there.",
)
@click.option(
    "--config",
    "config_id",
    metavar="ID",
    help="Configuration to export.  [default: the recommended one]",
)
@click.option(
    "--backend",
    type=click.Choice(["auto", "onnxruntime", "tensorrt", "python", "tensorrt-rtx"]),
    default="auto",
    show_default=True,
    help="python: for a Triton that has only that. tensorrt-rtx: no repository for Triton, but an "
    "engine of TensorRT for RTX, compiled without a GPU and not measured.",
)
@click.option(
    "--compute-capabilities",
    metavar="LIST",
    help="What an engine of TensorRT for RTX is for, like 8.6,8.9.",
)
@click.option("--force", is_flag=True, help="Replace a configuration that differs.")
@options.store
@options.common
def export(
    study: str | None,
    repository: Path | Location,
    config_id: str | None,
    backend: str,
    compute_capabilities: str | None,
    force: bool,
    store_url: str,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> None:
    """Write a configuration of STUDY (default: the newest) as a Triton model repository."""
    from analyzer.store.results import open_store

    with open_store(store_url, create=False) as store:
        result = store.load_result(study)
    done = export_with_evidence(
        result,
        repository,
        config_id=config_id,
        backend=backend,
        compute_capabilities=compute_capabilities,
        force=force,
        quiet=quiet,
    )
    if as_json:
        click.echo(json.dumps(done.to_dict()))
    else:
        click.echo(f"{done.path}: {done.model} version {done.version} ({done.config_id})")
