"""What can run models here: the backends that a GPU of this machine has, and who needs one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from analyzer.domain.configuration import Backend, DeviceKind
from analyzer.engine.gpu_backends import driver_too_old, gpu_backends
from analyzer.errors import MissingPartError, ModelError


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


def why_on_cpu(wanted: str = "auto") -> str:
    """Why models run on the CPU of this machine, as the end of a sentence.

    Args:
        wanted: What ``--device`` says.
    """
    if wanted == "cpu":
        return "--device cpu keeps them on the CPU"
    try:
        require_gpu_backends()
    except MissingPartError as error:
        return f"none can be used here: {error.message.rstrip('.')}"
    return "ONNX Runtime does not run on the GPU of this machine"


def check_instances(path: Path, device: DeviceKind, why: Callable[[], str]) -> None:
    """Refuses a model folder whose instances need a GPU where models run on a CPU.

    Groups without a kind (KIND_AUTO) need none, unless they list GPUs: Triton then takes the CPU
    for them, where it refuses the list.

    Args:
        path: The model; only a folder with a ``config.pbtxt`` is looked into.
        device: Where models run.
        why: Why there, as of :func:`why_on_cpu`; asked only for the message.

    Raises:
        ModelError: It needs a GPU.
        RepositoryError: Its ``config.pbtxt`` cannot be read.
    """
    config = path / "config.pbtxt"
    if device == "gpu" or not config.is_file():
        return
    from analyzer.modelconfig.text import read_config

    for group in read_config(config).instance_group:
        if group.kind == group.KIND_GPU or (group.kind == group.KIND_AUTO and group.gpus):
            asks = "KIND_GPU" if group.kind == group.KIND_GPU else "gpus"
            raise ModelError(
                f"{config}: instance_group asks for a GPU ({asks}), and {why()}.",
                hint="Run this on a machine with a GPU, or leave kind and gpus out of its "
                "instance_group: Triton then takes a GPU where there is one, and else the CPU.",
            )
