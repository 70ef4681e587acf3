"""The backends that can run models on a GPU of this machine."""

from __future__ import annotations

from importlib.util import find_spec

from analyzer.domain.configuration import Backend


def gpu_backends() -> tuple[Backend, ...]:
    """The backends that run on a GPU that this process may use; empty without such a GPU."""
    from analyzer.engine.runtimes.onnxruntime_ import import_onnxruntime
    from analyzer.hardware.gpus import visible_gpus

    if not visible_gpus():
        return ()
    found: list[Backend] = []
    available = import_onnxruntime().get_available_providers()
    if "CUDAExecutionProvider" in available and not driver_too_old():
        found.append("onnxruntime")
    if find_spec("tensorrt") is not None:
        found.append("tensorrt")
    return tuple(found)


def driver_too_old() -> str:
    """Why the driver does not run ONNX Runtime's CUDA, as a sentence; empty where it does.

    A driver runs every minor version of a major version of CUDA that it knows (CUDA Compatibility,
    "Minor Version Compatibility").
    """
    from analyzer.engine.runtimes.onnxruntime_ import import_onnxruntime
    from analyzer.engine.runtimes.providers import cuda_of
    from analyzer.hardware.gpus import driver_cuda_version

    ort = import_onnxruntime()
    built, runs = cuda_of(ort), driver_cuda_version()
    if built is None or runs is None or runs[0] >= built[0]:
        return ""
    return (
        f"The NVIDIA driver runs CUDA up to {runs[0]}.{runs[1]}, and ONNX Runtime"
        f" {ort.__version__} here is built for CUDA {built[0]}.{built[1]}."
    )
