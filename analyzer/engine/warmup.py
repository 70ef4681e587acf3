"""Warm-up requests of a configuration, run on every instance before the model is ready."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.engine.counters import Counters
from analyzer.engine.requests import InferenceRequest
from analyzer.engine.runtimes.base import Runtime
from analyzer.engine.signature import Port, datatype_name, signature_of
from analyzer.engine.tensors import DTYPES, decode_strings
from analyzer.errors import RepositoryError

_SAMPLE_BYTES_MAX = 256 << 20  # as the largest request body (server/limits.py)


def warm_up(config: Any, folder: Path, runtimes: Sequence[Runtime]) -> Counters:
    """Runs the configuration's ``model_warmup`` on each runtime; returns what that counts.

    Raises:
        AnalyzerError: A sample is wrong or an execution fails.
    """
    counters = Counters()
    signature = signature_of(config)
    for sample in config.model_warmup:
        if sample.batch_size == 0:
            continue
        if sample.batch_size > max(config.max_batch_size, 1):
            raise RepositoryError(
                f"failed to run warmup sample '{sample.name}': batch size {sample.batch_size} for "
                f"'{config.name}', max allowed is {config.max_batch_size}",
                hint="Triton refuses this configuration as well.",
            )
        inputs: dict[str, NDArray[Any]] = {}
        for name, value in sample.inputs.items():
            port = signature.inputs.get(name)
            where = f"warm-up '{sample.name}' of model '{config.name}', input '{name}'"
            if port is None:
                raise RepositoryError(f"{where}: the model has no such input.")
            one = _array(value, port, folder, where)
            shape = port.reshape if port.reshape is not None else one.shape
            if -1 in shape:
                shape = one.shape
            one = one.reshape(shape)
            if config.max_batch_size:
                one = np.repeat(one[np.newaxis], sample.batch_size, axis=0)
            inputs[name] = one
        for runtime in runtimes:
            for _ in range(max(sample.count, 1)):
                start_ns = time.monotonic_ns()
                runtime.run(inputs)
                end_ns = time.monotonic_ns()
                rows = sample.batch_size if config.max_batch_size else 1
                work = [(InferenceRequest(1, inputs, _ignore), start_ns)] * rows
                counters.succeed(work, start_ns, start_ns, end_ns, end_ns)
    return counters


def _ignore(_: object) -> None:
    pass


def _array(value: Any, port: Port, folder: Path, where: str) -> NDArray[Any]:
    if datatype_name(value.data_type) != port.datatype:
        raise RepositoryError(f"{where}: its data type is not the model's, {port.datatype}.")
    dims = tuple(value.dims)
    fits = len(dims) == len(port.dims) and all(
        mine > 0 and dim in (-1, mine) for mine, dim in zip(dims, port.dims, strict=True)
    )
    if not fits:
        raise RepositoryError(
            f"{where}: dims {list(dims)} do not fit the model's {list(port.dims)}.",
            hint="Variable dimensions need a value.",
        )
    dtype = DTYPES[port.datatype]
    count = int(np.prod(dims, dtype=np.float64))
    if count * max(dtype.itemsize, 1) > _SAMPLE_BYTES_MAX:
        raise RepositoryError(f"{where}: {count} elements are too many for a warm-up.")
    kind = value.WhichOneof("input_data_type")
    if kind == "input_data_file":
        data = _read(folder / "warmup", value.input_data_file, where)
        if port.datatype == "BYTES":
            return decode_strings(data, count, where).reshape(dims)
        if len(data) != count * dtype.itemsize:
            raise RepositoryError(
                f"{where}: its file has {len(data)} bytes, expected {count * dtype.itemsize}."
            )
        return np.frombuffer(data, dtype).reshape(dims)
    if port.datatype == "BYTES":
        strings = np.empty(count, dtype=object)
        strings[:] = [b""] * count
        return strings.reshape(dims)
    if kind == "random_data" and dtype.kind in "fiu":
        rng = np.random.default_rng(0)
        values = rng.random(dims) if dtype.kind == "f" else rng.integers(0, 127, dims)
        return values.astype(dtype)
    return np.zeros(dims, dtype)


def _read(folder: Path, name: str, where: str) -> bytes:
    path = folder / name
    if Path(name).name != name or not path.is_file():
        raise RepositoryError(f"{where}: there is no file {name!r} in the model's folder warmup/.")
    return path.read_bytes()
