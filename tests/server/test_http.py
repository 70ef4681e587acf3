"""HTTP as clients see it: routes, bodies, Triton's errors, and clients that misbehave."""

from __future__ import annotations

import gzip
import http.client
import json
import resource
import socket
import struct
import threading
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from one_request import send

from analyzer.server.app import Addresses
from analyzer.server.limits import Limits

ROW = [float(i) for i in range(16)]
LENGTH = "Inference-Header-Content-Length"
INFER = "/v2/models/ident/infer"


def error(answer: tuple[int, dict[str, str], bytes]) -> tuple[int, str]:
    return answer[0], json.loads(answer[2])["error"]


def tensor(**changes: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": "INPUT0", "shape": [1, 16], "datatype": "FP32"}
    return entry | changes


def test_health_and_metadata(wire: Addresses) -> None:
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/ident/ready"):
        assert send(wire, "GET", path)[::2] == (200, b"")
    server = json.loads(send(wire, "GET", "/v2")[2])
    assert server["name"] == "triton"
    assert "statistics" in server["extensions"]
    model = json.loads(send(wire, "GET", "/v2/models/ident/versions/1")[2])
    assert model["versions"] == ["1"]
    assert model["inputs"] == [{"name": "INPUT0", "datatype": "FP32", "shape": [-1, 16]}]


def test_configuration_is_completed_as_triton_does(wire: Addresses) -> None:
    config = json.loads(send(wire, "GET", "/v2/models/digits/config")[2])
    assert config["max_batch_size"] == 4
    assert config["dynamic_batching"]["preferred_batch_size"] == [4]
    assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 0
    group = config["instance_group"][0]
    assert (group["name"], group["kind"], group["count"]) == ("digits", "KIND_CPU", 2)
    assert config["version_policy"] == {"latest": {"num_versions": 1}}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v2/", 404),
        ("GET", "/v2/models", 404),
        ("GET", "/v2/models/ident/versions/x", 404),
        ("GET", "/v2/models/nope", 404),
        ("GET", "/v2/models/nope/config", 404),
        ("GET", "/v2/models/nope/stats", 400),
        ("GET", "/v2/models/ident/versions/3/stats", 400),
        ("GET", "/v2/models/ident/versions/9/ready", 404),
        ("GET", INFER, 405),
        ("POST", "/v2", 405),
        ("PUT", INFER, 405),
        ("POST", "/v2/models/nope/infer", 404),
        ("POST", "/v2/models/ident/versions/99999999999999999999/infer", 400),
        ("POST", "/v2/models/..%2f..%2fetc/infer", 404),
        ("POST", "/v2/repository/models/ident/load", 503),
        ("POST", "/v2/repository/any/models/ident/load", 501),
        ("GET", "/v2/systemsharedmemory/region/x/status", 404),
        ("POST", "/v2/systemsharedmemory/register", 400),
        ("POST", "/v2/cudasharedmemory/region/x/register", 501),
    ],
)
def test_status_of_errors(wire: Addresses, method: str, path: str, status: int) -> None:
    assert send(wire, method, path, b"" if method != "GET" else None)[0] == status


def test_the_index_of_any_repository_is_that_of_all_models(wire: Addresses) -> None:
    """Triton does not look at the name over HTTP; it was 501."""
    answers = [send(wire, "POST", f"/v2/repository/{n}index", b"")[::2] for n in ("", "any/")]
    assert answers[0] == answers[1] and answers[0][0] == 200


