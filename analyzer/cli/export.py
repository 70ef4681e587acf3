"""``analyze export``: a configuration as a Triton model repository."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from analyzer.cli import options
from analyzer.errors import ModelError, UsageError

if TYPE_CHECKING:
    from analyzer.domain.configuration import Configuration
    from analyzer.domain.measurement import Measurement
    from analyzer.domain.study import StudyResult
    from analyzer.export.repository import ExportResult
    from analyzer.variants.build import Variant


def chosen_measurement(facts: StudyResult, config_id: str | None) -> Measurement:
    """The measurement of ``config_id`` (the recommended one if None); an id's start suffices.

    Raises:
        UsageError: There is none.
    """
    from analyzer.domain.measurement import Measurement

    measured = {
        outcome.configuration.config_id: outcome
        for outcome in facts.outcomes
        if isinstance(outcome, Measurement)
    }
    wanted = config_id or facts.recommended_id
    if wanted is None:
        raise UsageError(
            f"The study {facts.name!r} recommends nothing (verdict: {facts.verdict}).",
            hint="Name a measured configuration with --config; analyze studies show lists them.",
        )
    found = [own for own in measured if own.startswith(wanted)]
    if len(found) != 1:
        raise UsageError(
            f"--config: {len(found) or 'no'} measured configurations of {facts.name!r} start with "
            f"{wanted!r}.",
            hint=f"Measured: {', '.join(sorted(measured)[:12]) or 'none'}.",
        )
    return measured[found[0]]


def variant_of(facts: StudyResult, configuration: Configuration) -> Variant:
    """The file that ``configuration`` of a study serves, from the cache or made anew.

    Raises:
        AnalyzerError: It cannot be made: the model or the data are gone or changed.
    """
    from analyzer.cli.search_run import cache_dir
    from analyzer.variants.build import build_variant
    from analyzer.variants.inputs import load_calibration

    data = facts.provenance.get("calibration_data")
    if not Path(facts.model.path).is_file():
        raise ModelError(
            f"The model of {facts.name!r} is no longer at {facts.model.path}.",
            hint="Put it back; its variants are made from it.",
        )
    return build_variant(
        facts.model,
        configuration.variant,
        calibration=load_calibration(Path(data), facts.model) if data else None,
        cache_dir=cache_dir(),
        device=configuration.device,
        confidence=facts.sla.confidence,
    )


def export_study(
    facts: StudyResult,
    destination: Path,
    *,
    config_id: str | None = None,
    backend: Any = "auto",
    force: bool = False,
    document: dict[str, Any] | None = None,
) -> ExportResult:
    """Writes a measured configuration of a study, with its evidence, into a repository.

    Raises:
        UsageError, RepositoryError: There is nothing to export, or it cannot be written.
    """
    from analyzer.export.repository import export_repository
    from analyzer.report.document import build_document, build_entry

    measurement = chosen_measurement(facts, config_id)
    variant = variant_of(facts, measurement.configuration)
    whole = document or build_document(facts)
    evidence = {
        "study": facts.name,
        "sla": whole["sla"],
        "entry": build_entry(
            measurement,
            sla=facts.sla,
            pricing=facts.pricing,
            request_batch_size=facts.request_batch_size,
        ),
        "provenance": facts.provenance,
    }
    return export_repository(
        facts.model,
        Path(variant.path),
        measurement.configuration,
        destination,
        backend=backend,
        evidence=evidence,
        force=force,
    )


@click.command()
@click.argument("study", required=False)
@click.option(
    "--repository",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="The model repository; made if it is not there.",
)
@click.option(
    "--config",
    "config_id",
    metavar="ID",
    help="Configuration to export.  [default: the recommended one]",
)
@click.option(
    "--backend",
    type=click.Choice(["auto", "onnxruntime", "tensorrt", "python"]),
    default="auto",
    show_default=True,
    help="python: for a Triton that has only that.",
)
@click.option("--force", is_flag=True, help="Replace a configuration that differs.")
@options.store
@options.common
def export(
    study: str | None,
    repository: Path,
    config_id: str | None,
    backend: str,
    force: bool,
    store_url: str,
    as_json: bool,
    verbose: bool,
    quiet: bool,
) -> None:
    """Write a configuration of STUDY (default: the newest) as a Triton model repository."""
    from analyzer.cli.facts import load_facts
    from analyzer.store.results import open_store

    with open_store(store_url, create=False) as store:
        facts = load_facts(store, study)
    result = export_study(facts, repository, config_id=config_id, backend=backend, force=force)
    if not quiet:
        for note in result.notes:
            click.echo(f"Note: {note}", err=True)
    if as_json:
        click.echo(json.dumps(result.to_dict()))
    else:
        click.echo(f"{result.path}: {result.model} version {result.version} ({result.config_id})")
