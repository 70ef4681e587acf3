"""gRPC with Triton's own client: inference, streams, control, errors, and clients that vanish."""

from __future__ import annotations

import asyncio
import queue
import time
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from analyzer.server.app import Addresses
from analyzer.server.metrics import TritonMetrics


def tensor(name: str, array: Any, datatype: str) -> Any:
    value = triton.InferInput(name, list(array.shape), datatype)
    value.set_data_from_numpy(array)
    return value


def rows(count: int = 1) -> Any:
    return np.arange(count * 16, dtype=np.float32).reshape(count, 16)


@pytest.fixture
def client(wire: Addresses) -> Any:
    with triton.InferenceServerClient(wire.grpc) as connected:
        yield connected


def raw_call(address: str, method: str, request: Any, response: Any) -> Any:
    """A call without Triton's client, which would not send what is wrong."""
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            f"/inference.GRPCInferenceService/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=response.FromString,
        )
        return call(request, timeout=60)


@pytest.mark.parametrize(
    ("name", "kind", "value", "message"),
    [
        ("priority", "uint64_param", 1 << 40, None),
        ("priority", "int64_param", -1, "invalid value for 'priority', expected value >= 0."),
        ("priority", "bool_param", True, "for 'priority' parameter, expected int64_param or uint"),
        ("timeout", "int64_param", -1, None),
        ("timeout", "uint64_param", 5, "for 'timeout' parameter, expected int64_param."),
        ("sequence_id", "string_param", "a", None),
        ("sequence_id", "uint64_param", 5, "expected int64_param or string_param."),
        ("sequence_start", "int64_param", 1, "expected bool_param."),
        ("triton_enable_empty_final_response", "bool_param", True, None),
        ("triton_enable_empty_final_response", "int64_param", 1, "expected bool_param."),
        ("triton_x", "bool_param", True, "Only the following keys starting with 'triton_' are"),
        ("other", "double_param", 1.5, None),
        ("other", "uint64_param", 5, "expected int64_param, bool_param, or string_param."),
    ],
)
def test_types_of_parameters(
    wire: Addresses, name: str, kind: str, value: Any, message: str | None
) -> None:
    request = service_pb2.ModelInferRequest(
        model_name="ident", raw_input_contents=[rows().tobytes()]
    )
    request.inputs.add(name="INPUT0", datatype="FP32", shape=[1, 16])
    setattr(request.parameters[name], kind, value)
    try:
        raw_call(wire.grpc, "ModelInfer", request, service_pb2.ModelInferResponse)
        found = None
    except grpc.RpcError as error:
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        found = error.details()
    assert (found is None) == (message is None) and (message or "") in (found or "")


def test_an_unknown_log_format_is_an_invalid_argument(wire: Addresses) -> None:
    """Over gRPC; over HTTP Triton tells it as unavailable, in other words."""
    request = service_pb2.LogSettingsRequest()
    request.settings["log_format"].string_param = "x"
    with pytest.raises(grpc.RpcError) as caught:
        raw_call(wire.grpc, "LogSettings", request, service_pb2.LogSettingsResponse)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "invalid argument for log_format, got: x"


@pytest.mark.parametrize(("size", "accepted"), [(4 << 10, True), (16 << 10, False)])
def test_metadata_has_the_bounds_of_triton(wire: Addresses, size: int, accepted: bool) -> None:
    """gRPC's own: some calls beyond 8 KiB are refused, all beyond 16; these were 64 and 80."""
    with grpc.insecure_channel(wire.grpc) as channel:
        live = service_pb2_grpc.GRPCInferenceServiceStub(channel).ServerLive
        try:
            live(service_pb2.ServerLiveRequest(), timeout=60, metadata=[("x-long", "x" * size)])
            found = None
        except grpc.RpcError as error:
            found = error.code()
    assert found is (None if accepted else grpc.StatusCode.RESOURCE_EXHAUSTED)


def test_state_and_metadata(client: Any) -> None:
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("ident") and not client.is_model_ready("nope")
    assert "statistics" in client.get_server_metadata().extensions
    metadata = client.get_model_metadata("digits")
    assert list(metadata.inputs[0].shape) == [-1, 1, 64, 64]
    assert metadata.platform == "onnxruntime_onnx"
    config = client.get_model_config("digits").config
    assert (config.max_batch_size, config.instance_group[0].count) == (4, 2)


def test_inference(client: Any) -> None:
    result = client.infer("ident", [tensor("INPUT0", rows(3), "FP32")], request_id="7")
    np.testing.assert_array_equal(result.as_numpy("OUTPUT0"), rows(3))
    assert result.get_response().id == "7"
    assert result.get_response().model_version == "1"
    image = np.zeros((2, 1, 64, 64), np.float32)
    assert client.infer("digits", [tensor("image", image, "FP32")]).as_numpy("logits").shape == (
        2,
        10,
    )


