"""Requests over HTTP: encoded once, failures counted, a server that is gone noticed."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.domain.configuration import Backend, Configuration
from analyzer.domain.load_test import STATUS_OK
from analyzer.domain.model import ModelInfo, TensorSpec
from analyzer.errors import TargetCrashError, TargetError, TargetLoadError, UsageError
from analyzer.load.generator import run_open_loop
from analyzer.modelconfig.files import ModelFiles
from analyzer.targets.address import is_elsewhere, open_endpoint, parse_address
from analyzer.targets.endpoint_target import EndpointTarget, attached_target
from analyzer.targets.http_connection import HttpConnection, encode_request
from analyzer.targets.http_endpoint import HttpEndpoint
from analyzer.targets.payload import PAYLOADS_MAX, RequestPool, datatype_of

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
BAD = b'HTTP/1.1 400 Bad Request\r\nContent-Length: 15\r\n\r\n{"error":"bad"}'
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
LAST = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"


@contextmanager
def http_server(
    answer: Callable[[int, bytes], bytes | None], accepted: list[socket.socket] | None = None
) -> Iterator[int]:
    """A server that answers request number n (over all connections) with ``answer(n, request)``.

    None closes the connection without an answer. Connections are added to ``accepted``. Yields the
    port.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    lock, count, open_sockets = threading.Lock(), [0], [listener]

    def serve(connected: socket.socket) -> None:
        data = b""
        try:
            while True:
                while b"\r\n\r\n" not in data:
                    more = connected.recv(1 << 16)
                    if not more:
                        return
                    data += more
                head, _, data = data.partition(b"\r\n\r\n")
                fields = head.lower().partition(b"\r\ncontent-length: ")
                length = int(fields[2].split(b"\r\n")[0]) if fields[2] else 0
                while len(data) < length:
                    data += connected.recv(1 << 20)
                body, data = data[:length], data[length:]
                with lock:
                    number = count[0]
                    count[0] += 1
                reply = answer(number, head + b"\r\n\r\n" + body)
                if reply is None:
                    return
                connected.sendall(reply)
        except OSError:
            pass
        finally:
            connected.close()

    def accept() -> None:
        while True:
            try:
                connected, _ = listener.accept()
            except OSError:
                return
            open_sockets.append(connected)
            if accepted is not None:
                accepted.append(connected)
            threading.Thread(target=serve, args=(connected,), daemon=True).start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield listener.getsockname()[1]
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        for one in open_sockets:
            one.close()
        acceptor.join(60)


def pool(rows: int = 4, width: int = 3) -> RequestPool:
    data = np.arange(rows * width, dtype=np.float32).reshape(rows, width)
    return RequestPool({"x": data}, batchable=True)


def exchange(connection: HttpConnection, count: int, batch_size: int = 1) -> dict[int, int]:
    for request in range(count):
        connection.send(request, batch_size)
    statuses: dict[int, int] = {}
    deadline = time.monotonic() + 60
    while len(statuses) < count and time.monotonic() < deadline:
        statuses.update({c.request: c.status for c in connection.receive(0.1)})
    return statuses


def test_every_request_gets_its_own_reply() -> None:
    with http_server(lambda number, request: OK) as port:
        connection = HttpConnection("127.0.0.1", port, "m", pool())
        assert exchange(connection, 50) == dict.fromkeys(range(50), 0)
        assert exchange(connection, 50) == dict.fromkeys(range(50), 0)
        assert connection.receive(0.0) == []
        connection.close()
        connection.close()


def test_a_socket_is_used_again() -> None:
    accepted: list[socket.socket] = []
    with http_server(lambda number, request: OK, accepted) as port:
        connection = HttpConnection("127.0.0.1", port, "m", pool())
        for _ in range(10):
            assert exchange(connection, 2) == {0: 0, 1: 0}
        connection.close()
    assert len(accepted) == 2


