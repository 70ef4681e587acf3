"""Malformed requests of every kind: each is answered or refused, and the server goes on.

``FUZZ_SECONDS`` sets the time of each test here (``make fuzz``); a few seconds by default.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import psutil
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from analyzer.server.app import Addresses

SECONDS = float(os.environ.get("FUZZ_SECONDS", "0")) / 4 or 3.0
INFER = "/v2/models/ident/infer"
ROW = [float(i) for i in range(16)]
GOOD = json.dumps(
    {"inputs": [{"name": "INPUT0", "shape": [1, 16], "datatype": "FP32", "data": ROW}]}
).encode()
LENGTH = "Inference-Header-Content-Length"
PATHS = (
    INFER,
    "/v2/models/two/infer",
    "/v2/models/strs/infer",
    "/v2/models/nobatch/infer",
    "/v2/models/two/generate",
    "/v2/models/strs/generate_stream",
    "/v2/repository/index",
    "/v2/repository/models/ident/load",
    "/v2/logging",
    "/v2/trace/setting",
    "/v2/systemsharedmemory/region/r/register",
    "/v2/systemsharedmemory/unregister",
)
FUZZ = settings(
    max_examples=100,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)

names = st.sampled_from(["INPUT0", "A", "B", "OUTPUT0", "", "X", "é\0"]) | st.text(max_size=5)
scalars = (
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=5)
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)
shapes = st.lists(st.sampled_from([1, 2, 4, 16, 0, -1, 1 << 40]), max_size=4) | values
datatypes = st.sampled_from(["FP32", "INT32", "BYTES", "BOOL", "FP16", "UINT8", "BF16", "X"])
parameters = st.fixed_dictionaries(
    {},
    optional={
        "binary_data_size": st.sampled_from([0, 4, 64, 1 << 40, -1]) | values,
        "binary_data": values,
        "classification": st.integers(-1, 1 << 40) | values,
        "shared_memory_region": names | values,
        "shared_memory_byte_size": st.integers(-1, 100) | values,
        "shared_memory_offset": values,
    },
)
tensors = st.fixed_dictionaries(
    {},
    optional={
        "name": names | values,
        "shape": shapes,
        "datatype": datatypes | values,
        "data": st.just(ROW) | st.lists(scalars, max_size=20) | values,
        "parameters": parameters | values,
    },
)
requests = st.fixed_dictionaries(
    {},
    optional={
        "id": values,
        "inputs": st.lists(tensors, max_size=3) | values,
        "outputs": st.lists(tensors, max_size=3) | values,
        "parameters": st.dictionaries(
            st.sampled_from(["priority", "timeout", "binary_data_output", "triton_x", "config"]),
            values,
            max_size=3,
        )
        | values,
        "INPUT0": values,
        "A": values,
        "ready": values,
        "log_verbose_level": values,
        "log_info": values,
        "trace_level": values,
        "trace_rate": values,
        "key": values,
        "byte_size": values,
    },
)
bodies = requests.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=200)
encodings = st.sampled_from([None, "gzip", "deflate", "br", "identity"])
lengths = st.none() | st.integers(-2, 300).map(str) | st.text("0123456789+-x ", max_size=25)


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def check_alive(addresses: Addresses) -> None:
    """A valid request gets its right answer over both protocols."""
    status, body = post(addresses, INFER, GOOD, {})
    assert status == 200
    assert json.loads(body)["outputs"][0]["data"] == ROW
    request = service_pb2.ModelInferRequest(model_name="ident")
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 16])
    request.raw_input_contents.append(struct.pack("<16f", *ROW))
    with grpc.insecure_channel(addresses.grpc) as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelInferResponse.FromString,
        )
        assert call(request, timeout=10).raw_output_contents[0] == struct.pack("<16f", *ROW)


def post(
    addresses: Addresses, path: str, body: bytes, headers: dict[str, str]
) -> tuple[int, bytes]:
    host, _, port = addresses.http.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=10)
    try:
        connection.request("POST", path, body=body, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


class Clock:
    """Ends a Hypothesis run in time: what comes after the deadline is not sent."""

    def __init__(self) -> None:
        self.deadline = time.monotonic() + SECONDS
        self.count = 0

    def go(self) -> bool:
        self.count += 1
        return time.monotonic() < self.deadline


def run_until(clock: Clock, test: Any) -> None:
    """Runs Hypothesis in rounds of a few examples until the time is up."""
    rounds = FUZZ(test)
    while clock.go():
        rounds()


@pytest.fixture(scope="module")
def wire(
    serve_wire: Callable[[], contextlib.AbstractContextManager[Addresses]],
) -> Iterator[Addresses]:
    """A server of its own: a request that is drawn may change its settings."""
    with serve_wire() as addresses:
        yield addresses


@pytest.mark.slow
def test_http_bodies_and_headers(wire: Addresses) -> None:
    clock = Clock()

    @given(st.sampled_from(PATHS), bodies, lengths, encodings, encodings)
    def one(
        path: str, body: bytes, length: str | None, encoding: str | None, accept: str | None
    ) -> None:
        headers = {}
        if length is not None:
            headers[LENGTH] = length.strip() or "0"
        if encoding is not None:
            headers["Content-Encoding"] = encoding
        if accept is not None:
            headers["Accept-Encoding"] = accept
        status, text = post(wire, path, body, headers)
        assert status in (200, 400, 404, 405, 500, 501, 503)
        if status != 200:
            message = text[6:] if text.startswith(b"data: ") else text
            error = json.loads(message)["error"]
            # The faults that Triton has words for; a Python exception's name is none.
            assert "Error:" not in error, (path, body, headers, error)

    run_until(clock, one)
    check_alive(wire)


@pytest.mark.slow
def test_http_bytes(wire: Addresses) -> None:
    """Requests cut, repeated and overwritten anywhere, headers included."""
    rng = random.Random(7)
    head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(GOOD)}\r\n\r\n".encode()
    good = head + GOOD
    deadline = time.monotonic() + SECONDS
    count = 0
    while time.monotonic() < deadline:
        data = bytearray(good)
        for _ in range(rng.randint(1, 6)):
            place = rng.randrange(len(data) + 1)
            match rng.randrange(4):
                case 0:
                    data[place:place] = rng.randbytes(rng.randint(1, 8))
                case 1:
                    del data[place : place + rng.randint(1, 30)]
                case 2:
                    data[place:place] = data[: rng.randint(1, 60)]
                case 3 if place < len(data):
                    data[place] = rng.randrange(256)
        with connect(wire.http) as client:
            client.sendall(bytes(data))
            if rng.random() < 0.7:
                client.settimeout(0.05)
                # It may wait for the rest, or have hung up.
                with contextlib.suppress(TimeoutError, ConnectionError):
                    client.recv(65536)
        count += 1
        if count % 100 == 0:
            check_alive(wire)
    check_alive(wire)


grpc_tensors = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["INPUT0", "A", "B", "X", ""]),
        "datatype": st.sampled_from(["FP32", "INT32", "BYTES", "BOOL", "FP16", "X", ""]),
        "shape": st.lists(st.sampled_from([1, 2, 4, 16, 0, -1, 1 << 62]), max_size=4),
        "ints": st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=3),
        "floats": st.lists(st.floats(width=32), max_size=16),
        "texts": st.lists(st.binary(max_size=3), max_size=3),
        "region": st.none() | st.text("abc", max_size=2),
        "size": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
    }
)


@pytest.mark.slow
def test_grpc_messages(wire: Addresses) -> None:
    clock = Clock()
    with grpc.insecure_channel(wire.grpc) as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelInferResponse.FromString,
        )

        @given(
            st.sampled_from(["ident", "two", "strs", "nobatch", "nope", "../x"]),
            st.sampled_from(["", "1", "x", "9" * 30]),
            st.lists(grpc_tensors, max_size=3),
            st.lists(st.binary(max_size=64) | st.just(bytes(64)), max_size=3),
            st.lists(st.tuples(st.sampled_from(["OUTPUT0", "S", "Z"]), st.integers(-2, 1 << 40))),
        )
        def one(model: str, version: str, tensors: Any, raw: Any, outputs: Any) -> None:
            request = service_pb2.ModelInferRequest(model_name=model, model_version=version)
            for tensor in tensors:
                entry = request.inputs.add(
                    name=tensor["name"], datatype=tensor["datatype"], shape=tensor["shape"]
                )
                entry.contents.int_contents.extend(tensor["ints"])
                entry.contents.fp32_contents.extend(tensor["floats"])
                entry.contents.bytes_contents.extend(tensor["texts"])
                if tensor["region"] is not None:
                    entry.parameters["shared_memory_region"].string_param = tensor["region"]
                if tensor["size"] is not None:
                    entry.parameters["shared_memory_byte_size"].int64_param = tensor["size"]
                if not tensor["ints"] and not tensor["floats"] and not tensor["texts"]:
                    entry.ClearField("contents")
            request.raw_input_contents.extend(raw)
            for name, classes in outputs:
                output = request.outputs.add(name=name)
                output.parameters["classification"].int64_param = classes
            try:
                call(request, timeout=10)
            except grpc.RpcError as error:
                assert error.code() in (
                    grpc.StatusCode.INVALID_ARGUMENT,
                    grpc.StatusCode.NOT_FOUND,
                    grpc.StatusCode.INTERNAL,
                ), error
                assert "Error:" not in error.details(), (request, error.details())

        run_until(clock, one)
    check_alive(wire)


@pytest.mark.slow
def test_grpc_bytes_and_memory(wire: Addresses) -> None:
    """Bytes that are no message, and no HTTP/2; what they cost in memory is given back."""
    rng = random.Random(11)
    deadline = time.monotonic() + SECONDS
    request = service_pb2.ModelInferRequest(model_name="ident")
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 16])
    request.raw_input_contents.append(bytes(64))
    good = request.SerializeToString()
    memory = psutil.Process()
    sizes = []
    with grpc.insecure_channel(wire.grpc) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        count = 0
        while time.monotonic() < deadline:
            data = bytearray(good)
            for _ in range(rng.randint(1, 4)):
                data[rng.randrange(len(data))] = rng.randrange(256)
            try:
                call(bytes(data), timeout=10)
            except grpc.RpcError as error:
                assert error.code() != grpc.StatusCode.DEADLINE_EXCEEDED
            with connect(wire.grpc) as client:
                client.sendall(rng.randbytes(rng.randint(1, 200)))
            count += 1
            if count % 50 == 0:
                check_alive(wire)
                sizes.append(memory.memory_info().rss)
    check_alive(wire)
    if len(sizes) >= 4:
        # After the first rounds (allocators warm up) it must not grow by more than noise.
        assert sizes[-1] - sizes[len(sizes) // 2] < 64 << 20
