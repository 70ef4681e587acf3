"""What decides what is built and how it is judged: names of cache entries follow from it."""

from __future__ import annotations

import platform
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from analyzer.domain.configuration import Backend, Execution, VariantKey
from analyzer.domain.model import ModelInfo
from analyzer.engine.runtimes.providers import onnxruntime_versions
from analyzer.variants.inputs import CalibrationData
from analyzer.variants.quantize import needs_reduced_range
from analyzer.variants.tensorrt_build import EngineFacts, EngineOptions

# Raised when a change of our code changes what is built from the same facts.
_BUILDER = 9
_LIBRARIES = ("onnx", "numpy")


def row_facts(
    model: ModelInfo, calibration: CalibrationData | None, device: str, seed: int
) -> dict[str, Any]:
    """Everything that decides which rows are used, and how the fp32 model answers them."""
    return {
        "builder": _BUILDER,
        "model": model.sha256,
        "inputs": [asdict(spec) for spec in model.inputs],
        "batchable": model.batchable,
        "calibration": calibration.sha256 if calibration else None,
        "device": device,
        "seed": seed,
        "machine": platform.machine(),
        "libraries": {name: _version(name) for name in _LIBRARIES} | onnxruntime_versions(),
    }


def variant_facts(
    key: VariantKey,
    confidence: float,
    drop_max: float,
    engine: EngineOptions | None,
    place: EngineFacts | None,
) -> dict[str, Any]:
    """Everything else that decides what is built and how it is judged."""
    return {
        "key": asdict(_built_as(key)),
        "confidence": confidence,
        "drop_max": drop_max,
        "reduced_range": needs_reduced_range(),
        "engine": asdict(engine) | asdict(place) if engine and place else None,
    }


def _built_as(key: VariantKey) -> VariantKey:
    """``key`` without what neither changes the file nor its answers."""
    backend: Backend = "onnxruntime" if key.backend == "python" else key.backend
    execution = Execution(accelerator=key.execution.accelerator)
    return replace(key, backend=backend, execution=execution)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
