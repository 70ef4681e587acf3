"""A configuration's model as an engine of TensorRT for RTX, for programs that run such engines.

Triton has no backend for them, so this is no model repository: a folder with the engine of each
version, and beside it what is known of it.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from analyzer.domain.measurement import Measurement
from analyzer.domain.study import StudyResult
from analyzer.engine.runtimes.tensorrt_ import import_tensorrt_rtx, product
from analyzer.errors import RepositoryError, UsageError
from analyzer.export.atomic import (
    copy_durably,
    locked,
    make_readable,
    put_in_place,
    staging_folder,
)
from analyzer.export.repository import ExportResult
from analyzer.export.study import calibration_of, require_same_model
from analyzer.modelconfig.repository import list_versions
from analyzer.modelconfig.text import CONFIG_NAME
from analyzer.paths import exists, is_dir
from analyzer.variants.cache import file_sha256
from analyzer.variants.rtx_build import build_rtx_engine
from analyzer.variants.tensorrt_build import EngineOptions, known_capabilities

BACKEND = "tensorrt-rtx"
ENGINE_NAME = "model.engine"
FACTS_NAME = "engine.json"
# An engine takes seconds: without a GPU no kernel is timed. Beyond this the library hangs.
_SECONDS_MAX = 600.0
NOT_MEASURED = (
    "Speed, memory and answers of this engine were not measured: that needs an RTX GPU. The "
    "study's figures are {backend}'s. Triton has no backend for engines of TensorRT for RTX."
)


def export_rtx_engine(
    result: StudyResult,
    measurement: Measurement,
    destination: Path,
    *,
    evidence: dict[str, Any],
    cache_dir: Path,
    compute_capabilities: tuple[str, ...],
) -> ExportResult:
    """Writes ``destination/MODEL/VERSION/model.engine`` for the compute capabilities given.

    Its batches go from 1 to the configuration's maximum at least. It appears whole or not at all,
    beside earlier versions.

    Args:
        evidence: What the study knows of the configuration, kept in ``engine.json``.
        compute_capabilities: As ``8.9``, at least one.

    Raises:
        RepositoryError: The folder cannot be written, or holds a model of a Triton repository.
        AnalyzerError: The engine cannot be built: the model or the data have changed, say.
    """
    configuration, model = measurement.configuration, result.model
    target = destination.resolve() / model.name
    if exists(target / CONFIG_NAME):
        raise RepositoryError(
            f"{target} is a model of a Triton repository, which cannot serve this engine.",
            hint="Name another folder with --repository.",
        )
    require_same_model(result)
    options = replace(
        EngineOptions.for_batches((max(configuration.max_batch_size, 1),)),
        compute_capabilities=compute_capabilities,
    )
    note = NOT_MEASURED.format(backend=configuration.backend)
    try:
        make_readable(target)
        with locked(target), staging_folder(target) as staging:
            version = max(list_versions(target), default=0) + 1
            built = staging / "built"
            notes = build_rtx_engine(
                model,
                configuration.variant,
                built,
                options,
                calibration=calibration_of(result, configuration.variant),
                cache_dir=cache_dir,
                timeout_s=_SECONDS_MAX,
            )
            staged = staging / str(version)
            copy_durably(built, staged / ENGINE_NAME)
            facts = {
                "model": model.name,
                "config_id": configuration.config_id,
                "precision": configuration.variant.label,
                "compute_capabilities": list(compute_capabilities),
                "batch_size_max": options.batch_size_max if model.batchable else None,
                "sha256": file_sha256(staged / ENGINE_NAME),
                "notes": [*notes, note],
                "evidence": evidence,
                "written_at": datetime.now(UTC).isoformat(timespec="seconds"),
            }
            text = json.dumps(facts, indent=2, allow_nan=False) + "\n"
            copy_durably(text.encode(), staged / FACTS_NAME)
            put_in_place(staged, target / str(version))
    except OSError as error:
        raise RepositoryError(
            f"{target} cannot be written: {error.strerror or error}.",
            hint="Choose a folder that is yours to write, on a disk with free space.",
        ) from error
    finally:
        if is_dir(target) and not any(target.iterdir()):
            target.rmdir()
    return ExportResult(
        path=str(destination.resolve()),
        model=model.name,
        version=version,
        config_id=configuration.config_id,
        notes=(*notes, note),
    )


def check_capabilities(named: str | None) -> tuple[str, ...]:
    """The compute capabilities in a list like ``8.6,8.9``, each once.

    Raises:
        UsageError: There is none, or one that TensorRT for RTX does not know.
        MissingPartError: It is not here.
    """
    trt = import_tensorrt_rtx()
    known = known_capabilities(trt)
    wanted = tuple(dict.fromkeys(part.strip() for part in (named or "").split(",") if part.strip()))
    unknown = [name for name in wanted if name not in known]
    if not wanted or unknown:
        what = f"{product(trt)} knows no {', '.join(unknown)}" if unknown else "none is named"
        raise UsageError(
            f"--compute-capabilities: {what}.",
            hint=f"Name some of {', '.join(known)}, like --compute-capabilities 8.6,8.9.",
        )
    return wanted
