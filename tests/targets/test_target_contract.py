"""What every target promises the generator. A new target adds itself to ``TARGETS``."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import pytest

from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import STATUS_OK
from analyzer.load.generator import run_closed_loop, run_open_loop
from analyzer.targets.embedded import EmbeddedTarget
from analyzer.targets.embedded_spec import EmbeddedSpec, ScriptedModel
from analyzer.targets.null import NullTarget
from analyzer.targets.scripted import ScriptedTarget, constant_delay
from analyzer.targets.target import Target


def embedded() -> EmbeddedTarget:
    return EmbeddedTarget(
        EmbeddedSpec(
            name="m",
            model=ScriptedModel(points=((1, 1.0), (8, 2.0))),
            configuration=Configuration(max_batch_size=8, dynamic_batching=True),
            batchable=True,
        )
    )


TARGETS: dict[str, Callable[[], AbstractContextManager[Target]]] = {
    "null": NullTarget,
    "scripted": lambda: ScriptedTarget(constant_delay(0.002)),
    "embedded": embedded,
}


@pytest.fixture(params=TARGETS)
def target(request):
    with TARGETS[request.param]() as target:
        yield target


def test_each_request_is_answered_exactly_once(target: Target) -> None:
    with target.connect() as connection:
        for number in range(100):
            connection.send(number, 1 + number % 4)
        seen = []
        for _ in range(1000):
            seen += connection.receive(0.5)
            if len(seen) == 100:
                break
        assert list(connection.receive(0.01)) == []
    assert sorted(completion.request for completion in seen) == list(range(100))
    assert {completion.status for completion in seen} == {STATUS_OK}


def test_receive_comes_back_without_replies(target: Target) -> None:
    with target.connect() as connection:
        assert list(connection.receive(0.0)) == []
        assert list(connection.receive(0.01)) == []


def test_connections_do_not_mix(target: Target) -> None:
    with target.connect() as connection:
        for number in range(50):
            connection.send(number, 1)
    with target.connect() as connection:
        run = run_closed_loop(connection, 2, requests=20)
    assert run.strays == 0
    assert (run.log.status == STATUS_OK).all()


def test_counters_grow_by_what_was_answered(target: Target) -> None:
    with target.connect() as connection:
        run_closed_loop(connection, 4, 2, requests=20)
        before = target.statistics()
        run = run_open_loop(connection, np.arange(60) * 0.001, 3, timeout_s=5, drain_s=5)
        after = target.statistics()
    assert (run.log.status == STATUS_OK).all()
    if before is None:
        pytest.skip("this target keeps no counters")
    assert after.success_count - before.success_count == 60
    assert after.inference_count - before.inference_count == 180
    assert sum(size * count for size, count in after.batches) == after.inference_count
    assert sum(count for _, count in after.batches) == after.execution_count


def test_it_is_alive_and_tells_its_processes(target: Target) -> None:
    assert target.alive()
    assert all(pid > 0 for pid in target.pids)
