"""A model's inputs and outputs as clients see them, and the check of a request against them.

Order and texts of the checks are those of Triton's ``InferenceRequest::Normalize``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import model_config_pb2

from analyzer.engine.fault import Fault
from analyzer.engine.requests import InferCall, InputTensor
from analyzer.engine.tensors import DTYPES, check_string_count, decode_strings

_BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be "
    "prepended to each input shape. If you want to specify the full shape including the batch dim "
    "in your input dims config, try setting max_batch_size to zero. See the model configuration "
    "docs for more info on max_batch_size."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """One input or output.

    Args:
        dims: As clients see them, without the batch axis of a batching model.
        reshape: As the backend sees them; None if they are the same.
    """

    name: str
    datatype: str
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """All inputs and outputs of a model.

    Args:
        batch_size_max: Triton's ``max_batch_size``; 0 for a model without a batch axis.
    """

    model: str
    batch_size_max: int
    inputs: Mapping[str, Port]
    outputs: Mapping[str, Port]

    @property
    def dynamic_shapes(self) -> bool:
        """Whether an input has a dynamic dimension besides the batch."""
        return any(-1 in port.dims for port in self.inputs.values())

    @property
    def optional_inputs(self) -> bool:
        """Whether a request may leave an input out."""
        return any(port.optional for port in self.inputs.values())

    def prepare(self, call: InferCall) -> tuple[dict[str, NDArray[Any]], int]:
        """The backend's input arrays and the batch size (1 for a model without a batch axis).

        Raises:
            Fault: The request does not fit the model.
        """
        for name in call.outputs:
            if name not in self.outputs:
                raise Fault(
                    "invalid", f"unexpected inference output '{name}' for model '{self.model}'"
                )
        if call.raw:
            self._deduce(call)
        given = call.inputs
        if len(given) != len(self.inputs):
            self._require_inputs(call)
        batch_size = 0
        if self.batch_size_max:
            batch_size = self._batch_size(call)
        arrays: dict[str, NDArray[Any]] = {}
        for tensor in given:
            port = self.inputs.get(tensor.name)
            if port is None:
                raise Fault(
                    "invalid",
                    f"unexpected inference input '{tensor.name}' for model '{self.model}'",
                )
            if tensor.name in arrays:
                raise self._fault(call, f"input '{tensor.name}' already exists in request")
            arrays[tensor.name] = self._array(call, tensor, port)
        return arrays, max(batch_size, 1)

    def _fault(self, call: InferCall, message: str) -> Fault:
        return Fault("invalid", f"[request id: {call.request_id or '<id_unknown>'}] {message}")

    def _deduce(self, call: InferCall) -> None:
        """Gives a raw request's only input its name, type and shape."""
        if len(self.inputs) != 1:
            raise self._fault(
                call,
                "Raw request must only have 1 input (found 1) to be deduced but got "
                f"{len(self.inputs)} inputs in '{self.model}' model configuration",
            )
        port = next(iter(self.inputs.values()))
        data = call.inputs[0].data
        size = len(data)
        dims = list(port.dims)
        if port.datatype == "BYTES":
            if dims != [1]:
                raise self._fault(
                    call,
                    f"For BYTE datatype raw input '{port.name}', the model must have input "
                    "shape [1]",
                )
            data = len(data).to_bytes(4, "little") + bytes(data)
        elif -1 in dims:
            if dims.count(-1) > 1:
                raise self._fault(
                    call,
                    f"The shape of the raw input '{port.name}' can not be deduced because there "
                    "are more than one variable-sized dimension",
                )
            row = DTYPES[port.datatype].itemsize * math.prod(dim for dim in dims if dim > 0)
            dims[dims.index(-1)] = size // row
        expected = DTYPES[port.datatype].itemsize * math.prod(dims)
        if port.datatype != "BYTES" and size != expected:
            raise self._fault(
                call,
                f"input byte size mismatch for input 'raw_input' for model '{self.model}'. "
                f"Expected {expected}, got {size}",
            )
        shape = (1, *dims) if self.batch_size_max else tuple(dims)
        call.inputs = [InputTensor(port.name, port.datatype, shape, data)]

    def _require_inputs(self, call: InferCall) -> None:
        names = [tensor.name for tensor in call.inputs]
        for name in names:
            if names.count(name) > 1:
                raise self._fault(call, f"input '{name}' already exists in request")
        required = [port.name for port in self.inputs.values() if not port.optional]
        missing = [name for name in required if name not in names]
        if len(names) > len(self.inputs) or missing:
            expected = (
                f"{len(required)} inputs"
                if len(required) == len(self.inputs)
                else f"number of inputs between {len(required)} and {len(self.inputs)}"
            )
            listed = ",".join(f"'{name}'" for name in names)
            lacking = ",".join(f"'{name}'" for name in missing)
            raise self._fault(
                call,
                f"expected {expected} but got {len(names)} inputs for model '{self.model}'. "
                f"Got input(s) [{listed}], but missing required input(s) [{lacking}]. Please "
                "provide all required input(s).",
            )

    def _batch_size(self, call: InferCall) -> int:
        batch_size = -1
        for tensor in call.inputs:
            if not tensor.shape:
                raise self._fault(
                    call,
                    f"input '{tensor.name}' has no shape but model requires batch dimension for "
                    f"'{self.model}'",
                )
            if batch_size < 0:
                batch_size = tensor.shape[0]
            elif tensor.shape[0] != batch_size:
                raise self._fault(
                    call,
                    f"input '{tensor.name}' batch size does not match other inputs for "
                    f"'{self.model}'",
                )
        if batch_size > self.batch_size_max:
            raise self._fault(
                call,
                f"inference request batch-size must be <= {self.batch_size_max} for '{self.model}'",
            )
        return batch_size

    def _array(self, call: InferCall, tensor: InputTensor, port: Port) -> NDArray[Any]:
        if tensor.datatype != port.datatype:
            known = tensor.datatype in DTYPES or tensor.datatype == "BF16"
            given = tensor.datatype if known else "<invalid>"
            raise self._fault(
                call,
                f"inference input '{port.name}' data-type is '{given}', but model "
                f"'{self.model}' expects '{port.datatype}'",
            )
        shape = tensor.shape
        self._check_shape(call, shape, port)
        count = math.prod(shape)
        if self.batch_size_max and shape[0] == 0:
            count = math.prod(shape[1:])  # Triton counts an empty batch as one
        data = tensor.data
        if port.datatype == "BYTES":
            where = f"inference input '{port.name}' for model '{self.model}'"
            try:
                if isinstance(data, np.ndarray):
                    array: NDArray[Any] = data
                    check_string_count(array.size, count, where)
                else:
                    array = decode_strings(data, count, where)
            except Fault as fault:
                raise self._fault(call, fault.message) from fault
        elif isinstance(data, np.ndarray):
            array = data
            if array.size != count:
                raise self._size(call, port, count * array.itemsize, array.nbytes)
        else:
            dtype = DTYPES[port.datatype]
            if len(data) != count * dtype.itemsize:
                raise self._size(call, port, count * dtype.itemsize, len(data))
            array = np.frombuffer(data, dtype)
        if self.batch_size_max and shape[0] == 0:
            raise self._fault(call, f"inference request batch-size must be >= 1 for '{self.model}'")
        if port.reshape is not None:
            shape = self._reshaped(shape, port.dims, port.reshape)
        return array.reshape(shape)

    def _size(self, call: InferCall, port: Port, expected: int, got: int) -> Fault:
        return self._fault(
            call,
            f"input byte size mismatch for input '{port.name}' for model '{self.model}'. "
            f"Expected {expected}, got {got}",
        )

    def _check_shape(self, call: InferCall, shape: tuple[int, ...], port: Port) -> None:
        first = 1 if self.batch_size_max else 0
        if len(shape) == len(port.dims) + first:
            for given, dim in zip(shape[first:], port.dims, strict=True):
                if given == -1:
                    raise self._fault(
                        call,
                        f"All input dimensions should be specified for input '{port.name}' for "
                        f"model '{self.model}', got {listed(shape)}",
                    )
                if given < 0 or (dim not in (-1, given)):
                    break
            else:
                return
        dims = [-1, *port.dims] if self.batch_size_max else list(port.dims)
        note = _BATCH_NOTE if self.batch_size_max else ""
        raise self._fault(
            call,
            f"unexpected shape for input '{port.name}' for model '{self.model}'. Expected "
            f"{listed(dims)}, got {listed(shape)}. {note}",
        )

    def _reshaped(
        self, shape: tuple[int, ...], dims: tuple[int, ...], target: tuple[int, ...]
    ) -> tuple[int, ...]:
        """``shape`` (which fits ``dims``) in the form of ``target``, batch axis kept."""
        first = 1 if self.batch_size_max else 0
        variable = iter([s for s, dim in zip(shape[first:], dims, strict=True) if dim == -1])
        return (*shape[:first], *(next(variable) if dim == -1 else dim for dim in target))

    def present(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        """An output of the backend in the shape that clients see."""
        port = self.outputs[name]
        if port.reshape is None:
            if not array.ndim and not self.batch_size_max:
                # Triton has no scalars: a graph's scalar is configured as one element.
                return array.reshape([1] * len(port.dims))
            return array
        return array.reshape(self._reshaped(array.shape, port.reshape, port.dims))


def listed(shape: Sequence[int]) -> str:
    """A shape as Triton's messages have it."""
    return "[" + ",".join(str(dim) for dim in shape) + "]"


def datatype_name(value: int) -> str:
    """Triton's short name (``FP32``) of a configuration's data type."""
    name = str(model_config_pb2.DataType.Name(value)).removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name


def signature_of(config: Any) -> Signature:
    """The signature of a complete ``ModelConfig``."""

    def port(tensor: Any, optional: bool) -> Port:
        reshape = tuple(tensor.reshape.shape) if tensor.HasField("reshape") else None
        return Port(
            name=tensor.name,
            datatype=datatype_name(tensor.data_type),
            dims=tuple(tensor.dims),
            reshape=reshape,
            optional=optional,
        )

    return Signature(
        model=config.name,
        batch_size_max=config.max_batch_size,
        inputs={t.name: port(t, t.optional) for t in config.input},
        outputs={t.name: port(t, False) for t in config.output},
    )
