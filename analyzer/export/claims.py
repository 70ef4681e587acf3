"""What can be verified: a claim, and the model file that it is about."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analyzer.domain.conditions import ConditionsSummary, summary_of
from analyzer.domain.measurement import Measurement
from analyzer.domain.model import ModelInfo, TensorSpec
from analyzer.domain.sla import Sla
from analyzer.domain.study import Claim, StudyResult
from analyzer.errors import RepositoryError, UsageError
from analyzer.export.manifest import (
    CHANGED_BY_HAND,
    MANIFEST_NAME,
    Manifest,
    read_manifest,
    read_versions,
)
from analyzer.export.study import variant_of
from analyzer.modelconfig.files import ONNX_FILENAME
from analyzer.modelconfig.render import (
    MODEL_FILENAMES,
    configuration_from_config,
    input_shapes,
)
from analyzer.modelconfig.repository import list_versions, load_config, model_directory
from analyzer.modelconfig.rules import normalize, served_versions
from analyzer.modelconfig.text import CONFIG_NAME, read_config
from analyzer.modelconfig.unexpressed import unexpressed_settings
from analyzer.paths import is_file
from analyzer.variants.cache import file_sha256
from analyzer.variants.deployed import deployed_config, inspect_deployed


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedModel:
    """A claim and what is needed to measure it again.

    Args:
        model_path: The file that is served.
        data_path: Real inputs; None for made-up ones.
        exported: The folder of the exported version; None for a study's.
        exported_for: The backend that it was exported for; empty for a study's.
        variant_sha256: Of the file that is served, under which its probes are kept; empty if
            unknown.
        rate_scale: The twin's edge over the measured one; 1 if unknown.
        claimed: Whether the study or the manifest certified the configuration at some rate;
            otherwise the rate is the command's alone.
        notes: Sentences that qualify the claim.
        conditions: What the machine was like when it was certified; None where unknown.
        tensorrt: Version that built the engine that is served; empty for a graph.
        hardware: The machine that it was measured on; empty where unknown.
    """

    claim: Claim
    model: ModelInfo
    model_path: Path
    data_path: Path | None = None
    exported: Path | None = None
    exported_for: str = ""
    variant_sha256: str = ""
    rate_scale: float = 1.0
    claimed: bool = True
    notes: tuple[str, ...] = ()
    conditions: ConditionsSummary | None = None
    tensorrt: str = ""
    hardware: str = ""


def claim_of_study(
    result: StudyResult,
    measurement: Measurement,
    cache_dir: Path,
    *,
    rate_rps: float | None = None,
) -> ClaimedModel:
    """What a study says of one of its measured configurations.

    Args:
        cache_dir: Where variants are kept between studies.
        rate_rps: The rate that is claimed; None for the certified one.

    Raises:
        UsageError: It was not certified, and no rate is given.
        AnalyzerError: Its variant cannot be made.
    """
    configuration = measurement.configuration
    rate_rps = rate_rps or measurement.capacity_rps
    if rate_rps is None:
        raise UsageError(
            f"The configuration {configuration.config_id} of {result.name!r} was not certified at "
            "any rate.",
            hint=_rate_hint(measurement.edge.at_least_rps),
        )
    certificate = measurement.certificate
    engine = result.engine_of(configuration)
    variant = variant_of(result, configuration, cache_dir)
    predicted, edge_rps = measurement.predicted.edge_rps, measurement.edge.rate_rps
    scale = predicted / edge_rps if predicted and edge_rps else 1.0
    return ClaimedModel(
        claim=Claim(
            source=f"study {result.name}",
            model=result.model.name,
            configuration=configuration,
            sla=result.sla,
            rate_rps=rate_rps,
            arrivals=result.arrivals,
            request_batch_size=result.request_batch_size,
        ),
        model=result.model,
        model_path=Path(variant.path),
        data_path=_data_path(result.provenance),
        variant_sha256=variant.sha256,
        rate_scale=scale,
        claimed=measurement.capacity_rps is not None,
        notes=_absent_data(result.provenance),
        conditions=summary_of([certificate.conditions]) if certificate is not None else None,
        tensorrt=engine.tensorrt if engine is not None else "",
        hardware=measurement.hardware,
    )


def _rate_hint(edge_rps: float | None) -> str:
    known = f" (its edge was estimated at {edge_rps:.4g}/s)" if edge_rps else ""
    return f"Give the rate to verify with --target-rate{known}."


def claim_of_repository(
    repository: Path,
    model_name: str,
    *,
    rate_rps: float | None = None,
    latency_budget_ms: float | None = None,
    gpus: tuple[int, ...] = (),
) -> ClaimedModel:
    """What the manifest of an exported model says of it; without one, what the arguments say.

    Args:
        rate_rps: The rate that is claimed; None for the certified one.
        latency_budget_ms: The latency budget that is claimed; None for the manifest's.
        gpus: Usable GPUs; there is where instances without a kind are.

    Raises:
        RepositoryError: There is no such model, its manifest cannot be read, or Triton serves
            another version than the newest exported one; or a ``config.pbtxt`` that was changed
            since cannot be read.
        UsageError: Rate or latency budget are neither claimed nor given.
        ModelError: There is no manifest, and the model is none that can be measured.
    """
    folder = model_directory(repository, model_name)
    if not read_versions(folder):
        if rate_rps is None or latency_budget_ms is None:
            raise UsageError(
                f"{folder} has no {MANIFEST_NAME}, so it claims nothing.",
                hint="Name the claim with --latency-budget and --target-rate, like "
                "--latency-budget 50ms --target-rate 100/s.",
            )
        return _without_manifest(folder, rate_rps, latency_budget_ms, gpus)
    manifest = read_manifest(repository, model_name)
    _require_served(folder, manifest.version)
    budget_ms = latency_budget_ms or manifest.number("sla.latency_budget_ms")
    rate_rps = rate_rps or manifest.number("entry.capacity_rps")
    if budget_ms is None:
        raise UsageError(
            f"The manifest of {model_name} names no latency budget: it claims nothing.",
            hint="Export a configuration of a study with analyze export.",
        )
    if rate_rps is None:
        raise UsageError(
            f"The manifest of {model_name} claims no certified rate.",
            hint=_rate_hint(manifest.number("entry.edge_rps")),
        )
    try:
        return _of_manifest(manifest, rate_rps, budget_ms, gpus)
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError) as error:
        raise RepositoryError(f"{manifest.place}: {error!r}.", hint=CHANGED_BY_HAND) from error


def _require_served(folder: Path, version: int) -> None:
    """Raises RepositoryError where requests for the model get another version than ``version``."""
    config = load_config(folder)
    config.name = config.name or folder.name
    served = served_versions(config, list_versions(folder))[-1]
    if served != version:
        raise RepositoryError(
            f"Triton serves version {served} of {folder}, and the newest that {MANIFEST_NAME} knows"
            f" is {version}: that claim is not about what is served.",
            hint=f"Export the study again, or let {version} be the newest version that is there and"
            f" that version_policy in {CONFIG_NAME} selects.",
        )


def _of_manifest(
    manifest: Manifest, rate_rps: float, budget_ms: float, gpus: tuple[int, ...]
) -> ClaimedModel:
    evidence = manifest.evidence
    sla, entry = evidence.get("sla") or {}, evidence.get("entry") or {}
    names = (ONNX_FILENAME, MODEL_FILENAMES["tensorrt"])
    files = [manifest.version_dir / name for name in names]
    model_path = next((file for file in files if file.exists()), files[0])
    limits = {name: sla[name] for name in Sla.__dataclass_fields__ if sla.get(name) is not None}
    changed = manifest.changed_files()
    note = f"changed since the export: {', '.join(changed)}. What is there is measured."
    provenance = evidence.get("provenance") or {}
    configuration = manifest.configuration
    if CONFIG_NAME in changed:
        proto = read_config(manifest.repository / manifest.model / CONFIG_NAME)
        normalize(proto)
        configuration = configuration_from_config(proto, gpus=gpus)
    return ClaimedModel(
        claim=Claim(
            source=f"repository {manifest.repository}, {manifest.model} version {manifest.version}",
            model=manifest.model,
            configuration=configuration,
            sla=Sla(**limits | {"latency_budget_ms": budget_ms}),
            rate_rps=rate_rps,
            arrivals=sla.get("arrivals", "poisson"),
            request_batch_size=manifest.number("sla.request_batch_size") or 1,
        ),
        model=served_model(manifest, model_path),
        model_path=model_path,
        exported=manifest.version_dir,
        exported_for=manifest.backend,
        data_path=_data_path(provenance),
        claimed=manifest.number("entry.capacity_rps") is not None,
        notes=(*((note,) if changed else ()), *_absent_data(provenance)),
        conditions=_kept_conditions(entry),
        tensorrt=(evidence.get("engine") or {}).get("tensorrt", ""),
        hardware=entry.get("hardware") or "",
    )


def _without_manifest(
    folder: Path, rate_rps: float, budget_ms: float, gpus: tuple[int, ...]
) -> ClaimedModel:
    """The claim that the model in ``folder``, as its own configuration serves it, keeps a rate."""
    config = deployed_config(folder)
    model = inspect_deployed(folder, input_shapes(config))
    ignored = unexpressed_settings(load_config(folder))
    note = f"What is measured leaves out settings of {CONFIG_NAME}: {', '.join(ignored)}."
    return ClaimedModel(
        claim=Claim(
            source=f"repository {folder.parent}, {folder.name}",
            model=model.name,
            configuration=configuration_from_config(config, gpus=gpus),
            sla=Sla(latency_budget_ms=budget_ms),
            rate_rps=rate_rps,
            arrivals="poisson",
            request_batch_size=1,
        ),
        model=model,
        model_path=Path(model.path),
        claimed=False,
        notes=(note,) if ignored else (),
    )


def served_model(manifest: Manifest, path: Path) -> ModelInfo:
    """What is served: read from the graph; an engine cannot be read, so from the manifest.

    Raises:
        AnalyzerError: The graph cannot be read, or the manifest says nothing of the engine's model.
    """
    told = manifest.evidence.get("model")
    if path.name != MODEL_FILENAMES["tensorrt"]:
        tensors = (told or {}).get("inputs", ())
        shapes = {tensor["name"]: tuple(tensor["shape"]) for tensor in tensors}
        return inspect_deployed(path, [shapes], name=manifest.model)
    if not told:
        raise RepositoryError(
            f"The manifest of {manifest.model} does not say what the inputs of its engine are.",
            hint="Export the study again with this version of the program.",
        )
    inputs, outputs = (
        tuple(
            TensorSpec(
                name=tensor["name"],
                datatype=tensor["datatype"],
                shape=tuple(tensor["shape"]),
                value_range=tuple(tensor["value_range"]) if tensor["value_range"] else None,
            )
            for tensor in told[side]
        )
        for side in ("inputs", "outputs")
    )
    return ModelInfo(
        name=manifest.model,
        path=str(path),
        sha256=file_sha256(path) if path.is_file() else "",
        batchable=told["batchable"],
        inputs=inputs,
        outputs=outputs,
    )


def _kept_conditions(entry: dict[str, Any]) -> ConditionsSummary | None:
    """Those of the certificate in the manifest's entry; None where it names none."""
    kept = (entry.get("certificate") or {}).get("conditions")
    known = ConditionsSummary.__dataclass_fields__
    if not isinstance(kept, dict) or not isinstance(kept.get("seconds"), (int, float)):
        return None
    return ConditionsSummary(**{"stalls": 0} | {k: v for k, v in kept.items() if k in known})


def _data_path(provenance: dict[str, Any]) -> Path | None:
    """The real inputs of the study, where they are still there."""
    path = Path(provenance.get("calibration_data") or "")
    return path if is_file(path) else None


def _absent_data(provenance: dict[str, Any]) -> tuple[str, ...]:
    """That the real inputs of the study are not there, and what to do; empty where they are."""
    told = provenance.get("calibration_data")
    if not told or _data_path(provenance) is not None:
        return ()
    note = (
        f"The study's real inputs are not at {told}: requests carry made-up ones, which may take"
        " another time. Put the file there, and verify again."
    )
    return (note,)