@pytest.mark.timing
def test_failures_and_closed_connections_are_errors_and_the_rest_goes_on() -> None:
    replies = [OK, BAD, CHUNKED, None, LAST, OK]
    with http_server(lambda number, request: replies[number]) as port:
        connection = HttpConnection("127.0.0.1", port, "m", pool())
        seen = []
        for _ in replies:
            seen.append(exchange(connection, 1)[0])
            time.sleep(0.02)  # the close of an idle connection must have come
        assert seen == [0, 1, 0, 1, 0, 0]
        assert connection.failure == "bad"
        connection.close()


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (BAD.replace(b"15", b"4").replace(b'{"error":"bad"}', b"busy"), "HTTP status 400: busy"),
        (BAD.replace(b"15", b"0").replace(b'{"error":"bad"}', b""), "HTTP status 400"),
        (None, "the connection was closed"),
    ],
)
def test_why_a_request_failed_is_told_as_far_as_the_server_does(
    reply: bytes | None, told: str
) -> None:
    with http_server(lambda number, request: reply) as port:
        connection = HttpConnection("127.0.0.1", port, "m", pool())
        assert exchange(connection, 1) == {0: 1}
        assert connection.failure == told
        connection.close()


def test_a_request_larger_than_the_sockets_buffer_arrives_whole() -> None:
    sizes: list[int] = []

    def answer(number: int, request: bytes) -> bytes:
        sizes.append(len(request))
        return OK

    big = pool(rows=1, width=3_000_000)
    with http_server(answer) as port:
        connection = HttpConnection("127.0.0.1", port, "m", big)
        assert exchange(connection, 3) == {0: 0, 1: 0, 2: 0}
        connection.close()
    assert len(set(sizes)) == 1
    assert sizes[0] > 12_000_000


def test_a_server_that_is_gone_is_a_crash() -> None:
    with http_server(lambda number, request: None) as port:
        connection = HttpConnection("127.0.0.1", port, "m", pool())
    with pytest.raises(TargetCrashError, match="went away"):
        exchange(connection, 1)
        exchange(connection, 1)
    connection.close()
    with pytest.raises(TargetCrashError, match="does not answer"):
        HttpConnection("127.0.0.1", port, "m", pool())
    with pytest.raises(TargetCrashError, match="does not answer"):
        open_endpoint(f"http://127.0.0.1:{port}")


