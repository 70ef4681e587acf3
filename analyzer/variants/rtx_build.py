"""Engines of TensorRT for RTX, compiled ahead of time: on a machine without a GPU.

They run on RTX GPUs of the compute capabilities that they are for. Neither our servers nor a
backend of Triton run them, so that nothing about them is measured.
"""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from pathlib import Path

from analyzer.domain.configuration import VariantKey
from analyzer.domain.model import ModelInfo
from analyzer.errors import AnalyzerError
from analyzer.hardware.machine import usable_cores
from analyzer.variants.build import make_request
from analyzer.variants.build_process import prepare, run_builds
from analyzer.variants.cache import building
from analyzer.variants.inputs import CalibrationData
from analyzer.variants.tensorrt_build import EngineOptions


def build_rtx_engine(
    model: ModelInfo,
    key: VariantKey,
    target: Path,
    options: EngineOptions,
    *,
    calibration: CalibrationData | None,
    cache_dir: Path,
    timeout_s: float,
    seed: int = 0,
) -> tuple[str, ...]:
    """Compiles ``model`` at the precision of ``key`` to ``target``; returns notes for people.

    Args:
        options: With the compute capabilities that it is for.
        calibration: Rows for static int8; made up where there are none.
        cache_dir: Where the builder's process has its temporary folder.
        timeout_s: After this it is ended.

    Raises:
        MissingPartError: TensorRT for RTX is not here.
        BuildError: It cannot compile the graph, or not for one of these compute capabilities.
        OSError: ``target`` cannot be written.
    """
    assert options.compute_capabilities
    key = replace(key, backend="tensorrt")
    request = make_request(
        model, key, calibration, seed,
        device="cpu", confidence=0.0, drop_max=0.0, seed=seed, reference_key="",
        faster_only=False, threads=usable_cores(), engine=options,
    )  # fmt: skip
    with building(cache_dir.absolute()) as folder:
        prepare(folder, request)
        built = run_builds([(key, folder)], timeout_s=timeout_s, cancelled=threading.Event())
        result = built[key]
        if isinstance(result, AnalyzerError):
            raise result
        assert result.file is not None
        shutil.copyfile(folder / "out" / result.file, target)
    return result.notes
