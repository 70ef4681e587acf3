"""How a backend executes a file, as Triton's ``optimization`` and ``parameters`` spell it.

Names and values are those that Triton's ONNX Runtime backend reads (``src/onnxruntime.cc`` and the
README of onnxruntime_backend); :class:`~analyzer.domain.configuration.Execution` is the other side.
"""

from __future__ import annotations

from typing import Any, cast

from analyzer.domain.configuration import (
    Accelerator,
    Configuration,
    CudnnSearch,
    DeviceKind,
    Execution,
    GraphLevel,
    Precision,
    VariantKey,
)
from analyzer.domain.model import ModelInfo, TensorSpec
from analyzer.errors import RepositoryError

MODE_KEY = "execution_mode"
INTER_OP_KEY = "inter_op_thread_count"
CUDNN_KEY = "cudnn_conv_algo_search"
# Triton's numbers of cuDNN's searches; its own default is the first.
_CUDNN_SEARCHES: tuple[CudnnSearch, ...] = ("exhaustive", "heuristic", "default")
_ACCELERATOR_FIELDS: dict[DeviceKind, str] = {
    "cpu": "cpu_execution_accelerator",
    "gpu": "gpu_execution_accelerator",
}
# Of Triton's ``precision_mode``, which has none for fp8.
_PRECISION_MODES: dict[Precision, str] = {
    "fp32": "FP32",
    "fp16": "FP16",
    "bf16": "BF16",
    "int8": "INT8",
}
# Engines lie beside each other there: ONNX Runtime names them by the graph's hash, TensorRT's
# version and the compute capability.
_ENGINE_CACHE = "/tmp/tritune-tensorrt-engines"
_TENSORRT_KEYS = (
    "precision_mode",
    "trt_engine_cache_enable",
    "trt_engine_cache_path",
    "trt_force_sequential_engine_build",
    "trt_profile_min_shapes",
    "trt_profile_opt_shapes",
    "trt_profile_max_shapes",
)


def optimization_settings(model: ModelInfo, configuration: Configuration) -> dict[str, Any]:
    """What the template writes into ``optimization``; empty where everything is the default."""
    execution = configuration.execution
    found: dict[str, Any] = {
        "graph_level": execution.graph_level,
        "cuda_graphs": execution.cuda_graphs,
        "unpinned": execution.pinned_memory is False,
        "accelerator": execution.accelerator,
    }
    if not any(found.values()):
        return {}
    found["accelerator_kind"] = _ACCELERATOR_FIELDS[configuration.device]
    found["accelerator_parameters"] = tuple(
        accelerator_settings(model, configuration.variant, configuration.max_batch_size).items()
    )
    return found


def accelerator_settings(model: ModelInfo, key: VariantKey, batch_max: int) -> dict[str, str]:
    """Triton's parameters of the accelerator of a variant; OpenVINO's takes none.

    TensorRT's engine is kept between starts, and is built once for every batch size up to the
    maximum: otherwise ONNX Runtime builds it anew, for seconds, whenever a larger batch comes.
    Where a dimension besides the batch axis is dynamic, or a name holds what parts the names in a
    range, none can be told, and that is left to it.
    """
    if key.execution.accelerator != "tensorrt":
        return {}
    batch_max = max(batch_max, 1)
    found = {
        "precision_mode": _PRECISION_MODES[key.precision],
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": _ENGINE_CACHE,
        "trt_force_sequential_engine_build": "1",
    }
    if model.batchable and all(map(_has_range, model.inputs)):
        for name, batch in (("min", 1), ("opt", batch_max), ("max", batch_max)):
            found[f"trt_profile_{name}_shapes"] = ",".join(
                f"{tensor.name}:{'x'.join(map(str, (batch, *tensor.shape)))}"
                for tensor in model.inputs
            )
    return found


def _has_range(tensor: TensorSpec) -> bool:
    """Whether a profile of ONNX Runtime, which reads ``NAME:1x3,NAME:1x8``, can tell its sizes."""
    return -1 not in tensor.shape and not set(tensor.name) & {":", ","}


