"""Scripted runtimes."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from analyzer.domain.model import TensorSpec
from analyzer.engine.runtimes.scripted import (
    FailingRuntime,
    NullRuntime,
    ScriptedRuntime,
    linear_service_time_s,
)
from analyzer.errors import TargetCrashError, TargetMemoryError

INPUTS = {"x": np.ones((3, 2), np.float32)}


def test_null_answers_with_the_right_shapes() -> None:
    assert NullRuntime().run(INPUTS) is INPUTS
    spec = TensorSpec(name="y", datatype="FP16", shape=(4, -1))
    answer = NullRuntime([spec]).run(INPUTS)["y"]
    assert answer.shape == (3, 4, 1) and answer.dtype == np.float16
    assert NullRuntime([spec], batchable=False).run(INPUTS)["y"].shape == (4, 1)


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([(1, 0.01)], {1: 0.01, 9: 0.01}),
        ([(1, 0.010), (8, 0.017)], {1: 0.010, 4: 0.013, 16: 0.025}),
        ([(8, 0.02), (2, 0.01), (4, 0.01)], {1: 0.01, 3: 0.01, 6: 0.015, 10: 0.025}),
        ([(2, 0.0), (4, 0.02)], {1: 0.0, 3: 0.01}),
    ],
)
def test_service_times_are_linear_between_points(
    points: list[tuple[int, float]], expected: dict[int, float]
) -> None:
    service = linear_service_time_s(points)
    assert {size: service(size) for size in expected} == pytest.approx(expected)


def test_scripted_takes_its_time_by_batch_size() -> None:
    asked = []

    def service(size: int) -> float:
        asked.append(size)
        return 0.02

    started = time.perf_counter()
    assert ScriptedRuntime(service).run(INPUTS) is INPUTS
    assert time.perf_counter() - started >= 0.02 and asked == [3]


def test_failures_come_on_time() -> None:
    runtime = FailingRuntime(NullRuntime(), "out_of_memory", after=2)
    assert runtime.run(INPUTS) is INPUTS and runtime.run(INPUTS) is INPUTS
    for _ in range(2):
        with pytest.raises(TargetMemoryError):
            runtime.run(INPUTS)
    with pytest.raises(TargetCrashError):
        FailingRuntime(NullRuntime(), "crash").run(INPUTS)


def test_hang_lasts_until_it_is_closed() -> None:
    runtime = FailingRuntime(NullRuntime(), "hang")
    ended = threading.Event()

    def work() -> None:
        with pytest.raises(TargetCrashError):
            runtime.run(INPUTS)
        ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert not ended.wait(0.05)
    runtime.close()
    thread.join(5)
    assert ended.is_set()
