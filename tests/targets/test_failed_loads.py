"""A Triton that does not load a model: it refuses it, ends by it, or takes too long."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest
from onnx import TensorProto, helper, save

from analyzer.cli.main import main
from analyzer.domain.configuration import Configuration
from analyzer.errors import LoadTimeoutError, TargetLoadError
from analyzer.export.repository import export_repository
from analyzer.hardware.processes import is_running
from analyzer.modelconfig.files import ModelFiles, exported_files
from analyzer.targets.endpoint_target import local_target
from analyzer.targets.grpc_endpoint import GrpcEndpoint
from analyzer.targets.triton_install import HOME_VARIABLE, TritonInstall, require_triton
from analyzer.targets.triton_server import TritonServer
from analyzer.variants.inspect import inspect_model

WARM_UP = """
model_warmup {
  name: "none of the table"
  batch_size: 1
  inputs { key: "ids" value { data_type: TYPE_INT64 dims: [ 3 ] zero_data: true } }
}
"""
# What it does with a model's load, by the model's name.
SERVER = """#!{python}
import http.server, json, os, resource, signal, sys, time

port = next(int(a.split("=")[1]) for a in sys.argv if a.startswith("--http-port="))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, status, **values):
        body = json.dumps(values).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer(200)

    def do_POST(self):
        if "/crash/" in self.path:
            print("I1127 15:07:47.294839 1 model.cc:1] loading", flush=True)
            stub = os.fork()
            if stub:
                open({stubs!r}, "w").write(str(stub))
                print("no such value\\nSignal (11) received.\\n 0# 0x00005642737C552D", flush=True)
                os.kill(os.getpid(), signal.SIGSEGV)
            time.sleep(60)
        elif "/refuse/" in self.path:
            self.answer(400, error="load failed for model: the warm-up failed; ;\\n")
        elif "/slow/" in self.path:
            time.sleep(60)
        else:
            self.answer(200)

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def odd_triton(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A server that loads no model is the one of this machine; the file tells its stub's number."""
    stubs, home = tmp_path / "stub", tmp_path / "home"
    program = home / "bin" / "tritonserver"
    program.parent.mkdir(parents=True)
    program.write_text(SERVER.format(python=sys.executable, stubs=str(stubs)))
    program.chmod(0o755)
    backend = home / "backends" / "onnxruntime"
    backend.mkdir(parents=True)
    (backend / "libtriton_onnxruntime.so").touch()
    (home / "TRITON_VERSION").write_text("9.9.9\n")
    monkeypatch.setenv(HOME_VARIABLE, str(home))
    yield stubs
    with suppress(OSError, ValueError):
        os.kill(int(stubs.read_text()), 9)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """ids [b, 3] that are 11 to 20 index a table of 10 rows."""
    constants = [
        helper.make_tensor("table", TensorProto.FLOAT, [10, 2], [0.0] * 20),
        helper.make_tensor("before", TensorProto.INT64, [], [11]),
    ]
    nodes = [
        helper.make_node("Sub", ["ids", "before"], ["index"]),
        helper.make_node("Gather", ["table", "index"], ["rows"]),
    ]
    tensors = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["b", 3]),
        helper.make_tensor_value_info("rows", TensorProto.FLOAT, ["b", 3, 2]),
    ]
    graph = helper.make_graph(nodes, "g", tensors[:1], tensors[1:], constants)
    opset = [helper.make_opsetid("", 17)]
    save(helper.make_model(graph, opset_imports=opset, ir_version=9), str(tmp_path / "t.onnx"))
    return tmp_path / "t.onnx"


def exported(path: Path, name: str) -> ModelFiles:
    model = replace(inspect_model(path), name=name)
    configuration = Configuration(max_batch_size=4, dynamic_batching=True)
    export_repository(model, path, configuration, path.parent / "repository")
    return exported_files(path.parent / "repository" / name / "1")