def test_typed_contents(wire: Addresses) -> None:
    request = service_pb2.ModelInferRequest(model_name="two")
    for name, values in (("A", [1, -2]), ("B", [3, 4])):
        entry = request.inputs.add(name=name, datatype="INT32", shape=[1, 2])
        entry.contents.int_contents.extend(values)
    response = raw_call(wire.grpc, "ModelInfer", request, service_pb2.ModelInferResponse)
    assert np.frombuffer(response.raw_output_contents[0], np.int32).tolist() == [1, -2]


def test_strings_and_classification(client: Any) -> None:
    words = np.array([[f"w{i}".encode() for i in range(16)]], dtype=object)
    result = client.infer("strs", [tensor("INPUT0", words, "BYTES")])
    assert result.as_numpy("OUTPUT0").tolist() == words.tolist()
    wanted = [triton.InferRequestedOutput("OUTPUT0", class_count=2)]
    result = client.infer("ident", [tensor("INPUT0", rows(), "FP32")], outputs=wanted)
    assert result.as_numpy("OUTPUT0").tolist() == [[b"15.000000:15", b"14.000000:14"]]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"model_name": "nope"}, grpc.StatusCode.NOT_FOUND),
        ({"model_version": "9"}, grpc.StatusCode.NOT_FOUND),
        ({"model_version": "x"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"shape": [1, 15]}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"shape": [9, 16]}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"shape": [-1, 16]}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"shape": [1 << 62, 1 << 62]}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"shape": []}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"datatype": "FP64"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"datatype": "NONE"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"name": "X"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"raw": [b"short"]}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"raw": []}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"output": "Z"}, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_malformed_requests(wire: Addresses, change: dict[str, Any], code: Any) -> None:
    request = service_pb2.ModelInferRequest(
        model_name=change.get("model_name", "ident"), model_version=change.get("model_version", "")
    )
    request.inputs.add(
        name=change.get("name", "INPUT0"),
        datatype=change.get("datatype", "FP32"),
        shape=change.get("shape", [1, 16]),
    )
    request.raw_input_contents.extend(change.get("raw", [bytes(64)]))
    if "output" in change:
        request.outputs.add(name=change["output"])
    with pytest.raises(grpc.RpcError) as caught:
        raw_call(wire.grpc, "ModelInfer", request, service_pb2.ModelInferResponse)
    assert caught.value.code() == code
    assert caught.value.details()


def test_stream_keeps_the_order_and_reports_errors(client: Any) -> None:
    replies: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: replies.put(error or result))
    for number in range(20):
        client.async_stream_infer(
            "ident",
            [tensor("INPUT0", rows(), "FP32")],
            request_id=str(number),
            enable_empty_final_response=number == 0,
        )
    client.async_stream_infer("nope", [tensor("INPUT0", rows(), "FP32")])
    client.async_stream_infer("ident", [tensor("INPUT0", rows(), "FP32")], request_id="last")
    found = [replies.get(timeout=60) for _ in range(22)]
    client.stop_stream()
    assert [r.get_response().id for r in found[:20]] == [str(n) for n in range(20)]
    for reply in (*found[:20], found[21]):  # asked for or not, as in Triton
        assert reply.get_response().parameters["triton_final_response"].bool_param
    assert "unknown model" in str(found[20])
    assert found[21].get_response().id == "last"


def test_asyncio_client(wire: Addresses) -> None:
    async def run() -> list[float]:
        async with triton_aio.InferenceServerClient(wire.grpc) as aio:
            results = await asyncio.gather(
                *(aio.infer("ident", [tensor("INPUT0", rows(n), "FP32")]) for n in range(1, 9))
            )
            return [float(result.as_numpy("OUTPUT0").sum()) for result in results]

    assert asyncio.run(run()) == [float(rows(n).sum()) for n in range(1, 9)]


def test_settings_and_shared_memory_status(client: Any) -> None:
    assert client.get_log_settings().settings["log_info"].bool_param
    changed = client.update_trace_settings("ident", {"trace_rate": "5"})
    assert list(changed.settings["trace_rate"].value) == ["5"]
    assert not client.get_system_shared_memory_status().regions
    assert not client.get_cuda_shared_memory_status().regions
    with pytest.raises(InferenceServerException, match="CUDA shared memory is not supported"):
        client.register_cuda_shared_memory("r", b"AAAA", 0, 64)


