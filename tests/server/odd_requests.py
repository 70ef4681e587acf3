"""Requests at the edge of the protocols, which a real Triton and our server answer alike.

They were found by sending some 3,200 requests to both; ``test_differential.py`` sends these.
"""

from __future__ import annotations

import json
import struct
from typing import Any

from tritonclient.grpc import service_pb2

ROW = [float(i) for i in range(16)]
RAW = struct.pack("<16f", *ROW)
LENGTH = "Inference-Header-Content-Length"
INFER = "/v2/models/ident/infer"
TWO = "/v2/models/two/infer"
GENERATE = "/v2/models/two/generate"
TRACE = "/v2/trace/setting"
LOGGING = "/v2/logging"
REGISTER = "/v2/systemsharedmemory/region/odd/register"
LOAD = "/v2/repository/models/ident/load"

Http = tuple[str, str, Any, dict[str, str]]


def _tensor(**changes: Any) -> dict[str, Any]:
    return {"name": "INPUT0", "shape": [1, 16], "datatype": "FP32"} | changes


GOOD = {"inputs": [_tensor(data=ROW)]}
BOTH = [
    {"name": name, "shape": [1, 2], "datatype": "INT32", "data": data}
    for name, data in (("A", [1, 2]), ("B", [3, 4]))
]
_REGION = {"shared_memory_region": "odd", "shared_memory_byte_size": 64}


def _infer(document: Any) -> Http:
    return "POST", INFER, document, {}


def _binary(size: Any) -> Http:
    head = json.dumps({"inputs": [_tensor(parameters={"binary_data_size": size})]}).encode()
    return "POST", INFER, head + RAW, {LENGTH: str(len(head))}


def _output(parameters: dict[str, Any]) -> Http:
    return _infer(GOOD | {"outputs": [{"name": "OUTPUT0", "parameters": parameters}]})


def _outputs(*names: str, binary: str = "") -> Http:
    listed = [{"name": n, "parameters": {"binary_data": n == binary}} for n in names]
    return "POST", TWO, {"inputs": BOTH, "outputs": listed}, {}


def _strings(datatype_data: list[Any]) -> Http:
    inputs = [_tensor(shape=[1, 2], datatype="BYTES", data=datatype_data)]
    return "POST", "/v2/models/strs/infer", {"inputs": inputs}, {}


def _string_bytes(data: bytes) -> Http:
    parameters = {"binary_data_size": len(data)}
    inputs = [_tensor(shape=[1, 2], datatype="BYTES", parameters=parameters)]
    head = json.dumps({"inputs": inputs}).encode()
    return "POST", "/v2/models/strs/infer", head + data, {LENGTH: str(len(head))}


def _post(path: str, document: Any) -> Http:
    return "POST", path, document, {}


