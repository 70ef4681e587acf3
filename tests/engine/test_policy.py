"""What a policy derives from Triton's settings."""

from __future__ import annotations

import pytest

from analyzer.domain.configuration import Configuration, baseline_configuration
from analyzer.engine.policy import BatchingPolicy, QueuePolicy


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
