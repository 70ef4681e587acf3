"""The generate extension for models that answer once: tensors as plain JSON members."""

from __future__ import annotations

from typing import Any

from analyzer.engine.fault import Fault
from analyzer.engine.loaded_model import LoadedModel
from analyzer.engine.requests import InputTensor
from analyzer.engine.runtimes.base import Tensors
from analyzer.server.json_tensors import array_to_json, json_to_array
from analyzer.server.json_values import as_string
from analyzer.server.outputs import finished_outputs, response_parameters
from analyzer.server.wire_call import WireCall, wrong_parameter


def generate_call(model: LoadedModel, document: Any) -> WireCall:
    """The request in a generate body: inputs are members, other members are parameters.

    ``parameters`` may hold either of both. Parameters are the model's alone: as in Triton those
    that another request schedules by (``priority``, ``timeout``) do not count here.

    Raises:
        Fault: It does not fit the model.
    """
    if not isinstance(document, dict):
        raise Fault("internal", "attempt to get members for non-object")
    call = WireCall([])
    for key, value in document.items():
        if key in model.signature.inputs or key not in ("id", "parameters"):
            _member(model, call, key, value)
        elif key == "id":
            call.request_id = as_string(value, key)
        else:
            _parameters(model, call, value)
    return call


def _parameters(model: LoadedModel, call: WireCall, value: Any) -> None:
    if not isinstance(value, dict):
        raise Fault(
            "internal",
            "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as "
            "object",
        )
    for key, inner in value.items():
        try:
            _member(model, call, key, inner)
        except Fault as fault:
            message = f"Converting keyword: 'parameters': {fault.message}"
            raise Fault(fault.kind, message) from fault


def _member(model: LoadedModel, call: WireCall, key: str, value: Any) -> None:
    if key in model.signature.inputs:
        call.inputs.append(_input(model, key, value))
    elif not isinstance(value, int | str | float):
        raise wrong_parameter(key)


def _input(model: LoadedModel, name: str, value: Any) -> InputTensor:
    """A scalar or a flat list.

    Its number of elements decides the shape: what the fixed dimensions leave is the last variable
    dimension, and the others (the batch is the first of them) are 1.
    """
    port = model.signature.inputs[name]
    values = value if isinstance(value, list) else [value]
    shape = [-1, *port.dims] if model.signature.batch_size_max else list(port.dims)
    rest = len(values)
    for dim in shape:
        if dim != -1:
            if rest % dim:
                raise _no_shape(name)
            rest //= dim
    for index in reversed(range(len(shape))):
        if shape[index] == -1:
            shape[index], rest = rest, 1
    if rest != 1:
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
    answer |= response_parameters(model, call)
    for name, _, array, _ in finished_outputs(model, call, outputs):
        values = array_to_json(array, name)
        answer[name] = values[0] if len(values) == 1 else values
    return answer