def test_json_and_binary_answers(wire: Addresses) -> None:
    status, headers, body = send(wire, "POST", INFER, {"id": "7", "inputs": [tensor(data=ROW)]})
    assert (status, headers["content-type"]) == (200, "application/json")
    assert json.loads(body) == {
        "id": "7",
        "model_name": "ident",
        "model_version": "1",
        "outputs": [{"name": "OUTPUT0", "datatype": "FP32", "shape": [1, 16], "data": ROW}],
    }
    head = json.dumps(
        {
            "inputs": [tensor(shape=[2, 16], parameters={"binary_data_size": 128})],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    blob = np.arange(32, dtype=np.float32).tobytes()
    status, headers, body = send(wire, "POST", INFER, head + blob, {LENGTH: str(len(head))})
    size = int(headers[LENGTH.lower()])
    assert (status, headers["content-type"]) == (200, "application/octet-stream")
    assert body[size:] == blob
    assert json.loads(body[:size])["outputs"][0]["parameters"] == {"binary_data_size": 128}


def test_listed_outputs_are_json_whatever_the_default_says(wire: Addresses) -> None:
    request = {
        "inputs": [tensor(data=ROW)],
        "outputs": [{"name": "OUTPUT0"}],
        "parameters": {"binary_data_output": True},
    }
    assert json.loads(send(wire, "POST", INFER, request)[2])["outputs"][0]["data"] == ROW


def test_raw_body(wire: Addresses) -> None:
    blob = struct.pack("<16f", *ROW)
    status, headers, body = send(wire, "POST", INFER, blob, {LENGTH: "0"})
    assert (status, body[int(headers[LENGTH.lower()]) :]) == (200, blob)
    status, message = error(send(wire, "POST", INFER, blob[:30], {LENGTH: "0"}))
    assert status == 400
    assert message == (
        "[request id: <id_unknown>] input byte size mismatch for input 'raw_input' for model "
        "'ident'. Expected 64, got 30"
    )
    status, headers, body = send(wire, "POST", "/v2/models/nobatch/infer", blob, {LENGTH: "0"})
    assert json.loads(body[: int(headers[LENGTH.lower()])])["outputs"][0]["shape"] == [4, 4]


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compression_both_ways(wire: Addresses, encoding: str) -> None:
    text = json.dumps({"inputs": [tensor(data=ROW)]}).encode()
    packed = gzip.compress(text) if encoding == "gzip" else zlib.compress(text)
    headers = {"Content-Encoding": encoding, "Accept-Encoding": encoding}
    status, found, body = send(wire, "POST", INFER, packed, headers)
    assert (status, found["content-encoding"]) == (200, encoding)
    plain = zlib.decompress(body, 47)
    assert json.loads(plain)["outputs"][0]["data"] == ROW


def test_decompression_is_bounded(wire: Addresses) -> None:
    bomb = gzip.compress(b"\0" * (64 << 20))
    assert len(bomb) < 1 << 20
    status, message = error(send(wire, "POST", INFER, bomb, {"Content-Encoding": "gzip"}))
    assert (status, "larger than" in message) == (400, True)


F = "failed to parse the request JSON buffer: "
ID = "[request id: <id_unknown>] "


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"junk", 500, F + "Invalid value. at 0"),
        (b"{", 500, F + "Missing a name for object member. at 1"),
        (b"[" * 100_000, 500, F),
        (b"[]", 500, "Unable to parse 'inputs': attempt to access non-existing object member"),
        ({"inputs": {}}, 500, "Unable to parse 'inputs': attempt to access JSON non-array"),
        ({"inputs": []}, 400, ID + "expected 1 inputs but got 0 inputs for model 'ident'. Got"),
        ({"inputs": [{"data": []}]}, 500, "Unable to parse 'name'"),
        ({"inputs": [tensor()]}, 400, "Input must set only one of the following fields"),
        ({"inputs": [tensor(data=ROW, datatype="FLOAT")]}, 400, "invalid datatype for input"),
        (
            {"inputs": [tensor(data=[1] * 16, datatype="INT32")]},
            400,
            ID + "inference input 'INPUT0' data-type is 'INT32', but model 'ident' expects 'FP32'",
        ),
        ({"inputs": [tensor(data=ROW[:5])]}, 500, "Unable to parse 'data': Shape does not match"),
        (
            {"inputs": [tensor(data=ROW[:8], shape=[1, 8])]},
            400,
            ID + "unexpected shape for input 'INPUT0' for model 'ident'. Expected [-1,16], got "
            "[1,8]. NOTE",
        ),
        (
            {"inputs": [tensor(data=ROW * 9, shape=[9, 16])]},
            400,
            ID + "inference request batch-size must be <= 8 for 'ident'",
        ),
        ({"inputs": [tensor(data=ROW, shape=[-1, 16])]}, 500, "Unable to parse 'shape'"),
        ({"inputs": [tensor(data=[], shape=[1 << 62, 1 << 62])]}, 500, "Unable to parse 'data'"),
        ({"inputs": [tensor(data=["a"] * 16)]}, 500, "Unable to parse 'data': attempt to access"),
        ({"inputs": [tensor(data=[None] * 16)]}, 500, "Unable to parse 'data'"),
        ({"inputs": [tensor(data=[[1], [1, 2], []])]}, 500, "Unable to parse 'data'"),
        ({"inputs": [tensor(name="X", data=ROW)]}, 400, "unexpected inference input 'X' for model"),
        ({"inputs": [tensor(data=ROW)] * 2}, 400, ID + "input 'INPUT0' already exists in request"),
        ({"inputs": [tensor(data=ROW)], "outputs": [{"name": "Z"}]}, 400, "unexpected inference"),
        ({"inputs": [tensor(data=ROW)], "id": 5}, 500, "Unable to parse 'id'"),
        ({"inputs": [tensor(data=ROW)], "parameters": {"triton_x": 1}}, 400, "parameter keys"),
        ({"inputs": [tensor(data=ROW)], "parameters": []}, 500, "failed to get request params."),
        ({"inputs": [tensor(data=ROW)], "parameters": {"priority": "2"}}, 500, "Unable to parse"),
        (
            {"inputs": [tensor(parameters={"binary_data_size": 64})]},
            400,
            "unexpected size for input 'INPUT0', expecting 64 additional bytes for model 'ident'",
        ),
        (
            {
                "inputs": [
                    tensor(parameters={"shared_memory_region": "r", "shared_memory_byte_size": 64})
                ]
            },
            404,
            "Unable to find shared memory region: 'r'",
        ),
    ],
)
def test_malformed_requests(wire: Addresses, body: Any, status: int, message: str) -> None:
    found = error(send(wire, "POST", INFER, body))
    assert found[0] == status
    assert found[1].startswith(message)


