"""The gRPC connection: on our server, on a real Triton, and on a server that goes away."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analyzer.domain.configuration import Configuration
from analyzer.domain.load_test import STATUS_ERROR, STATUS_OK
from analyzer.errors import TargetCrashError
from analyzer.load.generator import run_closed_loop, run_open_loop
from analyzer.modelconfig.files import model_files
from analyzer.server.app import ServeOptions, serving
from analyzer.targets import http2_frames as h2
from analyzer.targets.endpoint_target import local_target, temporary_name
from analyzer.targets.grpc_connection import GrpcConnection, encode_request
from analyzer.targets.grpc_endpoint import GrpcEndpoint
from analyzer.targets.payload import RequestPool
from analyzer.targets.triton_install import find_triton
from analyzer.targets.triton_server import TritonServer
from analyzer.variants.inspect import inspect_model
from benchlib.models import write_perceptron

CONFIG = """
backend: "identity"
max_batch_size: 8
input [{{ name: "X" data_type: TYPE_FP32 dims: [{width}] }}]
output [{{ name: "Y" data_type: TYPE_FP32 dims: [{width}] }}]
instance_group [{{ count: 1 kind: KIND_CPU }}]
dynamic_batching {{}}
"""
WIDE = 300_000  # 1.2 MB, more than any window that a server begins with


def pool(width: int = 1) -> RequestPool:
    return RequestPool({"X": np.ones((4, width), np.float32)}, batchable=True)


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    root = tmp_path_factory.mktemp("grpc")
    for name, width in (("m", 1), ("wide", WIDE)):
        (root / name / "1").mkdir(parents=True)
        (root / name / "config.pbtxt").write_text(CONFIG.format(width=width))
    options = ServeOptions(repository=root, http_port=0, grpc_port=0, metrics_port=0)
    with serving(options, log=lambda line: None) as (addresses, _):
        yield int(addresses.grpc.rpartition(":")[2])


@contextmanager
def connection_to(port: int, model: str, inputs: RequestPool) -> Iterator[GrpcConnection]:
    connection = GrpcConnection("127.0.0.1", port, model, inputs)
    try:
        yield connection
    finally:
        connection.close()


def exchange(connection: GrpcConnection, count: int, first: int = 0) -> dict[int, int]:
    """Sends ``count`` requests and returns their statuses."""
    for number in range(first, first + count):
        connection.send(number, 1)
    statuses: dict[int, int] = {}
    deadline = time.monotonic() + 60
    while len(statuses) < count and time.monotonic() < deadline:
        statuses.update({one.request: one.status for one in connection.receive(0.1)})
    return statuses


def test_it_starts_no_thread(port: int) -> None:
    before = threading.active_count()
    with connection_to(port, "m", pool()) as connection:
        run = run_closed_loop(connection, 1, requests=50)
        assert threading.active_count() == before
    assert (run.log.status == STATUS_OK).all()


def test_requests_are_encoded_once_and_before_the_run(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    def encode(*arguments: Any) -> bytes:
        events.append("encoded")
        return encode_request(*arguments)

    monkeypatch.setattr("analyzer.targets.grpc_connection.encode_request", encode)
    rows = pool()
    for _ in range(2):
        with connection_to(port, "m", rows) as connection:
            send = connection.send
            monkeypatch.setattr(
                connection,
                "send",
                lambda *arguments, send=send: (events.append("sent"), send(*arguments)),
            )
            run = run_closed_loop(connection, 2, 2, requests=6)
            assert (run.log.status == STATUS_OK).all()
    assert events == ["encoded"] * 2 + ["sent"] * 12


def test_no_proxy_stands_between(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC's own client, of the control side alone, went through the environment's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        closed = listener.getsockname()[1]
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy", "grpc_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{closed}")
    endpoint = GrpcEndpoint("127.0.0.1", port)
    try:
        assert endpoint.live()
    finally:
        endpoint.close()


def test_many_in_flight(port: int) -> None:
    with connection_to(port, "m", pool()) as connection:
        assert exchange(connection, 500) == dict.fromkeys(range(500), STATUS_OK)
        run = run_open_loop(connection, np.arange(300) * 1e-3, 2, timeout_s=5, drain_s=5)
    assert (run.log.status == STATUS_OK).all()
    assert run.strays == 0


def test_requests_and_replies_larger_than_the_windows(port: int) -> None:
    with connection_to(port, "wide", pool(WIDE)) as connection:
        assert exchange(connection, 12) == dict.fromkeys(range(12), STATUS_OK)


def test_a_refused_request_is_a_failed_completion(port: int) -> None:
    with connection_to(port, "m", pool(3)) as connection:
        assert exchange(connection, 3) == dict.fromkeys(range(3), STATUS_ERROR)
    with connection_to(port, "absent", pool()) as connection:
        assert exchange(connection, 2) == dict.fromkeys(range(2), STATUS_ERROR)


def test_nobody_there_is_a_crash() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(TargetCrashError, match="does not answer"):
        GrpcConnection("127.0.0.1", port, "m", pool())


@contextmanager
def scripted_server(serve: Callable[[int, socket.socket], None]) -> Iterator[int]:
    """A listener that gives each connection, numbered, to ``serve``, then closes it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        number = 0
        while True:
            try:
                connected, _ = listener.accept()
            except OSError:
                return
            with connected:
                connected.settimeout(10)
                serve(number, connected)
            number += 1

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        acceptor.join(60)


