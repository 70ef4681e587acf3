"""What can run models here: the backends that a GPU of this machine has."""

from __future__ import annotations

from analyzer.domain.configuration import Backend, DeviceKind
from analyzer.engine.gpu_backends import driver_too_old, gpu_backends
from analyzer.errors import MissingPartError


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
    if not found and (too_old := driver_too_old()):
        raise MissingPartError(
            too_old,
            hint="Install a newer driver, or an onnxruntime-gpu that is built for the older CUDA.",
        )
    if not found:
        raise MissingPartError(
            "Neither ONNX Runtime's CUDA provider nor TensorRT is here to run models on the GPU.",
            hint="Install tritune[gpu]; analyze doctor shows what is here.",
        )
    return found
