"""Finds a real ``tritonserver`` on this machine and what it needs to start."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from analyzer.domain.configuration import Backend
from analyzer.errors import MissingPartError
from analyzer.resources import PACKAGE_ROOT, search_path, tool_homes

HOME_VARIABLE = "TRITUNE_TRITON_HOME"
_WHEEL_SERVER = Path("pytriton") / "tritonserver"
_WHEEL_LIBRARIES = "nvidia_pytriton.libs"
_STUB = "triton_python_backend_stub"
# The release notes of Triton 23.12 (server 2.41) introduce Python-based backends.
_PYTHON_BASED_SINCE = (2, 41)


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonInstall:
    """A server that can be started.

    Args:
        executable: The ``tritonserver`` program.
        source: How it was found, for people.
        backend_dir: ``--backend-directory``.
        backends: Names of the backends that it can have, ours among them.
        home: The folder that ``TRITUNE_TRITON_HOME`` names for it; None for one on the PATH.
        stand_in: Whether its ``onnxruntime`` is ours: a Python-based backend beside its own.
        libraries: Folder for ``LD_LIBRARY_PATH`` (the wheel's own libraries); None if the system's
            linker knows them.
        stub: The python backend's stub where it does not lie in ``backend_dir`` yet (a plain
            wheel); the server then runs on a copy of that folder.
        version: The server's version; None where no file tells it.
    """

    executable: Path
    source: str
    backend_dir: Path
    backends: tuple[str, ...]
    libraries: Path | None = None
    stub: Path | None = None
    version: str | None = None
    home: Path | None = None
    stand_in: bool = False

    @property
    def described(self) -> str:
        """For people: version or program, and the backends."""
        names = [
            f"{name}, ours in Python" if self.stand_in and name == "onnxruntime" else name
            for name in self.backends
        ]
        return f"{self.version or self.executable} ({'; '.join(names)})"

    def backend_for(self, backend: Backend) -> Backend:
        """The backend on which a configuration for ``backend`` can be served here.

        ``backend`` itself where the server has it; ``python`` (ONNX Runtime in a ``model.py``)
        instead of ONNX Runtime where it has only that.

        Raises:
            MissingPartError: It has neither.
        """
        if backend in self.backends:
            return backend
        if backend == "onnxruntime" and "python" in self.backends:
            return "python"
        raise MissingPartError(
            f"The Triton server {self.executable} has no {backend} backend, only "
            f"{', '.join(self.backends) or 'none'}.",
            hint="A Triton container has them all; --server embedded needs none.",
        )


def find_triton() -> TritonInstall | None:
    """The Triton server to use, or None.

    Looked for in this order: the folder that ``TRITUNE_TRITON_HOME`` names (as ``make tools`` makes
    it, or a Triton installation), ``tritonserver`` on the PATH, ``.tools/triton`` in the checkout,
    ``tritune/triton`` in the user's cache, an installed ``nvidia-pytriton`` wheel.
    """
    named = os.environ.get(HOME_VARIABLE)
    if named:
        return _in_home(Path(named), HOME_VARIABLE)
    on_path = shutil.which("tritonserver")
    if on_path:
        found = _install(Path(on_path).resolve(), "PATH")
        if found:
            return found
    for home, source in tool_homes("triton"):
        found = _in_home(home, source)
        if found:
            return found
    wheel = importlib.util.find_spec("pytriton")
    if wheel is not None and wheel.origin is not None:
        return _in_home(Path(wheel.origin).parent.parent, "the installed nvidia-pytriton wheel")
    return None


def require_triton() -> TritonInstall:
    """The Triton server to use.

    Raises:
        MissingPartError: There is none; the hint says how to get one.
    """
    install = find_triton()
    if install is None:
        named = os.environ.get(HOME_VARIABLE)
        place = f"{HOME_VARIABLE}={named} holds no server" if named else "none was found"
        raise MissingPartError(
            f"No Triton server can be started on this machine: {place}.",
            hint="Run `make tools` (fetches one with the python backend), put tritonserver on the "
            "PATH, or use --server embedded or --server grpc://HOST:PORT.",
        )
    return install


def python_environment(install: TritonInstall) -> dict[str, str]:
    """Environment variables with which the server's python backend runs in this Python's packages.

    The stub embeds Python without reading ``PYTHONPATH`` (an isolated configuration), but finds its
    packages through the first ``python3`` on the PATH, so that of this environment is put first.
    """
    return os.environ | {
        # What the user put first stays first, as in this Python.
        "PYTHONPATH": os.pathsep.join(
            filter(
                None,
                (
                    os.environ.get("PYTHONPATH"),
                    str(PACKAGE_ROOT),
                    sysconfig.get_path("purelib"),
                ),
            )
        ),
        "PATH": search_path("PATH", Path(sys.executable).parent),
        "LD_LIBRARY_PATH": search_path(
            "LD_LIBRARY_PATH", install.libraries, sysconfig.get_config_var("LIBDIR")
        ),
    }


def _in_home(home: Path, source: str) -> TritonInstall | None:
    for folder in (home / _WHEEL_SERVER, home):
        executable = folder / "bin" / "tritonserver"
        if executable.is_file() and os.access(executable, os.X_OK):
            return _install(executable, source, home.absolute())
    return None


def _install(executable: Path, source: str, home: Path | None = None) -> TritonInstall | None:
    server = executable.parent.parent
    backend_dir = server / "backends"
    if not backend_dir.is_dir():
        return None
    libraries = server.parent.parent / _WHEEL_LIBRARIES
    stub: Path | None = None
    backends = []
    for folder in sorted(backend_dir.iterdir()):
        if not (folder / f"libtriton_{folder.name}.so").is_file():
            continue
        if folder.name == "python" and not (folder / _STUB).is_file():
            python = f"{sys.version_info.major}.{sys.version_info.minor}"
            stub = server / "python_backend_stubs" / python / _STUB
            if not stub.is_file():
                continue
        backends.append(folder.name)
    told = server / "TRITON_VERSION"
    version = told.read_text().strip() if told.is_file() else None
    stand_in = "python" in backends and "onnxruntime" not in backends and _python_based(version)
    if stand_in:
        backends = sorted([*backends, "onnxruntime"])
    return TritonInstall(
        executable=executable,
        source=source,
        backend_dir=backend_dir,
        backends=tuple(backends),
        libraries=libraries if libraries.is_dir() else None,
        stub=stub,
        version=version,
        home=home,
        stand_in=stand_in,
    )


def _python_based(version: str | None) -> bool:
    """Whether a server loads Python-based backends."""
    numbers = (version or "").split(".")[:2]
    return all(map(str.isdecimal, numbers)) and tuple(map(int, numbers)) >= _PYTHON_BASED_SINCE