def execution_parameters(configuration: Configuration) -> list[tuple[str, str]]:
    """The pairs of ``parameters`` that ONNX Runtime's backend reads."""
    execution = configuration.execution
    pairs = []
    if execution.execution_mode == "parallel":
        pairs.append((MODE_KEY, "1"))
    if execution.inter_op_threads:
        pairs.append((INTER_OP_KEY, str(execution.inter_op_threads)))
    if configuration.device == "gpu" and configuration.backend != "tensorrt":
        number = _CUDNN_SEARCHES.index(execution.cudnn_search or "heuristic")
        pairs.append((CUDNN_KEY, str(number)))
    return pairs


def execution_from_config(proto: Any, device: DeviceKind) -> Execution:
    """How ``proto`` has its instances on ``device`` executed; its backend is filled in.

    Raises:
        RepositoryError: A parameter has a value that Triton refuses.
    """
    optimization = proto.optimization
    level = int(optimization.graph.level)
    named = [one.name for one in _accelerators(proto, device)]
    known = [name for name in named if name in ("openvino", "tensorrt")]
    mode = _number(proto, MODE_KEY)
    if mode not in (0, 1):
        raise RepositoryError(
            f"Model {proto.name!r}: parameter {MODE_KEY} is {mode}.",
            hint="0 executes operators one after the other, 1 in parallel.",
        )
    search = _number(proto, CUDNN_KEY)
    if search >= len(_CUDNN_SEARCHES):
        raise RepositoryError(
            f"Model {proto.name!r}: parameter {CUDNN_KEY} is {search}.",
            hint="0 is the exhaustive search, 1 the heuristic one, 2 cuDNN's default.",
        )
    unpinned = any(
        optimization.HasField(name) and not getattr(optimization, name).enable
        for name in ("input_pinned_memory", "output_pinned_memory")
    )
    return Execution(
        accelerator=cast(Accelerator, known[0]) if known else None,
        # Triton takes any other level for its default.
        graph_level=cast(GraphLevel, level) if level in (-1, 1, 2) else None,
        execution_mode="parallel" if mode else "sequential",
        inter_op_threads=_number(proto, INTER_OP_KEY),
        cuda_graphs=bool(optimization.cuda.graphs),
        pinned_memory=not unpinned,
        cudnn_search=_CUDNN_SEARCHES[search],
    ).canonical(proto.backend, device)


def check_accelerators(proto: Any, device: DeviceKind) -> None:
    """Checks the execution accelerators of instances on ``device``, as ONNX Runtime's backend does.

    Raises:
        RepositoryError: One is unknown there.
    """
    known = ("openvino",) if device == "cpu" else ("tensorrt", "cuda")
    for one in _accelerators(proto, device):
        if one.name not in known:
            raise RepositoryError(
                f"Model {proto.name!r}: unknown Execution Accelerator '{one.name}' is requested.",
                hint=f"Instances on a {device.upper()} can have {' and '.join(known)}.",
            )


def accelerator_options(proto: Any, device: DeviceKind) -> dict[str, str]:
    """The parameters of the accelerator that instances on ``device`` have, as they are written."""
    for one in _accelerators(proto, device):
        if one.name in ("openvino", "tensorrt"):
            return dict(one.parameters)
    return {}


def unexpressed_accelerators(proto: Any) -> bool:
    """Whether ``proto`` asks of accelerators what an Execution cannot say."""
    accelerators = proto.optimization.execution_accelerators
    listed = [*accelerators.cpu_execution_accelerator, *accelerators.gpu_execution_accelerator]
    known: dict[str, tuple[str, ...]] = {"openvino": (), "tensorrt": _TENSORRT_KEYS}
    return len(listed) > 1 or any(
        one.name not in known or not set(one.parameters) <= set(known[one.name]) for one in listed
    )


def _accelerators(proto: Any, device: DeviceKind) -> list[Any]:
    """The accelerators that instances on ``device`` get from ONNX Runtime's backend."""
    if not proto.optimization.HasField("execution_accelerators"):
        return []
    return list(getattr(proto.optimization.execution_accelerators, _ACCELERATOR_FIELDS[device]))


def _number(proto: Any, key: str) -> int:
    """A parameter that is a whole number; 0 if it is not there."""
    if key not in proto.parameters:
        return 0
    value: str = proto.parameters[key].string_value
    if not value.isdecimal():
        raise RepositoryError(
            f"Model {proto.name!r}: parameter {key} is {value!r}.",
            hint="It is a whole number of at least 0.",
        )
    return int(value)
