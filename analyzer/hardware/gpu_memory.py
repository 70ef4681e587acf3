"""Memory of a GPU that others hold: what a server that found too little of it is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from analyzer.errors import TargetMemoryError
from analyzer.hardware.gpus import VISIBLE, GpuIdentity, list_gpus
from analyzer.hardware.sampler import gpu_used_bytes

_GIB = 1 << 30  # bytes


@contextmanager
def telling_gpu_memory(
    gpu: GpuIdentity | None, used_bytes: int | None, *, nvml: Any | None = None
) -> Iterator[None]:
    """Adds to an error of memory what was in use on the GPU before, and which GPU has more.

    Args:
        gpu: Where the server runs; None on a CPU.
        used_bytes: In use on it before the server was started; None where NVML does not tell.
        nvml: Stands in for the module ``pynvml`` (tests).

    Raises:
        TargetMemoryError: The one that was raised inside, with both.
    """
    try:
        yield
    except TargetMemoryError as error:
        if gpu is None or used_bytes is None or gpu.memory_bytes is None:
            raise
        said = (
            f"{error.message.removesuffix('.')}. Before, {used_bytes / _GIB:.1f} of"
            f" {gpu.memory_bytes / _GIB:.1f} GiB of GPU {gpu.index} were in use."
        )
        other = _roomier(gpu, gpu.memory_bytes - used_bytes, nvml)
        raise error.reworded(said, f"{error.hint} {other}".strip()) from error


def _roomier(gpu: GpuIdentity, free_bytes: int, nvml: Any | None) -> str:
    """The sentence about the GPU with most free memory; empty where that is ``gpu``."""
    free = {gpu: free_bytes}
    for each in list_gpus(nvml=nvml):
        used = gpu_used_bytes(each, nvml=nvml)
        if each.uuid != gpu.uuid and used is not None and each.memory_bytes is not None:
            free[each] = each.memory_bytes - used
    best = max(free, key=lambda each: free[each])
    if best is gpu:
        return ""
    return (
        f"GPU {best.index} has {free[best] / _GIB:.1f} GiB free: set {VISIBLE}={best.uuid} to use"
        " it."
    )
