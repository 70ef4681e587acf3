"""One build at a time on a GPU, and nothing measured on it meanwhile.

TensorRT chooses kernels by timing them: whatever else runs on the GPU changes the choice (NVIDIA's
maintainers on parallel builds: github.com/NVIDIA/TensorRT/issues/3543). The locks are the kernel's:
they hold among all programs that see the same ``/tmp`` and end with their process.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from analyzer.hardware.gpus import GpuIdentity

# Not the folder of temporary files, which differs between processes.
_FOLDER = Path("/tmp")


@contextmanager
def building_on(gpu: GpuIdentity) -> Iterator[None]:
    """Waits until nobody builds or measures on ``gpu``, and keeps others from it."""
    with _held(gpu, fcntl.LOCK_EX):
        yield


@contextmanager
def measuring_on(gpu: GpuIdentity | None) -> Iterator[None]:
    """Waits until nobody builds on ``gpu``, and keeps builds from it; nothing on a CPU (None)."""
    if gpu is None:
        yield
        return
    with _held(gpu, fcntl.LOCK_SH):
        yield


@contextmanager
def _held(gpu: GpuIdentity, kind: int) -> Iterator[None]:
    # MIG instances of old drivers have slashes in their names (MIG-GPU-…/1/0).
    path = _FOLDER / f"tritune-gpu-{gpu.uuid.replace('/', '-')}.lock"
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        # Not opened like this where it exists: Linux refuses that for another user's file.
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, kind)
        yield
    finally:
        os.close(descriptor)