@pytest.mark.parametrize("parameters", [None, [], "x"])
def test_parameters_of_a_tensor_that_are_no_object_are_none(
    wire: Addresses, parameters: Any
) -> None:
    body = {
        "inputs": [tensor(data=ROW, parameters=parameters)],
        "outputs": [{"name": "OUTPUT0", "parameters": parameters}],
    }
    status, _, answer = send(wire, "POST", INFER, body)
    assert status == 200
    assert json.loads(answer)["outputs"][0]["data"] == ROW


def test_outputs_in_shared_memory_have_no_parameters(wire: Addresses) -> None:
    from multiprocessing.shared_memory import SharedMemory

    region = {"shared_memory_region": "http", "shared_memory_byte_size": 64}
    block = SharedMemory(create=True, size=64)
    try:
        path = "/v2/systemsharedmemory/region/http/"
        assert send(wire, "POST", path + "register", {"key": block.name, "byte_size": 64})[0] == 200
        body = {
            "inputs": [tensor(data=ROW)],
            "outputs": [{"name": "OUTPUT0", "parameters": region | {"binary_data": False}}],
        }
        status, _, answer = send(wire, "POST", INFER, body)
        assert status == 200
        assert json.loads(answer)["outputs"] == [
            {"name": "OUTPUT0", "datatype": "FP32", "shape": [1, 16]}
        ]
        assert struct.unpack("<16f", bytes(block.buf)) == tuple(ROW)
        assert send(wire, "POST", path + "unregister")[0] == 200
    finally:
        block.close()
        block.unlink()


def test_classes_of_half_precision_are_refused(wire: Addresses) -> None:
    head = {
        "inputs": [tensor(datatype="FP16", parameters={"binary_data_size": 32})],
        "outputs": [{"name": "OUTPUT0", "parameters": {"classification": 2}}],
    }
    text = json.dumps(head).encode()
    answer = send(wire, "POST", "/v2/models/half/infer", text + bytes(32), {LENGTH: str(len(text))})
    assert error(answer) == (
        400,
        "class result not available for output due to unsupported type 'FP16'",
    )


