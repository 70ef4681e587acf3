"""The scheduler's settings from a model configuration."""

from __future__ import annotations

from typing import Any

from tritonclient.grpc import model_config_pb2

from analyzer.engine.policy import BatchingPolicy, QueuePolicy


def policy_from_config(config: Any, *, instance_count: int) -> BatchingPolicy:
    """The policy of a validated ``ModelConfig``."""
    dynamic = config.dynamic_batching
    if not config.HasField("dynamic_batching"):
        return BatchingPolicy(max_batch_size=config.max_batch_size, instance_count=instance_count)
    return BatchingPolicy(
        max_batch_size=config.max_batch_size,
        dynamic_batching=True,
        preferred_batch_size=tuple(sorted(set(dynamic.preferred_batch_size))),
        max_queue_delay_us=dynamic.max_queue_delay_microseconds,
        instance_count=instance_count,
        sleeps_through_arrivals=dynamic.max_queue_delay_microseconds > 0,
        priority_levels=dynamic.priority_levels,
        default_priority_level=dynamic.default_priority_level,
        preserve_ordering=dynamic.preserve_ordering,
        default_queue_policy=_queue_policy(dynamic.default_queue_policy),
        priority_queue_policy=tuple(
            (level, _queue_policy(dynamic.priority_queue_policy[level]))
            for level in sorted(dynamic.priority_queue_policy)
        ),
    )


def _queue_policy(policy: Any) -> QueuePolicy:
    delay = policy.timeout_action == model_config_pb2.ModelQueuePolicy.DELAY
    return QueuePolicy(
        timeout_action="DELAY" if delay else "REJECT",
        default_timeout_us=policy.default_timeout_microseconds,
        allow_timeout_override=policy.allow_timeout_override,
        max_queue_size=policy.max_queue_size,
    )
