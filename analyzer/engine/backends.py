"""The backends that the server has: completes a configuration, opens the runtimes of its instances.

``onnxruntime`` and ``tensorrt`` are Triton's; ``identity`` and ``scripted`` are ours, for tests and
benchmarks, and described in ``docs/triton-differences.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any, cast, get_args

from analyzer.domain.configuration import DeviceKind
from analyzer.engine.runtimes.base import Runtime
from analyzer.engine.runtimes.onnxruntime_ import ORT_DATATYPES, first_line, import_onnxruntime
from analyzer.engine.runtimes.open import Place, open_runtimes
from analyzer.engine.runtimes.scripted import (
    Answer,
    NullRuntime,
    Script,
    ScriptedFault,
    ScriptedRuntime,
)
from analyzer.engine.signature import Port, Signature, signature_of
from analyzer.errors import InputError, ModelError
from analyzer.modelconfig.execution import (
    accelerator_options,
    check_accelerators,
    execution_from_config,
)
from analyzer.modelconfig.rules import Instance, OnnxTensor, autocomplete_onnx

TEST_BACKENDS = ("identity", "scripted")


def model_file(config: Any, version_dir: Path) -> Path:
    """The file of one version, which exists.

    Raises:
        ModelError: There is none, or it would lie outside the version's folder.
    """
    name = str(config.default_model_filename)
    if not name or Path(name).name != name:
        raise ModelError(f"'{name}' is not the name of a model's file in {version_dir}.")
    path = version_dir / name
    # Triton takes a folder of that name too, for graphs with external weights.
    inner = path / name
    if path.is_dir() and inner.is_file():
        return inner
    if not path.is_file():
        there = (
            sorted(entry.name for entry in version_dir.iterdir()) if version_dir.is_dir() else []
        )
        found = ", ".join([*there[:8], *(["…"] if len(there) > 8 else [])]) or "nothing"
        raise ModelError(
            f"failed to load model '{config.name}': there is no {name} in {version_dir} "
            f"(found: {found}).",
            hint=f"Put the model's file there as {name}, or set default_model_filename.",
        )
    return path


def require_backend(config: Any) -> None:
    """Checks that the server has the backend of a configuration.

    Raises:
        ModelError: It has not.
    """
    backend = config.backend
    if backend in ("onnxruntime", "tensorrt", *TEST_BACKENDS):
        return
    if backend == "python":
        raise ModelError(
            f"model '{config.name}' is for Triton's Python backend, which this server does not "
            "have: it does not run code from a repository.",
            hint="Serve its ONNX file with the backend onnxruntime, or use a real Triton.",
        )
    if not backend:
        raise ModelError(
            f"model '{config.name}' names no backend, and its files imply none.",
            hint="Put a model.onnx into its version folder, or set 'backend'.",
        )
    raise ModelError(
        f"unable to find backend library for backend '{backend}' of model '{config.name}'",
        hint="This server has onnxruntime, tensorrt, and for tests identity and scripted.",
    )


def complete(config: Any, version_dir: Path, *, max_batch_size_default: int) -> None:
    """Lets the backend fill in what the configuration leaves out, as Triton's backends do.

    Raises:
        AnalyzerError: The model cannot be read, or the configuration contradicts it.
    """
    if config.backend != "onnxruntime" or (config.input and config.output):
        return
    inputs, outputs = declared_tensors(model_file(config, version_dir))
    autocomplete_onnx(config, inputs, outputs, max_batch_size_default=max_batch_size_default)


def open_instances(config: Any, version_dir: Path, instances: Sequence[Instance]) -> list[Runtime]:
    """A runtime for each instance; all of them or none.

    Raises:
        AnalyzerError: One cannot be opened, or the configuration contradicts the model.
    """
    signature = signature_of(config)
    if config.backend == "identity":
        return [NullRuntime(_echo(signature)) for _ in instances]
    if config.backend == "scripted":
        script, answer, batchable = _script(config), _echo(signature), config.max_batch_size > 0
        return [
            ScriptedRuntime(script, index, answer=answer, batchable=batchable)
            for index in range(len(instances))
        ]
    path = model_file(config, version_dir)
    if config.backend == "onnxruntime":
        check_tensors(config, *declared_tensors(path))
    runtimes: list[Runtime] = []
    # Instances of one model may lie on the CPU and on GPUs, each with accelerators of its own.
    for device, own in groupby(instances, key=lambda i: "gpu" if i.kind == "gpu" else "cpu"):
        kind: DeviceKind = "gpu" if device == "gpu" else "cpu"
        check_accelerators(config, kind)
        try:
            runtimes += open_runtimes(
                path,
                [Place(kind, instance.device_id) for instance in own],
                backend=config.backend,
                intra_op_threads=_threads(config),
                execution=execution_from_config(config, kind),
                accelerator_options=accelerator_options(config, kind),
            )
        except BaseException:
            for runtime in runtimes:
                runtime.close()
            raise
    return runtimes


def _parameter(config: Any, key: str, default: str) -> str:
    """A value of the configuration's ``parameters``."""
    if key not in config.parameters:
        return default
    return str(config.parameters[key].string_value)


