"""The same requests to a real Triton and to our server: status, error text, shape of the answer.

Where the two differ on purpose, the case is named in ``DIFFERENT`` with the reason, and in
``docs/triton-differences.md``.
"""

from __future__ import annotations

import gzip
import json
import struct
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import numpy as np
import odd_requests
import pytest
from one_request import send_to as send
from tritonclient.grpc import service_pb2, service_pb2_grpc

from analyzer.server.app import ServeOptions, serving
from analyzer.targets.ports import LOOPBACK
from analyzer.targets.triton_install import TritonInstall
from analyzer.targets.triton_server import TritonServer

pytestmark = pytest.mark.triton

BACKEND = "@BACKEND@"
IDENTITY = f"""
backend: "{BACKEND}"
max_batch_size: 8
input [{{ name: "INPUT0" data_type: TYPE_FP32 dims: [16] }}]
output [{{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [16] }}]
instance_group [{{ count: 1 kind: KIND_CPU }}]
dynamic_batching {{ }}
"""
MODELS = {
    "ident": IDENTITY,
    "nobatch": IDENTITY.replace("max_batch_size: 8", "max_batch_size: 0")
    .replace("dynamic_batching { }", "")
    .replace("[16]", "[-1, 4]"),
    "two": f"""
backend: "{BACKEND}"
max_batch_size: 8
input [{{ name: "A" data_type: TYPE_INT32 dims: [2] }},
       {{ name: "B" data_type: TYPE_INT32 dims: [2] }}]
output [{{ name: "S" data_type: TYPE_INT32 dims: [2] }},
        {{ name: "D" data_type: TYPE_INT32 dims: [2] }}]
instance_group [{{ count: 1 kind: KIND_CPU }}]
""",
    "strs": IDENTITY.replace("TYPE_FP32", "TYPE_STRING").replace("[16]", "[2]"),
    "flat": IDENTITY.replace("max_batch_size: 8", "max_batch_size: 0")
    .replace("dynamic_batching { }", "")
    .replace("TYPE_FP32", "TYPE_INT32")
    .replace("[16]", "[-1]"),
    "wide": IDENTITY.replace("max_batch_size: 8", "max_batch_size: 0")
    .replace("dynamic_batching { }", "")
    .replace("[16]", "[-1, -1]"),
    "maybe": f"""
backend: "{BACKEND}"
max_batch_size: 8
input [{{ name: "A" data_type: TYPE_INT32 dims: [2] }},
       {{ name: "B" data_type: TYPE_INT32 dims: [2] optional: true }}]
output [{{ name: "S" data_type: TYPE_INT32 dims: [2] }}]
instance_group [{{ count: 1 kind: KIND_CPU }}]
""",
    # One of its members has no batch axis, one an optional input; no output needs all of them.
    "ensemble": """
platform: "ensemble"
max_batch_size: 4
input [{ name: "A" data_type: TYPE_INT32 dims: [2] },
       { name: "B" data_type: TYPE_INT32 dims: [2] optional: true }]
output [{ name: "S" data_type: TYPE_INT32 dims: [2] },
        { name: "D" data_type: TYPE_INT32 dims: [2] }]
ensemble_scheduling { step [
  { model_name: "flat" model_version: -1
    input_map { key: "INPUT0" value: "A" } output_map { key: "OUTPUT0" value: "between" } },
  { model_name: "maybe" model_version: -1
    input_map [{ key: "A" value: "between" }, { key: "B" value: "B" }]
    output_map { key: "S" value: "S" } },
  { model_name: "two" model_version: -1
    input_map [{ key: "A" value: "A" }, { key: "B" value: "B" }]
    output_map { key: "D" value: "D" } }
] }
""",
    "queues": IDENTITY.replace(
        "dynamic_batching { }",
        """dynamic_batching { preferred_batch_size: [2, 4] max_queue_delay_microseconds: 100
        priority_levels: 2 default_priority_level: 1
        default_queue_policy { max_queue_size: 9 }
        priority_queue_policy { key: 2 value { timeout_action: DELAY
          default_timeout_microseconds: 5 allow_timeout_override: true } } }
        version_policy { all {} }
        parameters { key: "a" value { string_value: "b" } }""",
    ),
}
MODEL_PY = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils


