"""Inference over HTTP: request bodies to calls, results to response bodies.

Parsing order and error texts are those of Triton's ``http_server.cc``.
"""

from __future__ import annotations

import json
import re
import zlib
from typing import Any

from analyzer.engine.fault import Fault
from analyzer.engine.loaded_model import LoadedModel
from analyzer.engine.requests import InputTensor
from analyzer.engine.runtimes.base import Tensors
from analyzer.engine.tensors import DTYPES, to_bytes
from analyzer.server.json_tensors import array_to_json, json_to_array
from analyzer.server.outputs import RequestedOutput, WireCall, finished_outputs
from analyzer.server.shared_memory import Region, SharedMemory

_INTEGER = re.compile(rb"\s*([+-]?[0-9]+)")
_JSON_REASONS = {
    "Expecting value": "Invalid value.",
    "Extra data": "The document root must not be followed by other values.",
    "Expecting property name enclosed in double quotes": "Missing a name for object member.",
    "Expecting ':' delimiter": "Missing a colon after a name of object member.",
    "Expecting ',' delimiter": "Missing a comma or '}' after an object member.",
}
JSON_HEADERS = ((b"content-type", b"application/json"),)


def parse_json(text: bytes | memoryview) -> Any:
    """The JSON document in ``text``.

    Raises:
        Fault: It is none.
    """
    prefix = "failed to parse the request JSON buffer: "
    if len(text) == 0:
        raise Fault("internal", prefix + "The document is empty. at 0")
    try:
        return json.loads(bytes(text))
    except json.JSONDecodeError as error:
        reason = _JSON_REASONS.get(error.msg, error.msg + ".")
        raise Fault("internal", f"{prefix}{reason} at {error.pos}") from error
    except UnicodeDecodeError as error:
        raise Fault("internal", f"{prefix}Invalid encoding in string. at {error.start}") from error
    except (ValueError, RecursionError) as error:
        raise Fault("internal", f"{prefix}Terminate parsing due to Handler error. at 0") from error


def decompress(body: bytes, encoding: bytes, bytes_max: int) -> bytes:
    """``body`` without its content encoding.

    Raises:
        Fault: The encoding is unknown or broken, or the result would be too large.
    """
    name = encoding.strip().lower()
    if name in (b"", b"identity"):
        return body
    if name not in (b"gzip", b"deflate"):
        raise Fault("unsupported", "Unsupported compression type")
    inflater = zlib.decompressobj(wbits=47)  # recognises gzip and zlib headers
    try:
        text = inflater.decompress(body, bytes_max + 1)
    except zlib.error as error:
        raise Fault("invalid", f"failed to decompress the request: {error}") from error
    if len(text) > bytes_max:
        raise Fault("invalid", f"the decompressed request is larger than {bytes_max} bytes")
    if not inflater.eof:
        raise Fault("invalid", "failed to decompress the request: it ends too early")
    return text


def accepted_encoding(accept: bytes) -> bytes:
    """The encoding of the answer: the best of gzip and deflate, or nothing."""
    best, weight_best = b"", 0.0
    for part in accept.lower().split(b","):
        name, _, parameters = part.strip().partition(b";")
        key, _, value = parameters.strip().partition(b"=")
        try:
            weight = float(value) if key.strip() == b"q" else 1.0
        except ValueError:
            weight = 0.0
        if name.strip() in (b"gzip", b"deflate") and weight > weight_best:
            best, weight_best = name.strip(), weight
    return best


def compress(body: bytes, encoding: bytes) -> bytes:
    """``body`` in that encoding."""
    deflater = zlib.compressobj(1, wbits=31 if encoding == b"gzip" else 15)
    return deflater.compress(body) + deflater.flush()


def parse_infer(
    body: bytes,
    header_length: bytes | None,
    model: LoadedModel,
    memory: SharedMemory,
    json_bytes_max: int,
) -> WireCall:
    """The inference request in ``body``.

    Args:
        header_length: The header ``Inference-Header-Content-Length``; None if it is absent.

    Raises:
        Fault: It is malformed.
    """
    json_size = len(body)
    if header_length is not None:
        found = _INTEGER.match(header_length)
        json_size = int(found[1]) if found and len(found[1]) < 20 else (1 << 62 if found else 0)
        if json_size < 0 or json_size > len(body):
            raise Fault(
                "invalid",
                f"inference header size should be in range (0, {len(body)}), got: "
                f"{header_length.decode('latin-1').strip()}",
            )
    if json_size == 0:
        raw = InputTensor("raw_input", "", (), memoryview(body))
        return WireCall([raw], raw=True, binary_default=True)
    if json_size > json_bytes_max:
        raise Fault("invalid", f"the JSON part is larger than {json_bytes_max} bytes")
    view = memoryview(body)
    document = parse_json(view[:json_size] if json_size < len(body) else body)
    return _call(document, view[json_size:], model, memory)


def _call(document: Any, binary: memoryview, model: LoadedModel, memory: SharedMemory) -> WireCall:
    tensors = _array(_member(document, "inputs"), "inputs")
    call = WireCall([])
    if "id" in document:
        call.request_id = _string(document["id"], "id")
    if "parameters" in document:
        _parameters(document["parameters"], call)
    offset = 0
    for tensor in tensors:
        wire, offset = _input(tensor, binary, offset, model, memory)
        call.inputs.append(wire)
    if offset != len(binary):
        raise Fault("invalid", f"unexpected additional input data for model '{model.name}'")
    if "outputs" in document:
        call.request([_output(output) for output in _array(document["outputs"], "outputs")])
    return call


