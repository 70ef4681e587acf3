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


def _installed() -> Any | None:
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


def text(value: str | bytes) -> str:
    """A name from NVML, whose older bindings answer in bytes."""
    return value.decode() if isinstance(value, bytes) else value
