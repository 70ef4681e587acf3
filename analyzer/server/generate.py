"""The generate extension for models that answer once: tensors as plain JSON members."""

from __future__ import annotations

from typing import Any

import numpy as np

from analyzer.engine.fault import Fault
from analyzer.engine.loaded_model import LoadedModel
from analyzer.engine.requests import InputTensor
from analyzer.engine.runtimes.base import Tensors
from analyzer.server.json_tensors import array_to_json, json_to_array
from analyzer.server.json_values import as_string, as_unsigned
from analyzer.server.outputs import finished_outputs
from analyzer.server.wire_call import (
    WireCall,
    reserved_parameter,
    wrong_parameter,
)


def generate_call(model: LoadedModel, document: Any) -> WireCall:
    """The request in a generate body: inputs are members, other members are parameters.

    Raises:
        Fault: It does not fit the model.
    """
    if not isinstance(document, dict):
        raise Fault("internal", "attempt to get members for non-object")
    call = WireCall([])
    for key, value in document.items():
        port = model.signature.inputs.get(key)
        if port is not None:
            call.inputs.append(_input(model, key, value))
        elif key == "id":
            call.request_id = as_string(value, key)
        elif key == "priority":
            call.priority = as_unsigned(value, key)
        elif key == "timeout":
            call.timeout_us = as_unsigned(value, key)
        elif key.startswith("triton_"):
            raise reserved_parameter()
        elif key == "parameters":
            if not isinstance(value, dict):
                raise Fault(
                    "internal",
                    "Expected JSON object for keyword: 'parameters': attempt to access JSON "
                    "non-object as object",
                )
        elif not isinstance(value, int | str | float):
            raise wrong_parameter(key)
    return call


def _input(model: LoadedModel, name: str, value: Any) -> InputTensor:
    """A scalar or a flat list; the shape is that of the model, a variable dimension deduced."""
    port = model.signature.inputs[name]
    values = value if isinstance(value, list) else [value]
    shape = list(port.dims)
    if shape.count(-1) > 1:
        raise _no_shape(name)
    if -1 in shape:
        fixed = 1
        for dim in shape:
            fixed *= dim if dim > 0 else 1
        if len(values) % fixed:
            raise _no_shape(name)
        shape[shape.index(-1)] = len(values) // fixed
    if model.signature.batch_size_max:
        shape.insert(0, 1)
    if int(np.prod(shape, dtype=np.float64)) != len(values):
        raise _no_shape(name)
    array = json_to_array(values, port.datatype, name, tuple(shape))
    return InputTensor(name, port.datatype, tuple(shape), array)


def _no_shape(name: str) -> Fault:
    return Fault(
        "invalid", f"The schema can not convert input '{name}' to tensor with proper shape"
    )


def generate_json(model: LoadedModel, call: WireCall, outputs: Tensors) -> dict[str, Any]:
    """The answer: outputs are members, a single element without its list."""
    answer: dict[str, Any] = {"id": call.request_id} if call.request_id else {}
    answer["model_name"] = model.name
    answer["model_version"] = model.version_text
    for name, _, array, _ in finished_outputs(model, call, outputs):
        values = array_to_json(array, name)
        answer[name] = values[0] if len(values) == 1 else values
    return answer