def test_shared_memory_carries_tensors(client: Any) -> None:
    from tritonclient.utils import shared_memory as shm

    handle = shm.create_shared_memory_region("both", "/tritune_test", 128)
    try:
        shm.set_shared_memory_region(handle, [rows()])
        client.register_system_shared_memory("both", "/tritune_test", 128)
        assert client.get_system_shared_memory_status("both").regions["both"].byte_size == 128
        given = triton.InferInput("INPUT0", [1, 16], "FP32")
        given.set_shared_memory("both", 64)
        wanted = triton.InferRequestedOutput("OUTPUT0")
        wanted.set_shared_memory("both", 64, 64)
        result = client.infer("ident", [given], outputs=[wanted])
        assert not result.get_output("OUTPUT0").parameters
        got = shm.get_contents_as_numpy(handle, np.float32, [1, 16], offset=64)
        np.testing.assert_array_equal(got, rows())
        wanted.set_shared_memory("both", 63, 64)
        with pytest.raises(InferenceServerException, match=r"\(63 bytes\) should be at least 64"):
            client.infer("ident", [given], outputs=[wanted])
        given.set_shared_memory("both", 256)
        with pytest.raises(InferenceServerException, match="Invalid offset"):
            client.infer("ident", [given])
        with pytest.raises(InferenceServerException, match="invalid args") as refused:
            client.register_system_shared_memory("more", "/tritune_test", 1 << 20)
        assert refused.value.status() == "StatusCode.INTERNAL"
        client.unregister_system_shared_memory("both")
        with pytest.raises(InferenceServerException, match="Unable to find shared memory region"):
            client.infer("ident", [given])
    finally:
        shm.destroy_shared_memory_region(handle)
    for key in ("../etc/passwd", "/nope", "", "a/b"):
        with pytest.raises(InferenceServerException, match="Unable to open"):
            client.register_system_shared_memory("bad", key, 64)


def test_shared_memory_is_off_by_default(repository: Path, start: Any) -> None:
    addresses, _ = start()
    with (
        triton.InferenceServerClient(addresses.grpc) as client,
        pytest.raises(InferenceServerException, match="--allow-client-shm=true"),
    ):
        client.register_system_shared_memory("r", "/x", 64)


def test_health_protocol(wire: Addresses) -> None:
    with grpc.insecure_channel(wire.grpc) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"", timeout=60) == b"\x08\x01"


def test_a_message_larger_than_the_limit(client: Any) -> None:
    big = np.zeros((4 << 20, 4), np.float32)
    with pytest.raises(InferenceServerException, match="larger than max"):
        client.infer("nobatch", [tensor("INPUT0", big, "FP32")])
    assert client.is_server_live()


SLOW = """
backend: "scripted"
max_batch_size: 8
input [{ name: "INPUT0" data_type: TYPE_FP32 dims: [16] }]
output [{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [16] }]
instance_group [{ count: 1 kind: KIND_CPU }]
parameters { key: "service_time_ms" value { string_value: "1=300" } }
"""


@pytest.mark.timing
def test_cancelled_calls_are_taken_out_of_the_queue(repository: Path, start: Any) -> None:
    (repository / "slow" / "1").mkdir(parents=True)
    (repository / "slow" / "config.pbtxt").write_text(SLOW)
    addresses, app = start()
    with triton.InferenceServerClient(addresses.grpc) as client:
        replies: queue.Queue[Any] = queue.Queue()
        calls = [
            client.async_infer(
                "slow",
                [tensor("INPUT0", rows(), "FP32")],
                lambda result, error: replies.put(error or result),
            )
            for _ in range(4)
        ]
        model = app.repository.get("slow")
        deadline = time.monotonic() + 60
        while model.details().waiting_count < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        for call in calls:
            call.cancel()
        while model.details().waiting_count and time.monotonic() < deadline:
            time.sleep(0.01)
        details = model.details()
        assert (details.waiting_count, details.cancelled_count) == (0, 3)
        told = client.get_inference_statistics("slow").model_stats[0].inference_stats.fail
        assert told.count == 3 and told.ns > 0  # none was, though the metrics told three
        failed = {
            sample.labels["reason"]: sample.value
            for family in TritonMetrics(app.repository, caching=False).collect()
            for sample in family.samples
            if sample.name == "nv_inference_request_failure"
        }
        assert failed == {"REJECTED": 0, "CANCELED": 3, "BACKEND": 0, "OTHER": 0}
        # What runs already is finished; nobody waits for it.
        again = client.infer("slow", [tensor("INPUT0", rows(), "FP32")])
        assert again.as_numpy("OUTPUT0") is not None
        assert model.details().server.success_count == 2


@pytest.mark.parametrize("method", ["ModelInfer", "ServerLive", "ModelConfig"])
def test_what_is_no_message_is_told_as_triton_does(wire: Addresses, method: str) -> None:
    """It was UNKNOWN, with the name of a Python class."""
    with grpc.insecure_channel(wire.grpc) as channel:
        call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
        with pytest.raises(grpc.RpcError) as refused:
            call(b"\xff\xff\xff", timeout=10)
    assert refused.value.code() is grpc.StatusCode.INTERNAL
    assert refused.value.details() == "Unable to parse request"
