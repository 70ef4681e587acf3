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
from analyzer.server.outputs import finished_outputs, response_parameters
from analyzer.server.shared_memory import Region, SharedMemory
from analyzer.server.wire_call import (
    RequestedOutput,
    WireCall,
    check_sequence_id,
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
# The data type that Triton names for a field: the widest that it carries.
_FIELD_TYPES = {
    "bool_contents": "BOOL",
    "int_contents": "INT32",
    "int64_contents": "INT64",
    "uint_contents": "UINT32",
    "uint64_contents": "UINT64",
    "fp32_contents": "FP32",
    "fp64_contents": "FP64",
    "bytes_contents": "BYTES",
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
            if tensor.HasField("contents"):
                raise Fault(
                    "invalid",
                    "unexpected 'content' provided when using shared memory for input tensor "
                    f"'{tensor.name}' for model '{model.name}'",
                )
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
                    f"unable to find data for input tensor '{tensor.name}' for model "
                    f"'{model.name}' in request.",
                )
            data = raw[used]
            used += 1
        else:
            data = _contents(tensor, model)
        call.inputs.append(InputTensor(tensor.name, tensor.datatype, tuple(tensor.shape), data))
    if request.outputs:
        call.request([_output(output, memory) for output in request.outputs])
    return call


def _output(output: Any, memory: SharedMemory) -> RequestedOutput:
    parameters = output.parameters
    classification = 0
    if "classification" in parameters:  # reading an absent key would add it
        classification = _classes(parameters["classification"])
    region = _region(parameters, output.name) if parameters else None
    if region is not None:
        if classification:
            raise Fault(
                "invalid", "output can't set both 'shared_memory_region' and 'classification'"
            )
        memory.check(region)
    return RequestedOutput(output.name, classification=classification, region=region)


def _contents(tensor: Any, model: LoadedModel) -> Any:
    """The typed contents as an array, flat."""
    datatype = tensor.datatype
    field = _CONTENTS.get(datatype)  # FP16 and BF16 have none
    for other in _FIELD_TYPES:
        if other != field and len(getattr(tensor.contents, other)):
            expected = datatype if datatype in DTYPES or datatype == "BF16" else "<invalid>"
            raise Fault(
                "invalid",
                f"unexpected explicit tensor data for input tensor '{tensor.name}' for model "
                f"'{model.name}' of type '{_FIELD_TYPES[other]}', expected datatype '{expected}'",
            )
    values = getattr(tensor.contents, field) if field else ()
    if field is None or not len(values):
        raise Fault(
            "invalid",
            f"unable to find data for input tensor '{tensor.name}' for model '{model.name}' in "
            "request.",
        )
    if datatype == "BYTES":
        strings = np.empty(len(values), dtype=object)
        strings[:] = list(values)
        return strings
    # An integer that is too large wraps, as in Triton.
    return np.array(values, dtype=_WIDE.get(field, DTYPES[datatype])).astype(DTYPES[datatype])


_WIDE = {"int_contents": np.dtype(np.int32), "uint_contents": np.dtype(np.uint32)}


def _region(parameters: Any, name: str) -> Region | None:
    numbers = {"shared_memory_offset": 0, "shared_memory_byte_size": 0}
    for key in numbers:
        if key not in parameters:
            continue
        if "shared_memory_region" not in parameters:
            raise Fault(
                "invalid",
                f"'{key}' can not be specified without 'shared_memory_region' parameter for "
                f"tensor '{name}'",
            )
        numbers[key] = int(parameter_value(parameters[key], key, "int64_param", tensor=name))
        if numbers[key] < 0:
            raise Fault("invalid", f"'{key}' must not be negative")
    if "shared_memory_region" not in parameters:
        return None
    region = parameter_value(
        parameters["shared_memory_region"], "shared_memory_region", "string_param", tensor=name
    )
    if "shared_memory_byte_size" not in parameters:
        raise region_without_size(name)
    return Region(
        name=region,
        offset=numbers["shared_memory_offset"],
        byte_size=numbers["shared_memory_byte_size"],
    )


def _classes(value: Any) -> int:
    name = "classification"
    if value.WhichOneof("parameter_choice") != "int64_param":
        raise Fault("invalid", f"invalid value type for '{name}' parameter, expected int64_param")
    if value.int64_param <= 0:
        raise Fault("invalid", f"invalid value for '{name}' parameter, expected >= 0")
    return int(value.int64_param)


def parameter_value(
    value: Any, name: str, *kinds: str, expected: str = "", tensor: str = ""
) -> Any:
    """The value of a parameter of the request, or of a tensor.

    Args:
        kinds: The fields of the message that it may be given in.
        expected: What the error names instead of them.
        tensor: Whose parameter it is; empty for the request's own.

    Raises:
        Fault: It is given in another field.
    """
    kind = value.WhichOneof("parameter_choice")
    if kind not in kinds:
        expected = expected or " or ".join(kinds)
        whose = f" for tensor '{tensor}'" if tensor else ""
        raise Fault(
            "invalid", f"invalid value type for '{name}' parameter{whose}, expected {expected}."
        )
    return getattr(value, kind)


def _parameters(parameters: Any, call: WireCall) -> None:
    for key, value in parameters.items():
        if key == "priority":
            call.priority = int(parameter_value(value, key, "int64_param", "uint64_param"))
            if call.priority < 0:
                raise Fault("invalid", "invalid value for 'priority', expected value >= 0.")
        elif key == "timeout":
            # Triton takes a negative one for unsigned: longer than any other.
            call.timeout_us = int(parameter_value(value, key, "int64_param")) % (1 << 64)
        elif key == "sequence_id":
            sequence = parameter_value(value, key, "int64_param", "string_param")
            if isinstance(sequence, str):
                check_sequence_id(sequence)
            call.sequence_id = sequence
        elif key == "sequence_start":
            call.sequence_start = parameter_value(value, key, "bool_param")
        elif key == "sequence_end":
            call.sequence_end = parameter_value(value, key, "bool_param")
        elif key == _WANT_FINAL:
            parameter_value(value, key, "bool_param")
        elif key.startswith("triton_"):
            raise reserved_parameter(
                f". Only the following keys starting with 'triton_' are allowed: {_WANT_FINAL}"
            )
        else:
            parameter_value(value, key, *_FREE, expected="int64_param, bool_param, or string_param")


# Of parameters that only a model knows. Triton takes fractions, though its message omits them.
_FREE = ("int64_param", "bool_param", "string_param", "double_param")


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
    for key, value in response_parameters(model, call).items():
        set_parameter(response.parameters[key], value)
    contents = response.raw_output_contents
    for name, datatype, array, wanted in finished_outputs(model, call, outputs):
        response.outputs.add(name=name, datatype=datatype, shape=array.shape)
        data = to_bytes(array)
        if wanted is not None and wanted.region is not None:
            memory.write(wanted.region, name, data)
            data = b""  # clients count one content for each output
        contents.append(data)
    return response


def set_parameter(parameter: Any, value: int | str | bool, *, integer: str = "int64_param") -> None:
    """Sets the member of a message's choice that ``value`` has the type of.

    Args:
        integer: The member for integers.
    """
    names = {bool: "bool_param", int: integer, str: "string_param"}
    setattr(parameter, names[type(value)], value)
