"""What a policy derives from Triton's settings."""

from __future__ import annotations

import pytest

from analyzer.domain.configuration import Configuration, baseline_configuration
from analyzer.engine.fault import Fault
from analyzer.engine.model_policy import policy_from_config
from analyzer.engine.policy import BatchingPolicy, QueuePolicy
from analyzer.engine.scheduler import Scheduler
from analyzer.modelconfig.text import parse_config


@pytest.mark.parametrize(
    ("settings", "prefetching"),
    [
        ({}, True),
        ({"priority_levels": 2, "default_priority_level": 1}, False),
        ({"default_queue_policy": QueuePolicy(default_timeout_us=1)}, False),
        ({"default_queue_policy": QueuePolicy(allow_timeout_override=True)}, False),
        ({"default_queue_policy": QueuePolicy(max_queue_size=1)}, False),
        ({"default_queue_policy": QueuePolicy(timeout_action="DELAY")}, True),
    ],
)
def test_prefetching(settings: dict[str, object], prefetching: bool) -> None:
    policy = BatchingPolicy(max_batch_size=4, dynamic_batching=True, **settings)  # type: ignore[arg-type]
    assert policy.prefetching is prefetching


def test_empty_preferred_means_the_maximum() -> None:
    assert BatchingPolicy(max_batch_size=4, dynamic_batching=True).preferred == {4}


def test_a_model_that_cannot_be_batched_has_the_limit_one() -> None:
    assert BatchingPolicy(max_batch_size=0).batch_limit == 1


def test_without_levels_the_default_queue_policy_counts() -> None:
    """As in Triton, whatever the configuration says of a level 0."""
    own = ((0, QueuePolicy(max_queue_size=1)), (1, QueuePolicy(max_queue_size=2)))
    policy = BatchingPolicy(max_batch_size=1, dynamic_batching=True, priority_queue_policy=own)
    assert policy.queue_policy(0) == QueuePolicy()


def test_the_queue_policy_of_a_model_that_cannot_be_batched_counts() -> None:
    """Triton joins none of its requests, and its queue is as large as it says."""
    config = parse_config(
        "max_batch_size: 0 dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
    )
    scheduler = Scheduler(policy_from_config(config, instance_count=1))
    scheduler.enqueue(0, 1)
    (execution,) = scheduler.advance(0).executions
    assert execution.tickets == (1,)
    scheduler.enqueue(0, 2)
    with pytest.raises(Fault, match="maximum queue size"):
        scheduler.enqueue(0, 3)
    scheduler.release(10, 0)
    assert [e.tickets for e in scheduler.advance(10).executions] == [(2,)]


def test_from_configuration() -> None:
    assert BatchingPolicy.from_configuration(
        baseline_configuration(batchable=True)
    ) == BatchingPolicy(
        max_batch_size=4, dynamic_batching=True, preferred_batch_size=(4,), instance_count=2
    )
    alone = Configuration(max_batch_size=1, dynamic_batching=True, max_queue_delay_us=100)
    assert BatchingPolicy.from_configuration(alone) == BatchingPolicy(max_batch_size=1)
    delayed = Configuration(max_batch_size=4, dynamic_batching=True, max_queue_delay_us=100)
    assert BatchingPolicy.from_configuration(delayed).sleeps_through_arrivals


@pytest.mark.parametrize(
    "settings",
    [
        {"max_batch_size": 4, "preferred_batch_size": (8,)},
        {"instance_count": 0},
        {"max_queue_delay_us": -1},
        {"priority_levels": 2},
    ],
)
def test_impossible_policies_do_not_exist(settings: dict[str, object]) -> None:
    with pytest.raises(AssertionError):
        BatchingPolicy(**settings)  # type: ignore[arg-type]
