"""A real Triton: started, loaded with what we export, asked, and gone in the end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import psutil
import pytest
from onnx import TensorProto, helper, numpy_helper

from analyzer.domain.configuration import Configuration
from analyzer.domain.model import NUMPY_DTYPES, ModelInfo, TensorSpec
from analyzer.engine.tensor_file import write_tensors
from analyzer.errors import MissingPartError, TargetError, TargetStartError
from analyzer.export.repository import export_repository
from analyzer.hardware.gpus import GpuIdentity
from analyzer.hardware.processes import is_running
from analyzer.modelconfig.files import (
    ModelFiles,
    exported_files,
    model_files,
    onnxruntime_backend,
)
from analyzer.modelconfig.rules import finish, prepare
from analyzer.modelconfig.text import config_to_json, read_config
from analyzer.resources import child_environment
from analyzer.targets.endpoint_target import (
    EndpointTarget,
    attached_target,
    existing_model_target,
    local_target,
    temporary_name,
)
from analyzer.targets.http_endpoint import HttpEndpoint
from analyzer.targets.open import open_target
from analyzer.targets.ports import shared_with_others
from analyzer.targets.triton_install import (
    HOME_VARIABLE,
    TritonInstall,
    require_triton,
)
from analyzer.targets.triton_server import _LAUNCHER, TritonServer, _lock, _sweep
from analyzer.variants.inspect import inspect_model

BATCHED = Configuration(
    max_batch_size=8,
    dynamic_batching=True,
    max_queue_delay_us=20_000,
    instance_count=2,
    intra_op_threads=1,
)
ROWS = 32


@pytest.fixture(scope="module")
def server(triton_install: TritonInstall) -> Iterator[TritonServer]:
    """One that has the python backend alone."""
    with TritonServer(replace(triton_install, stand_in=False)) as started:
        yield started


@pytest.fixture(scope="module")
def gather(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """ids [b, 3] index a table of 10 rows; out: vectors [b, 3, 4] (FP16), their sums [b]."""
    table = numpy_helper.from_array(np.arange(40, dtype=np.float16).reshape(10, 4), "table")
    axes = numpy_helper.from_array(np.array([1, 2]), "axes")
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "ids"], ["vectors"]),
            helper.make_node("Cast", ["vectors"], ["wide"], to=TensorProto.FLOAT),
            helper.make_node("ReduceSum", ["wide", "axes"], ["total"], keepdims=0),
        ],
        "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["b", 3])],
        [
            helper.make_tensor_value_info("vectors", TensorProto.FLOAT16, ["b", 3, 4]),
            helper.make_tensor_value_info("total", TensorProto.FLOAT, ["b"]),
        ],
        [table, axes],
    )
    path = tmp_path_factory.mktemp("models") / "gather.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9),
        str(path),
    )
    return path


def gather_info(path: Path) -> ModelInfo:
    return ModelInfo(
        name="gather",
        path=str(path),
        sha256="0" * 64,
        batchable=True,
        inputs=(TensorSpec(name="ids", datatype="INT64", shape=(3,), value_range=(0, 9)),),
        outputs=(
            TensorSpec(name="vectors", datatype="FP16", shape=(3, 4)),
            TensorSpec(name="total", datatype="FP32", shape=()),
        ),
    )


def rows() -> dict[str, Any]:
    return {"ids": np.random.default_rng(0).integers(0, 10, (ROWS, 3))}


def python_files(path: Path, name: str, configuration: Configuration = BATCHED) -> ModelFiles:
    return model_files(gather_info(path), path, configuration, backend="python", name=name)


def receive_all(connection: Any, count: int, *, within_s: float = 20.0) -> dict[int, int]:
    statuses: dict[int, int] = {}
    deadline = time.monotonic() + within_s
    while len(statuses) < count and time.monotonic() < deadline:
        statuses.update({c.request: c.status for c in connection.receive(0.2)})
    return statuses


@pytest.mark.triton
def test_an_exported_repository_answers_what_onnx_runtime_answers(
    server: TritonServer, gather: Path, tmp_path: Path
) -> None:
    from tritonclient import grpc as client

    exported = tmp_path / "repository"
    export_repository(gather_info(gather), gather, BATCHED, exported, backend="python")
    target = server.repository / "gather"
    (exported / "gather").rename(target)
    endpoint = HttpEndpoint("127.0.0.1", server.http_port)
    endpoint.load("gather", None, {})
    session = ort.InferenceSession(str(gather), providers=["CPUExecutionProvider"])
    with client.InferenceServerClient(server.grpc_address) as triton_client:
        for sizes in ((1,), (8,), (1, 2, 3)):
            answers: list[Any] = []
            sent = []
            for size in sizes:
                ids = np.random.default_rng(size).integers(0, 10, (size, 3))
                tensor = client.InferInput("ids", ids.shape, "INT64")
                tensor.set_data_from_numpy(ids)
                sent.append(ids)
                answers.append(triton_client.infer("gather", [tensor]))
            for ids, answer in zip(sent, answers, strict=True):
                vectors, total = session.run(None, {"ids": ids})
                np.testing.assert_array_equal(answer.as_numpy("vectors"), vectors)
                assert answer.as_numpy("vectors").dtype == np.float16
                # A scalar per inference has one dimension on the wire.
                np.testing.assert_array_equal(answer.as_numpy("total"), total[:, None])
    written = read_config(target / "config.pbtxt")
    prepare(written, directory_name="gather")
    finish(written, directory_name="gather")
    assert endpoint.config_json("gather") == config_to_json(written)
    endpoint.unload("gather")
    server.remove_model("gather")


@pytest.mark.triton
@pytest.mark.parametrize("batched", [True, False])
def test_a_native_repository_runs_unmodified_and_answers_what_onnx_runtime_answers(
    triton_install: TritonInstall, tmp_path: Path, batched: bool
) -> None:
    from tritonclient import grpc as client

    digits = Path(__file__).resolve().parents[2] / "examples" / "digits.onnx"
    info = inspect_model(digits)
    configuration = Configuration(
        max_batch_size=8, dynamic_batching=batched, instance_count=2, intra_op_threads=1
    )
    exported = tmp_path / "repository"
    export_repository(info, digits, configuration, exported)
    written = (exported / "digits" / "config.pbtxt").read_text()
    assert 'platform: "onnxruntime_onnx"' in written
    rows = {"image": np.random.default_rng(0).random((16, 1, 64, 64), np.float32)}
    write_tensors(tmp_path / "inputs.npz", rows)
    session = ort.InferenceSession(str(digits), providers=["CPUExecutionProvider"])
    with open_target(
        "triton", model=info, model_path=digits, inputs_path=tmp_path / "inputs.npz",
        configuration=configuration, exported=exported / "digits" / "1",
    ) as target:  # fmt: skip
        assert isinstance(target, EndpointTarget)
        assert target.configuration == configuration.canonical()
        assert "native configuration ran" in target.notes[0] or not triton_install.stand_in
        server = target._server
        assert server is not None
        assert (server.repository / "digits" / "config.pbtxt").read_text() == written
        with client.InferenceServerClient(server.grpc_address) as triton_client:
            for size in (1, 3, 8):
                tensor = client.InferInput("image", [size, 1, 64, 64], "FP32")
                tensor.set_data_from_numpy(rows["image"][:size])
                answer = triton_client.infer("digits", [tensor]).as_numpy("logits")
                expected = session.run(None, {"image": rows["image"][:size]})[0]
                np.testing.assert_allclose(answer, expected, atol=1e-5)
        with target.connect() as connection:
            for request in range(24):
                connection.send(request, 1)
            assert receive_all(connection, 24) == dict.fromkeys(range(24), 0)
        time.sleep(0.1)  # Triton counts a request after its reply was sent
        statistics = target.statistics()
    assert statistics is not None
    # A Triton that completes configurations would batch where nothing says so.
    largest = max(size for size, _ in statistics.batches)
    assert largest == 8 if not batched else largest > 3


@pytest.mark.triton
def test_every_data_type_survives(server: TritonServer, tmp_path: Path) -> None:
    from tritonclient import grpc as client
    from tritonclient.utils import triton_to_np_dtype

    kinds = list(NUMPY_DTYPES)
    types = [helper.np_dtype_to_tensor_dtype(np.dtype(NUMPY_DTYPES[kind])) for kind in kinds]
    graph = helper.make_graph(
        [helper.make_node("Identity", [f"i{kind}"], [f"o{kind}"]) for kind in kinds],
        "g",
        [
            helper.make_tensor_value_info(f"i{k}", t, ["b", 3])
            for k, t in zip(kinds, types, strict=True)
        ],
        [
            helper.make_tensor_value_info(f"o{k}", t, ["b", 3])
            for k, t in zip(kinds, types, strict=True)
        ],
    )
    path = tmp_path / "identity.onnx"
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), str(path))
    info = ModelInfo(
        name="identity",
        path=str(path),
        sha256="0" * 64,
        batchable=True,
        inputs=tuple(TensorSpec(name=f"i{k}", datatype=k, shape=(3,)) for k in kinds),
        outputs=tuple(TensorSpec(name=f"o{k}", datatype=k, shape=(3,)) for k in kinds),
    )
    values = {
        kind: np.array([[1, 0, 1], [2, 3, 4]]).astype(triton_to_np_dtype(kind)) for kind in kinds
    }
    files = model_files(info, path, BATCHED, backend="python", name="identity")
    with (
        local_target(server, files, {f"i{k}": v for k, v in values.items()}, model=info),
        client.InferenceServerClient(server.grpc_address) as triton_client,
    ):
        tensors = []
        for kind, value in values.items():
            tensor = client.InferInput(f"i{kind}", value.shape, kind)
            tensor.set_data_from_numpy(value)
            tensors.append(tensor)
        answer = triton_client.infer("identity", tensors)
    for kind, value in values.items():
        np.testing.assert_array_equal(answer.as_numpy(f"o{kind}"), value, err_msg=kind)


def test_what_lies_beside_an_exported_version_goes_along(
    gather: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With labels that a hand had added, Triton did not load what was to be verified."""
    export_repository(gather_info(gather), gather, BATCHED, tmp_path / "models")
    folder = tmp_path / "models" / "gather"
    (folder / "warmup").mkdir()
    for name in ("labels.txt", "warmup/ids"):
        (folder / name).write_text(name)
    server = TritonServer(TritonInstall(
        executable=tmp_path, source="", backend_dir=tmp_path, backends=()
    ))  # fmt: skip
    monkeypatch.setattr(server, "_folder", tmp_path / "server")
    put = server.put_model(exported_files(folder / "1"))
    for name in ("labels.txt", "warmup/ids", "1/model.onnx", "config.pbtxt"):
        assert (put / name).read_bytes() == (folder / name).read_bytes()