@pytest.mark.parametrize("value", ["-5", "100000", "99999999999999999999999"])
def test_header_length_out_of_range(wire: Addresses, value: str) -> None:
    body = json.dumps({"inputs": [tensor(data=ROW)]}).encode()
    status, message = error(send(wire, "POST", INFER, body, {LENGTH: value}))
    assert (status, message) == (
        400,
        f"inference header size should be in range (0, {len(body)}), got: {value}",
    )


def test_leftover_binary_data(wire: Addresses) -> None:
    head = json.dumps({"inputs": [tensor(parameters={"binary_data_size": 64})]}).encode()
    body = head + bytes(128)
    assert error(send(wire, "POST", INFER, body, {LENGTH: str(len(head))})) == (
        400,
        "unexpected additional input data for model 'ident'",
    )


@pytest.mark.parametrize(
    ("data", "status"), [([1 << 63, 1], 500), ([1 << 32, 1], 200), ([-(1 << 63) - 1, 1], 500)]
)
def test_integers_beyond_64_bits_do_not_wrap(wire: Addresses, data: list[int], status: int) -> None:
    request = {
        "inputs": [
            {"name": name, "datatype": "INT32", "shape": [1, 2], "data": data} for name in "AB"
        ]
    }
    found, _, body = send(wire, "POST", "/v2/models/two/infer", request)
    assert found == status
    if status == 500:
        message = "Unable to parse 'data': attempt to access JSON non-signed-integer as signed"
        assert json.loads(body)["error"].startswith(message)


def test_half_precision_is_no_json(repository: Path, start: Any) -> None:
    (repository / "half" / "1").mkdir(parents=True)
    config = """
        backend: "identity" max_batch_size: 8 version_policy { all { } }
        input { name: "INPUT0" data_type: TYPE_FP16 dims: [ 16 ] }
        output { name: "OUTPUT0" data_type: TYPE_FP16 dims: [ 16 ] }
    """
    (repository / "half" / "config.pbtxt").write_text(config)
    (repository / "half" / "2").mkdir()
    addresses, _ = start()
    binary = {"binary_data_size": 32}
    head = json.dumps({"inputs": [tensor(datatype="FP16", parameters=binary)]}).encode()
    length = {LENGTH: str(len(head))}
    answer = send(addresses, "POST", "/v2/models/half/infer", head + bytes(32), length)
    assert error(answer)[0] == 400 and "FP16 data via JSON" in error(answer)[1]
    versions = [
        json.loads(send(addresses, "GET", f"/v2/models/half{path}")[2])["versions"]
        for path in ("", "/versions/1", "/versions/2")
    ]
    assert versions == [["1", "2"], ["1"], ["2"]]


def test_strings(wire: Addresses) -> None:
    words = ["é", ""] * 8
    request = {"inputs": [tensor(datatype="BYTES", data=words)]}
    answer = json.loads(send(wire, "POST", "/v2/models/strs/infer", request)[2])
    assert answer["outputs"][0]["data"] == words
    head = json.dumps(
        {"inputs": [tensor(datatype="BYTES", parameters={"binary_data_size": 80})]}
    ).encode()
    bad = head + b"\x09\x00\x00\x00\xff" * 16
    status, message = error(
        send(wire, "POST", "/v2/models/strs/infer", bad, {LENGTH: str(len(head))})
    )
    assert status == 400
    assert "'INPUT0' for model 'strs'" in message


def test_generate(wire: Addresses) -> None:
    answer = json.loads(
        send(wire, "POST", "/v2/models/two/generate", {"A": [1, 2], "B": [3, 4], "foo": 1})[2]
    )
    assert answer == {"model_name": "two", "model_version": "1", "S": [1, 2], "D": [3, 4]}
    status, headers, body = send(
        wire, "POST", "/v2/models/two/generate_stream", {"A": [1, 2], "B": [3, 4]}
    )
    assert (status, headers["content-type"][:17]) == (200, "text/event-stream")
    assert body.startswith(b"data: {") and body.endswith(b"}\n\n")
    assert error(send(wire, "POST", "/v2/models/nobatch/generate", {"INPUT0": 1}))[0] == 400


