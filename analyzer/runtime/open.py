"""Opens the runtime of a backend; the libraries of the others are not loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from analyzer.runtime.base import Runtime


def open_runtime(
    path: Path,
    *,
    backend: str = "onnxruntime",
    device: Literal["cpu", "gpu"] = "cpu",
    intra_op_threads: int = 0,
) -> Runtime:
    """One instance of the model (or engine) at ``path``.

    Raises:
        MissingPartError: The backend's library or the device is not here.
        TargetMemoryError: There is not enough memory.
        TargetStartError: The file cannot be loaded.
    """
    if backend == "tensorrt":
        from analyzer.runtime.tensorrt_ import TensorRtRuntime

        return TensorRtRuntime(path)
    from analyzer.runtime.ort import OrtRuntime

    return OrtRuntime(path, device=device, intra_op_threads=intra_op_threads)