def output(name, array):
    # By DLPack in both directions: 2.51 was built for numpy 1 and misreads arrays of numpy 2.
    capsule = np.array(array, order="C", copy=True).__dlpack__()
    return pb_utils.Tensor.from_dlpack(name, capsule)


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        self.inputs = [tensor["name"] for tensor in config["input"]]
        self.outputs = [tensor["name"] for tensor in config["output"]]

    def execute(self, requests):
        replies = []
        for request in requests:
            given = [pb_utils.get_input_tensor_by_name(request, n) for n in self.inputs]
            arrays = [np.from_dlpack(array) for array in given if array is not None]
            pairs = zip(self.outputs, arrays)
            replies.append(pb_utils.InferenceResponse([output(n, a) for n, a in pairs]))
        return replies
"""
ROW = [float(i) for i in range(16)]
RAW = struct.pack("<16f", *ROW)
LENGTH = "Inference-Header-Content-Length"
INFER = "/v2/models/ident/infer"


class Pair:
    """Addresses of both servers: ``[real, ours]``."""

    def __init__(self, http: list[str], rpc: list[str], metrics: list[str]) -> None:
        self.http, self.grpc, self.metrics = http, rpc, metrics


@pytest.fixture(scope="module")
def pair(triton_install: TritonInstall, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    root = tmp_path_factory.mktemp("ours")
    with ExitStack() as stack:
        real = stack.enter_context(TritonServer(triton_install, auto_complete=True))
        for name, config in MODELS.items():
            for folder, backend in ((root, "identity"), (real.repository, "python")):
                version = folder / name / "1"
                version.mkdir(parents=True)
                (folder / name / "config.pbtxt").write_text(config.replace(BACKEND, backend))
                if backend == "python":
                    (version / "model.py").write_text(MODEL_PY)
        options = ServeOptions(
            repository=root,
            http_port=0,
            grpc_port=0,
            metrics_port=0,
            mode="explicit",
            drain_timeout_s=5,
            allow_shared_memory=True,
        )
        ours, _ = stack.enter_context(serving(options, log=lambda line: None))
        metrics = f"{LOOPBACK}:{real.metrics_port}"
        both = Pair(
            [real.http_address, ours.http], [real.grpc_address, ours.grpc], [metrics, ours.metrics]
        )
        for address in both.http:
            for name in MODELS:
                assert send(address, "POST", f"/v2/repository/models/{name}/load", b"")[0] == 200
        yield both


def form(value: Any) -> Any:
    """The shape of a JSON value: keys and types, no values."""
    if isinstance(value, dict):
        return {key: form(member) for key, member in sorted(value.items())}
    if isinstance(value, list):
        return [form(value[0])] if value else []
    return (
        "number"
        if isinstance(value, int | float) and not isinstance(value, bool)
        else (type(value).__name__)
    )


def tensor(**changes: Any) -> dict[str, Any]:
    return {"name": "INPUT0", "shape": [1, 16], "datatype": "FP32"} | changes


def binary(size: int = 64) -> bytes:
    return json.dumps({"inputs": [tensor(parameters={"binary_data_size": size})]}).encode()


GOOD = {"inputs": [tensor(data=ROW)]}
A = {"name": "A", "shape": [1, 2], "datatype": "INT32", "data": [1, 2]}
B = A | {"name": "B", "data": [3, 4]}
HEAD = binary()


def of_ensemble(output: str, *inputs: dict[str, Any]) -> tuple[str, str, Any, dict[str, str]]:
    """A request for one output of the ensemble: of several, the order is a hash table's."""
    body = {"inputs": inputs, "outputs": [{"name": output}]}
    return "POST", "/v2/models/ensemble/infer", body, {}


