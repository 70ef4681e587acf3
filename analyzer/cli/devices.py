"""What can run models here: the backends that a GPU of this machine has."""

from __future__ import annotations

from importlib.util import find_spec

from analyzer.domain.configuration import Backend, DeviceKind
from analyzer.errors import MissingPartError


def gpu_backends() -> tuple[Backend, ...]:
    """The backends that run on a GPU that this process may use; empty without such a GPU."""
    from analyzer.engine.runtimes.onnxruntime_ import import_onnxruntime
    from analyzer.hardware.gpus import visible_gpus

    if not visible_gpus():
        return ()
    found: list[Backend] = []
    if "CUDAExecutionProvider" in import_onnxruntime().get_available_providers():
        found.append("onnxruntime")
    if find_spec("tensorrt") is not None:
        found.append("tensorrt")
    return tuple(found)


def default_device() -> DeviceKind:
    """Where Triton's automatic configuration puts ONNX models on this machine."""
    return "gpu" if "onnxruntime" in gpu_backends() else "cpu"


def require_gpu_backends() -> tuple[Backend, ...]:
    """As :func:`gpu_backends`.

    Raises:
        MissingPartError: There is none; the message says what is missing.
    """
    from analyzer.hardware.gpus import first_gpu

    first_gpu()
    found = gpu_backends()
    if not found:
        raise MissingPartError(
            "Neither ONNX Runtime's CUDA provider nor TensorRT is here to run models on the GPU.",
            hint="Install tritune[gpu]; analyze doctor shows what is here.",
        )
    return found
