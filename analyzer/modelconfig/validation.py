"""Triton's checks of a configuration, with its messages (``model_config_utils.cc``).

Each ``validate_`` function raises :class:`~analyzer.errors.RepositoryError` where Triton answers
INVALID_ARG, and changes nothing.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn

from tritonclient.grpc import model_config_pb2

from analyzer.errors import RepositoryError

_PLATFORM_BACKENDS = {
    "tensorrt_plan": "tensorrt",
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
    "ensemble": "",
}
_KNOWN_BACKENDS = {backend for backend in _PLATFORM_BACKENDS.values() if backend}
_IMAGE_FORMATS = (model_config_pb2.ModelInput.FORMAT_NHWC, model_config_pb2.ModelInput.FORMAT_NCHW)
_DELAY = model_config_pb2.ModelQueuePolicy.DELAY


def reject(message: str) -> NoReturn:
    """Raises the error by which Triton refuses a configuration."""
    raise RepositoryError(message, hint="Triton refuses this configuration as well.")


def validate(proto: Any, *, directory_name: str) -> None:
    """Checks everything but I/O and instance groups.

    Args:
        proto: A normalized ``ModelConfig``.
        directory_name: Name of the model's folder; the configured name must equal it.

    Raises:
        RepositoryError: Triton would reject it.
    """
    name = proto.name
    if not name:
        reject("model configuration must specify 'name'")
    if name != directory_name:
        reject(
            f"unexpected directory name '{directory_name}' for model '{name}', "
            "directory name must equal model name"
        )
    _validate_platform(proto)
    if proto.max_batch_size < 0:
        reject(f"'max_batch_size' must be non-negative value for {name}")
    if not proto.HasField("version_policy"):
        reject(f"must specify 'version policy' for {name}")
    if proto.HasField("dynamic_batching"):
        _validate_dynamic_batching(proto)
    if proto.HasField("sequence_batching"):
        _validate_sequence_batching(proto)
    if proto.HasField("ensemble_scheduling"):
        _validate_ensemble(proto)
    if proto.response_cache.enable:
        if proto.HasField("sequence_batching"):
            reject(f"Response caching is not supported with sequence batching for model: {name}")
        if proto.model_transaction_policy.decoupled:
            reject(f"Response caching is not supported with decoupled models: {name}")


def _validate_platform(proto: Any) -> None:
    ensemble = proto.HasField("ensemble_scheduling")
    if proto.platform == "ensemble":
        if proto.backend:
            reject(f"unexpected 'backend' for ensemble '{proto.name}'")
        if not ensemble:
            reject(f"ensemble scheduling must be set for ensemble {proto.name}")
        return
    if ensemble:
        reject(
            f"ensemble scheduling cannot be set for model '{proto.name}' whose platform is "
            f"not ensemble"
        )
    if not proto.backend:
        reject(f"unexpected platform type '{proto.platform}' for {proto.name}")
    # A backend that Triton does not know by name (python, one's own) goes with any platform.
    known = proto.backend in _KNOWN_BACKENDS
    if known and proto.platform and _PLATFORM_BACKENDS.get(proto.platform) != proto.backend:
        reject(f"unexpected 'platform' and 'backend' pair, got:{proto.platform}, {proto.backend}")


def _validate_dynamic_batching(proto: Any) -> None:
    name, batching = proto.name, proto.dynamic_batching
    _validate_preferred(proto, batching.preferred_batch_size, "dynamic batching")
    levels = batching.priority_levels
    if levels:
        if not 1 <= batching.default_priority_level <= levels:
            reject(f"default priority level must be in range [1, {levels}] for {name}")
        for level in sorted(batching.priority_queue_policy):
            if not 1 <= level <= levels:
                reject(
                    f"priority queue policy must have priority level in range [1, {levels}] "
                    f"for {name}"
                )
    if batching.preserve_ordering:
        if levels > 1:
            reject(
                f"Only one priority level is allowed when 'preserve_ordering' is true for {name}"
            )
        policies = [batching.default_queue_policy]
        policies += [
            batching.priority_queue_policy[level] for level in batching.priority_queue_policy
        ]
        for policy in policies:
            if policy.default_timeout_microseconds and policy.timeout_action == _DELAY:
                reject(
                    "Queue policy can not have DELAY as timeout action when 'preserve_ordering' "
                    f"is true for {name}"
                )


def _validate_sequence_batching(proto: Any) -> None:
    name, sequence = proto.name, proto.sequence_batching
    if sequence.HasField("oldest"):
        _validate_preferred(proto, sequence.oldest.preferred_batch_size, "sequence batching")
    utilization = sequence.direct.minimum_slot_utilization
    if not 0.0 <= utilization <= 1.0:
        reject(f"sequence batching minimum slot utilization must be in range [0.0, 1.0] for {name}")


def _validate_ensemble(proto: Any) -> None:
    name = proto.name
    if proto.HasField("optimization"):
        reject(f"optimization should not be specified for ensemble '{name}'")
    if proto.model_warmup:
        reject(f"model_warmup can not be specified for ensemble '{name}'")
    if not proto.ensemble_scheduling.step:
        reject(f"must specify 'step' for ensemble '{name}'")
    made: set[str] = set()
    used: set[str] = set()
    given = {tensor.name for tensor in proto.input}
    for number, step in enumerate(proto.ensemble_scheduling.step):
        for field in ("model_name", "input_map", "output_map"):
            if not getattr(step, field):
                reject(f"must specify '{field}' in step {number} of ensemble '{name}'")
        for _, outer in sorted(step.output_map.items()):
            if outer in made:
                reject(
                    f"ensemble tensor '{outer}' can appear in an output map only once for "
                    f"ensemble '{name}' step {number}"
                )
            if outer in given:
                # Triton loads it; which of the two a step then gets is left to the race.
                raise RepositoryError(
                    f"ensemble tensor '{outer}' of ensemble '{name}' is an input and comes from "
                    f"step {number}, too",
                    hint="Give the step's output another name in its output_map.",
                )
            made.add(outer)
        used.update(step.input_map.values())
    wanted = {tensor.name for tensor in proto.output}
    # The misplaced quotation mark is Triton's.
    for kind, names in (("input", given), ("output", wanted)):
        for outer in sorted(names - used - made):
            reject(f"ensemble {kind} '{outer}' for ensemble {name}' is not used")
    ready = _ready_tensors(proto)
    for outer in sorted(wanted - ready):
        reject(f"output '{outer}' for ensemble '{name}' is not produced: its steps never all run")
    for outer in sorted((made | used) - wanted):
        if outer not in ready or outer not in used:
            reject(f"ensemble tensor '{outer}' is unused in ensemble '{name}'")


def _ready_tensors(proto: Any) -> set[str]:
    """The tensors that exist once every step of an ensemble has run that can."""
    ready = {tensor.name for tensor in proto.input}
    pending = list(proto.ensemble_scheduling.step)
    while pending:
        runs = [step for step in pending if ready.issuperset(step.input_map.values())]
        if not runs:
            break
        for step in runs:
            ready.update(step.output_map.values())
            pending.remove(step)
    return ready


def _validate_preferred(proto: Any, preferred: Any, what: str) -> None:
    for size in preferred:
        if size <= 0:
            reject(f"{what} preferred size must be positive for {proto.name}")
        if size > proto.max_batch_size:
            reject(f"{what} preferred size must be <= max batch size for {proto.name}")


def validate_io(proto: Any) -> None:
    """Checks inputs and outputs.

    Raises:
        RepositoryError: A tensor lacks name, type or dims, or one of these is impossible.
    """
    for kind, tensors in (("input", proto.input), ("output", proto.output)):
        for tensor in tensors:
            _validate_tensor(proto, tensor, kind)


def _validate_tensor(proto: Any, tensor: Any, kind: str) -> None:
    if not tensor.name:
        reject(f"model {kind} must specify 'name' for {proto.name}")
    what = f"model {kind} '{tensor.name}'"
    if tensor.data_type == model_config_pb2.TYPE_INVALID:
        reject(f"{what} must specify 'data_type' for {proto.name}")
    if not tensor.dims:
        reject(f"{what} must specify 'dims' for {proto.name}")
    if kind == "input" and tensor.format in _IMAGE_FORMATS and len(tensor.dims) != 3:
        reject(f"model input NHWC/NCHW require 3 dims for {proto.name}")
    for dim in tensor.dims:
        if dim < 1 and dim != -1:
            reject(
                f"{what} dimension must be integer >= 1, or -1 to indicate a variable-size "
                f"dimension for {proto.name}"
            )
    if tensor.HasField("reshape"):
        _validate_reshape(proto, tensor, what)
    if tensor.is_shape_tensor and proto.backend != "tensorrt":
        reject(f"shape tensors are only supported for TensorRT platform for {proto.name}")
    if tensor.is_non_linear_format_io and proto.backend != "tensorrt":
        reject(f"non-linear format IO is only supported for TensorRT platform for {proto.name}")


def _validate_reshape(proto: Any, tensor: Any, what: str) -> None:
    shape, dims = list(tensor.reshape.shape), list(tensor.dims)
    if not shape and proto.max_batch_size == 0:
        reject(
            f"{what} cannot have empty reshape for non-batching model as scalar tensors are not "
            f"supported for {proto.name}"
        )
    for dim in shape:
        if dim < 1 and dim != -1:
            reject(f"{what} reshape dimension must be integer >= 1, or -1 for {proto.name}")
    # Variable dimensions must correspond one by one, with equal products between them.
    if _products(dims) != _products(shape):
        reject(f"{what} has different size for dims and reshape for {proto.name}")


def _products(dims: list[int]) -> list[int]:
    """Element counts of the stretches between variable dimensions."""
    stretches: list[list[int]] = [[]]
    for dim in dims:
        if dim == -1:
            stretches.append([])
        else:
            stretches[-1].append(dim)
    return [math.prod(stretch) for stretch in stretches]