HTTP: dict[str, Http] = {
    "binary size null": _binary(None),
    "binary size negative": _binary(-1),
    "binary size of 64 bits": _binary((1 << 64) - 1),
    "binary size of 65 bits": _binary(1 << 64),
    "input a number": _infer({"inputs": [1]}),
    "boolean among numbers": _infer({"inputs": [_tensor(data=[True, *ROW[1:]])]}),
    "boolean in a nested row": _infer(
        {"inputs": [_tensor(shape=[2, 16], data=[ROW, [*ROW[1:], False]])]}
    ),
    "beyond FP32": _infer({"inputs": [_tensor(data=[-1e39, *ROW[1:]])]}),
    "strings few": _strings(["a"]),
    "strings many": _strings(["a", "b", "c"]),
    "strings none": _strings([]),
    "string length cut": _string_bytes(b"\1\0\0\0a\1\0"),
    "string missing": _string_bytes(b"\1\0\0\0a"),
    "classification negative": _output({"classification": -1}),
    "classification a string": _output({"classification": "1"}),
    "region and binary": _output(_REGION | {"binary_data": True}),
    "region and classification": _output(_REGION | {"classification": 1}),
    "region of an output unknown": _output(_REGION | {"shared_memory_byte_size": 1}),
    "outputs in another order": _outputs("D", "S"),
    "outputs in another order, one binary": _outputs("D", "S", binary="D"),
    "output twice": _infer(
        GOOD
        | {"outputs": [{"name": "OUTPUT0"}, {"name": "OUTPUT0", "parameters": {"binary_data": 1}}]}
    ),
    "sequence id negative": _infer(GOOD | {"parameters": {"sequence_id": -1}}),
    "sequence id of 64 bits": _infer(GOOD | {"parameters": {"sequence_id": (1 << 64) - 1}}),
    "sequence id too long": _infer(GOOD | {"parameters": {"sequence_id": "x" * 129}}),
    "priority of 64 bits": _infer(GOOD | {"parameters": {"priority": (1 << 64) - 1}}),
    "timeout shorter than the delay": _post(
        "/v2/models/queues/infer", GOOD | {"parameters": {"priority": 2, "timeout": 1}}
    ),
    "raw of a variable size, odd": ("POST", "/v2/models/flat/infer", RAW[:5], {LENGTH: "0"}),
    "blank": _infer(b" "),
    "identity preferred": ("POST", INFER, GOOD, {"Accept-Encoding": "identity;q=1, gzip;q=0.5"}),
    "version with zeros": ("GET", "/v2/models/two/versions/01", None, {}),
    "version 00": ("GET", "/v2/models/two/versions/00", None, {}),
    "statistics of a version with zeros": ("GET", "/v2/models/two/versions/01/stats", None, {}),
    "largest version": ("GET", f"/v2/models/two/versions/{(1 << 63) - 1}", None, {}),
    "version too large": ("GET", f"/v2/models/two/versions/{1 << 63}", None, {}),
    "readiness of a version too large": (
        "GET",
        f"/v2/models/two/versions/{1 << 63}/ready",
        None,
        {},
    ),
    "statistics of a version too large": (
        "GET",
        f"/v2/models/two/versions/{1 << 63}/stats",
        None,
        {},
    ),
    "trace of a version": ("GET", "/v2/models/two/versions/1/trace/setting", None, {}),
    "index ready a string": _post("/v2/repository/index", {"ready": "true"}),
    "index of a repository": _post("/v2/repository/any/index", b""),
    "load from a repository": _post("/v2/repository/any/models/ident/load", b""),
    "load parameters null": _post(LOAD, {"parameters": None}),
    "load a configuration that is no string": _post(LOAD, {"parameters": {"config": {}}}),
    "load blank": _post(LOAD, b" "),
    "register a key that is no string": _post(REGISTER, {"key": 1, "byte_size": 1}),
    "register a negative size": _post(REGISTER, {"key": "/x", "byte_size": -1}),
    "register a negative offset": _post(REGISTER, {"key": "/x", "byte_size": 1, "offset": -1}),
    "logging empty": _post(LOGGING, b""),
    "logging null": _post(LOGGING, {"log_info": None, "log_format": None}),
    "log file empty": _post(LOGGING, {"log_file": ""}),
    "log format a number": _post(LOGGING, {"log_format": 1}),
    "trace empty": _post(TRACE, b""),
    "trace level a string": _post(TRACE, {"trace_level": "OFF"}),
    "trace levels beside OFF": _post(TRACE, {"trace_level": ["OFF", "TIMESTAMPS"]}),
    "trace level unknown": _post(TRACE, {"trace_level": ["x"]}),
    "trace file null": _post(TRACE, {"trace_file": None}),
    "trace mode": _post(TRACE, {"trace_mode": "opentelemetry"}),
    "trace rate a number": _post(TRACE, {"trace_rate": 1}),
    "trace rate no number": _post(TRACE, {"trace_rate": "x"}),
    "trace rate negative": _post(TRACE, {"trace_rate": "-1"}),
    "trace rate too large": _post(TRACE, {"trace_rate": str(1 << 31)}),
    "trace rate with an end": _post(TRACE, {"trace_rate": " 5x"}),
    "trace count negative": _post(TRACE, {"trace_count": "-2"}),
    "log frequency too large": _post(TRACE, {"log_frequency": str(1 << 40)}),
    "trace as it was": _post(
        TRACE, dict.fromkeys(("trace_level", "trace_rate", "trace_count", "log_frequency"))
    ),
    "generate a batch": _post(GENERATE, {"A": [1, 2, 3, 4], "B": [5, 6, 7, 8]}),
    "generate two variable dimensions": _post("/v2/models/wide/generate", {"INPUT0": [1, 2, 3]}),
    "generate, a wrong number": _post(GENERATE, {"A": [1, 2, 3], "B": [1, 2]}),
    "generate, input among the parameters": _post(
        GENERATE, {"A": [1, 2], "parameters": {"B": [3, 4], "foo": 1.5}}
    ),
    "generate, wrong parameters": _post(GENERATE, {"parameters": 1}),
    "generate, a wrong parameter inside": _post(GENERATE, {"parameters": {"foo": [1]}}),
    "generate, parameters that schedule elsewhere": _post(
        GENERATE, {"A": [1, 2], "B": [3, 4], "priority": "x", "timeout": 0.5, "triton_x": 1}
    ),
    "generate stream without input": _post(GENERATE + "_stream", {"A": [1, 2]}),
}


def _call(
    parameters: dict[str, tuple[str, Any]] | None = None,
    *,
    model: str = "ident",
    version: str = "",
    datatype: str = "FP32",
    shape: tuple[int, ...] = (1, 16),
    raw: bytes | None = RAW,
    contents: dict[str, list[Any]] | None = None,
    of_input: dict[str, tuple[str, Any]] | None = None,
    of_output: dict[str, tuple[str, Any]] | None = None,
    request_id: str = "",
) -> Any:
    request = service_pb2.ModelInferRequest(model_name=model, model_version=version, id=request_id)
    tensor = request.inputs.add(name="INPUT0", datatype=datatype, shape=shape)
    owners: list[tuple[Any, dict[str, tuple[str, Any]] | None]] = [
        (request, parameters),
        (tensor, of_input),
    ]
    if of_output:
        owners.append((request.outputs.add(name="OUTPUT0"), of_output))
    for owner, given in owners:
        for key, (kind, value) in (given or {}).items():
            setattr(owner.parameters[key], kind, value)
    for field, values in (contents or {}).items():
        getattr(tensor.contents, field).extend(values)
    if raw is not None and not contents:
        request.raw_input_contents.append(raw)
    return request