def requests_on(connected: socket.socket, streams_max: int = 100) -> Iterator[int]:
    """Sends settings, then yields the stream of each request as it has come."""
    connected.sendall(h2.settings({h2.MAX_CONCURRENT_STREAMS: streams_max}))
    data = connected.recv(1 << 16)[len(h2.PREFACE) :]
    reader = h2.FrameReader()
    while data:
        for kind, _, stream, _, _ in reader.feed(data):
            if kind == h2.DATA:
                yield stream
        data = connected.recv(1 << 16)


def success(stream: int) -> bytes:
    """The answer to a request."""
    flags = h2.END_HEADERS | h2.END_STREAM
    return h2.frame(h2.HEADERS, flags, stream, b"\x88\x00\x0bgrpc-status\x010")


def goodbye(last: int) -> bytes:
    """GOAWAY: streams above ``last`` were not begun."""
    return h2.frame(h2.GOAWAY, 0, 0, last.to_bytes(4, "big") + bytes(4))


def answer(connected: socket.socket, requests: int) -> None:
    """Sends settings, then as many successes as are asked for."""
    for stream in islice(requests_on(connected), requests):
        connected.sendall(success(stream))


def test_a_server_that_says_goodbye_gets_no_further_requests() -> None:
    over = threading.Event()

    def serve(number: int, connected: socket.socket) -> None:
        answer(connected, 2)
        if number == 0:
            connected.sendall(goodbye(3))
        else:
            over.wait(60)

    with scripted_server(serve) as port, connection_to(port, "m", pool()) as connection:
        assert exchange(connection, 2) == {0: STATUS_OK, 1: STATUS_OK}
        connection.receive(0.2)
        assert exchange(connection, 2, first=2) == {2: STATUS_OK, 3: STATUS_OK}
        over.set()


def test_what_a_server_has_not_begun_at_its_goodbye_is_sent_to_the_next() -> None:
    """Two requests are beyond the last stream that it answers, and two were not sent at all."""
    over = threading.Event()

    def serve(number: int, connected: socket.socket) -> None:
        if number == 0:
            assert list(islice(requests_on(connected, streams_max=3), 3)) == [1, 3, 5]
            connected.sendall(goodbye(1) + success(1))
        else:
            answer(connected, 4)
            over.wait(60)

    with scripted_server(serve) as port, connection_to(port, "m", pool()) as connection:
        assert exchange(connection, 5) == dict.fromkeys(range(5), STATUS_OK)
        assert connection.failure == ""
        over.set()