def test_a_stand_in_takes_a_folder_of_the_files_name(
    gather: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton's own backend does, and ours failed to load it."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", ModuleType("utils"))
    namespace: dict[str, Any] = {}
    exec(onnxruntime_backend(), namespace)
    folder = tmp_path / "1" / "model.onnx"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(gather.read_bytes())
    model = namespace["TritonPythonModel"]()
    config = {"default_model_filename": "", "max_batch_size": 8, "input": [], "output": []}
    model.initialize(
        {
            "model_config": json.dumps(config),
            "model_instance_kind": "CPU",
            "model_repository": str(tmp_path),
            "model_version": "1",
        }
    )
    assert [value.name for value in model.session.get_inputs()] == ["ids"]


@pytest.mark.triton
def test_a_python_model_gives_an_empty_tensor(server: TritonServer, tmp_path: Path) -> None:
    """Its warm-up failed, "DLPack tensor is not contiguous", and the model was not loaded."""
    from tritonclient import grpc as client

    graph = helper.make_graph(
        [helper.make_node("NonZero", ["x"], ["places"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("places", TensorProto.INT64, [1, "found"])],
    )
    path = tmp_path / "nonzero.onnx"
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), str(path))
    info = ModelInfo(
        name="nonzero",
        path=str(path),
        sha256="0" * 64,
        batchable=False,
        inputs=(TensorSpec(name="x", datatype="FP32", shape=(4,)),),
        outputs=(TensorSpec(name="places", datatype="INT64", shape=(1, -1)),),
    )
    alone = Configuration(max_batch_size=0, dynamic_batching=False)
    files = model_files(info, path, alone, backend="python", name="nonzero")
    with (
        local_target(server, files, {"x": np.zeros((1, 4), np.float32)}, model=info),
        client.InferenceServerClient(server.grpc_address) as triton_client,
    ):
        for values, places in (([0, 0, 0, 0], []), ([0, 5, 0, 5], [1, 3])):
            tensor = client.InferInput("x", (4,), "FP32")
            tensor.set_data_from_numpy(np.array(values, np.float32))
            answer = triton_client.infer("nonzero", [tensor]).as_numpy("places")
            assert answer.shape == (1, len(places)) and answer[0].tolist() == places


@pytest.mark.triton
@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.timing
def test_requests_are_counted_and_batched(
    server: TritonServer, gather: Path, protocol: str
) -> None:
    files = python_files(gather, temporary_name("gather", BATCHED))
    with local_target(
        server, files, rows(), model=gather_info(gather), protocol=protocol
    ) as target:
        assert target.alive()
        assert target.configuration is not None
        assert target.configuration.backend == "python"
        assert len(target.pids) == 1 + BATCHED.instance_count
        before = target.statistics()
        with target.connect() as connection:
            for request in range(40):
                connection.send(request, 1 + request % 3)
            assert receive_all(connection, 40) == dict.fromkeys(range(40), 0)
            assert connection.receive(0.0) in ((), [])
        time.sleep(0.1)  # Triton counts a request after its reply was sent
        after = target.statistics()
        assert before is not None
        assert after is not None
        sent = sum(1 + request % 3 for request in range(40))
        assert after.success_count - before.success_count == 40
        assert after.inference_count - before.inference_count == sent
        executed = dict(after.batches)
        for size, count in before.batches:
            executed[size] -= count
        assert sum(size * count for size, count in executed.items()) == sent
        assert after.execution_count - before.execution_count == sum(executed.values())
        assert max(size for size, count in executed.items() if count) > 3
        assert after.compute_infer_ns > before.compute_infer_ns
    assert not target.alive()
    assert files.name not in HttpEndpoint("127.0.0.1", server.http_port).models()


@pytest.mark.triton
def test_one_bad_request_does_not_fail_its_neighbours(server: TritonServer, gather: Path) -> None:
    bad = rows()
    bad["ids"][:8] = 3
    bad["ids"][5] = 99  # beyond the table: ONNX Runtime refuses the whole execution
    files = python_files(gather, temporary_name("gather", BATCHED))
    with (
        local_target(server, files, bad, model=gather_info(gather)) as target,
        target.connect() as connection,
    ):
        for request in range(8):
            connection.send(request, 1)
        statuses = receive_all(connection, 8)
    assert statuses == {request: int(request == 5) for request in range(8)}


@pytest.mark.triton
@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_attaching_loads_under_a_name_of_its_own_and_leaves_the_rest(
    server: TritonServer, gather: Path, scheme: str
) -> None:
    endpoint = HttpEndpoint("127.0.0.1", server.http_port)
    server.put_model(python_files(gather, "resident"))
    endpoint.load("resident", None, {})
    port = server.http_port if scheme == "http" else server.grpc_port
    name = temporary_name("gather", BATCHED)
    native = model_files(gather_info(gather), gather, BATCHED, name=name)
    address = f"{scheme}://127.0.0.1:{port}"
    with attached_target(
        address, [native, python_files(gather, name)], rows(), model=gather_info(gather)
    ) as target:
        assert endpoint.ready(name)
        assert "no onnxruntime backend" in target.notes[0]
        assert target.pids == ()
        with target.connect() as connection:
            connection.send(0, 4)
            assert receive_all(connection, 1) == {0: 0}
    assert not endpoint.ready(name)
    assert endpoint.models()["resident"] == "READY"
    with existing_model_target(address, "resident", rows(), batchable=True) as resident:
        described = resident.endpoint.model("resident")
        assert (described.batchable, described.max_batch_size) == (True, 8)
        assert described.inputs[0].shape == (3,)
    assert endpoint.ready("resident")
    with (
        pytest.raises(MissingPartError, match="no model 'absent'") as caught,
        existing_model_target(address, "absent", rows(), batchable=True),
    ):
        pass
    assert "resident" in caught.value.hint
    endpoint.unload("resident")
    server.remove_model("resident")


@pytest.mark.triton
def test_a_model_that_cannot_be_loaded_tells_why(server: TritonServer, gather: Path) -> None:
    good = python_files(gather, "broken")
    broken = ModelFiles(
        name=good.name,
        config_text=good.config_text,
        configuration=good.configuration,
        version_files={**good.version_files, "model.py": b"raise RuntimeError('no such luck')\n"},
    )
    with (
        pytest.raises(TargetStartError, match="no such luck"),
        local_target(server, broken, rows(), model=gather_info(gather)),
    ):
        pass
    assert not (server.repository / "broken").exists()


@pytest.mark.triton
def test_a_server_without_model_control_says_so(
    triton_install: TritonInstall, gather: Path
) -> None:
    with TritonServer(triton_install, arguments=("--model-control-mode=none",)) as fixed:
        for address in (f"http://{fixed.http_address}", f"grpc://{fixed.grpc_address}"):
            with (
                pytest.raises(TargetError) as caught,
                attached_target(
                    address, [python_files(gather, "x")], rows(), model=gather_info(gather)
                ),
            ):
                pass
            assert "--model-control-mode=explicit" in caught.value.hint


@pytest.mark.triton
def test_a_server_that_does_not_start_tells_its_last_log_lines(
    triton_install: TritonInstall,
) -> None:
    with (
        pytest.raises(TargetStartError, match="no-such-option"),
        TritonServer(triton_install, arguments=("--no-such-option=1",)),
    ):
        pass


@pytest.mark.triton
@pytest.mark.timing
def test_it_stands_back_and_nothing_is_left_when_we_are_killed(
    triton_install: TritonInstall, gather: Path, tmp_path: Path
) -> None:
    script = tmp_path / "killed.py"
    script.write_text(
        "import ctypes, os, sys, time\n"
        "if not sys.argv[1:]:  # without CAP_SYS_NICE no generator may run in real time\n"
        "    ctypes.CDLL(None).prctl(24, 23, 0, 0, 0)\n"
        "    os.execv(sys.executable, [sys.executable, *sys.argv, 'again'])\n"
        "from analyzer.targets.endpoint_target import local_target\n"
        "from analyzer.modelconfig.files import ModelFiles\n"
        "from analyzer.targets.triton_server import TritonServer\n"
        "from analyzer.targets.triton_install import require_triton\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        "import helpers\n"
        f"path = helpers.Path({str(gather)!r})\n"
        "files = helpers.python_files(path, 'm')\n"
        "with TritonServer(require_triton()) as server:\n"
        "    with local_target(server, files, helpers.rows(),\n"
        "                      model=helpers.gather_info(path)) as target:\n"
        "        print(*target.pids, server.repository.parent, flush=True)\n"
        "        print(*{os.sched_getscheduler(pid) for pid in target.pids},\n"
        "              *{os.getpgid(pid) == target.pids[0] for pid in target.pids},\n"
        "              *{os.getsid(pid) == os.getsid(0) for pid in target.pids}, flush=True)\n"
        "        time.sleep(100)\n"
    )
    (tmp_path / "helpers.py").write_text(Path(__file__).read_text())
    # The test's own process adopts nothing: the killed process's children go to the first process.
    victim = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert victim.stdout is not None
    with victim.stdout:
        *pids, folder = victim.stdout.readline().split()
        assert len(pids) == 1 + BATCHED.instance_count
        # It and its stubs only take what others leave, in a group of its own in our session.
        assert victim.stdout.readline().split() == [str(os.SCHED_IDLE), "True", "True"]
        os.kill(victim.pid, signal.SIGKILL)
    victim.wait()
    deadline = time.monotonic() + 30
    alive = {int(pid) for pid in pids}
    while alive and time.monotonic() < deadline:
        alive = {pid for pid in alive if is_running(pid)}
        time.sleep(0.1)
    assert not alive
    # The folder that it could not remove goes with the next start.
    assert Path(folder).exists()
    with TritonServer(triton_install) as server:
        assert not Path(folder).exists()
        own = server.repository.parent
        with local_target(server, python_files(gather, "m"), rows(), model=gather_info(gather)):
            assert list(Path("/dev/shm").glob(f"{own.name}-*"))
        pids_of_next = server.pids
    assert not own.exists()
    for gone in (own.name, Path(folder).name):
        assert not list(Path("/dev/shm").glob(f"{gone}-*"))
    assert not any(psutil.pid_exists(pid) for pid in pids_of_next)


def test_a_port_shared_with_another_process_is_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as ours:
        port = ours.getsockname()[1]
        assert not shared_with_others(port, os.getpid())
        assert shared_with_others(port, os.getppid())


def test_a_machine_without_triton_gets_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    with pytest.raises(MissingPartError) as caught:
        require_triton()
    assert HOME_VARIABLE in caught.value.message
    assert "make tools" in caught.value.hint


def fake_install(tmp_path: Path, *backends: str) -> None:
    program = tmp_path / "bin" / "tritonserver"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    for backend in backends:
        (tmp_path / "backends" / backend).mkdir(parents=True)
        (tmp_path / "backends" / backend / f"libtriton_{backend}.so").touch()
    (tmp_path / "TRITON_VERSION").write_text("9.9.9\n")


def test_a_server_is_started_strictly_and_with_the_one_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_install(tmp_path, "onnxruntime", "tensorrt")
    program = tmp_path / "bin" / "tritonserver"
    program.write_text('#!/bin/sh\necho "$@"; env | grep ^CUDA_ | sort; exit 3\n')
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpu = GpuIdentity(uuid="GPU-bbbb0000-2", index=1)
    with (
        pytest.raises(TargetStartError) as caught,
        TritonServer(require_triton(), gpu=gpu),
    ):
        pass
    # Otherwise the TensorRT backend adds dynamic batching, and KIND_GPU counts on each GPU.
    assert "--disable-auto-complete-config" in caught.value.message
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in caught.value.message
    assert "CUDA_VISIBLE_DEVICES=GPU-bbbb0000-2" in caught.value.message
    with (
        pytest.raises(TargetStartError) as caught,
        TritonServer(require_triton(), auto_complete=True),
    ):
        pass
    assert "--disable-auto-complete-config" not in caught.value.message
    assert "CUDA_VISIBLE" not in caught.value.message


def test_a_folder_is_swept_only_when_nobody_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server of another container, whose process numbers say nothing here, lost its models."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    folder = tmp_path / f"tritune-triton-{gone.pid}-abc"
    (folder / "repository").mkdir(parents=True)
    kept = _lock(folder)
    _sweep()
    assert (folder / "repository").is_dir()
    os.close(kept)
    _sweep()
    assert not folder.exists()


def test_a_server_keeps_its_folder_until_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_install(tmp_path, "onnxruntime")
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    monkeypatch.setattr(TritonServer, "_start", lambda self, last: True)
    with TritonServer(require_triton()) as server:
        folder = server.repository.parent
        with pytest.raises(BlockingIOError):
            _lock(folder)
    assert not folder.exists()


@pytest.mark.parametrize("gone", [False, True])
def test_a_server_does_not_start_after_its_parents_end(tmp_path: Path, gone: bool) -> None:
    """Of a parent that was killed before its child could say so to the kernel it outlived."""
    started = tmp_path / "started"
    parent = os.getppid() if gone else os.getpid()
    program = f"open({str(started)!r}, 'w')"
    done = subprocess.run(
        [sys.executable, "-c", _LAUNCHER, str(parent), sys.executable, "-c", program],
        env=child_environment(), timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == (-signal.SIGKILL if gone else 0)
    assert started.exists() == (not gone)


def test_a_server_starts_in_a_folder_with_modules_of_the_same_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_install(tmp_path, "onnxruntime")
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    (tmp_path / "analyzer").mkdir()
    (tmp_path / "analyzer" / "__init__.py").write_text("raise RuntimeError('the user\\'s own')")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TargetStartError, match="status 3"), TritonServer(require_triton()):
        pass


def test_an_installation_says_what_it_can_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_install(tmp_path, "onnxruntime", "tensorrt")
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    found = require_triton()
    assert (found.backends, found.version) == (("onnxruntime", "tensorrt"), "9.9.9")
    assert found.backend_for("onnxruntime") == "onnxruntime"
    with pytest.raises(MissingPartError, match="no python backend"):
        found.backend_for("python")
    with pytest.raises(TargetStartError, match="status 3"), TritonServer(found):
        pass


def test_onnx_runtime_inside_the_python_backend_stands_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_install(tmp_path, "python")
    (tmp_path / "backends" / "python" / "triton_python_backend_stub").touch()
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    # Ours, in Python: native configurations are loaded unmodified.
    assert require_triton().stand_in
    assert require_triton().backend_for("onnxruntime") == "onnxruntime"
    assert "onnxruntime, ours in Python; python" in require_triton().described
    # A server too old for backends in Python.
    (tmp_path / "TRITON_VERSION").write_text("2.40.0\n")
    assert not require_triton().stand_in
    assert require_triton().backend_for("onnxruntime") == "python"
    with pytest.raises(MissingPartError, match="no tensorrt backend"):
        require_triton().backend_for("tensorrt")