def load(server: TritonServer, path: Path, files: ModelFiles, **limits: float) -> None:
    inputs = {"ids": np.full((4, 3), 12)}
    model = inspect_model(path)
    with local_target(server, files, inputs, model=model, unload=False, **limits):  # type: ignore[arg-type]
        pass


@pytest.mark.usefixtures("odd_triton")
def test_a_model_that_is_refused_is_told_with_tritons_reason(table: Path) -> None:
    with TritonServer(require_triton()) as server:
        with pytest.raises(TargetLoadError, match=r"the warm-up failed$") as caught:
            load(server, table, exported(table, "refuse"))
        assert caught.value.exit_code == 2
        assert caught.value.hint.startswith("Correct the model or its config.pbtxt")


def test_a_server_that_ends_is_noticed_though_its_stub_lives(odd_triton: Path, table: Path) -> None:
    """The stub held the connection, and the answer was waited for ten minutes."""
    files = exported(table, "crash")
    with TritonServer(require_triton()) as server:
        begun = time.monotonic()
        with pytest.raises(TargetLoadError) as caught:
            load(server, table, files)
        assert time.monotonic() - begun < 10
        stub = int(odd_triton.read_text())
    assert not is_running(stub)
    assert caught.value.message == (
        "Triton ended by SIGSEGV while it loaded crash. The last lines of its log:\n"
        "no such value\nSignal (11) received."
    )


@pytest.mark.usefixtures("odd_triton")
def test_a_load_ends_with_the_time_that_it_has(table: Path) -> None:
    with TritonServer(require_triton()) as server:
        with pytest.raises(LoadTimeoutError, match="did not load slow within 1 s") as caught:
            load(server, table, exported(table, "slow"), load_s=1.0)
        assert caught.value.exit_code == 2 and "--budget" in caught.value.hint


def test_a_load_over_grpc_ends_with_the_time_that_it_has() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")

    class Slow(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
            def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
                time.sleep(2)
                return b""

            return grpc.unary_unary_rpc_method_handler(answer)

    server.add_generic_rpc_handlers((Slow(),))
    server.start()
    endpoint = GrpcEndpoint("127.0.0.1", port)
    try:
        with pytest.raises(LoadTimeoutError, match="did not load m within 1 s"):
            endpoint.load("m", None, {}, timeout_s=0.6)
    finally:
        endpoint.close()
        server.stop(None).wait()


@pytest.mark.usefixtures("odd_triton")
@pytest.mark.parametrize(
    ("name", "code", "told"),
    [("refuse", 2, "target_load"), ("crash", 2, "target_load"), ("slow", 2, "target_load_timeout")],
)
def test_verify_tells_a_load_that_failed(
    table: Path,
    name: str,
    code: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It was "a fault of the program", and the server's log was to say more."""
    monkeypatch.chdir(table.parent)
    monkeypatch.setattr("analyzer.cli.verify._LOAD_S_MIN", 1.0)
    exported(table, name)
    words = f"verify --repository repository --model {name} --server triton --json -q"
    with pytest.raises(SystemExit) as ended:
        main([*words.split(), "--latency-budget=1s", "--target-rate=10/s", "--budget=2s"])
    error = json.loads(capsys.readouterr().out)["error"]
    assert (ended.value.code, error["code"]) == (code, told)


@pytest.mark.triton
def test_a_warm_up_that_fails_on_a_triton_is_told(
    triton_install: TritonInstall, table: Path
) -> None:
    """Now and then Triton crashes by that, and loading never came to an end."""
    files = exported(table, "bad")
    text = files.config_text.partition("model_warmup")[0] + WARM_UP
    with TritonServer(triton_install) as server:
        begun = time.monotonic()
        with pytest.raises(TargetLoadError, match="bad") as caught:
            load(server, table, replace(files, config_text=text))
        assert time.monotonic() - begun < 30
    said = caught.value.message
    assert "while running Gather" in said or "Signal (11)" in said