def test_an_ipv6_host_stands_in_brackets(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the Host header and in what is told; the socket gets it without them."""
    hosts: list[bytes] = []

    def answer(number: int, request: bytes) -> bytes:
        hosts.append(request.partition(b"\r\nHost: ")[2].partition(b"\r\n")[0])
        return OK

    connect = socket.create_connection
    with http_server(answer) as port:
        # Not every machine that runs the tests has IPv6.
        reached = {("::1", port): ("127.0.0.1", port)}
        monkeypatch.setattr(
            "analyzer.targets.http_connection.socket.create_connection",
            lambda where, timeout: connect(reached[where], timeout),
        )
        connection = HttpConnection("::1", port, "m", pool())
        assert exchange(connection, 1) == {0: 0}
        connection.close()
    assert hosts == [b"[::1]:%d" % port]
    with pytest.raises(TargetCrashError, match=rf"http://\[::1\]:{port} does not answer"):
        HttpConnection("::1", port, "m", pool())


def test_an_error_of_the_server_is_told() -> None:
    with http_server(lambda number, request: BAD) as port:
        endpoint = HttpEndpoint("127.0.0.1", port)
        with pytest.raises(TargetError, match="bad"):
            endpoint.statistics("m")
        assert not endpoint.ready("m")
    with (
        http_server(lambda number, request: OK.replace(b"{}", b"{,")) as port,
        pytest.raises(TargetError, match="no JSON"),
    ):
        HttpEndpoint("127.0.0.1", port).model("m")


def test_requests_are_encoded_once_and_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of each size was late by the encoding, and so were all that fell due meanwhile."""
    events: list[str] = []

    def encode(*arguments: Any) -> bytes:
        events.append("encoded")
        return encode_request(*arguments)

    monkeypatch.setattr("analyzer.targets.http_connection.encode_request", encode)
    rows, sizes = pool(rows=4), np.array([1, 2, 3, 1, 2, 3])
    with http_server(lambda number, request: OK) as port:
        for _ in range(2):
            connection = HttpConnection("127.0.0.1", port, "m", rows)
            send = connection.send
            monkeypatch.setattr(
                connection,
                "send",
                lambda *arguments, send=send: (events.append("sent"), send(*arguments)),
            )
            run = run_open_loop(connection, np.arange(6) * 1e-3, sizes, timeout_s=9, drain_s=9)
            assert (run.log.status == STATUS_OK).all()
            connection.close()
    assert events == ["encoded"] * (4 + 2 + 2) + ["sent"] * 12


def test_what_comes_on_an_idle_socket_answers_nothing() -> None:
    """A server says 408 before it closes an idle socket: request -1 was answered with it."""
    accepted: list[socket.socket] = []
    with http_server(lambda number, request: OK, accepted) as port:
        connection = HttpConnection("127.0.0.1", port, "m", pool())
        assert exchange(connection, 2) == {0: 0, 1: 0}
        accepted[0].sendall(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
        assert list(connection.receive(5.0)) == []
        assert exchange(connection, 2) == {0: 0, 1: 0}
        assert connection.failure == ""
        connection.close()
    assert len(accepted) == 3


def test_a_name_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each further socket waited for the resolver, in the middle of the load."""
    looked_up: list[str] = []
    resolve = socket.getaddrinfo

    def noted(host: str, *arguments: Any, **options: Any) -> Any:
        looked_up.append(host)
        return resolve(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", noted)
    accepted: list[socket.socket] = []
    with http_server(lambda number, request: OK, accepted) as port:
        connection = HttpConnection("localhost", port, "m", pool())
        assert exchange(connection, 4) == dict.fromkeys(range(4), 0)
        connection.close()
    assert len(accepted) == 4
    assert looked_up.count("localhost") == 1


@pytest.mark.parametrize("host", ["10.0.0.256", "triton..svc", "a" * 64])
def test_a_host_that_can_be_none_is_said_not_to_answer(host: str) -> None:
    """These were faults of the program: neither is an error of httpx's own."""
    with pytest.raises(TargetCrashError, match=re.escape(host)) as caught:
        open_endpoint(f"http://{host}:8000")
    assert "correct the address" in caught.value.hint.lower()
    if host[0].isalpha():  # a resolver would be asked for numbers
        with pytest.raises(TargetCrashError, match=re.escape(host)):
            HttpConnection(host, 8000, "m", pool())


@given(
    st.sampled_from(["bool", "int8", "uint16", "int64", "float16", "float32", "float64"]),
    st.integers(1, 5),
    st.integers(1, 7),
)
def test_an_encoded_request_is_what_it_says(dtype: str, batch: int, width: int) -> None:
    array = np.ones((batch, width), dtype)
    head, _, body = encode_request("h:1", "a b", {"x": array}).partition(b"\r\n\r\n")
    fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
    assert head.startswith(b"POST /v2/models/a%20b/infer HTTP/1.1")
    assert int(fields[b"Content-Length"]) == len(body)
    length = int(fields[b"Inference-Header-Content-Length"])
    [tensor] = json.loads(body[:length])["inputs"]
    assert tensor["shape"] == [batch, width]
    assert tensor["parameters"]["binary_data_size"] == len(body) - length == array.nbytes
    assert tensor["datatype"] == datatype_of(array)
    assert body[length:] == array.tobytes()


def test_requests_take_the_rows_in_turn() -> None:
    four = pool(rows=4, width=1)
    assert four.tensors(0, 3)["x"].ravel().tolist() == [0, 1, 2]
    assert four.tensors(1, 3)["x"].ravel().tolist() == [3, 0, 1]
    payloads = four.payloads(1, lambda tensors: tensors["x"].tobytes())
    assert len({next(payloads) for _ in range(100)}) == 4
    many = pool(rows=1000).payloads(1, lambda tensors: tensors["x"].tobytes())
    assert len({next(many) for _ in range(2000)}) == PAYLOADS_MAX
    whole = RequestPool({"x": np.zeros((2, 1, 3))}, batchable=False)
    assert whole.tensors(1, 1)["x"].shape == (1, 3)
    with pytest.raises(TargetError, match="batch axis"):
        whole.tensors(0, 2)


@pytest.mark.parametrize("text", ["", "grpc://", "grpc://h", "http://h:0", "http://h:70000", "h:1"])
def test_an_address_that_is_none_shows_the_right_spelling(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_address(text)
    assert "grpc://HOST:PORT" in caught.value.hint


def test_addresses() -> None:
    assert parse_address("grpc://host:8001") == ("grpc", "host", 8001)
    assert parse_address("http://[::1]:8000/") == ("http", "::1", 8000)


@pytest.mark.parametrize(
    ("server", "elsewhere"),
    [
        ("embedded", False),
        ("triton", False),
        ("grpc://localhost:8001", False),
        ("http://127.0.0.2:8000", False),
        ("http://[::1]:8000", False),
        ("grpc://triton.prod:8001", True),
        ("http://10.0.0.5:8000", True),
    ],
)
def test_a_server_is_elsewhere_unless_only_this_machine_reaches_it(
    server: str, elsewhere: bool
) -> None:
    assert is_elsewhere(server) == elsewhere


@pytest.mark.parametrize(
    ("max_batch_size", "batchable", "inputs", "outputs"),
    [(8, True, (3,), ()), (0, False, (-1, 3), (-1,)), (None, True, (3,), ())],
)
def test_a_description_without_the_batch_axis(
    max_batch_size: int | None, batchable: bool, inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> None:
    meta = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": ["-1"]}],  # as gRPC's JSON has it
    }

    def answer(number: int, request: bytes) -> bytes:
        if b"/config" not in request:
            body = json.dumps(meta).encode()
        elif max_batch_size is None:
            return BAD
        else:
            body = b'{"max_batch_size": %d}' % max_batch_size
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)

    with http_server(answer) as port:
        model = HttpEndpoint("127.0.0.1", port).model("m")
    assert (model.batchable, model.max_batch_size) == (batchable, max_batch_size)
    assert (model.inputs[0].shape, model.outputs[0].shape) == (inputs, outputs)


def reply(status: str, body: str) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


@contextmanager
def stubborn_server(answers: dict[str, list[bytes]]) -> Iterator[str]:
    """A server with an empty repository; ``load`` and ``unload`` have answers of their own."""

    def answer(number: int, request: bytes) -> bytes:
        path = request.split(b" ")[1].decode()
        own = answers.get(path.rpartition("/")[2])
        if own:
            return own.pop(0)
        if path.endswith("/ready"):
            return BAD
        return reply("200 OK", "[]")

    with http_server(answer) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def attached(address: str) -> Iterator[EndpointTarget]:
    """A model for ONNX Runtime, or else in Python, called after a backend."""
    tensor = TensorSpec(name="x", datatype="FP32", shape=(3,))
    info = ModelInfo(
        name="backend_net", path="/nowhere", sha256="0" * 64, batchable=True, inputs=(tensor,),
        outputs=(tensor,),
    )  # fmt: skip
    backends: tuple[Backend, ...] = ("onnxruntime", "python")
    candidates = [
        ModelFiles(
            name="backend_net",
            config_text=f'name: "backend_net" backend: "{backend}" max_batch_size: 4',
            configuration=Configuration(backend=backend, max_batch_size=4),
            version_files={"model.file": b"x"},
        )
        for backend in backends
    ]
    with attached_target(address, candidates, {"x": np.ones((4, 3))}, model=info) as target:
        yield target


@pytest.mark.parametrize(
    "said",
    [
        "unable to find backend library for backend 'onnxruntime', try specifying runtime on the",
        "unable to find 'libtriton_onnxruntime.so' for model 'backend_net', searched: /backends",
    ],
)
def test_a_server_without_the_backend_gets_the_next(said: str) -> None:
    refused = reply("400 Bad Request", json.dumps({"error": f"load failed: {said};"}))
    with stubborn_server({"load": [refused]}) as address, attached(address) as target:
        assert target.configuration is not None and target.configuration.backend == "python"
        assert target.notes[0].startswith(f"{address} has no onnxruntime backend")


def test_a_load_that_fails_otherwise_is_not_for_want_of_a_backend() -> None:
    """The word was enough, which the model's own name, or the server's, may hold."""
    said = "load failed for model 'backend_net': the backend could not parse it"
    refused = reply("400 Bad Request", json.dumps({"error": said}))
    with (
        stubborn_server({"load": [refused]}) as address,
        pytest.raises(TargetLoadError, match="could not parse it"),
        attached(address),
    ):
        pass


def test_a_model_that_could_not_be_unloaded_is_told() -> None:
    """It stayed on the user's server, and nobody said so."""
    with stubborn_server({"unload": [BAD]}) as address:
        with attached(address) as target:
            assert target.notes == ()
        [note] = target.notes
        assert note.startswith(
            f"The model backend_net may still be loaded at {address}: The server"
        )
        assert note.endswith(": bad (status 400)")
        with attached(address) as target:
            pass
        assert target.notes == ()
