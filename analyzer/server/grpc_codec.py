"""Inference over gRPC: protobuf requests to calls, results to protobuf responses."""

from __future__ import annotations

from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from analyzer.engine.fault import Fault
from analyzer.engine.loaded_model import LoadedModel
from analyzer.engine.requests import InputTensor
from analyzer.engine.runtimes.base import Tensors
from analyzer.engine.tensors import DTYPES, to_bytes
from analyzer.server.outputs import finished_outputs
from analyzer.server.shared_memory import Region, SharedMemory
from analyzer.server.wire_call import (
    RequestedOutput,
    WireCall,
    region_without_size,
    reserved_parameter,
)

_CONTENTS = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
FINAL_RESPONSE = "triton_final_response"
_WANT_FINAL = "triton_enable_empty_final_response"


def parse_request(request: Any, model: LoadedModel, memory: SharedMemory) -> WireCall:
    """The call in a ``ModelInferRequest``.

    Raises:
        Fault: It is malformed.
    """
    call = WireCall([], request_id=request.id)
    if request.parameters:
        _parameters(request.parameters, call)
    raw = request.raw_input_contents
    used = 0
    for tensor in request.inputs:
        region = _region(tensor.parameters, tensor.name) if tensor.parameters else None
        data: Any
        if region is not None:
            data = memory.read(region)
        elif raw:
            if tensor.HasField("contents"):
                raise Fault(
                    "invalid",
                    "contents field must not be specified when using raw_input_contents for "
                    f"'{tensor.name}' for model '{model.name}'",
                )
            if used >= len(raw):
                raise Fault(
                    "invalid",
                    f"unable to find data for input '{tensor.name}' for model '{model.name}' in "
                    "request.",
                )
            data = raw[used]
            used += 1
        else:
            data = _contents(tensor, model)
        call.inputs.append(InputTensor(tensor.name, tensor.datatype, tuple(tensor.shape), data))
    if request.outputs:
        call.request([_output(output) for output in request.outputs])
    return call


def _output(output: Any) -> RequestedOutput:
    parameters = output.parameters
    classification = 0
    if "classification" in parameters:  # reading an absent key would add it
        classification = _count(parameters["classification"], "classification")
    return RequestedOutput(
        output.name,
        classification=classification,
        region=_region(parameters, output.name) if parameters else None,
    )


def _contents(tensor: Any, model: LoadedModel) -> Any:
    """The typed contents as an array, flat."""
    datatype = tensor.datatype
    if datatype not in _CONTENTS:
        if datatype in DTYPES:
            raise Fault(
                "invalid",
                f"explicit tensor data of type {datatype} is not supported for input "
                f"'{tensor.name}': use raw_input_contents",
            )
        return b""  # the check of the data type, later, has the better message
    field = _CONTENTS[datatype]
    for other in set(_CONTENTS.values()):
        if other != field and len(getattr(tensor.contents, other)):
            raise Fault(
                "invalid",
                f"unexpected explicit tensor data for input tensor '{tensor.name}' for model "
                f"'{model.name}' of type '{other}', expected datatype '{datatype}'",
            )
    values = getattr(tensor.contents, field)
    if datatype == "BYTES":
        strings = np.empty(len(values), dtype=object)
        strings[:] = list(values)
        return strings
    # An integer that is too large wraps, as in Triton.
    return np.array(values, dtype=_WIDE.get(field, DTYPES[datatype])).astype(DTYPES[datatype])


_WIDE = {"int_contents": np.dtype(np.int32), "uint_contents": np.dtype(np.uint32)}


def _region(parameters: Any, name: str) -> Region | None:
    if "shared_memory_region" not in parameters:
        return None
    if "shared_memory_byte_size" not in parameters:
        raise region_without_size(name)
    offset = 0
    if "shared_memory_offset" in parameters:
        offset = _count(parameters["shared_memory_offset"], "shared_memory_offset")
    return Region(
        name=parameters["shared_memory_region"].string_param,
        offset=offset,
        byte_size=_count(parameters["shared_memory_byte_size"], "shared_memory_byte_size"),
    )


def _count(value: Any, name: str) -> int:
    kind = value.WhichOneof("parameter_choice")
    if kind not in ("int64_param", "uint64_param"):
        raise Fault("invalid", f"invalid value type for '{name}' parameter, expected int64_param.")
    number = int(getattr(value, kind))
    if number < 0:
        raise Fault("invalid", f"'{name}' must not be negative")
    return number


def _parameters(parameters: Any, call: WireCall) -> None:
    for key, value in parameters.items():
        if key == "priority":
            call.priority = _count(value, key)
        elif key == "timeout":
            call.timeout_us = _count(value, key)
        elif key in ("sequence_start", "sequence_end"):
            if value.WhichOneof("parameter_choice") != "bool_param":
                raise Fault(
                    "invalid", f"invalid value type for '{key}' parameter, expected bool_param."
                )
        elif key.startswith("triton_") and key != _WANT_FINAL:
            raise reserved_parameter()


def build_response(
    model: LoadedModel, call: WireCall, outputs: Tensors, memory: SharedMemory
) -> Any:
    """The ``ModelInferResponse``; outputs are always raw.

    Raises:
        Fault: An output cannot be given as asked.
    """
    response = service_pb2.ModelInferResponse(
        model_name=model.name, model_version=model.version_text, id=call.request_id
    )
    contents = response.raw_output_contents
    for name, datatype, array, wanted in finished_outputs(model, call, outputs):
        entry = response.outputs.add(name=name, datatype=datatype, shape=array.shape)
        data = to_bytes(array)
        if wanted is not None and wanted.region is not None:
            region = wanted.region
            size = memory.write(region, name, data)
            entry.parameters["shared_memory_region"].string_param = region.name
            entry.parameters["shared_memory_offset"].int64_param = region.offset
            entry.parameters["shared_memory_byte_size"].int64_param = size
            data = b""  # clients count one content for each output
        contents.append(data)
    return response
