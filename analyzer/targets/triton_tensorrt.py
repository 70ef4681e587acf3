"""The TensorRT of a Triton installation, to which the engines that it serves are bound."""

from __future__ import annotations

import os
import re
from pathlib import Path

from analyzer.errors import MissingPartError
from analyzer.targets.triton_install import TritonInstall

# Where Triton's containers and NVIDIA's packages put libnvinfer.
_FOLDERS = tuple(
    Path(folder)
    for folder in (
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/local/tensorrt/lib",
    )
)
_LIBRARY = re.compile(r"libnvinfer\.so\.(\d+\.\d+\.\d+)")
# The build's number may differ: NVIDIA's containers and packages of one release count on their own.
_PARTS = 3


def tensorrt_of(install: TritonInstall) -> str | None:
    """Version of the TensorRT that ``install`` runs engines with, by the name of its library.

    None where there is none, or no name tells.
    """
    if "tensorrt" not in install.backends:
        return None
    linker = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    own = (install.backend_dir / "tensorrt", install.executable.parent.parent / "lib")
    for folder in (*own, *(Path(path) for path in linker if path), *_FOLDERS):
        if not folder.is_dir():
            continue
        for file in sorted(folder.glob("libnvinfer.so.*")):
            if found := _LIBRARY.fullmatch(file.resolve().name):
                return found[1]
    return None


def require_same_tensorrt(install: TritonInstall, built_by: str) -> None:
    """Checks that ``install`` can run engines that TensorRT ``built_by`` builds, or has built.

    Raises:
        MissingPartError: It has another version; both are named.
    """
    serving = tensorrt_of(install)
    if serving is None or serving.split(".")[:_PARTS] == built_by.split(".")[:_PARTS]:
        return
    raise MissingPartError(
        f"The Triton {install.executable} runs engines with TensorRT {serving}, and they are built "
        f"by TensorRT {built_by}; an engine runs only on the version that built it.",
        hint=f"Install tensorrt=={serving} beside this program, or search inside the container "
        "whose TensorRT will serve.",
    )


def elsewhere(server: str, built_by: str) -> str:
    """What must hold of a server that is not asked for its TensorRT, as a sentence."""
    return (
        f"Engines are built by TensorRT {built_by}; {server} can load them only if it runs the same"
        " version."
    )
