"""Which GPU is which, by its UUID: the one name that NVML, CUDA, Ray and MIG share.

NVML counts GPUs in the order of their PCI bus. CUDA counts those that ``CUDA_VISIBLE_DEVICES``
leaves, by default the fastest first; Ray hands out entries of that variable, or numbers. Numbers
of the two therefore differ on a machine with several models of GPU. So every number is read once,
as NVML's (what ``nvidia-smi`` shows), and children get a UUID and ``CUDA_DEVICE_ORDER=PCI_BUS_ID``
(CUDA C++ Programming Guide, "CUDA Environment Variables").
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from analyzer.errors import MissingPartError
from analyzer.hardware.nvml import nvml_session, text, why_unusable

VISIBLE = "CUDA_VISIBLE_DEVICES"
_ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuIdentity:
    """A GPU, or a MIG instance of one, that processes can be put on.

    Args:
        uuid: What NVML and CUDA know it by (``GPU-…``, ``MIG-…``). Where NVML could not be asked,
            what ``CUDA_VISIBLE_DEVICES`` or Ray call it.
        index: NVML's number of the GPU, for people; None where NVML could not be asked.
        name: For example ``NVIDIA H200``, or ``NVIDIA H200 MIG 1g.18gb``.
        memory_bytes: Total; None where the GPU has none of its own (unified memory) or the driver
            does not tell.
        driver: Version of the driver.
        mig: Whether it is a MIG instance, which shares clocks and power with its neighbours.
        compute_capability: For example (9, 0); None where the driver does not tell.
    """

    uuid: str
    index: int | None = None
    name: str = ""
    memory_bytes: int | None = None
    driver: str = ""
    mig: bool = False
    compute_capability: tuple[int, int] | None = None


def list_gpus(*, nvml: Any | None = None) -> tuple[GpuIdentity, ...]:
    """Every GPU that NVML shows, in the order of the PCI bus, hidden ones too.

    A GPU in MIG mode is represented by its instances, since CUDA runs on these alone; without any
    it is left out. So is one that a question fails for (it fell off the bus, another user's); the
    others stay.

    Args:
        nvml: Stands in for the module ``pynvml`` (tests).
    """
    with nvml_session(nvml) as library:
        if library is None:
            return ()
        driver = _ask(library, lambda: text(library.nvmlSystemGetDriverVersion())) or ""
        found: list[GpuIdentity] = []
        for index in range(_ask(library, library.nvmlDeviceGetCount) or 0):
            with suppress(library.NVMLError):
                handle = library.nvmlDeviceGetHandleByIndex(index)
                mig = _in_mig_mode(library, handle)
                found += [
                    _identity(library, each, index, driver, mig=mig)
                    for each in (_mig_instances(library, handle) if mig else [handle])
                ]
        return tuple(found)


def visible_gpus(
    *, nvml: Any | None = None, environment: Mapping[str, str] = os.environ
) -> tuple[GpuIdentity, ...]:
    """The GPUs that this process may use, in CUDA's order once children follow the PCI bus.

    ``CUDA_VISIBLE_DEVICES`` counts as CUDA reads it: unset shows all, empty shows none, and what
    follows an entry that names nothing is hidden. A number is NVML's; of a GPU in MIG mode it
    means the first instance.
    """
    gpus = list_gpus(nvml=nvml)
    written = environment.get(VISIBLE)
    if written is None:
        return gpus
    found: list[GpuIdentity] = []
    for name in written.split(","):
        gpu = _named(gpus, name.strip())
        if gpu is None:
            break
        found.append(gpu)
    return tuple(dict.fromkeys(found))


def find_gpu(name: str, *, nvml: Any | None = None) -> GpuIdentity:
    """The GPU that Ray or ``CUDA_VISIBLE_DEVICES`` call ``name``: a number or a UUID.

    Where NVML does not know it, an identity that has nothing but this name.
    """
    return _named(list_gpus(nvml=nvml), name) or GpuIdentity(uuid=name)


def cuda_environment(*gpus: GpuIdentity) -> dict[str, str]:
    """Variables that show a child these GPUs alone, numbered from 0 in this order."""
    return _ORDER | {VISIBLE: ",".join(gpu.uuid for gpu in gpus)}


def first_gpu(
    *, nvml: Any | None = None, environment: Mapping[str, str] = os.environ
) -> GpuIdentity:
    """The first GPU that this process may use: the leased one, under a lease.

    Raises:
        MissingPartError: There is none, or all are hidden; the sentence says why.
    """
    visible = visible_gpus(nvml=nvml, environment=environment)
    if visible:
        return visible[0]
    written = environment.get(VISIBLE)
    there = list_gpus(nvml=nvml)
    if there and written is not None:
        known = ", ".join(f"{gpu.index} ({gpu.name}, {gpu.uuid})" for gpu in there)
        raise MissingPartError(
            f"{VISIBLE}={written!r} hides every GPU of this machine.",
            hint=f"Unset it, or name one of: {known}.",
        )
    if written:
        # Without NVML (its package or library is not here) CUDA alone can tell.
        return GpuIdentity(uuid=written.split(",")[0].strip())
    why = why_unusable(nvml) or _without_instances(nvml)
    raise MissingPartError(
        f"NVML finds no NVIDIA GPU on this machine{why and f': {why}'}.",
        hint="Use --device cpu; with a GPU, install its driver and the package nvidia-ml-py "
        "(analyze doctor shows what is here).",
    )


def driver_cuda_version(*, nvml: Any | None = None) -> tuple[int, int] | None:
    """The newest CUDA that the driver runs, for example (12, 2); None where it does not tell."""
    with nvml_session(nvml) as library:
        if library is None:
            return None
        number = _ask(library, library.nvmlSystemGetCudaDriverVersion_v2)
        return None if number is None else (number // 1000, number % 1000 // 10)


def _without_instances(nvml: Any | None) -> str:
    """The sentence about GPUs that nothing can run on; empty without such."""
    with nvml_session(nvml) as library:
        if library is None:
            return ""
        for index in range(_ask(library, library.nvmlDeviceGetCount) or 0):
            with suppress(library.NVMLError):
                if _in_mig_mode(library, library.nvmlDeviceGetHandleByIndex(index)):
                    return (
                        f"GPU {index} is in MIG mode and has no instance that a program could use"
                    )
    return ""


def open_handle(nvml: Any, gpu: GpuIdentity) -> Any | None:
    """NVML's handle of a GPU or MIG instance, which it finds by UUID; None where it does not."""
    return _ask(nvml, lambda: nvml.nvmlDeviceGetHandleByUUID(gpu.uuid))


def _named(gpus: tuple[GpuIdentity, ...], name: str) -> GpuIdentity | None:
    if name.isdecimal():
        return next((gpu for gpu in gpus if gpu.index == int(name)), None)
    # CUDA takes any unambiguous beginning of a UUID.
    known = [gpu for gpu in gpus if name and gpu.uuid.startswith(name)]
    return known[0] if len(known) == 1 and name.startswith(("GPU-", "MIG-")) else None


def _identity(nvml: Any, handle: Any, index: int, driver: str, *, mig: bool) -> GpuIdentity:
    memory = _ask(nvml, lambda: int(nvml.nvmlDeviceGetMemoryInfo(handle).total))
    capability = _ask(nvml, lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
    return GpuIdentity(
        uuid=text(nvml.nvmlDeviceGetUUID(handle)),
        index=index,
        name=text(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=memory or None,
        driver=driver,
        mig=mig,
        compute_capability=tuple(capability) if capability else None,
    )


def _in_mig_mode(nvml: Any, handle: Any) -> bool:
    mode = _ask(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle))
    return mode is not None and mode[0] == nvml.NVML_DEVICE_MIG_ENABLE


def _mig_instances(nvml: Any, handle: Any) -> Iterator[Any]:
    """Handles of a GPU's MIG instances."""
    for number in range(_ask(nvml, lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(handle)) or 0):
        instance = _ask(nvml, partial(nvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number))
        if instance is not None:
            yield instance


def _ask(nvml: Any, question: Callable[[], Any]) -> Any | None:
    """The answer, or None where this driver or GPU does not tell."""
    try:
        return question()
    except nvml.NVMLError:
        return None
