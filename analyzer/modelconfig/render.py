"""A configuration of ours to ``config.pbtxt`` (from its template) and back.

What Triton's fields cannot say, the precision of the graph, goes into ``parameters`` under keys of
our own: Triton's core keeps the map as it is, the ONNX Runtime and TensorRT backends look up their
own keys only, and the python backend hands the map to ``model.py``. So a ``config.pbtxt`` alone
gives its configuration back.

Every input and output is always written: only then Triton's ONNX Runtime backend leaves alone the
batching that is written (``docs/triton-semantics.md``, section 1, auto-complete).
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, cast, get_args

import jinja2
from google.protobuf import text_encoding
from tritonclient.grpc import model_config_pb2

from analyzer import __version__
from analyzer.domain.configuration import (
    Backend,
    Configuration,
    DeviceKind,
    Precision,
    Quantization,
)
from analyzer.domain.model import ModelInfo, TensorSpec
from analyzer.errors import RepositoryError
from analyzer.modelconfig.execution import (
    execution_from_config,
    execution_parameters,
    optimization_settings,
)
from analyzer.modelconfig.rules import normalize_instance_groups
from analyzer.modelconfig.text import ModelConfig, parse_config
from analyzer.resources import templates_dir

PRECISION_KEY = "tritune_precision"
QUANTIZATION_KEY = "tritune_quantization"
THREADS_KEY = "intra_op_thread_count"
MODEL_FILENAMES = {"onnxruntime": "model.onnx", "tensorrt": "model.plan", "python": "model.py"}
_PLATFORMS = {"onnxruntime": "onnxruntime_onnx", "tensorrt": "tensorrt_plan", "python": ""}
_TENSORRT_COMMENT = (
    "Start Triton with --disable-auto-complete-config: otherwise its TensorRT backend adds",
    "dynamic batching, which this configuration leaves off.",
)


def render_config(
    model: ModelInfo,
    configuration: Configuration,
    *,
    backend: Backend | None = None,
    warmup: bool = True,
    name: str | None = None,
    filename: str | None = None,
) -> str:
    """The text of a ``config.pbtxt`` that serves ``model`` as ``configuration`` says.

    Args:
        model: What is served; its shapes are without the batch axis where it is batchable.
        configuration: How; made canonical first.
        backend: Triton's backend if it is not the configuration's own.
        warmup: Whether each instance runs zeros (valid for every input, tables included) at the
            configuration's ``warmup_batch_sizes`` before it is ready. Left out where 0 is no valid
            input.
        name: Name under which it is served; the model's own by default.
        filename: Name of the file in the version's folder; the backend's default by default.

    Raises:
        RepositoryError: Triton cannot serve the model like this (batching without a batch axis, a
            scalar without a batch axis, an empty dimension); or the text does not parse back into
            the same configuration.
    """
    wanted = served_configuration(configuration, backend)
    served_as = name or model.name
    if wanted.max_batch_size > 0 and not model.batchable:
        raise RepositoryError(
            f"Model {model.name} has no batch axis, but max_batch_size is {wanted.max_batch_size}.",
            hint="A model with a fixed batch is served with max_batch_size 0.",
        )
    inputs = [_tensor(model, wanted, tensor) for tensor in model.inputs]
    unbatched_tensorrt = (
        wanted.backend == "tensorrt" and wanted.max_batch_size > 1 and not wanted.dynamic_batching
    )
    text = (
        template_environment()
        .get_template("config.pbtxt.j2")
        .render(
            generator_version=__version__,
            config_id=wanted.config_id,
            variant_label=wanted.variant.label,
            comments=_TENSORRT_COMMENT if unbatched_tensorrt else (),
            name=served_as,
            platform=_PLATFORMS[wanted.backend],
            backend=wanted.backend,
            filename=filename or MODEL_FILENAMES[wanted.backend],
            max_batch_size=wanted.max_batch_size,
            inputs=inputs,
            outputs=[_tensor(model, wanted, tensor) for tensor in model.outputs],
            instance_kind="KIND_GPU" if wanted.device == "gpu" else "KIND_CPU",
            instance_count=wanted.instance_count,
            gpus=(0,) if wanted.device == "gpu" else (),
            dynamic_batching=wanted.dynamic_batching,
            preferred_batch_size=wanted.preferred_batch_size,
            max_queue_delay_us=wanted.max_queue_delay_us,
            optimization=optimization_settings(model, wanted),
            parameters=_parameters(wanted),
            warmup_batch_sizes=_warmup_batch_sizes(model, wanted) if warmup else (),
        )
    )
    read_back = configuration_from_config(parse_config(text, where=f"{served_as}/config.pbtxt"))
    # Which machine it is for is not told there.
    if read_back != replace(wanted, instance_type=None):
        raise RepositoryError(
            f"The config.pbtxt of {served_as} reads back as {read_back.to_dict()}, "
            f"not as {wanted.to_dict()}.",
            hint="This is a fault of the template config.pbtxt.j2.",
        )
    return text


def served_configuration(configuration: Configuration, backend: Backend | None) -> Configuration:
    """The canonical ``configuration`` on ``backend`` (its own if None), with its threads spelt out.

    On a CPU no number of threads means ONNX Runtime's default, which Triton spells 0.
    """
    wanted = replace(configuration, backend=backend or configuration.backend).canonical()
    if wanted.device == "cpu" and wanted.intra_op_threads is None:
        wanted = replace(wanted, intra_op_threads=0)
    return wanted


def configuration_from_config(proto: Any, *, gpus: tuple[int, ...] = ()) -> Configuration:
    """The canonical configuration that ``proto`` deploys.

    Fields that a :class:`Configuration` cannot express are not looked at;
    :mod:`~analyzer.modelconfig.unexpressed` names them. Without our own parameters the precision is
    taken for fp32, since Triton's configuration does not tell it.

    Args:
        proto: A ``ModelConfig``, normalized or not.
        gpus: Usable GPUs, by which instance groups without a kind are resolved.

    Raises:
        RepositoryError: The backend is none that we serve, or a parameter has an impossible value.
    """
    filled: Any = ModelConfig()
    filled.CopyFrom(proto)
    backend = tuned_backend(filled)
    filled.backend = backend
    normalize_instance_groups(filled, gpus=gpus)
    groups = [group for group in filled.instance_group if not group.passive]
    kind_gpu = model_config_pb2.ModelInstanceGroup.KIND_GPU
    device: DeviceKind = "gpu" if any(group.kind == kind_gpu for group in groups) else "cpu"
    batching = filled.dynamic_batching
    dynamic = filled.HasField("dynamic_batching") and filled.max_batch_size > 1
    try:
        return Configuration(
            precision=cast(
                Precision, _choice(filled, PRECISION_KEY, get_args(Precision)) or "fp32"
            ),
            quantization=cast(
                Quantization | None, _choice(filled, QUANTIZATION_KEY, get_args(Quantization))
            ),
            backend=cast(Backend, backend),
            device=device,
            max_batch_size=filled.max_batch_size,
            dynamic_batching=dynamic,
            preferred_batch_size=tuple(batching.preferred_batch_size) if dynamic else None,
            max_queue_delay_us=batching.max_queue_delay_microseconds if dynamic else None,
            instance_count=max(sum(group.count for group in groups), 1),
            intra_op_threads=_threads(filled) if device == "cpu" else None,
            **asdict(execution_from_config(filled, device)),
        ).canonical()
    except AssertionError as error:
        raise RepositoryError(
            f"Model {filled.name!r}: its batching or instances are impossible ({error}).",
            hint="Preferred sizes lie between 1 and max_batch_size, counts are at least 1.",
        ) from error


def tuned_backend(proto: Any) -> str:
    """The backend of ``proto``, told by its platform where it names none.

    Raises:
        RepositoryError: It is none that can be tuned.
    """
    backend: str = proto.backend or _backend_of_platform(proto.platform)
    if backend not in MODEL_FILENAMES:
        raise RepositoryError(
            f"Model {proto.name!r}: backend {backend!r} is not one that can be tuned.",
            hint=f"Tuned are models for {', '.join(MODEL_FILENAMES)}.",
        )
    return backend


def input_shapes(proto: Any) -> tuple[dict[str, tuple[int, ...]], ...]:
    """What ``proto`` says of inputs whose every dimension it gives, without the batch axis.

    Not of inputs that Triton reshapes: the model's own shape is another there. Two readings where
    Triton does not batch: the first dimension may still be the graph's batch axis.
    """
    shapes = {
        tensor.name: tuple(tensor.dims)
        for tensor in proto.input
        if tensor.dims and min(tensor.dims) > 0 and not tensor.HasField("reshape")
    }
    if proto.max_batch_size > 0:
        return (shapes,)
    return shapes, {name: dims[1:] for name, dims in shapes.items()}


def _tensor(model: ModelInfo, configuration: Configuration, tensor: TensorSpec) -> dict[str, Any]:
    """A tensor for the template; a dim-less batched one becomes ``[1]`` with an empty reshape.

    Outputs have the graph's own dims: ONNX Runtime's backend in Triton refuses any other, sizes for
    open dimensions too. An engine's are closed where those of its inputs are.
    """
    dims = tensor.shape if configuration.backend == "tensorrt" else tensor.graph_shape
    if model.batchable and configuration.max_batch_size == 0:
        dims = (-1, *dims)  # the batch axis is an ordinary dimension when Triton does not batch
    if any(dim == 0 for dim in dims):
        raise RepositoryError(
            f"Tensor {tensor.name} of {model.name} has an empty dimension {list(dims)}.",
            hint="Triton serves dimensions of at least 1.",
        )
    if not dims and configuration.max_batch_size == 0:
        raise RepositoryError(
            f"Tensor {tensor.name} of {model.name} is a scalar, which Triton cannot serve "
            "without a batch axis.",
            hint="Give the tensor one dimension in the model.",
        )
    return {
        "name": tensor.name,
        "data_type": f"TYPE_{tensor.datatype}" if tensor.datatype != "BYTES" else "TYPE_STRING",
        "dims": list(dims) or [1],
        "scalar": not dims,
    }


def _parameters(configuration: Configuration) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = [(PRECISION_KEY, configuration.precision)]
    if configuration.quantization:
        pairs.append((QUANTIZATION_KEY, configuration.quantization))
    if configuration.intra_op_threads is not None and configuration.backend != "tensorrt":
        pairs.append((THREADS_KEY, str(configuration.intra_op_threads)))
    return pairs + execution_parameters(configuration)


def _warmup_batch_sizes(model: ModelInfo, configuration: Configuration) -> tuple[int, ...]:
    if model.refuses_zeros:
        return ()
    for tensor in model.inputs:
        low, high = tensor.value_range or (0, 0)
        if not low <= 0 <= high:
            return ()
        if -1 in tensor.shape or (model.batchable and configuration.max_batch_size == 0):
            return ()  # a sample needs every dimension
    return configuration.warmup_batch_sizes


def _choice(proto: Any, key: str, allowed: tuple[str, ...]) -> str | None:
    if key not in proto.parameters:
        return None
    value: str = proto.parameters[key].string_value
    if value not in allowed:
        raise RepositoryError(
            f"Model {proto.name!r}: parameter {key} is {value!r}.",
            hint=f"It is one of {', '.join(allowed)}.",
        )
    return value


def _threads(proto: Any) -> int | None:
    if THREADS_KEY not in proto.parameters:
        return 0 if proto.backend == "onnxruntime" else None
    text: str = proto.parameters[THREADS_KEY].string_value
    if not text.isdecimal():
        raise RepositoryError(
            f"Model {proto.name!r}: parameter {THREADS_KEY} is {text!r}.",
            hint="It is a number of threads; 0 leaves it to ONNX Runtime.",
        )
    return int(text)


def _backend_of_platform(platform: str) -> str:
    names = {name: backend for backend, name in _PLATFORMS.items() if name}
    return names.get(platform, platform)


def template_environment() -> jinja2.Environment:
    """Jinja2 over the shipped templates, with a filter that quotes for protobuf's text format."""
    # Nothing here is HTML; strings are quoted by the filter, as protobuf's text format wants.
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates_dir()),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        keep_trailing_newline=True,
    )
    environment.filters["pbstring"] = lambda text: f'"{text_encoding.CEscape(text, as_utf8=True)}"'
    return environment
