"""Warm-up requests of a configuration, run on every instance before the model is ready."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.engine.counters import Counters
from analyzer.engine.fault import Fault
from analyzer.engine.requests import InferCall, InferenceRequest, InputTensor
from analyzer.engine.runtimes.base import Runtime
from analyzer.engine.signature import Port, datatype_name, signature_of
from analyzer.engine.tensors import DTYPES
from analyzer.errors import RepositoryError

_SAMPLE_BYTES_MAX = 256 << 20  # as the largest request body (server/limits.py)


def warm_up(config: Any, folder: Path, runtimes: Sequence[Runtime]) -> Counters:
    """Runs the configuration's ``model_warmup`` on each runtime; returns what that counts.

    Raises:
        AnalyzerError: A sample is wrong or an execution fails.
    """
    counters = Counters()
    for sample, row in _samples(config, folder):
        inputs = row
        if config.max_batch_size:
            inputs = {name: np.repeat(one, sample.batch_size, axis=0) for name, one in row.items()}
        for runtime in runtimes:
            for _ in range(max(sample.count, 1)):
                start_ns = time.monotonic_ns()
                runtime.run(inputs)
                end_ns = time.monotonic_ns()
                rows = sample.batch_size if config.max_batch_size else 1
                work = [(InferenceRequest(1, inputs, _ignore), start_ns)] * rows
                counters.succeed(work, start_ns, start_ns, end_ns, end_ns)
    return counters


def check_warmup(config: Any, folder: Path) -> None:
    """Makes the inputs of each warm-up of a complete configuration, and runs nothing.

    Raises:
        RepositoryError: A sample is wrong.
    """
    for _ in _samples(config, folder):
        pass


def _ignore(_: object) -> None:
    pass


def _samples(config: Any, folder: Path) -> Iterator[tuple[Any, dict[str, NDArray[Any]]]]:
    """Each sample that runs, with the inputs of one request; checked as Triton checks requests."""
    signature = signature_of(config)
    for sample in config.model_warmup:
        if sample.batch_size == 0:
            continue
        hint = f"It is the warm-up '{sample.name}' of model '{config.name}'; Triton refuses it too."
        if sample.batch_size > max(config.max_batch_size, 1):
            raise RepositoryError(
                f"failed to run warmup sample '{sample.name}': batch size {sample.batch_size} for "
                f"'{config.name}', max allowed is {config.max_batch_size}",
                hint=hint,
            )
        try:
            # Triton leaves out what the model does not have.
            tensors = [
                _tensor(value, signature.inputs[name], folder, batched=config.max_batch_size > 0)
                for name, value in sample.inputs.items()
                if name in signature.inputs
            ]
            row, _ = signature.prepare(InferCall(inputs=tensors))
        except Fault as fault:
            raise RepositoryError(fault.message, hint=hint) from fault
        yield sample, row


def _tensor(value: Any, port: Port, folder: Path, *, batched: bool) -> InputTensor:
    """The input of one request, of the shape that ``value`` gives, whether it fits or not.

    Raises:
        Fault: The shape or the data are not given.
    """
    dims = tuple(value.dims)
    if min(dims, default=0) < 0:
        raise Fault(
            "invalid",
            "warmup setting expects all variable-size dimensions are specified for input "
            f"'{port.name}'",
        )
    datatype = datatype_name(value.data_type) if value.data_type else "<invalid>"
    shape = (1, *dims) if batched else dims
    if datatype != port.datatype:  # whatever the data are
        return InputTensor(port.name, datatype, shape, b"")
    return InputTensor(port.name, datatype, shape, _array(value, port, folder, dims))


def _array(value: Any, port: Port, folder: Path, dims: tuple[int, ...]) -> NDArray[Any] | bytes:
    """The data of an input, as an array without its batch axis, or strings as they are sent.

    Raises:
        Fault: There are none, or too few.
    """
    dtype = DTYPES[port.datatype]
    count = math.prod(dims)
    if count * max(dtype.itemsize, 1) > _SAMPLE_BYTES_MAX:
        raise Fault("invalid", f"input '{port.name}': {count} elements are too many for a warm-up")
    kind = value.WhichOneof("input_data_type")
    if kind is None:
        raise Fault(
            "invalid", f"warmup setting expects input '{port.name}' to have input_data_type set"
        )
    if kind == "input_data_file":
        data = _read(folder / "warmup", value.input_data_file, port.name)
        if port.datatype == "BYTES":
            return data
        size = count * dtype.itemsize
        if len(data) < size:
            raise Fault(
                "invalid",
                f"warmup setting expects {size} bytes, but the data provided from "
                f"{value.input_data_file} only has {len(data)} bytes",
            )
        return np.frombuffer(data[:size], dtype)
    if port.datatype == "BYTES":
        strings = np.empty(count, dtype=object)
        strings[:] = [b""] * count
        return strings
    if kind == "random_data" and dtype.kind in "fiu":
        rng = np.random.default_rng(0)
        values = rng.random(count) if dtype.kind == "f" else rng.integers(0, 127, count)
        return values.astype(dtype)
    return np.zeros(count, dtype)


def _read(folder: Path, name: str, tensor: str) -> bytes:
    path = folder / name
    if Path(name).name != name or not path.is_file():
        raise Fault(
            "invalid",
            f"warmup input '{tensor}': there is no file {name!r} in the model's folder warmup/",
        )
    return path.read_bytes()
