"""The backends that can run models on a GPU of this machine."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from analyzer.domain.configuration import Accelerator, Backend, DeviceKind

_TENSORRT_PROVIDER = "libonnxruntime_providers_tensorrt.so"
_TENSORRT_LIBRARY = re.compile(rb"libnv(?:infer|onnxparser)\.so\.[0-9]+")
# Loads each library in turn; prints the linker's word on the first that is not there.
_LOAD = (
    "import ctypes, sys\n"
    "try:\n"
    "    for name in sys.argv[1:]: ctypes.CDLL(name)\n"
    "except OSError as error: print(error)\n"
)
_LOAD_TIMEOUT_S = 30.0  # hundreds of MB, perhaps over a network


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


def loadable_accelerators(device: DeviceKind) -> tuple[tuple[Accelerator, ...], str]:
    """The accelerators that sessions on ``device`` can have, and why one that is listed cannot.

    ONNX Runtime lists its TensorRT provider wherever it was built with it, and a session falls back
    where TensorRT's libraries are missing: each such variant would be built in vain.

    Returns:
        The accelerators, and a sentence; it is empty where every listed one can be loaded.
    """
    from analyzer.engine.runtimes.onnxruntime_ import import_onnxruntime
    from analyzer.engine.runtimes.providers import accelerators_here

    found = accelerators_here(device)
    if "tensorrt" not in found:
        return found, ""
    provider = Path(str(import_onnxruntime().__file__)).parent / "capi" / _TENSORRT_PROVIDER
    missing = _missing_library(provider)
    if not missing:
        return found, ""
    return tuple(one for one in found if one != "tensorrt"), (
        f"the accelerator tensorrt needs {missing}, which is not found here: put the folder of"
        " TensorRT's libraries, of the version that ONNX Runtime was built for, into"
        " LD_LIBRARY_PATH."
    )


def _missing_library(provider: Path) -> str:
    """TensorRT's first library that ``provider`` needs and that is not found; else empty.

    The libraries are loaded in a process of its own, which gives their memory back.
    """
    try:
        needed = sorted(set(_TENSORRT_LIBRARY.findall(provider.read_bytes())))
        told = subprocess.run(
            [sys.executable, "-P", "-c", _LOAD, *(name.decode() for name in needed)],
            capture_output=True,
            text=True,
            timeout=_LOAD_TIMEOUT_S,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""  # a session tells
    name, _, said = told.partition(": ")
    return name if name.encode() in needed and "cannot open shared object" in said else ""