def _input(
    tensor: Any, binary: memoryview, offset: int, model: LoadedModel, memory: SharedMemory
) -> tuple[InputTensor, int]:
    if not isinstance(tensor, dict):
        raise _mismatch("inputs", "non-object as object")
    parameters = _object(tensor.get("parameters", {}), "failed to get input params.")
    size, region = parameters.get("binary_data_size"), _region(parameters, tensor.get("name", ""))
    fields = [
        field
        for field, given in (
            ("data", "data" in tensor),
            ("binary_data_size", size is not None),
            ("shared_memory_region", region is not None),
        )
        if given
    ]
    if len(fields) != 1:
        listed = "".join(f" '{field}'" for field in fields)
        found = f"But set{listed}" if fields else "But no field is set"
        raise Fault(
            "invalid",
            "Input must set only one of the following fields: 'data', 'binary_data_size' in "
            f"'parameters', 'shared_memory_region' in 'parameters'. {found}",
        )
    name = _string(_member(tensor, "name"), "name")
    dims = _array(_member(tensor, "shape"), "shape")
    shape = tuple(_unsigned(dim, "shape") for dim in dims)
    datatype = _string(_member(tensor, "datatype"), "datatype")
    if datatype not in DTYPES:
        raise Fault("invalid", f"invalid datatype for input {name}")
    if region is not None:
        return InputTensor(name, datatype, shape, memory.read(region)), offset
    if size is not None:
        size = _unsigned(size, "binary_data_size")
        if offset + size > len(binary):
            raise Fault(
                "invalid",
                f"unexpected size for input '{name}', expecting {offset + size - len(binary)} "
                f"additional bytes for model '{model.name}'",
            )
        return InputTensor(name, datatype, shape, binary[offset : offset + size]), offset + size
    array = json_to_array(tensor["data"], datatype, name, shape)
    return InputTensor(name, datatype, shape, array), offset


def _output(output: Any) -> RequestedOutput:
    name = _string(_member(output, "name"), "name")
    parameters = _object(output.get("parameters", {}), "failed to get output params.")
    return RequestedOutput(
        name,
        binary=_boolean(parameters.get("binary_data", False), "binary_data"),
        classification=_unsigned(parameters.get("classification", 0), "classification"),
        region=_region(parameters, name),
    )


def _region(parameters: dict[str, Any], name: str) -> Region | None:
    if "shared_memory_region" not in parameters:
        return None
    if "shared_memory_byte_size" not in parameters:
        raise Fault(
            "invalid",
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' "
            f"parameter for tensor '{name}'",
        )
    return Region(
        name=_string(parameters["shared_memory_region"], "shared_memory_region"),
        offset=_unsigned(parameters.get("shared_memory_offset", 0), "shared_memory_offset"),
        byte_size=_unsigned(parameters["shared_memory_byte_size"], "shared_memory_byte_size"),
    )


def _parameters(parameters: Any, call: WireCall) -> None:
    for key, value in _object(parameters, "failed to get request params.").items():
        if key == "priority":
            call.priority = _unsigned(value, key)
        elif key == "timeout":
            call.timeout_us = _unsigned(value, key)
        elif key == "binary_data_output":
            call.binary_default = _boolean(value, key)
        elif key in ("sequence_start", "sequence_end"):
            _boolean(value, key)
        elif key == "sequence_id":
            if not isinstance(value, str):
                _unsigned(value, key)
        elif key.startswith("triton_"):
            raise reserved_parameter()
        elif not isinstance(value, int | str | float):
            raise Fault(
                "invalid",
                f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or "
                "'string'.",
            )


def reserved_parameter() -> Fault:
    """The error for a parameter that only Triton itself may set."""
    return Fault(
        "invalid",
        "parameter keys starting with 'triton_' are reserved for Triton usage and should not be "
        "specified.",
    )


def _member(value: Any, name: str) -> Any:
    if not isinstance(value, dict) or name not in value:
        raise Fault(
            "internal",
            f"Unable to parse '{name}': attempt to access non-existing object member '{name}'",
        )
    return value[name]


def _array(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise _mismatch(name, "non-array as array")
    return value


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Fault("internal", f"{what}: attempt to get members for non-object")
    return value


def _string(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise _mismatch(name, "non-string as string")
    return value


def _unsigned(value: Any, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise _mismatch(name, "non-unsigned-integer as unsigned-integer")
    return value


def _boolean(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise _mismatch(name, "non-boolean as boolean")
    return value


def _mismatch(name: str, what: str) -> Fault:
    return Fault("internal", f"Unable to parse '{name}': attempt to access JSON {what}")


def build_infer(
    model: LoadedModel, call: WireCall, outputs: Tensors, memory: SharedMemory
) -> tuple[bytes, int | None]:
    """The response body, and the length of its JSON part; None if it is JSON alone.

    Raises:
        Fault: An output cannot be given as asked.
    """
    entries: list[dict[str, Any]] = []
    blobs: list[bytes] = []
    for name, datatype, array, wanted in finished_outputs(model, call, outputs):
        entry: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(array.shape)}
        entries.append(entry)
        if wanted is not None and wanted.region is not None:
            size = memory.write(wanted.region, name, to_bytes(array))
            entry["parameters"] = {
                "shared_memory_region": wanted.region.name,
                "shared_memory_offset": wanted.region.offset,
                "shared_memory_byte_size": size,
            }
        elif wanted.binary if wanted is not None else call.binary_default:
            blob = to_bytes(array)
            entry["parameters"] = {"binary_data_size": len(blob)}
            blobs.append(blob)
        else:
            entry["data"] = array_to_json(array, name)
    head: dict[str, Any] = {"id": call.request_id} if call.request_id else {}
    head["model_name"] = model.name
    head["model_version"] = model.version_text
    head["outputs"] = entries
    text = json.dumps(head, separators=(",", ":")).encode()
    if not any(blobs):
        return text, None
    return b"".join((text, *blobs)), len(text)