def test_the_latency_of_what_was_sent_again_counts_from_its_intended_time() -> None:
    held_s = 0.2
    over = threading.Event()

    def serve(number: int, connected: socket.socket) -> None:
        if number == 0:
            next(requests_on(connected))
            time.sleep(held_s)
            connected.sendall(goodbye(0))
        else:
            answer(connected, 1)
            over.wait(60)

    with scripted_server(serve) as port, connection_to(port, "m", pool()) as connection:
        run = run_open_loop(connection, np.zeros(1), timeout_s=10, drain_s=10)
        over.set()
    assert (run.log.status == STATUS_OK).all()
    assert run.log.latency_s[0] >= held_s


def test_a_server_that_begins_nothing_fails_what_it_got_twice() -> None:
    connections = []

    def serve(number: int, connected: socket.socket) -> None:
        connections.append(number)
        if number < 2:
            assert list(islice(requests_on(connected), 2)) == [1, 3]
            connected.sendall(goodbye(0))
        else:
            answer(connected, 1)

    with scripted_server(serve) as port, connection_to(port, "m", pool()) as connection:
        assert exchange(connection, 2) == {0: STATUS_ERROR, 1: STATUS_ERROR}
        assert connection.failure == "two connections were closed before the call began"
        assert exchange(connection, 1, first=2) == {2: STATUS_OK}
    assert connections == [0, 1, 2]


def test_a_lost_connection_fails_what_is_in_flight_and_is_opened_anew() -> None:
    over = threading.Event()

    def serve(number: int, connected: socket.socket) -> None:
        answer(connected, 1)
        if number > 0:
            over.wait(60)

    with scripted_server(serve) as port, connection_to(port, "m", pool()) as connection:
        assert exchange(connection, 3) == {0: STATUS_OK, 1: STATUS_ERROR, 2: STATUS_ERROR}
        assert exchange(connection, 1, first=3) == {3: STATUS_OK}
        over.set()


def test_a_server_that_is_gone_stays_a_crash() -> None:
    with scripted_server(lambda number, connected: answer(connected, 1)) as port:
        connection = GrpcConnection("127.0.0.1", port, "m", pool())
        connection.send(0, 1)
        assert [one.status for one in connection.receive(5.0)] == [STATUS_OK]
    for _ in range(2):
        with pytest.raises(TargetCrashError, match="does not answer"):
            connection.receive(5.0)
    with pytest.raises(TargetCrashError, match="does not answer"):
        connection.send(1, 1)
    connection.close()


def test_nonsense_is_no_server() -> None:
    def serve(number: int, connected: socket.socket) -> None:
        connected.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n" * 10)
        connected.recv(1 << 16)

    with scripted_server(serve) as port, pytest.raises(TargetCrashError, match="no HTTP/2"):
        GrpcConnection("127.0.0.1", port, "m", pool())


@pytest.mark.triton
def test_a_real_triton_with_large_requests_until_it_is_killed(tmp_path: Path) -> None:
    install = find_triton()
    if install is None or "python" not in install.backends:
        pytest.skip("there is no Triton with a python backend here (make tools fetches one)")
    path = write_perceptron(tmp_path / "wide.onnx", (WIDE, 2))
    model = inspect_model(path)
    configuration = Configuration(max_batch_size=4, dynamic_batching=True, intra_op_threads=1)
    name = temporary_name("wide", configuration)
    files = model_files(model, path, configuration, backend="python", name=name)
    inputs = {"x": np.ones((2, WIDE), np.float32)}
    with (
        TritonServer(install) as server,
        local_target(server, files, inputs, model=model, protocol="grpc") as target,
        target.connect() as connection,
    ):
        assert exchange(connection, 40) == dict.fromkeys(range(40), STATUS_OK)
        wrong = RequestPool({"x": np.ones((2, 3), np.float32)}, batchable=True)
        with connection_to(server.grpc_port, name, wrong) as other:
            assert exchange(other, 2) == dict.fromkeys(range(2), STATUS_ERROR)
        for number in range(40, 60):
            connection.send(number, 1)
        seen = len(connection.receive(1.0))
        os.kill(server.pids[0], signal.SIGKILL)
        with pytest.raises(TargetCrashError):
            while seen < 20:
                seen += len(connection.receive(5.0))
            connection.receive(5.0)
