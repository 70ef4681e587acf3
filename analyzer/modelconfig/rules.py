"""What Triton makes of a configuration before it serves it: defaults, checks, instance groups.

Pure functions over ``ModelConfig`` after ``docs/triton-semantics.md``, section 1; the messages
follow ``model_config_utils.cc``. :func:`prepare` runs them in Triton's order. Functions named
``normalize_`` and ``autocomplete_`` change the message that they are given; those named
``validate_`` do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tritonclient.grpc import model_config_pb2

from analyzer.errors import RepositoryError
from analyzer.modelconfig.validation import reject, validate, validate_io

_KIND = model_config_pb2.ModelInstanceGroup
# Triton's own (max_sequence_idle_microseconds in model_config.proto).
SEQUENCE_IDLE_US_DEFAULT = 1_000_000
# Files by which Triton recognises the backend of a model without a configuration, and the pairs of
# platform and default file name that it fills in. The order is Triton's.
BACKEND_FILES = {
    "tensorrt": ("tensorrt_plan", "model.plan"),
    "onnxruntime": ("onnxruntime_onnx", "model.onnx"),
    "openvino": ("", "model.xml"),
    "pytorch": ("pytorch_libtorch", "model.pt"),
    "python": ("", "model.py"),
}
# Backends whose CPU instances default to two (``backend_model.cc``).
_TWO_CPU_INSTANCES = ("onnxruntime", "tensorflow")
# --backend-config=default-max-batch-size
MAX_BATCH_SIZE_DEFAULT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One instance that Triton would create.

    Args:
        name: ``<group>_<n>``, counted over all devices of the group.
        kind: ``cpu``, ``gpu`` or ``model``.
        device_id: The GPU; 0 for other kinds.
        passive: Created, but never scheduled.
        host_policy: Name of the host policy.
    """

    name: str
    kind: str
    device_id: int
    passive: bool
    host_policy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxTensor:
    """A tensor as the ONNX graph declares it, batch axis included; −1 is a dynamic dimension.

    Args:
        optional: An input that has a default (an initializer that a request may override).
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False


def prepare(
    proto: Any,
    *,
    directory_name: str,
    version_files: Sequence[str] = (),
    gpus: Sequence[int] = (),
) -> None:
    """Everything that happens to a configuration before its backend sees it.

    Fills name, backend, platform and file name; normalizes; validates; resolves instance groups.
    The backend's own completion (:func:`autocomplete_onnx`) comes next, then :func:`finish`.

    Args:
        proto: The ``ModelConfig``; changed in place.
        directory_name: Name of the model's folder.
        version_files: Names in the folder of one version, by which an absent backend is recognised.
        gpus: Ids of the usable GPUs.

    Raises:
        RepositoryError: Triton would reject it (INVALID_ARG).
    """
    fill_from_repository(proto, directory_name=directory_name, version_files=version_files)
    normalize(proto)
    validate(proto, directory_name=directory_name)
    normalize_instance_groups(proto, gpus=gpus)
    validate_instance_groups(proto, gpus=gpus)


def finish(proto: Any, *, directory_name: str) -> None:
    """What follows the backend's completion: normalized again, then everything validated, I/O too.

    Raises:
        RepositoryError: Triton would reject it.
    """
    normalize(proto)
    validate(proto, directory_name=directory_name)
    validate_io(proto)


def fill_from_repository(
    proto: Any, *, directory_name: str, version_files: Sequence[str] = ()
) -> None:
    """Fills an absent name, backend, platform and default file name from the model's folder."""
    if not proto.name:
        proto.name = directory_name
    if proto.platform == "ensemble" or proto.HasField("ensemble_scheduling"):
        if not proto.platform and not proto.backend:
            proto.platform = "ensemble"
        return
    if not proto.backend:
        for backend, (platform, filename) in BACKEND_FILES.items():
            unknown = not proto.platform and not proto.default_model_filename
            if (
                (platform and proto.platform == platform)
                or proto.default_model_filename == filename
                or (unknown and filename in version_files)
            ):
                proto.backend = backend
                break
    platform, filename = BACKEND_FILES.get(proto.backend, ("", ""))
    if platform and not proto.platform:
        proto.platform = platform
    if filename and not proto.default_model_filename:
        proto.default_model_filename = filename