def usable_gpus(visible: int) -> dict[str, tuple[int, ...]]:
    """CUDA's numbers of the GPUs that each backend can run on, of ``visible`` ones.

    Without this, KIND_AUTO would put models on a GPU that the installed build cannot use.
    """
    if not visible:
        return {}
    numbers, found = tuple(range(visible)), {}
    if "CUDAExecutionProvider" in import_onnxruntime().get_available_providers():
        found["onnxruntime"] = numbers
    if find_spec("tensorrt") is not None:
        found["tensorrt"] = numbers
    return found


def _threads(config: Any) -> int:
    text = _parameter(config, "intra_op_thread_count", "0")
    if not text.isdecimal():
        raise InputError(f"model '{config.name}': intra_op_thread_count is {text!r}, not a number.")
    return int(text)


def declared_tensors(path: Path) -> tuple[list[OnnxTensor], list[OnnxTensor]]:
    """Inputs and outputs as the ONNX graph at ``path`` declares them; optional inputs come last.

    Raises:
        ModelError: It cannot be loaded, or a tensor has a type that Triton does not know.
    """
    ort = import_onnxruntime()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise ModelError(
            f"{path} cannot be loaded: {first_line(error)}",
            hint="Check the file with onnx.checker, and that its external weights lie beside it.",
        ) from error

    def tensor(value: Any, *, optional: bool = False) -> OnnxTensor:
        datatype = ORT_DATATYPES.get(value.type)
        if datatype is None:
            raise ModelError(f"{path}: tensor '{value.name}' has type {value.type}.")
        shape = tuple(dim if isinstance(dim, int) and dim > 0 else -1 for dim in value.shape)
        return OnnxTensor(name=value.name, datatype=datatype, shape=shape, optional=optional)

    inputs = [tensor(value) for value in session.get_inputs()]
    # Weights that old exporters list among the inputs are such ones too, of whatever type.
    defaults = [v for v in session.get_overridable_initializers() if v.type in ORT_DATATYPES]
    inputs += [tensor(value, optional=True) for value in defaults]
    return inputs, [tensor(value) for value in session.get_outputs()]