def test_logging_and_trace_settings(wire: Addresses) -> None:
    assert json.loads(send(wire, "GET", "/v2/logging")[2])["log_info"] is True
    changed = json.loads(send(wire, "POST", "/v2/logging", {"log_verbose_level": 1})[2])
    assert changed["log_verbose_level"] == 1
    assert send(wire, "POST", "/v2/logging", {"log_file": "/tmp/x"})[0] == 501
    trace = json.loads(
        send(wire, "POST", "/v2/models/ident/trace/setting", {"trace_count": "5"})[2]
    )
    assert (trace["trace_count"], trace["trace_level"]) == ("5", ["OFF"])
    assert send(wire, "POST", "/v2/trace/setting", {"trace_file": "/tmp/x"})[0] == 501


def test_body_larger_than_the_limit(wire: Addresses) -> None:
    host, _, port = wire.http.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(
            f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {1 << 40}\r\n\r\n".encode()
        )
        assert client.recv(4096).startswith(b"HTTP/1.1 413")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(
            f"POST {INFER} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        answer = b""
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        try:
            for _ in range(200):  # 13 MB, the limit here is 8 MiB
                client.sendall(chunk)
            answer = client.recv(4096)
        except (BrokenPipeError, ConnectionResetError):
            pass  # closed while we were sending: refused all the same
        assert answer == b"" or answer.startswith(b"HTTP/1.1 413")
    assert send(wire, "GET", "/v2/health/live")[0] == 200


def answers_to(addresses: Addresses, parts: list[bytes], count: int) -> list[tuple[int, bytes]]:
    """Status and body of ``count`` answers on a connection that gets ``parts`` in turn."""
    host, _, port = addresses.http.rpartition(":")
    found = []
    with socket.create_connection((host, int(port)), timeout=10) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            client.sendall(part)
            time.sleep(0.01)
        stream = client.makefile("rb")
        for _ in range(count):
            status = int(stream.readline().split()[1])
            size = 0
            while (line := stream.readline().lower()) not in (b"\r\n", b""):
                if line.startswith(b"content-length:"):
                    size = int(line.split(b":")[1])
            found.append((status, stream.read(size)))
    return found


UPGRADES = (
    "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n",
    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n",
    "connection: upgrade\r\nupgrade: TLS/1.0\r\n",
)


@pytest.mark.parametrize("upgrade", UPGRADES)
@pytest.mark.parametrize("chunked", [False, True])
def test_an_upgrade_is_ignored(wire: Addresses, upgrade: str, chunked: bool) -> None:
    """The body was lost (Java's client asks for h2c), or taken for a request if it came later."""
    text = json.dumps({"inputs": [tensor(data=ROW)]}).encode()
    framing = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {len(text)}"
    if chunked:
        text = b"%x\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (9, text[:9], len(text) - 9, text[9:])
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\n{upgrade}{framing}\r\n\r\n".encode()
    live = f"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n{upgrade}\r\n".encode()
    whole = head + text
    for cut in (10, len(head) - 2, len(head), len(head) + 5, len(head) + 40, len(whole)):
        parts = [whole[:cut], whole[cut:] + live + whole, live]
        (first, body), *others = answers_to(wire, parts, 4)
        assert (first, json.loads(body)["outputs"][0]["data"]) == (200, ROW), cut
        assert [status for status, _ in others] == [200, 200, 200], cut


def test_a_body_after_an_upgrade_is_no_request(wire: Addresses) -> None:
    inner = b"GET /v2/models/nope HTTP/1.1\r\nHost: x\r\n\r\n"
    head = f"POST {INFER} HTTP/1.1\r\n{UPGRADES[0]}Content-Length: {len(inner)}\r\n\r\n"
    live = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    first, second = answers_to(wire, [head.encode(), inner, live], 2)
    assert "failed to parse the request JSON buffer" in json.loads(first[1])["error"]
    assert second == (200, b"")
    tunnel = b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n" + live
    assert answers_to(wire, [tunnel], 1)[0][0] == 400


def test_requests_before_rubbish_are_answered(wire: Addresses) -> None:
    """All of them got one 400, whether or not they were carried out."""
    text = json.dumps({"inputs": [tensor(data=ROW)]}).encode()
    good = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n\r\n".encode()
    good += text
    broken = f"POST {INFER} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n".encode()
    large = b"GET /v2 HTTP/1.1\r\nX: " + b"a" * 20_000 + b"\r\n\r\n"
    for end, status in ((b"\x00\x01junk", 400), (broken, 400), (large, 431)):
        found = answers_to(wire, [good + good + end + good], 3)
        assert [answer for answer, _ in found] == [200, 200, status]
    assert answers_to(wire, [broken], 1)[0][0] == 400


def test_of_a_header_given_twice_the_first_counts(wire: Addresses) -> None:
    head = json.dumps({"inputs": [tensor(parameters={"binary_data_size": 64})]}).encode()
    body = head + np.array(ROW, np.float32).tobytes()
    request = (
        f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        f"{LENGTH}: {len(head)}\r\n{LENGTH}: 5\r\n\r\n"
    )
    assert answers_to(wire, [request.encode() + body], 1)[0][0] == 200


def test_headers_larger_than_the_limit(wire: Addresses) -> None:
    host, _, port = wire.http.rpartition(":")
    for head in (b"GET /v2 HTTP/1.1\r\nX: " + b"a" * 100_000, b"GET /" + b"a" * 100_000):
        with socket.create_connection((host, int(port)), timeout=60) as client:
            try:
                client.sendall(head)
                answer = client.recv(4096)
            except (BrokenPipeError, ConnectionResetError):
                answer = b"HTTP/1.1 431"
            assert answer.startswith(b"HTTP/1.1 431")


@pytest.mark.timing
def test_slow_clients_time_out(repository: Path, start: Any) -> None:
    limits = Limits(header_timeout_s=0.3, body_timeout_s=0.3)
    addresses, _ = start(limits=limits)
    host, _, port = addresses.http.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(b"GET /v2 HTTP/1.1\r\nHo")
        assert client.recv(4096).startswith(b"HTTP/1.1 408")
    post = b"POST /v2/logging HTTP/1.1\r\nHost: x\r\n"
    for begun in (
        b"Content-Length: 10\r\n\r\n{",
        b"Content-Length: 10\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n",
    ):
        with socket.create_connection((host, int(port)), timeout=60) as client:
            client.sendall(post + begun)
            answer = b""
            while part := client.recv(4096):  # until it closes the connection
                answer += part
            assert answer.startswith(b"HTTP/1.1 408")


@pytest.mark.timing
def test_connections_are_bounded(repository: Path, start: Any) -> None:
    addresses, _ = start(limits=Limits(connections_max=3))
    host, _, port = addresses.http.rpartition(":")
    clients = [socket.create_connection((host, int(port)), timeout=60) for _ in range(3)]
    for client in clients:
        client.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        assert client.recv(4096).startswith(b"HTTP/1.1 503")
    clients.pop().close()
    time.sleep(0.1)
    assert send(addresses, "GET", "/v2/health/live")[0] == 200
    for client in clients:
        client.close()


def test_a_thousand_idle_connections(wire: Addresses) -> None:
    # Both ends of each are files of this process.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip(f"this machine allows {hard} open files, this needs 4096")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    host, _, port = wire.http.rpartition(":")
    idle = [socket.create_connection((host, int(port)), timeout=60) for _ in range(1000)]
    idle_grpc = [
        socket.create_connection((host, int(wire.grpc.rpartition(":")[2])), timeout=60)
        for _ in range(500)
    ]
    try:
        for _ in range(20):
            assert send(wire, "POST", INFER, {"inputs": [tensor(data=ROW)]})[0] == 200
    finally:
        for client in (*idle, *idle_grpc):
            client.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


SLOW = """
backend: "scripted"
max_batch_size: 8
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [16] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [16] }]
instance_group [{ count: 1 kind: KIND_CPU }]
parameters { key: "service_time_ms" value { string_value: "1=300" } }
"""


@pytest.mark.timing
def test_clients_that_vanish_are_taken_out_of_the_queue(repository: Path, start: Any) -> None:
    folder = repository / "slow"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(SLOW)
    addresses, app = start()
    host, _, port = addresses.http.rpartition(":")
    body = json.dumps({"inputs": [tensor(data=ROW)]}).encode()
    head = f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    clients = []
    for _ in range(4):
        client = socket.create_connection((host, int(port)), timeout=60)
        client.sendall(head.encode() + body)
        clients.append(client)
    model = app.repository.get("slow")
    _wait(lambda: model.details().waiting_count == 3)
    for client in clients[1:]:
        client.close()
    _wait(lambda: model.details().waiting_count == 0)
    assert model.details().cancelled_count == 3
    assert clients[0].recv(4096).startswith(b"HTTP/1.1 200")
    clients[0].close()
    assert model.details().server.success_count == 1


@pytest.mark.timing
def test_requests_under_way_are_answered_at_the_end(repository: Path, start: Any) -> None:
    from analyzer.server.app import ServeOptions, serving

    folder = repository / "slow"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(SLOW)
    options = ServeOptions(repository=repository, http_port=0, grpc_port=0, metrics_port=0)
    answers: list[int] = []
    with serving(options, log=lambda line: None) as (addresses, app):
        body = {"inputs": [tensor(data=ROW)]}
        threads = [
            threading.Thread(
                target=lambda: answers.append(
                    send(addresses, "POST", "/v2/models/slow/infer", body)[0]
                )
            )
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        model = app.repository.get("slow")
        _wait(lambda: model.details().waiting_count == 2)
    for thread in threads:
        thread.join()
    assert answers == [200, 200, 200]


@pytest.mark.parametrize("action", ["infer", "generate"])
def test_a_model_that_is_loaded_anew_while_a_body_arrives(
    repository: Path, start: Any, action: str
) -> None:
    """The copy that was looked up with the headers is closed by then: it was 503."""
    folder = repository / "slow"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(SLOW)
    addresses, _ = start(mode="explicit", load_models=("*",))
    document = {"inputs": [tensor(data=ROW)]} if action == "infer" else {"INPUT0": ROW}
    body = json.dumps(document).encode()
    head = f"POST /v2/models/slow/{action} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
    host, _, port = addresses.http.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as client:
        client.sendall(head.encode() + body[:10])
        (folder / "2").mkdir()
        # Its answer also shows that the head before it has been read.
        assert send(addresses, "POST", "/v2/repository/models/slow/load", {})[0] == 200
        _wait(lambda: not any(one.name == "unload-slow" for one in threading.enumerate()))
        client.sendall(body[10:])
        answer = http.client.HTTPResponse(client)
        answer.begin()
        assert answer.status == 200
        assert json.loads(answer.read())["model_version"] == "2"


RAW = """
backend: "identity"
input [{ name: "INPUT0" data_type: TYPE_STRING dims: [1] }]
output [{ name: "OUTPUT0" data_type: TYPE_STRING dims: [1] }]
"""


def test_a_raw_request_is_completed_once_though_two_copies_look_at_it(
    repository: Path, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = repository / "raw"
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(RAW)
    addresses, app = start(mode="explicit", load_models=("*",))
    old, look_up = app.repository.get("raw"), app.repository.get
    (folder / "2").mkdir()
    assert send(addresses, "POST", "/v2/repository/models/raw/load", {})[0] == 200
    old.close()
    monkeypatch.setattr(
        app.repository,
        "get",
        lambda name, version: look_up(name, version) if old.rejected_count else old,
    )
    status, headers, body = send(addresses, "POST", "/v2/models/raw/infer", b"abc", {LENGTH: "0"})
    size = int(headers[LENGTH.lower()])
    assert (status, body[size:]) == (200, b"\3\0\0\0abc")
    assert json.loads(body[:size])["model_version"] == "2"


def _wait(condition: Any, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)
