"""Inference over HTTP: request bodies to calls, results to response bodies.

Parsing order and error texts are those of Triton's ``http_server.cc``.
"""

from __future__ import annotations

import json
import re
from typing import Any

from analyzer.engine.fault import Fault
from analyzer.engine.loaded_model import LoadedModel
from analyzer.engine.requests import InputTensor
from analyzer.engine.runtimes.base import Tensors
from analyzer.engine.tensors import DTYPES, to_bytes
from analyzer.server.json_tensors import array_to_json, json_to_array
from analyzer.server.json_values import (
    as_array,
    as_boolean,
    as_object,
    as_string,
    as_unsigned,
    is_unsigned,
    member,
    parse_json,
)
from analyzer.server.outputs import finished_outputs, response_parameters
from analyzer.server.shared_memory import Region, SharedMemory
from analyzer.server.wire_call import (
    RequestedOutput,
    WireCall,
    check_sequence_id,
    region_without_size,
    reserved_parameter,
    wrong_parameter,
)

_INTEGER = re.compile(rb"\s*([+-]?[0-9]+)")


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
        # As C's atoi: 0 for what is no number; 20 digits are beyond any body.
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
    tensors = as_array(member(document, "inputs"), "inputs")
    call = WireCall([])
    if "id" in document:
        call.request_id = as_string(document["id"], "id")
    if "parameters" in document:
        _parameters(document["parameters"], call)
    offset = 0
    for tensor in tensors:
        wire, offset = _input(tensor, binary, offset, model, memory)
        call.inputs.append(wire)
    if offset != len(binary):
        raise Fault("invalid", f"unexpected additional input data for model '{model.name}'")
    if "outputs" in document:
        outputs = as_array(document["outputs"], "outputs")
        call.request([_output(output, memory) for output in outputs])
    return call


def _input(
    tensor: Any, binary: memoryview, offset: int, model: LoadedModel, memory: SharedMemory
) -> tuple[InputTensor, int]:
    if not isinstance(tensor, dict):
        tensor = {}  # as in Triton: its fields are missing
    parameters = _tensor_parameters(tensor)
    given_size = "binary_data_size" in parameters
    fields = [
        field
        for field, given in (
            ("data", "data" in tensor),
            ("binary_data_size", given_size),
            ("shared_memory_region", "shared_memory_region" in parameters),
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
    name = as_string(member(tensor, "name"), "name")
    dims = as_array(member(tensor, "shape"), "shape")
    shape = tuple(as_unsigned(dim, "shape") for dim in dims)
    datatype = as_string(member(tensor, "datatype"), "datatype")
    if datatype not in DTYPES:
        raise Fault("invalid", f"invalid datatype for input {name}")
    region = _region(parameters, name)
    if region is not None:
        return InputTensor(name, datatype, shape, memory.read(region)), offset
    if given_size:
        size = as_unsigned(parameters["binary_data_size"], "binary_data_size")
        if offset + size > len(binary):
            raise Fault(
                "invalid",
                f"unexpected size for input '{name}', expecting {offset + size - len(binary)} "
                f"additional bytes for model '{model.name}'",
            )
        return InputTensor(name, datatype, shape, binary[offset : offset + size]), offset + size
    array = json_to_array(tensor["data"], datatype, name, shape)
    return InputTensor(name, datatype, shape, array), offset


def _output(output: Any, memory: SharedMemory) -> RequestedOutput:
    name = as_string(member(output, "name"), "name")
    parameters = _tensor_parameters(output)
    binary = as_boolean(parameters.get("binary_data", False), "binary_data")
    region = _region(parameters, name)
    for key, given in (("classification", "classification" in parameters), ("binary_data", binary)):
        if region is not None and given:
            raise Fault("invalid", f"Output can't set both 'shared_memory_region' and '{key}'")
    classification = parameters.get("classification", 0)
    if not is_unsigned(classification):
        what = "non-unsigned-integer as unsigned-integer"
        raise Fault("internal", f"Unable to set 'classification': attempt to access JSON {what}")
    if region is not None:
        memory.check(region)
    return RequestedOutput(name, binary=binary, classification=classification, region=region)


def _tensor_parameters(tensor: dict[str, Any]) -> dict[str, Any]:
    """Parameters of an input or output; as in Triton, what is no object counts as none."""
    parameters = tensor.get("parameters")
    return parameters if isinstance(parameters, dict) else {}


def _region(parameters: dict[str, Any], name: str) -> Region | None:
    if "shared_memory_region" not in parameters:
        return None
    if "shared_memory_byte_size" not in parameters:
        raise region_without_size(name)
    return Region(
        name=as_string(parameters["shared_memory_region"], "shared_memory_region"),
        offset=as_unsigned(parameters.get("shared_memory_offset", 0), "shared_memory_offset"),
        byte_size=as_unsigned(parameters["shared_memory_byte_size"], "shared_memory_byte_size"),
    )


def _parameters(parameters: Any, call: WireCall) -> None:
    for key, value in as_object(parameters, "failed to get request params.: ").items():
        if key == "priority":
            call.priority = as_unsigned(value, key)
        elif key == "timeout":
            call.timeout_us = as_unsigned(value, key)
        elif key == "binary_data_output":
            call.binary_default = as_boolean(value, key)
        elif key == "sequence_start":
            call.sequence_start = as_boolean(value, key)
        elif key == "sequence_end":
            call.sequence_end = as_boolean(value, key)
        elif key == "sequence_id":
            if not is_unsigned(value):
                check_sequence_id(as_string(value, key))
            call.sequence_id = value
        elif key.startswith("triton_"):
            raise reserved_parameter()
        elif not isinstance(value, int | str | float):
            raise wrong_parameter(key)


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
            # No parameters: the C++ client takes an output with some for a binary one.
            memory.write(wanted.region, name, to_bytes(array))
        elif wanted.binary if wanted is not None else call.binary_default:
            blob = to_bytes(array)
            entry["parameters"] = {"binary_data_size": len(blob)}
            blobs.append(blob)
        else:
            entry["data"] = array_to_json(array, name)
    head: dict[str, Any] = {"id": call.request_id} if call.request_id else {}
    head["model_name"] = model.name
    head["model_version"] = model.version_text
    parameters = response_parameters(model, call)
    if parameters:
        head["parameters"] = parameters
    head["outputs"] = entries
    text = json.dumps(head, separators=(",", ":")).encode()
    if not any(blobs):
        return text, None
    return b"".join((text, *blobs)), len(text)