# Name -> (method, path, body, headers).
CASES: dict[str, tuple[str, str, Any, dict[str, str]]] = {
    "server": ("GET", "/v2", None, {}),
    "live": ("GET", "/v2/health/live", None, {}),
    "ready": ("GET", "/v2/health/ready", None, {}),
    "slash": ("GET", "/v2/", None, {}),
    "unknown path": ("GET", "/v2/foo", None, {}),
    "metadata": ("GET", "/v2/models/ident", None, {}),
    "metadata of a version": ("GET", "/v2/models/ident/versions/1", None, {}),
    "metadata without batches": ("GET", "/v2/models/nobatch", None, {}),
    "metadata of nothing": ("GET", "/v2/models/nope", None, {}),
    "metadata of no version": ("GET", "/v2/models/ident/versions/2", None, {}),
    "metadata posted": ("POST", "/v2/models/ident", b"{}", {}),
    "model ready": ("GET", "/v2/models/ident/ready", None, {}),
    "ready of nothing": ("GET", "/v2/models/nope/ready", None, {}),
    "config of nothing": ("GET", "/v2/models/nope/config", None, {}),
    "stats": ("GET", "/v2/models/ident/stats", None, {}),
    "all stats": ("GET", "/v2/models/stats", None, {}),
    "stats of nothing": ("GET", "/v2/models/nope/stats", None, {}),
    "stats of no version": ("GET", "/v2/models/ident/versions/3/stats", None, {}),
    "index": ("POST", "/v2/repository/index", b"", {}),
    "index ready": ("POST", "/v2/repository/index", {"ready": True}, {}),
    "index junk": ("POST", "/v2/repository/index", b"{", {}),
    "index got": ("GET", "/v2/repository/index", None, {}),
    "load of nothing": ("POST", "/v2/repository/models/nope/load", b"", {}),
    "load junk": ("POST", "/v2/repository/models/ident/load", b"junk", {}),
    "load unknown parameter": (
        "POST",
        "/v2/repository/models/ident/load",
        {"parameters": {"x": "y"}},
        {},
    ),
    "load a wrong configuration": (
        "POST",
        "/v2/repository/models/ident/load",
        {"parameters": {"config": '{"max_batch_size": -1}'}},
        {},
    ),
    "load files without configuration": (
        "POST",
        "/v2/repository/models/ident/load",
        {"parameters": {"file:1/model.py": "AAAA"}},
        {},
    ),
    "load again": ("POST", "/v2/repository/models/ident/load", b"", {}),
    "unload of nothing": ("POST", "/v2/repository/models/nope/unload", b"", {}),
    "logging": ("GET", "/v2/logging", None, {}),
    "log level": ("POST", "/v2/logging", {"log_verbose_level": 0}, {}),
    "log type": ("POST", "/v2/logging", {"log_info": "x"}, {}),
    "log file": ("POST", "/v2/logging", {"log_file": "/tmp/x"}, {}),
    "log format": ("POST", "/v2/logging", {"log_format": "x"}, {}),
    "trace": ("GET", "/v2/trace/setting", None, {}),
    "trace of a model": ("GET", "/v2/models/ident/trace/setting", None, {}),
    "trace of nothing": ("GET", "/v2/models/nope/trace/setting", None, {}),
    "trace rate": ("POST", "/v2/trace/setting", {"trace_rate": "1000"}, {}),
    "trace level": ("POST", "/v2/trace/setting", {"trace_level": ["TIMESTAMPS"]}, {}),
    "trace file": ("POST", "/v2/trace/setting", {"trace_file": "/tmp/x"}, {}),
    "shm status": ("GET", "/v2/systemsharedmemory/status", None, {}),
    "shm status of nothing": ("GET", "/v2/systemsharedmemory/region/x/status", None, {}),
    "shm register nothing": (
        "POST",
        "/v2/systemsharedmemory/region/r/register",
        {"key": "/tritune_nothing", "byte_size": 64},
        {},
    ),
    "shm register without key": ("POST", "/v2/systemsharedmemory/region/r/register", {}, {}),
    "shm unregister": ("POST", "/v2/systemsharedmemory/unregister", b"", {}),
    "json": ("POST", INFER, GOOD, {}),
    "json with id": ("POST", INFER, GOOD | {"id": "7"}, {}),
    "json nested": ("POST", INFER, {"inputs": [tensor(shape=[2, 16], data=[ROW, ROW])]}, {}),
    "json integers": ("POST", INFER, {"inputs": [tensor(data=[1] * 16)]}, {}),
    "no outputs listed": ("POST", INFER, GOOD | {"outputs": []}, {}),
    "binary output": (
        "POST",
        INFER,
        GOOD | {"outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}]},
        {},
    ),
    "binary default": ("POST", INFER, GOOD | {"parameters": {"binary_data_output": True}}, {}),
    "binary default, output listed": (
        "POST",
        INFER,
        GOOD | {"parameters": {"binary_data_output": True}, "outputs": [{"name": "OUTPUT0"}]},
        {},
    ),
    "binary input": ("POST", INFER, HEAD + RAW, {LENGTH: str(len(HEAD))}),
    "binary short": ("POST", INFER, HEAD + RAW[:32], {LENGTH: str(len(HEAD))}),
    "binary long": ("POST", INFER, HEAD + RAW + RAW, {LENGTH: str(len(HEAD))}),
    "binary size wrong": ("POST", INFER, binary(32) + RAW[:32], {LENGTH: str(len(binary(32)))}),
    "header length beyond": ("POST", INFER, HEAD + RAW, {LENGTH: "9999"}),
    "header length negative": ("POST", INFER, HEAD + RAW, {LENGTH: "-5"}),
    "header length junk": ("POST", INFER, HEAD + RAW, {LENGTH: "abc"}),
    "raw": ("POST", INFER, RAW, {LENGTH: "0"}),
    "raw odd": ("POST", INFER, RAW[:30], {LENGTH: "0"}),
    "raw for two inputs": ("POST", "/v2/models/two/infer", RAW, {LENGTH: "0"}),
    "raw of a variable size": ("POST", "/v2/models/nobatch/infer", RAW, {LENGTH: "0"}),
    "empty": ("POST", INFER, b"", {}),
    "gzip": ("POST", INFER, gzip.compress(json.dumps(GOOD).encode()), {"Content-Encoding": "gzip"}),
    "deflate": (
        "POST",
        INFER,
        zlib.compress(json.dumps(GOOD).encode()),
        {"Content-Encoding": "deflate"},
    ),
    "unknown encoding": ("POST", INFER, GOOD, {"Content-Encoding": "br"}),
    "junk": ("POST", INFER, b"junk", {}),
    "array": ("POST", INFER, [], {}),
    "no inputs": ("POST", INFER, {"id": "x"}, {}),
    "empty inputs": ("POST", INFER, {"inputs": []}, {}),
    "inputs no array": ("POST", INFER, {"inputs": {}}, {}),
    "no name": ("POST", INFER, {"inputs": [{"shape": [1, 16]}]}, {}),
    "no data": ("POST", INFER, {"inputs": [tensor()]}, {}),
    "datatype unknown": ("POST", INFER, {"inputs": [tensor(datatype="F", data=ROW)]}, {}),
    "datatype wrong": (
        "POST",
        INFER,
        {"inputs": [tensor(datatype="INT32", data=[1] * 16)]},
        {},
    ),
    "data short": ("POST", INFER, {"inputs": [tensor(data=ROW[:5])]}, {}),
    "data strings": ("POST", INFER, {"inputs": [tensor(data=["a"] * 16)]}, {}),
    "data null": ("POST", INFER, {"inputs": [tensor(data=None)]}, {}),
    "data scalar": ("POST", INFER, {"inputs": [tensor(data=1.0)]}, {}),
    "data floats for integers": (
        "POST",
        "/v2/models/two/infer",
        {"inputs": [A | {"data": [1.5, 2]}, B]},
        {},
    ),
    "shape wrong": ("POST", INFER, {"inputs": [tensor(shape=[1, 8], data=ROW[:8])]}, {}),
    "shape negative": ("POST", INFER, {"inputs": [tensor(shape=[-1, 16], data=ROW)]}, {}),
    "shape of fractions": ("POST", INFER, {"inputs": [tensor(shape=[1.5, 16], data=ROW)]}, {}),
    "shape without batches": (
        "POST",
        "/v2/models/nobatch/infer",
        {"inputs": [tensor(shape=[3, 5], data=ROW[:15])]},
        {},
    ),
    "batch too large": ("POST", INFER, {"inputs": [tensor(shape=[9, 16], data=ROW * 9)]}, {}),
    "batch of nothing": ("POST", INFER, {"inputs": [tensor(shape=[0, 16], data=[])]}, {}),
    "input unknown": ("POST", INFER, {"inputs": [tensor(name="X", data=ROW)]}, {}),
    "input twice": ("POST", INFER, {"inputs": [tensor(data=ROW)] * 2}, {}),
    "input missing": ("POST", "/v2/models/two/infer", {"inputs": [A]}, {}),
    "output unknown": ("POST", INFER, GOOD | {"outputs": [{"name": "Z"}]}, {}),
    "output without name": ("POST", INFER, GOOD | {"outputs": [{}]}, {}),
    "one output": (
        "POST",
        "/v2/models/two/infer",
        {"inputs": [A, B], "outputs": [{"name": "D"}]},
        {},
    ),
    "two outputs": ("POST", "/v2/models/two/infer", {"inputs": [A, B]}, {}),
    "id a number": ("POST", INFER, GOOD | {"id": 5}, {}),
    "parameter reserved": ("POST", INFER, GOOD | {"parameters": {"triton_x": 1}}, {}),
    "parameter of ours": ("POST", INFER, GOOD | {"parameters": {"foo": "x", "b": True}}, {}),
    "parameter an object": ("POST", INFER, GOOD | {"parameters": {"foo": {}}}, {}),
    "parameters no object": ("POST", INFER, GOOD | {"parameters": []}, {}),
    "priority": ("POST", INFER, GOOD | {"parameters": {"priority": 2, "timeout": 9}}, {}),
    "priority a string": ("POST", INFER, GOOD | {"parameters": {"priority": "2"}}, {}),
    "two sources": (
        "POST",
        INFER,
        {"inputs": [tensor(data=ROW, parameters={"binary_data_size": 64})]},
        {},
    ),
    "region unknown": (
        "POST",
        INFER,
        {
            "inputs": [
                tensor(parameters={"shared_memory_region": "r", "shared_memory_byte_size": 64})
            ]
        },
        {},
    ),
    "unknown model": ("POST", "/v2/models/nope/infer", GOOD, {}),
    "unknown version": ("POST", "/v2/models/ident/versions/7/infer", GOOD, {}),
    "absurd version": ("POST", f"/v2/models/ident/versions/{'9' * 20}/infer", GOOD, {}),
    "infer got": ("GET", INFER, None, {}),
    "generate": ("POST", "/v2/models/two/generate", {"A": [1, 2], "B": [3, 4]}, {}),
    "generate stream": ("POST", "/v2/models/two/generate_stream", {"A": [1, 2], "B": [3, 4]}, {}),
    "generate without input": ("POST", "/v2/models/two/generate", {"A": [1, 2]}, {}),
    "generate junk": ("POST", "/v2/models/two/generate", b"junk", {}),
    "generate wrong size": ("POST", "/v2/models/nobatch/generate", {"INPUT0": 1}, {}),
    "ensemble": of_ensemble("S", A, B),
    "ensemble without an optional input": of_ensemble("S", A),
    "ensemble that needs the optional input": of_ensemble("D", A),
    "ensemble's other output": of_ensemble("D", A, B),
    "ensemble of a member that does not batch": of_ensemble(
        "S", A | {"shape": [2, 2], "data": [1, 2, 3, 4]}
    ),
    **{f"odd: {name}": case for name, case in odd_requests.HTTP.items()},
}
# What differs on purpose, and why.
DIFFERENT = {
    "server": "the release that is reproduced is newer than the real one here",
    "ready of nothing": "404 since the releases of docs/triton-semantics.md; 400 in 2.51",
}
# Where the text tells of the inside of one server, or of the order of a hash table.
FREE_TEXT = {
    "load a wrong configuration",
    "load unknown parameter",
    "load of nothing",
    "load files without configuration",
}


@pytest.mark.parametrize("name", CASES)
def test_http(pair: Pair, name: str) -> None:
    if name in DIFFERENT:
        pytest.skip(f"differs on purpose: {DIFFERENT[name]}")
    real, ours = (send(address, *CASES[name]) for address in pair.http)
    assert ours[0] == real[0], (real, ours)
    assert (LENGTH.lower() in ours[1]) == (LENGTH.lower() in real[1]), (real, ours)
    documents = []
    for status, headers, body in (real, ours):
        size = int(headers.get(LENGTH.lower(), len(body)))
        text = body[:size]
        if text.startswith(b"data: "):
            text = text[6:].strip()
        documents.append((json.loads(text) if text else None, body[size:]))
        if status >= 400:
            assert set(documents[-1][0]) == {"error"}
    assert ours[1].get("content-encoding") == real[1].get("content-encoding")
    (real_json, real_binary), (our_json, our_binary) = documents
    assert our_binary == real_binary
    assert form(our_json) == form(real_json)
    if real[0] >= 400 and name not in FREE_TEXT:
        assert our_json["error"] == real_json["error"]
    path = CASES[name][1]
    if real[0] == 200 and any(part in path for part in ("infer", "generate", "trace", "logging")):
        assert our_json == real_json


def test_configuration(pair: Pair) -> None:
    for model in MODELS:
        found = []
        for address in pair.http:
            config = json.loads(send(address, "GET", f"/v2/models/{model}/config")[2])
            for key in ("backend", "default_model_filename"):
                config.pop(key)
            # A field of later releases.
            config.get("ensemble_scheduling", {}).pop("max_inflight_requests", None)
            found.append(config)
        assert found[1] == found[0]


def test_metadata(pair: Pair) -> None:
    for model in MODELS:
        real, ours = (json.loads(send(a, "GET", f"/v2/models/{model}")[2]) for a in pair.http)
        assert ours | {"platform": ""} == real | {"platform": ""}


def test_statistics_after_a_sequence(pair: Pair) -> None:
    changes = []
    for address in pair.http:
        before = statistics(address)
        for size in (1, 3, 8, 3):
            body = {"inputs": [tensor(shape=[size, 16], data=ROW * size)]}
            assert send(address, "POST", INFER, body)[0] == 200
        for body in ({"inputs": []}, {"inputs": [tensor(shape=[9, 16], data=ROW * 9)]}):
            assert send(address, "POST", INFER, body)[0] == 400
        after = statistics(address)
        changes.append({key: after[key] - before.get(key, 0) for key in after})
    assert changes[1] == changes[0]


def statistics(address: str) -> dict[str, int]:
    # A request is counted after its answer: an answer to another one settles it.
    for _ in range(50):
        model = json.loads(send(address, "GET", "/v2/models/ident/stats")[2])["model_stats"][0]
    found = {key: model[key] for key in ("inference_count", "execution_count")}
    found |= {key: value["count"] for key, value in model["inference_stats"].items()}
    for batch in model["batch_stats"]:
        found[f"batches of {batch['batch_size']}"] = batch["compute_infer"]["count"]
    return found


def test_metric_names_and_labels(pair: Pair) -> None:
    found = []
    for address in pair.metrics:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        names = {line.split(" ")[0] for line in lines if line.startswith("nv_inference")}
        kinds = {tuple(line.split(" ")[2:]) for line in lines if line.startswith("# TYPE nv_inf")}
        helps = {line for line in lines if line.startswith("# HELP nv_inf")}
        found.append((names, kinds, helps))
    # What one has more than the other is in docs/triton-differences.md.
    assert found[1] == found[0]


GRPC_CASES: dict[str, dict[str, Any]] = {
    "good": {},
    "unknown model": {"model_name": "nope"},
    "unknown version": {"model_version": "9"},
    "shape wrong": {"shape": [1, 15]},
    "batch too large": {"shape": [9, 16], "raw": [bytes(64 * 9)]},
    "no shape": {"shape": []},
    "datatype wrong": {"datatype": "FP64"},
    "input unknown": {"name": "X"},
    "data short": {"raw": [b"short"]},
    "data too much": {"raw": [bytes(64), bytes(64)]},
    "output unknown": {"output": "Z"},
}


@pytest.mark.parametrize("name", GRPC_CASES)
def test_grpc(pair: Pair, name: str) -> None:
    change = GRPC_CASES[name]
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
    found = []
    for address in pair.grpc:
        with grpc.insecure_channel(address) as channel:
            call = channel.unary_unary(
                "/inference.GRPCInferenceService/ModelInfer",
                request_serializer=service_pb2.ModelInferRequest.SerializeToString,
                response_deserializer=service_pb2.ModelInferResponse.FromString,
            )
            try:
                reply = call(request, timeout=20)
                found.append((grpc.StatusCode.OK, reply.SerializeToString(deterministic=True)))
            except grpc.RpcError as error:
                found.append((error.code(), error.details().encode()))
    assert found[1] == found[0]


@pytest.mark.parametrize("name", odd_requests.GRPC)
def test_odd_grpc(pair: Pair, name: str) -> None:
    method, request = odd_requests.GRPC[name]
    found = []
    for address in pair.grpc:
        with grpc.insecure_channel(address) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            try:
                found.append((grpc.StatusCode.OK, getattr(stub, method)(request, timeout=20)))
            except grpc.RpcError as error:
                found.append((error.code(), error.details()))
    assert found[1] == found[0]


def test_a_stream_goes_on_after_errors(pair: Pair) -> None:
    found = []
    for address in pair.grpc:
        with grpc.insecure_channel(address) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            replies = stub.ModelStreamInfer(iter(odd_requests.STREAM), timeout=20)
            # The real server answers each as soon as it can.
            found.append(sorted(replies, key=lambda reply: reply.infer_response.id))
    assert found[1] == found[0]
    assert len(found[0]) == len(odd_requests.STREAM)


def test_values_survive_both_alike(pair: Pair) -> None:
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(5, 16)).astype(np.float32)
    head = json.dumps(
        {
            "inputs": [tensor(shape=[5, 16], parameters={"binary_data_size": rows.nbytes})],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    for address in pair.http:
        status, headers, body = send(
            address, "POST", INFER, head + rows.tobytes(), {LENGTH: str(len(head))}
        )
        assert status == 200
        assert body[int(headers[LENGTH.lower()]) :] == rows.tobytes()
