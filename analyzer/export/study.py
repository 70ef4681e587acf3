"""A configuration of a study: which one is meant, the file that it serves, and its export."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from analyzer.domain.configuration import Backend, Configuration, VariantKey
from analyzer.domain.measurement import Measurement
from analyzer.domain.study import StudyResult, identity
from analyzer.errors import BuildError, DataError, ModelError, UsageError
from analyzer.export.repository import ExportResult, export_repository
from analyzer.modelconfig.text import CONFIG_NAME
from analyzer.paths import barred, is_file
from analyzer.variants.build import Variant, build_variant, stored_variant
from analyzer.variants.cache import data_sha256
from analyzer.variants.inputs import CalibrationData, load_calibration
from analyzer.variants.onnx_file import hash_model


def chosen_measurement(result: StudyResult, config_id: str | None) -> Measurement:
    """The measurement of ``config_id`` (the recommended one if None); an id's start suffices.

    Raises:
        UsageError: There is none.
    """
    measured = {
        outcome.configuration.config_id: outcome
        for outcome in result.outcomes
        if isinstance(outcome, Measurement)
    }
    wanted = config_id or result.recommended_id
    if wanted is None:
        go_on = f"--study {shlex.quote(result.name)} --resume"
        raise UsageError(
            f"The study {result.name!r} recommends nothing (verdict: {result.verdict}).",
            hint="Name a measured configuration with --config; analyze studies show lists them."
            if measured
            else f"Nothing was measured yet: repeat the search with {go_on} to go on with it.",
        )
    found = [own for own in measured if own.startswith(wanted)]
    if len(found) != 1:
        raise UsageError(
            f"--config: {len(found) or 'no'} measured configurations of {result.name!r} start with "
            f"{wanted!r}.",
            hint=f"Measured: {', '.join(sorted(measured)[:12]) or 'none'}.",
        )
    return measured[found[0]]


def require_same_model(result: StudyResult) -> None:
    """Looks whether the model that the study is about is still what lies at its path.

    Raises:
        ModelError: It is gone, or another one is there.
    """
    model, file = result.model, Path(result.model.path)
    if not is_file(file):
        raise ModelError(
            f"The model of {result.name!r} at {file} cannot be looked at: {reason}."
            if (reason := barred(file))
            else f"The model of {result.name!r} is no longer at {file}.",
            hint="Put it back, or go on with the search from where it lies now: --study "
            f"{shlex.quote(result.name)} --resume.",
        )
    if hash_model(file, model.external_files) != model.sha256:
        beside = f" (with {', '.join(model.external_files)})" if model.external_files else ""
        raise ModelError(
            f"The model at {file}{beside} has changed since the study {result.name!r}, whose"
            " figures are those of another file.",
            hint="Search again, or put the file back.",
        )


def calibration_of(result: StudyResult, key: VariantKey) -> CalibrationData | None:
    """The real data that the study was given, to make the variant ``key``; None without any.

    Raises:
        DataError: The file is gone, does not fit the model, or has changed since the study where
            the variant is calibrated by its rows.
    """
    data = result.provenance.get("calibration_data")
    if not data:
        return None
    calibration = load_calibration(Path(data), result.model)
    before = result.provenance.get("calibration_data_sha256")  # studies of before tell none
    by_rows = key.quantized and key.quantization != "dynamic"
    if by_rows and before is not None and data_sha256(Path(data)) != before:
        raise DataError(
            f"{data} has changed since the study {result.name!r}, whose variant {key.label} was"
            " calibrated with rows of it.",
            hint="Search again, or put the file back.",
        )
    return calibration


def variant_of(result: StudyResult, configuration: Configuration, cache_dir: Path) -> Variant:
    """The file that ``configuration`` of a study serves, from the cache or made anew.

    Args:
        cache_dir: Where variants are kept between studies.

    Of an engine only the one that was measured serves: it is not made anew.

    Raises:
        AnalyzerError: It cannot be made: the model or the data are gone or changed; or the engine
            that was measured is gone.
    """
    if configuration.backend == "tensorrt":
        return _measured_engine(result, configuration, cache_dir)
    require_same_model(result)
    return build_variant(
        result.model,
        configuration.variant,
        calibration=calibration_of(result, configuration.variant),
        cache_dir=cache_dir,
        device=configuration.device,
        confidence=result.sla.confidence,
        accuracy_drop_max=result.sla.max_accuracy_drop,
        owner=identity(result.name, result.provenance),
    )


def _measured_engine(result: StudyResult, configuration: Configuration, cache_dir: Path) -> Variant:
    key, engine = configuration.variant, result.engine_of(configuration)
    if engine is None:
        raise BuildError(
            f"The study {result.name!r} does not say which {key.label} engine it measured.",
            hint="Search again: this study was made by an older version of the program.",
        )
    return stored_variant(
        result.model, key, cache_dir=cache_dir, entry=engine.entry, sha256=engine.sha256
    )


def export_study(
    result: StudyResult,
    measurement: Measurement,
    destination: Path,
    *,
    evidence: dict[str, Any],
    cache_dir: Path,
    backend: Literal["auto"] | Backend = "auto",
    force: bool = False,
) -> ExportResult:
    """Writes a measured configuration of a study, with its evidence, into a repository.

    Args:
        evidence: The study's JSON document of the measurement, for the manifest.
        cache_dir: Where variants are kept between studies.

    Raises:
        RepositoryError: It cannot be written.
        AnalyzerError: The variant cannot be made.
    """
    variant = variant_of(result, measurement.configuration, cache_dir)
    done = export_repository(
        result.model,
        Path(variant.path),
        measurement.configuration,
        destination,
        backend=backend,
        evidence=evidence,
        force=force,
    )
    notes = [*done.notes]
    if (engine := result.engine_of(measurement.configuration)) is not None:
        notes.append(
            f"The engine runs on {engine} and on nothing else: serve it with a Triton that has it."
        )
    pricing = result.pricing_of(measurement.configuration)
    gpus = pricing.devices_per_machine
    if measurement.configuration.device == "gpu" and gpus > 1:
        notes.append(
            f"{pricing.instance_type or 'The machine'} has {gpus} GPUs, and {CONFIG_NAME} names one"
            " (gpus: [ 0 ]). The study's machines and costs count on all of them: start a Triton"
            " for each GPU, or name all of them there, which was not measured."
        )
    return replace(done, notes=tuple(notes))
