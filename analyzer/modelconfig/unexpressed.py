"""What a ``config.pbtxt`` sets that a Configuration cannot say, so that it can be told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.descriptor import FieldDescriptor

from analyzer.modelconfig.execution import (
    CUDNN_KEY,
    INTER_OP_KEY,
    MODE_KEY,
    unexpressed_accelerators,
)
from analyzer.modelconfig.render import PRECISION_KEY, QUANTIZATION_KEY, THREADS_KEY

# What a Configuration says, the graph's own tensors, and what is looked at one by one below.
_SAID = frozenset(
    (
        "name",
        "platform",
        "backend",
        "default_model_filename",
        "max_batch_size",
        *(
            f"{kind}.{name}"
            for kind in ("input", "output")
            for name in ("name", "data_type", "dims")
        ),
        *(f"instance_group.{name}" for name in ("name", "kind", "count", "gpus", "passive")),
        "dynamic_batching.preferred_batch_size",
        "dynamic_batching.max_queue_delay_microseconds",
        "optimization.graph.level",
        "optimization.cuda.graphs",
        "optimization.input_pinned_memory",
        "optimization.output_pinned_memory",
        "optimization.execution_accelerators",
        "version_policy",
        "parameters",
        "model_warmup",
    )
)
_KEYS = (PRECISION_KEY, QUANTIZATION_KEY, THREADS_KEY, MODE_KEY, INTER_OP_KEY, CUDNN_KEY)


def unexpressed_settings(proto: Any) -> tuple[str, ...]:
    """Settings of ``proto`` that neither what is measured nor what is exported has.

    Each is a dotted field name, once, in the order of Triton's ``model_config.proto``.

    Args:
        proto: A ``ModelConfig`` as it is written, not normalized.
    """
    found = list(dict.fromkeys(_others(proto, "")))
    if len(proto.instance_group) > 1:
        found.append("instance_group (more than one)")
    # What is exported names GPU 0. Without gpus Triton takes all GPUs of a machine: where there is
    # one that is the same, and every claim is about one (docs/gpu.md).
    if any(gpu != 0 for group in proto.instance_group for gpu in group.gpus):
        found.append("instance_group.gpus")
    if unexpressed_accelerators(proto):
        found.append("optimization.execution_accelerators")
    policy = proto.version_policy
    if proto.HasField("version_policy") and policy.latest.num_versions != 1:
        found.append("version_policy")
    found += [f"parameters.{key}" for key in sorted(proto.parameters) if key not in _KEYS]
    if not all(_warms_with_zeros(sample) for sample in proto.model_warmup):
        found.append("model_warmup")
    return tuple(found)


def _others(message: Any, prefix: str) -> Iterator[str]:
    """Names of the fields of ``message`` that are set and not said; of messages their own."""
    for field, value in message.ListFields():
        name = f"{prefix}{field.name}"
        if name in _SAID:
            continue
        if field.cpp_type != FieldDescriptor.CPPTYPE_MESSAGE:
            yield name
            continue
        within = f"{name}."
        if any(said.startswith(within) for said in _SAID):
            for one in value if field.is_repeated else [value]:
                yield from _others(one, within)
        # An empty message asks for nothing, but for a batcher of its own.
        elif field.is_repeated or value.ByteSize() or field.containing_oneof is not None:
            yield name


def _warms_with_zeros(sample: Any) -> bool:
    """Whether a warm-up is like those that are exported."""
    return all(value.zero_data for value in sample.inputs.values())
