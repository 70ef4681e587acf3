"""For all tests."""

import os
import signal
import sys
from pathlib import Path

import pytest

from analyzer.engine.runtimes.fake_tensorrt import FakeCuda, make_tensorrt
from analyzer.targets.triton_install import TritonInstall, find_triton

# gRPC, once loaded, would tell on stderr of every child process that a later test starts.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

# A shell that starts the tests in the background lets them, and every program that they start,
# ignore Ctrl-C; the tests of interrupts need it back.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def triton_install() -> TritonInstall:
    """A real Triton that serves python models; the test is skipped where there is none."""
    found = find_triton()
    if found is None or "python" not in found.backends:
        pytest.skip("there is no Triton with a python backend here (make tools fetches one)")
    return found


_FAKE_TENSORRT = """
import sys
from analyzer.engine.runtimes.fake_tensorrt import make_tensorrt
sys.modules[__name__] = make_tensorrt(version={version!r})
"""
_FAKE_CUDA = """
import sys
from analyzer.engine.runtimes.fake_tensorrt import FakeCuda
sys.modules[__name__] = FakeCuda()
"""


@pytest.fixture
def fake_tensorrt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """TensorRT and CUDA's bindings as fakes, here and in every child process; the version."""
    version = "11.4.0"
    folder = tmp_path / "fake-packages"
    (folder / "cuda" / "bindings").mkdir(parents=True)
    (folder / "cuda" / "__init__.py").touch()
    (folder / "cuda" / "bindings" / "__init__.py").touch()
    (folder / "cuda" / "bindings" / "runtime.py").write_text(_FAKE_CUDA)
    (folder / "tensorrt.py").write_text(_FAKE_TENSORRT.format(version=version))
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=os.pathsep)
    for name in ("cuda", "cuda.bindings"):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorrt", make_tensorrt(version=version))
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", FakeCuda())
    monkeypatch.syspath_prepend(folder)
    return version
