"""How a model's requests are queued and batched: Triton's settings for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from analyzer.domain.configuration import Configuration

TimeoutAction = Literal["REJECT", "DELAY"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """Triton's ``ModelQueuePolicy``.

    Args:
        timeout_action: What happens to an expired request: an error, or a place behind the others.
        default_timeout_us: Time in the queue after which a request expires, microseconds; 0: never.
        allow_timeout_override: Whether a request may shorten (never lengthen) its time-out.
        max_queue_size: Requests that may wait in the queue; 0: any number.
    """

    timeout_action: TimeoutAction = "REJECT"
    default_timeout_us: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0

    def __post_init__(self) -> None:
        assert self.timeout_action in ("REJECT", "DELAY"), self.timeout_action
        assert self.default_timeout_us >= 0, self.default_timeout_us
        assert self.max_queue_size >= 0, self.max_queue_size

    def timeout_us(self, requested_us: int) -> int:
        """The time-out of a request that asks for ``requested_us`` (0: it asks for none)."""
        if self.allow_timeout_override and 0 < requested_us < self.default_timeout_us:
            return requested_us
        return self.default_timeout_us


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingPolicy:
    """Everything that decides which requests run together, when, and on how many instances.

    Args:
        max_batch_size: Triton's field; 0 (a model that cannot be batched) schedules like 1.
        dynamic_batching: Whether requests are joined; without it only ``instance_count`` counts.
        preferred_batch_size: Triton's field; empty means ``(max_batch_size,)``.
        max_queue_delay_us: How long the oldest request may wait for further requests, microseconds.
        instance_count: Instances that execute at the same time.
        priority_levels: Number of priorities, 1 the most urgent; 0: none.
        default_priority_level: Level of a request that names none or one that does not exist.
        preserve_ordering: Reorders responses, which is the server's work: the scheduler ignores it.
        default_queue_policy: Queue policy of each level that has none of its own.
        priority_queue_policy: Pairs (level, policy).
        sleeps_through_arrivals: Whether the batcher reads the queue as Triton's thread really does:
            with a delay it sleeps until the queue alone could bring the forming payload to the next
            preferred size, until the delay has passed, or until an instance takes or ends a
            payload, so that a payload in F seldom grows. Otherwise it reads the queue at every
            arrival. Without a delay the two are the same.
    """

    max_batch_size: int = 0
    dynamic_batching: bool = False
    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_us: int = 0
    instance_count: int = 1
    priority_levels: int = 0
    default_priority_level: int = 0
    preserve_ordering: bool = False
    default_queue_policy: QueuePolicy = QueuePolicy()
    priority_queue_policy: tuple[tuple[int, QueuePolicy], ...] = ()
    sleeps_through_arrivals: bool = False

    def __post_init__(self) -> None:
        assert self.max_batch_size >= 0, self.max_batch_size
        assert self.instance_count >= 1, self.instance_count
        assert self.max_queue_delay_us >= 0, self.max_queue_delay_us
        preferred = self.preferred_batch_size
        assert all(1 <= size <= self.batch_limit for size in preferred), preferred
        assert self.priority_levels == 0 or (
            1 <= self.default_priority_level <= self.priority_levels
        ), self.default_priority_level

    @property
    def batch_limit(self) -> int:
        """The most inferences in one execution, at least 1."""
        return max(self.max_batch_size, 1)

    @property
    def preferred(self) -> frozenset[int]:
        """The preferred sizes after Triton's normalization."""
        return frozenset(self.preferred_batch_size or (self.batch_limit,))

    @property
    def prefetching(self) -> bool:
        """Whether payloads form ahead of idle instances (up to two for each).

        Any of priority levels, a default time-out, the override flag or a queue limit turns it off.
        """
        policy = self.default_queue_policy
        return self.priority_levels == 0 and not (
            policy.default_timeout_us or policy.allow_timeout_override or policy.max_queue_size
        )

    def queue_policy(self, level: int) -> QueuePolicy:
        """The policy of one priority level; without levels the default one, as in Triton."""
        own = dict(self.priority_queue_policy) if self.priority_levels else {}
        return own.get(level, self.default_queue_policy)

    @classmethod
    def from_configuration(cls, configuration: Configuration) -> BatchingPolicy:
        """The policy of a point of the search space (which has no priorities and time-outs).

        Its batcher sleeps as a real Triton's, which such a point is meant for.
        """
        canonical = configuration.canonical()
        return cls(
            max_batch_size=canonical.max_batch_size,
            dynamic_batching=canonical.dynamic_batching,
            preferred_batch_size=canonical.preferred_batch_size or (),
            max_queue_delay_us=canonical.max_queue_delay_us or 0,
            instance_count=canonical.instance_count,
            sleeps_through_arrivals=bool(canonical.max_queue_delay_us),
        )
