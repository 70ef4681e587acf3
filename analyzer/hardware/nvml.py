"""NVIDIA's management library, as little of it as we need; absent where there is no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def nvml_session(library: Any | None = None) -> Iterator[Any | None]:
    """NVML, ready to use; None where the library, the driver or the device is missing.

    Args:
        library: Stands in for the module ``pynvml`` (tests).
    """
    nvml: Any = library if library is not None else _installed()
    if nvml is None:
        yield None
        return
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        yield None
        return
    try:
        yield nvml
    finally:
        nvml.nvmlShutdown()


# What a user can do about, of the errors that NVML's start ends with.
_UNUSABLE = {
    "NVML_ERROR_LIBRARY_NOT_FOUND": "the NVIDIA driver is not installed, or not shown to this"
    " container",
    "NVML_ERROR_DRIVER_NOT_LOADED": "the NVIDIA driver is not loaded",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "the driver's libraries and its kernel module are of"
    " different versions, as after an update until the machine is started anew",
    "NVML_ERROR_NO_PERMISSION": "this user may not ask the NVIDIA driver",
}


def why_unusable(library: Any | None = None) -> str:
    """Why NVML tells nothing here, as the end of a sentence; empty where it answers.

    Args:
        library: Stands in for the module ``pynvml`` (tests).
    """
    nvml: Any = library if library is not None else _installed()
    if nvml is None:
        return "the package nvidia-ml-py is not installed"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        for name, words in _UNUSABLE.items():
            if error.value == getattr(nvml, name):
                return words
        return str(error)
    nvml.nvmlShutdown()
    return ""


def _installed() -> Any | None:
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


def text(value: str | bytes) -> str:
    """A name from NVML, whose older bindings answer in bytes."""
    return value.decode() if isinstance(value, bytes) else value
