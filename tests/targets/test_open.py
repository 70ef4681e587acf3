"""``--server triton`` and ``--server grpc://…`` open a target that answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from analyzer.domain.configuration import Backend, Configuration
from analyzer.domain.model import ModelInfo
from analyzer.engine.tensor_file import write_tensors
from analyzer.export.repository import export_repository
from analyzer.load.generator import run_closed_loop
from analyzer.modelconfig.files import ModelFiles
from analyzer.targets.endpoint_target import EndpointTarget
from analyzer.targets.open import open_target
from analyzer.targets.payload import RequestPool
from analyzer.targets.triton_install import TritonInstall
from analyzer.targets.triton_server import TritonServer
from analyzer.variants.inspect import inspect_model

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits.onnx"
BATCHED = Configuration(max_batch_size=4, dynamic_batching=True, intra_op_threads=1)


@pytest.fixture(scope="module")
def model() -> ModelInfo:
    return inspect_model(DIGITS)


@pytest.fixture(scope="module")
def inputs_path(model: ModelInfo, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inputs") / "inputs.npz"
    rng = np.random.default_rng(0)
    rows = {t.name: rng.random((8, *t.shape), np.float32) for t in model.inputs}
    write_tensors(path, rows)
    return path


def replies(server: str, model: ModelInfo, inputs_path: Path) -> tuple[set[int], tuple[int, ...]]:
    with open_target(
        server,
        model=model,
        model_path=Path(model.path),
        inputs_path=inputs_path,
        configuration=BATCHED,
    ) as target:
        pids = target.pids
        with target.connect() as connection:
            run = run_closed_loop(connection, 2, 2, duration_s=0.5, timeout_s=10.0)
        statistics = target.statistics()
        assert statistics is not None
        assert statistics.inference_count >= 2 * len(run.log)
    assert len(run.log) > 0
    return set(run.log.status.tolist()), pids


@pytest.mark.triton
def test_a_server_of_our_own(
    triton_install: TritonInstall, model: ModelInfo, inputs_path: Path
) -> None:
    statuses, pids = replies("triton", model, inputs_path)
    assert statuses == {0}
    assert pids


@pytest.mark.triton
@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_a_running_server(
    triton_install: TritonInstall, model: ModelInfo, inputs_path: Path, scheme: str
) -> None:
    with TritonServer(triton_install) as server:
        address = server.grpc_address if scheme == "grpc" else server.http_address
        statuses, pids = replies(f"{scheme}://{address}", model, inputs_path)
    assert (statuses, pids) == ({0}, ())


@pytest.mark.triton
@pytest.mark.parametrize("scheme", ["grpc", "http"])
def test_an_input_of_one_number_for_each_inference(
    triton_install: TritonInstall, tmp_path: Path, scheme: str
) -> None:
    """Lengths of sequences, say: Triton refused every request ("Expected [-1,1], got [1]")."""
    tensors = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3]),
        helper.make_tensor_value_info("lengths", TensorProto.INT64, ["n"]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3]),
        helper.make_tensor_value_info("lengths_out", TensorProto.INT64, ["n"]),
    ]
    nodes = [
        helper.make_node("Identity", ["x"], ["y"]),
        helper.make_node("Identity", ["lengths"], ["lengths_out"]),
    ]
    path, inputs_path = tmp_path / "lengths.onnx", tmp_path / "inputs.npz"
    graph = helper.make_graph(nodes, "lengths", tensors[:2], tensors[2:])
    onnx.save(helper.make_model(graph, ir_version=8), path)
    write_tensors(inputs_path, {"x": np.ones((8, 3), np.float32), "lengths": np.arange(8)})
    with TritonServer(triton_install) as server:
        address = server.grpc_address if scheme == "grpc" else server.http_address
        statuses, _ = replies(f"{scheme}://{address}", inspect_model(path), inputs_path)
    assert statuses == {0}


def test_single_numbers_have_an_axis_of_their_own_in_requests() -> None:
    rows = {"x": np.ones((4, 3)), "lengths": np.arange(4)}
    batched = RequestPool(rows, batchable=True).tensors(0, 2)
    assert {name: array.shape for name, array in batched.items()} == {
        "x": (2, 3),
        "lengths": (2, 1),
    }
    whole = RequestPool(rows, batchable=False).tensors(1, 1)
    assert whole["x"].shape == (3,)


@pytest.mark.parametrize("backend", ["onnxruntime", "python"])
def test_a_running_server_gets_the_backend_that_was_exported(
    model: ModelInfo,
    inputs_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    backend: Backend,
) -> None:
    """A claim of a repository for the python backend was measured on the native one."""
    exported = export_repository(model, DIGITS, BATCHED, tmp_path, backend=backend)
    sent: list[str] = []

    def attached(_: str, candidates: list[ModelFiles], *__: object, **___: object) -> None:
        sent.extend(files.configuration.backend for files in candidates)

    monkeypatch.setattr("analyzer.targets.endpoint_target.attached_target", attached)
    open_target(
        "grpc://localhost:8001", model=model, model_path=DIGITS, inputs_path=inputs_path,
        configuration=BATCHED, exported=tmp_path / "digits" / str(exported.version),
    )  # fmt: skip
    assert sent == (["onnxruntime", "python"] if backend == "onnxruntime" else ["python"])


@pytest.mark.triton
def test_what_was_exported_for_the_python_backend_is_measured_as_that(
    triton_install: TritonInstall, model: ModelInfo, inputs_path: Path, tmp_path: Path
) -> None:
    """A note said that the native configuration ran."""
    exported = export_repository(model, DIGITS, BATCHED, tmp_path, backend="python")
    with open_target(
        "triton", model=model, model_path=DIGITS, inputs_path=inputs_path,
        configuration=BATCHED, exported=tmp_path / "digits" / str(exported.version),
    ) as target:  # fmt: skip
        assert isinstance(target, EndpointTarget) and target.configuration is not None
        assert (target.configuration.backend, target.notes) == ("python", ())
