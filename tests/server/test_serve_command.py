"""``analyze serve`` as a process: addresses on stderr, a drained end, clear errors."""

from __future__ import annotations

import signal
import socket
import subprocess
from pathlib import Path

import numpy as np
import tritonclient.http as triton

from benchlib.own_server import COMMAND, FREE, own_server

IDENTITY = """
backend: "identity"
max_batch_size: 8
input [{ name: "X" data_type: TYPE_FP32 dims: [2] }]
output [{ name: "Y" data_type: TYPE_FP32 dims: [2] }]
"""


def put(repository: Path, name: str, config: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)


def test_serves_and_ends_on_sigterm(repository: Path) -> None:
    put(repository, "m", IDENTITY)
    put(repository, "broken", IDENTITY.replace("identity", "python"))
    with own_server(repository) as server:
        with triton.InferenceServerClient(server.http) as client:
            given = triton.InferInput("X", [1, 2], "FP32")
            given.set_data_from_numpy(np.ones((1, 2), np.float32))
            assert client.infer("m", [given]).as_numpy("Y").tolist() == [[1, 1]]
            states = {m["name"]: m["state"] for m in client.get_model_repository_index()}
            assert states == {"m": "READY", "broken": "UNAVAILABLE"}
            assert not client.is_server_ready()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0


def refused(*arguments: str) -> str:
    run = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60)
    assert run.returncode == 2, run.stderr
    assert "Traceback" not in run.stderr
    return run.stderr


def test_errors_of_the_start(repository: Path, tmp_path: Path) -> None:
    put(repository, "broken", IDENTITY.replace("identity", "python"))
    assert "There is no model repository" in refused(str(tmp_path / "nowhere"), *FREE)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        for option in ("--http-port", "--grpc-port", "--metrics-port"):
            ports = [port if FREE[i - 1] == option else v for i, v in enumerate(FREE)]
            text = refused(str(repository), *ports)
            assert "Cannot listen" in text and port in text
    assert "does not run code" in refused(str(repository), *FREE, "--exit-on-error")
    assert "explicit" in refused(str(repository), *FREE, "--load-model", "x")