def normalize(proto: Any) -> None:
    """Triton's ``NormalizeModelConfig``: the defaults that depend on nothing else.

    No version policy becomes latest 1 (an empty ``latest {}`` stays 0, which loads no version);
    batching without preferred sizes prefers the maximum; pinned memory is on.
    """
    if not proto.HasField("version_policy"):
        proto.version_policy.latest.num_versions = 1
    if proto.HasField("dynamic_batching"):
        _prefer_maximum(proto, proto.dynamic_batching.preferred_batch_size)
    if proto.HasField("sequence_batching"):
        sequence = proto.sequence_batching
        if sequence.max_sequence_idle_microseconds == 0:
            sequence.max_sequence_idle_microseconds = SEQUENCE_IDLE_US_DEFAULT
        if sequence.HasField("oldest"):
            _prefer_maximum(proto, sequence.oldest.preferred_batch_size)
    if not proto.HasField("ensemble_scheduling"):
        optimization = proto.optimization
        for name in ("input_pinned_memory", "output_pinned_memory"):
            if not optimization.HasField(name):
                getattr(optimization, name).enable = True


def _prefer_maximum(proto: Any, preferred: Any) -> None:
    if len(preferred) == 0 and proto.max_batch_size > 0:
        preferred.append(proto.max_batch_size)


def normalize_instance_groups(proto: Any, *, gpus: Sequence[int] = ()) -> None:
    """Resolves instance groups as Triton does: one if none, names, KIND_AUTO, GPUs, counts.

    An ensemble has none and is left alone.

    Args:
        proto: The ``ModelConfig``, its backend filled in; changed in place.
        gpus: Ids of the usable GPUs.
    """
    if proto.platform == "ensemble":
        return
    usable = list(gpus)
    if not proto.instance_group:
        proto.instance_group.add(name=proto.name)
    for index, group in enumerate(proto.instance_group):
        if not group.name:
            group.name = f"{proto.name}_{index}"
        if group.kind == _KIND.KIND_AUTO:
            known = all(gpu in usable for gpu in group.gpus)
            group.kind = _KIND.KIND_GPU if usable and known else _KIND.KIND_CPU
        if group.count < 1:
            two = group.kind == _KIND.KIND_CPU and proto.backend in _TWO_CPU_INSTANCES
            group.count = 2 if two else 1
        if group.kind == _KIND.KIND_GPU and not group.gpus:
            group.gpus.extend(usable)


def validate_instance_groups(proto: Any, *, gpus: Sequence[int] = ()) -> None:
    """Checks resolved instance groups.

    Raises:
        RepositoryError: A GPU that is not there, GPUs on another kind, a profile off TensorRT.
    """
    if proto.platform == "ensemble":
        if proto.instance_group:
            reject(f"instance group should not be specified for ensemble '{proto.name}'")
        return
    for group in proto.instance_group:
        where = f"instance group {group.name} of model {proto.name}"
        if group.kind == _KIND.KIND_GPU:
            if not group.gpus:
                reject(f"{where} has kind KIND_GPU but no GPUs are available")
            for gpu in group.gpus:
                if gpu not in gpus:
                    listed = ", ".join(str(known) for known in gpus) or "none"
                    reject(
                        f"{where} specifies invalid or unsupported gpu id {gpu}, usable: {listed}"
                    )
        elif group.gpus:
            kind = _KIND.Kind.Name(group.kind)
            reject(f"{where} has kind {kind} but specifies one or more GPUs")
        if group.profile and proto.backend != "tensorrt":
            reject(f"{where} specifies profiles, which only the TensorRT backend has")
        for profile in group.profile:
            if not profile.isdecimal():
                reject(f"{where}: profile {profile!r} is not a non-negative integer")


