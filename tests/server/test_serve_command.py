"""``analyze serve`` as a process: addresses on stderr, a drained end, clear errors."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import tritonclient.http as triton

IDENTITY = """
backend: "identity"
max_batch_size: 8
input [{ name: "X" data_type: TYPE_FP32 dims: [2] }]
output [{ name: "Y" data_type: TYPE_FP32 dims: [2] }]
"""
COMMAND = [sys.executable, "-m", "analyzer.cli.main", "serve"]
FREE = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]


def put(repository: Path, name: str, config: str) -> None:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)


@contextmanager
def running(repository: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [*COMMAND, str(repository), *FREE, *options], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        address = ""
        for line in process.stderr:
            found = re.match(r"Started HTTPService at (\S+)", line)
            address = found[1] if found else address
            if line.startswith("Started Metrics"):
                break
        assert address, "it did not start"
        yield process, address
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_serves_and_ends_on_sigterm(repository: Path) -> None:
    put(repository, "m", IDENTITY)
    put(repository, "broken", IDENTITY.replace("identity", "python"))
    with running(repository) as (process, address):
        with triton.InferenceServerClient(address) as client:
            given = triton.InferInput("X", [1, 2], "FP32")
            given.set_data_from_numpy(np.ones((1, 2), np.float32))
            assert client.infer("m", [given]).as_numpy("Y").tolist() == [[1, 1]]
            states = {m["name"]: m["state"] for m in client.get_model_repository_index()}
            assert states == {"m": "READY", "broken": "UNAVAILABLE"}
            assert not client.is_server_ready()
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


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
