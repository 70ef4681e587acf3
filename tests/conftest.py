"""For all tests."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from analyzer.engine.runtimes.fake_cuda import FakeCuda
from analyzer.engine.runtimes.fake_tensorrt import make_tensorrt
from analyzer.targets.triton_install import TritonInstall, find_triton
from benchlib.postgres import PostgresServer, PostgresUnavailableError
from benchlib.postgres import postgres_server as started_server

# gRPC, once loaded, would tell on stderr of every child process that a later test starts.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

# A shell that starts the tests in the background lets them, and every program that they start,
# ignore Ctrl-C; the tests of interrupts need it back.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

with suppress(ImportError):  # what runs on a GPU has no need of it
    import hypothesis

    # How long one example takes says nothing here: other tests may run beside it.
    hypothesis.settings.register_profile("tests", deadline=None)
    hypothesis.settings.load_profile("tests")


# Files of these folders take a minute or so: several workers begin with them, to end together.
_LONG = ("search", "service", "cli", "cluster", "examples", "buckets")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Orders the tests for several workers; alone they keep their order."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: item.path.parent.name not in _LONG)


@pytest.fixture(scope="session")
def triton_install() -> TritonInstall:
    """A real Triton that serves python models; the test is skipped where there is none."""
    found = find_triton()
    if found is None or "python" not in found.backends:
        pytest.skip("there is no Triton with a python backend here (make tools fetches one)")
    return found


_FAKE_PACKAGES = Path(__file__).parent / "fake_packages"


@pytest.fixture
def fake_tensorrt(monkeypatch: pytest.MonkeyPatch) -> str:
    """TensorRT and CUDA's bindings as fakes, here and in every child process; the version."""
    for name in ("base", "cuda", "tensorrt"):
        monkeypatch.setenv("PYTHONPATH", str(_FAKE_PACKAGES / name), prepend=os.pathsep)
        monkeypatch.syspath_prepend(_FAKE_PACKAGES / name)
    for name in ("cuda", "cuda.bindings"):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)
    tensorrt = make_tensorrt()
    monkeypatch.setitem(sys.modules, "tensorrt", tensorrt)
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", FakeCuda())
    return str(tensorrt.__version__)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'results.db'}"


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server of our own on a free port."""
    pytest.importorskip("psycopg", reason="the extra 'postgres' is not installed")
    with ExitStack() as ends:
        try:
            found = ends.enter_context(started_server())
        except PostgresUnavailableError as error:
            pytest.skip(str(error))
        yield found


@pytest.fixture
def postgres_url(postgres_server: PostgresServer, request: pytest.FixtureRequest) -> str:
    return postgres_server.create(f"t{abs(hash(request.node.nodeid)) % 10**12}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs what uses ``store_url`` on each kind of database, unless it is ``sqlite_alone``."""
    if "store_url" in metafunc.fixturenames:
        marks = [pytest.mark.postgres]
        if metafunc.definition.get_closest_marker("long_on_postgres"):
            marks.append(pytest.mark.long)
        kinds = ["sqlite", pytest.param("postgres", marks=marks)]
        if metafunc.definition.get_closest_marker("sqlite_alone"):
            kinds = kinds[:1]
        metafunc.parametrize("store_url", kinds, indirect=True)


@pytest.fixture
def store_url(request: pytest.FixtureRequest) -> str:
    """An empty database of each kind."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def made_up_machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes up a machine with GPUs for every child process from now on.

    Its arguments are ``nvml`` (``gpus``, ``faults``, ``cuda``), ``onnxruntime`` (``load_error``,
    ``run_error``, ``falls_back``, ``cuda_version``, and ``cuda``: whether it has the provider),
    ``tensorrt`` and ``cupy`` (of their fakes; none where they are left out) and ``cuda`` (of the
    one under both).
    """

    def make(**options: Any) -> None:
        parts = {"tensorrt": ("tensorrt", "cuda"), "cupy": ("cupy", "cuda")}
        folders = dict.fromkeys(
            ["base", "gpu", *(name for part in parts if part in options for name in parts[part])]
        )
        root = Path(__file__).parents[1]
        paths = [*(str(_FAKE_PACKAGES / name) for name in folders), str(root)]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
        monkeypatch.setenv("MADE_UP_MACHINE", json.dumps(options))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return make


@pytest.fixture
def write_doubling() -> Callable[[Path], Path]:
    """A model that doubles ``x``, as the fake's engines do."""
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    import numpy as np

    def write(folder: Path) -> Path:
        helper, kind = onnx.helper, onnx.TensorProto.FLOAT
        graph = helper.make_graph(
            [helper.make_node("Mul", ["x", "two"], ["x_doubled"], name="double")],
            "double",
            [helper.make_tensor_value_info("x", kind, ["batch", 3])],
            [helper.make_tensor_value_info("x_doubled", kind, ["batch", 3])],
            [onnx.numpy_helper.from_array(np.array(2.0, np.float32), "two")],
        )
        opset = [helper.make_opsetid("", 17)]
        path = folder / "double.onnx"
        onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), str(path))
        return path

    return write


@pytest.fixture
def engines_space(tmp_path: Path) -> Path:
    """The file of a small search space of TensorRT engines: without batches, and of up to 8."""
    path = tmp_path / "engines.yaml"
    path.write_text(
        "name: engines\n"
        "device: gpu\n"
        "parameters:\n"
        "  precision: [fp32]\n"
        "  backend: [tensorrt]\n"
        "  dynamic_batching: [false, true]\n"
        "  max_batch_size: {choices: [8], when: {dynamic_batching: true}}\n"
    )
    return path