def expand_instances(proto: Any) -> tuple[Instance, ...]:
    """The instances of resolved groups, in order: ``count`` of them on each device of a group."""
    instances: list[Instance] = []
    for group in proto.instance_group:
        kind = _KIND.Kind.Name(group.kind).removeprefix("KIND_").lower()
        devices = list(group.gpus) if kind == "gpu" else [0]
        number = 0
        for device in devices:
            policy = group.host_policy or (f"gpu_{device}" if kind == "gpu" else kind)
            for _ in range(group.count):
                instances.append(
                    Instance(
                        name=f"{group.name}_{number}",
                        kind=kind,
                        device_id=device,
                        passive=group.passive,
                        host_policy=policy,
                    )
                )
                number += 1
    return tuple(instances)


def autocomplete_onnx(
    proto: Any,
    inputs: Sequence[OnnxTensor],
    outputs: Sequence[OnnxTensor],
    *,
    max_batch_size_default: int = MAX_BATCH_SIZE_DEFAULT,
) -> None:
    """Triton's ONNX Runtime backend completing a configuration (``onnxruntime.cc``).

    Nothing is done when inputs and outputs are both configured. Otherwise the model can be batched
    iff every input and output has a dynamic first dimension; then an absent maximum becomes the
    default and a maximum above 1 without a scheduler gets ``dynamic_batching {}``.

    Args:
        proto: The ``ModelConfig``; changed in place.
        inputs: The graph's inputs as they are declared; optional ones stay out.
        outputs: The graph's outputs.
        max_batch_size_default: ``--backend-config=default-max-batch-size``.

    Raises:
        RepositoryError: The model cannot be batched but a maximum is configured.
    """
    if proto.input and proto.output:
        return
    inputs = [tensor for tensor in inputs if not tensor.optional]
    batchable = all(t.shape[:1] == (-1,) for t in (*inputs, *outputs))
    if not batchable and proto.max_batch_size != 0:
        reject(
            f"autofill failed for model '{proto.name}': model does not support batching while "
            f"non-zero max_batch_size is specified"
        )
    if batchable:
        if proto.max_batch_size == 0:
            proto.max_batch_size = max(max_batch_size_default, 0)
        if proto.max_batch_size > 1 and proto.WhichOneof("scheduling_choice") is None:
            proto.dynamic_batching.SetInParent()
    batched = proto.max_batch_size > 0
    for field, tensors in ((proto.input, inputs), (proto.output, outputs)):
        if field:
            continue
        for tensor in tensors:
            dims = tensor.shape[1:] if batched else tensor.shape
            entry = field.add(name=tensor.name)
            datatype = "STRING" if tensor.datatype == "BYTES" else tensor.datatype
            entry.data_type = model_config_pb2.DataType.Value(f"TYPE_{datatype}")
            entry.dims.extend(dims or (1,))
            if not dims:
                entry.reshape.SetInParent()


def served_versions(proto: Any, available: Sequence[int]) -> tuple[int, ...]:
    """:func:`select_versions` of a configuration that need not be normalized; it is not changed.

    Raises:
        RepositoryError: It selects none of them.
    """
    filled: Any = type(proto)()
    filled.CopyFrom(proto)
    normalize(filled)
    return select_versions(filled, available)


def select_versions(proto: Any, available: Sequence[int]) -> tuple[int, ...]:
    """The versions that the (normalized) version policy serves, ascending.

    Raises:
        RepositoryError: It selects none of them.
    """
    policy = proto.version_policy
    ordered = sorted(available)
    chosen: list[int]
    if policy.HasField("specific"):
        chosen = sorted(set(policy.specific.versions) & set(ordered))
    elif policy.HasField("latest"):
        newest = policy.latest.num_versions
        chosen = ordered[len(ordered) - min(newest, len(ordered)) :]
    else:
        chosen = ordered
    if not chosen:
        raise RepositoryError(
            f"at least one version must be available under the version policy of model "
            f"'{proto.name}'",
            hint="A version is a folder named with a positive number that holds the model file.",
        )
    return tuple(chosen)
