"""The gRPC connection: no thread for each request, and nothing left when it is closed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from analyzer.domain.measurement import STATUS_OK
from analyzer.load.generator import run_closed_loop
from analyzer.server.app import ServeOptions, serving
from analyzer.targets.grpc_connection import GrpcConnection
from analyzer.targets.payload import RequestPool

CONFIG = """
backend: "identity"
max_batch_size: 8
input [{ name: "X" data_type: TYPE_FP32 dims: [1] }]
output [{ name: "Y" data_type: TYPE_FP32 dims: [1] }]
instance_group [{ count: 1 kind: KIND_CPU }]
dynamic_batching {}
"""
POOL = RequestPool({"X": np.ones((4, 1), np.float32)}, batchable=True)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    root = tmp_path_factory.mktemp("grpc")
    (root / "m" / "1").mkdir(parents=True)
    (root / "m" / "config.pbtxt").write_text(CONFIG)
    options = ServeOptions(repository=root, http_port=0, grpc_port=0, metrics_port=0)
    with serving(options, log=lambda line: None) as (addresses, _):
        yield addresses.grpc


def test_a_closed_loop_of_one_starts_no_thread_for_each_request(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = 0
    start = threading.Thread.start

    def counting(thread: threading.Thread) -> None:
        nonlocal started
        started += 1
        start(thread)

    connection = GrpcConnection(address, "m", POOL)
    monkeypatch.setattr(threading.Thread, "start", counting)
    run = run_closed_loop(connection, 1, requests=50)
    monkeypatch.undo()
    connection.close()
    assert (run.log.status == STATUS_OK).all()
    assert started < 10


def test_a_closed_connection_leaves_no_thread(address: str) -> None:
    before = threading.active_count()
    for _ in range(3):
        connection = GrpcConnection(address, "m", POOL)
        run_closed_loop(connection, 2, requests=4)
        connection.close()
        connection.close()
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert threading.active_count() <= before