def check_tensors(config: Any, inputs: Sequence[OnnxTensor], outputs: Sequence[OnnxTensor]) -> None:
    """Refuses a complete configuration whose tensors are not those of the graph, as Triton does.

    Args:
        config: The ``ModelConfig``.
        inputs: The graph's inputs as they are declared.
        outputs: The graph's outputs.

    Raises:
        InputError: A tensor is unknown, missing, or of another type or shape.
    """
    signature = signature_of(config)
    where = f"unable to load model '{config.name}'"
    expected = [port for port in signature.inputs.values() if not port.optional]
    needed = [tensor for tensor in inputs if not tensor.optional]
    if len(expected) != len(needed):
        raise InputError(
            f"{where}, configuration expects {len(expected)} inputs, model provides {len(needed)}"
        )
    known_inputs = {tensor.name: tensor.shape for tensor in inputs}
    for kind, ports, tensors in (
        ("input", signature.inputs, inputs),
        ("output", signature.outputs, outputs),
    ):
        for port in ports.values():
            known = {tensor.name: tensor for tensor in tensors if tensor.optional == port.optional}
            if port.name not in known:
                names = ", ".join(known)
                raise InputError(
                    f"{where}: unexpected inference {kind} '{port.name}', allowed {kind}s are: "
                    f"{names}"
                )
            declared = known[port.name]
            if declared.datatype != port.datatype:
                raise InputError(
                    f"{where}: {kind} '{port.name}' is TYPE_{port.datatype} in the configuration "
                    f"and {declared.datatype} in the model"
                )
            _check_dims(config, port, declared, exact=kind == "output")
    for tensor in config.input:
        shape = known_inputs[tensor.name]
        if tensor.allow_ragged_batch and shape != (-1,):
            raise InputError(
                f"{where}, configuration expects model provides input with shape [-1] for ragged "
                f"input '{tensor.name}', model provides {list(shape)}"
            )


def _check_dims(config: Any, port: Port, declared: OnnxTensor, *, exact: bool) -> None:
    """Refuses dims as ``CompareDimsSupported`` of Triton's ONNX Runtime backend does.

    Args:
        exact: Whether a dimension that the graph leaves open must be open in the configuration too.
    """
    dims = port.reshape if port.reshape is not None else port.dims
    where = f"model '{config.name}', tensor '{port.name}'"
    if not declared.shape:
        return  # a scalar, or nothing is known of its rank
    if config.max_batch_size and declared.shape[0] != -1:
        raise InputError(
            f"{where}: for the model to support batching the shape should have at least 1 "
            "dimension and the first dimension must be -1; but shape expected by the model is "
            f"{list(declared.shape)}"
        )
    shape = (-1, *dims) if config.max_batch_size else dims
    if len(shape) != len(declared.shape) or any(
        mine != theirs and (exact or theirs != -1)
        for mine, theirs in zip(shape, declared.shape, strict=True)
    ):
        raise InputError(
            f"{where}: the model expects {len(declared.shape)} dimensions (shape "
            f"{list(declared.shape)}) but the model configuration specifies {len(shape)} "
            f"dimensions (shape {list(shape)})"
        )


def _echo(signature: Signature) -> Answer:
    """Gives each output the input at its place; an output without one gets the last.

    Raises:
        ModelError: Their data types differ.
    """
    names = tuple(signature.inputs)
    last = len(names) - 1
    pairs = tuple(
        (output, names[min(index, last)]) for index, output in enumerate(signature.outputs)
    )
    for output, source in pairs:
        if signature.outputs[output].datatype != signature.inputs[source].datatype:
            raise ModelError(
                f"model '{signature.model}': the backend identity needs output '{output}' to "
                f"have the data type of input '{source}'."
            )
    return lambda inputs: {output: inputs[source] for output, source in pairs}


def _script(config: Any) -> Script:
    """The script in a configuration's parameters (docs/triton-differences.md).

    Raises:
        ModelError: It cannot be read.
    """
    text = _parameter(config, "service_time_ms", "1=0")
    after = _parameter(config, "fault_after", "0")
    fault = _parameter(config, "fault", "") or None
    try:
        pairs = [part.split("=") for part in text.split(",")]
        points = [(int(size), float(ms) / 1e3) for size, ms in pairs]
        if fault not in (None, *get_args(ScriptedFault)):
            raise ValueError(fault)
        return Script(points, fault=cast(ScriptedFault, fault), fault_after=int(after))
    except ValueError as error:
        raise ModelError(
            f"model '{config.name}': service_time_ms is {text!r}, fault {fault!r} and fault_after "
            f"{after!r}.",
            hint='Write points like "1=4.4,8=7.2" (batch size = milliseconds), one of '
            f"{', '.join(get_args(ScriptedFault))}, and a number.",
        ) from error
