"""What can be verified: a claim, and the model file that it is about."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analyzer.domain.conditions import ConditionsSummary, summary_of
from analyzer.domain.measurement import Measurement
from analyzer.domain.model import ModelInfo
from analyzer.domain.sla import Sla
from analyzer.domain.study import Claim, StudyResult
from analyzer.errors import UsageError
from analyzer.export.manifest import read_manifest
from analyzer.export.study import variant_of
from analyzer.variants.inspect import inspect_model


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedModel:
    """A claim and what is needed to measure it again.

    Args:
        model_path: The file that is served.
        data_path: Real inputs; None for made-up ones.
        variant_sha256: Of the file that is served, under which its probes are kept; empty if
            unknown.
        rate_scale: The twin's edge over the measured one; 1 if unknown.
        notes: Sentences that qualify the claim.
        conditions: What the machine was like when it was certified; None where unknown.
    """

    claim: Claim
    model: ModelInfo
    model_path: Path
    data_path: Path | None = None
    variant_sha256: str = ""
    rate_scale: float = 1.0
    notes: tuple[str, ...] = ()
    conditions: ConditionsSummary | None = None


def claim_of_study(result: StudyResult, measurement: Measurement, cache_dir: Path) -> ClaimedModel:
    """What a study says of one of its measured configurations.

    Args:
        cache_dir: Where variants are kept between studies.

    Raises:
        UsageError: It was not certified.
        AnalyzerError: Its variant cannot be made.
    """
    configuration = measurement.configuration
    if measurement.capacity_rps is None:
        raise UsageError(
            f"The configuration {configuration.config_id} of {result.name!r} was not certified at "
            "any rate.",
            hint="Give the rate to verify with --target-rate.",
        )
    certificate = measurement.certificate
    variant = variant_of(result, configuration, cache_dir)
    predicted, edge_rps = measurement.predicted.edge_rps, measurement.edge.rate_rps
    scale = predicted / edge_rps if predicted and edge_rps else 1.0
    return ClaimedModel(
        claim=Claim(
            source=f"study {result.name}",
            model=result.model.name,
            configuration=configuration,
            sla=result.sla,
            rate_rps=measurement.capacity_rps,
            arrivals=result.arrivals,
            request_batch_size=result.request_batch_size,
        ),
        model=result.model,
        model_path=Path(variant.path),
        data_path=_data_path(result.provenance),
        variant_sha256=variant.sha256,
        rate_scale=scale,
        conditions=summary_of([certificate.conditions]) if certificate is not None else None,
    )


def claim_of_repository(repository: Path, model_name: str) -> ClaimedModel:
    """What the manifest of an exported model says of it.

    Raises:
        RepositoryError: There is no manifest, or it cannot be read.
        UsageError: It claims no certified rate.
    """
    manifest = read_manifest(repository, model_name)
    evidence = manifest.evidence
    sla, rate_rps = evidence.get("sla", {}), evidence.get("entry", {}).get("capacity_rps")
    if not sla.get("latency_budget_ms") or not rate_rps:
        raise UsageError(
            f"The manifest of {model_name} claims no certified rate.",
            hint="Export a study's recommendation, or give --target-rate and --latency-budget.",
        )
    files = [manifest.version_dir / name for name in ("model.onnx", "model.plan")]
    model_path = next((file for file in files if file.exists()), files[0])
    limits = {name: sla[name] for name in Sla.__dataclass_fields__ if sla.get(name) is not None}
    changed = ", ".join(manifest.changed_files())
    note = f"changed since the export: {changed}. What is there is measured."
    return ClaimedModel(
        claim=Claim(
            source=f"repository {repository}, {model_name} version {manifest.version}",
            model=model_name,
            configuration=manifest.configuration,
            sla=Sla(**limits),
            rate_rps=rate_rps,
            arrivals=sla.get("arrivals", "poisson"),
            request_batch_size=sla.get("request_batch_size", 1),
        ),
        model=inspect_model(model_path, name=model_name),
        model_path=model_path,
        data_path=_data_path(evidence.get("provenance", {})),
        notes=(note,) if changed else (),
        conditions=_kept_conditions(evidence["entry"]),
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
    return path if path.is_file() else None
