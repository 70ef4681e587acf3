"""A model repository and a running server for the tests of the wire."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from analyzer.server.app import Addresses, ServeOptions, ServerApp, serving
from analyzer.server.limits import Limits

EXAMPLES = Path(__file__).parents[2] / "examples"

IDENTITY = """
backend: "identity"
max_batch_size: 8
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [16] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [16] }]
instance_group [{ count: 1 kind: KIND_CPU }]
dynamic_batching {}
"""
# Name -> config.pbtxt; the same models are served by a real Triton in the differential tests.
MODELS = {
    "ident": IDENTITY,
    "nobatch": IDENTITY.replace("max_batch_size: 8", "max_batch_size: 0")
    .replace("dynamic_batching {}", "")
    .replace("[16]", "[-1, 4]"),
    "strs": IDENTITY.replace("TYPE_FP32", "TYPE_STRING"),
    "half": IDENTITY.replace("TYPE_FP32", "TYPE_FP16"),
    "two": """
backend: "identity"
max_batch_size: 8
input [{ name: "A" data_type: TYPE_INT32 dims: [2] },
       { name: "B" data_type: TYPE_INT32 dims: [2] }]
output [{ name: "S" data_type: TYPE_INT32 dims: [2] },
        { name: "D" data_type: TYPE_INT32 dims: [2] }]
instance_group [{ count: 1 kind: KIND_CPU }]
""",
}


def write_model(root: Path, name: str, config: str | None, *, onnx: bool = False) -> Path:
    """Puts a model into a repository; with ``onnx`` the example network is its file."""
    version = root / name / "1"
    version.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (root / name / "config.pbtxt").write_text(config)
    if onnx:
        shutil.copyfile(EXAMPLES / "digits.onnx", version / "model.onnx")
    return root / name


Start = Callable[..., tuple[Addresses, ServerApp]]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """An empty repository."""
    root = tmp_path / "models"
    root.mkdir()
    return root


@pytest.fixture
def start(repository: Path) -> Iterator[Start]:
    """Starts a server over the repository; every one ends with the test."""
    with ExitStack() as stack:

        def run(**options: object) -> tuple[Addresses, ServerApp]:
            settings: dict[str, object] = {
                "repository": repository,
                "http_port": 0,
                "grpc_port": 0,
                "metrics_port": 0,
                "drain_timeout_s": 5,
            }
            return stack.enter_context(
                serving(ServeOptions(**{**settings, **options}), log=lambda line: None)  # type: ignore[arg-type]
            )

        yield run


@pytest.fixture(scope="session")
def serve_wire(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[], AbstractContextManager[Addresses]]:
    """Starts a server with the identity models and the example network."""

    @contextmanager
    def served() -> Iterator[Addresses]:
        root = tmp_path_factory.mktemp("wire")
        for name, config in MODELS.items():
            write_model(root, name, config)
        write_model(root, "digits", None, onnx=True)
        limits = Limits(body_bytes_max=8 << 20, header_bytes_max=16 << 10)
        options = ServeOptions(
            repository=root,
            http_port=0,
            grpc_port=0,
            metrics_port=0,
            limits=limits,
            allow_shared_memory=True,
            drain_timeout_s=5,
        )
        with serving(options, log=lambda line: None) as (addresses, _):
            yield addresses

    return served


@pytest.fixture(scope="session")
def wire(serve_wire: Callable[[], AbstractContextManager[Addresses]]) -> Iterator[Addresses]:
    """The server of all tests that change nothing of it."""
    with serve_wire() as addresses:
        yield addresses