def _trace(**settings: list[str]) -> Any:
    request = service_pb2.TraceSettingRequest()
    for key, values in settings.items():
        request.settings[key].value.extend(values)
    return request


def _log(key: str, kind: str, value: Any) -> Any:
    request = service_pb2.LogSettingsRequest()
    setattr(request.settings[key], kind, value)
    return request


def _unload(value: int) -> Any:
    request = service_pb2.RepositoryModelUnloadRequest(model_name="nope")
    request.parameters["unload_dependents"].int64_param = value
    return request


def _load(key: str) -> Any:
    request = service_pb2.RepositoryModelLoadRequest(model_name="nope")
    request.parameters[key].int64_param = 1
    return request


def _one_raw_of_two() -> Any:
    request = service_pb2.ModelInferRequest(model_name="two", raw_input_contents=[bytes(8)])
    for name in "AB":
        request.inputs.add(name=name, datatype="INT32", shape=[1, 2])
    return request


_SHARED = {
    "shared_memory_region": ("string_param", "odd"),
    "shared_memory_byte_size": ("int64_param", 64),
}
_STRINGS: dict[str, Any] = {"model": "strs", "datatype": "BYTES", "shape": (1, 2)}
# Name -> (method, request).
GRPC: dict[str, tuple[str, Any]] = {
    "typed FP32 for FP16": (
        "ModelInfer",
        _call(datatype="FP16", contents={"fp32_contents": ROW}),
    ),
    "unknown data type": ("ModelInfer", _call(datatype="fp32")),
    "unknown data type, typed": (
        "ModelInfer",
        _call(datatype="", contents={"fp32_contents": ROW}),
    ),
    "typed strings few": ("ModelInfer", _call(**_STRINGS, contents={"bytes_contents": [b"a"]})),
    "typed strings many": (
        "ModelInfer",
        _call(**_STRINGS, contents={"bytes_contents": [b"a"] * 3}),
    ),
    "raw of one input of two": ("ModelInfer", _one_raw_of_two()),
    "dimension open": ("ModelInfer", _call(model="flat", shape=(-1,), datatype="INT32")),
    "version with zeros": ("ModelInfer", _call(version="01")),
    "version with an end": ("ModelInfer", _call(version=" 1a")),
    "version negative": ("ModelInfer", _call(version="-1")),
    "readiness of no version": (
        "ModelReady",
        service_pb2.ModelReadyRequest(name="ident", version="abc"),
    ),
    "statistics of no version": (
        "ModelStatistics",
        service_pb2.ModelStatisticsRequest(name="ident", version="-1"),
    ),
    "sequence id too long": ("ModelInfer", _call({"sequence_id": ("string_param", "x" * 129)})),
    "region a number": (
        "ModelInfer",
        _call(of_input=_SHARED | {"shared_memory_region": ("int64_param", 1)}),
    ),
    "region's size without region": (
        "ModelInfer",
        _call(of_input={"shared_memory_byte_size": ("int64_param", 64)}),
    ),
    "region's offset a string": (
        "ModelInfer",
        _call(of_input=_SHARED | {"shared_memory_offset": ("string_param", "0")}),
    ),
    "region and contents": (
        "ModelInfer",
        _call(of_input=_SHARED, contents={"fp32_contents": ROW}),
    ),
    "region of an output unknown": (
        "ModelInfer",
        _call(of_output=_SHARED | {"shared_memory_byte_size": ("int64_param", 1)}),
    ),
    "region and classification": (
        "ModelInfer",
        _call(of_output=_SHARED | {"classification": ("int64_param", 1)}),
    ),
    "trace level beside OFF": ("TraceSetting", _trace(trace_level=["OFF", "x"])),
    "trace rate twice": ("TraceSetting", _trace(trace_rate=["1", "2"])),
    "trace rate no number": ("TraceSetting", _trace(trace_rate=["x"])),
    "trace mode": ("TraceSetting", _trace(trace_mode=["x"])),
    "trace file": ("TraceSetting", _trace(trace_file=[])),
    "log_info a number": ("LogSettings", _log("log_info", "uint32_param", 1)),
    "log level a boolean": ("LogSettings", _log("log_verbose_level", "bool_param", True)),
    "log format a number": ("LogSettings", _log("log_format", "uint32_param", 1)),
    "log format unknown": ("LogSettings", _log("log_format", "string_param", "x")),
    "index of a repository": (
        "RepositoryIndex",
        service_pb2.RepositoryIndexRequest(repository_name="any"),
    ),
    "unload, dependents a number": ("RepositoryModelUnload", _unload(1)),
    "load, unknown parameter": ("RepositoryModelLoad", _load("foo")),
}
STREAM = [
    _call(request_id="1"),
    _call(request_id="2", shape=(1, 15)),
    _call(request_id="3", model="nope"),
    _call({"triton_x": ("int64_param", 1)}, request_id="4"),
    _call(request_id="5"),
]
