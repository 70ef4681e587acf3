"""One build at a time on a GPU, and nothing measured on it meanwhile.

TensorRT chooses kernels by timing them: whatever else runs on the GPU changes the choice (NVIDIA's
maintainers on parallel builds: github.com/NVIDIA/TensorRT/issues/3543). The locks are the kernel's:
they hold among all programs that see the same ``/tmp`` and end with their process. Where there is
no file to lock, nobody waits; that is told on the standard error.
"""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from analyzer.hardware.gpus import GpuIdentity
from analyzer.hardware.lock_file import open_lock_file

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
    descriptor = None
    try:
        descriptor = open_lock_file(path)
    except OSError as error:
        _tell_once(
            f"What others build or measure on GPU {gpu.uuid} meanwhile is not waited for: {path} "
            f"cannot be locked ({error.strerror})."
        )
    if descriptor is None:
        yield  # not in the handler: the error would be told as the cause of one of the work's
        return
    try:
        fcntl.flock(descriptor, kind)
        yield
    finally:
        os.close(descriptor)


@cache
def _tell_once(line: str) -> None:
    print(line, file=sys.stderr)
