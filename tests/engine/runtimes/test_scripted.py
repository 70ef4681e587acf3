"""Scripted runtimes: times by batch size, and faults on purpose."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time

import numpy as np
import pytest

from analyzer.engine.runtimes.scripted import Script, ScriptedRuntime, linear_service_time_s
from analyzer.errors import TargetError, TargetMemoryError

INPUTS = {"x": np.ones((3, 2), np.float32)}


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


@pytest.mark.parametrize(("batchable", "seconds"), [(True, 0.03), (False, 0.01)])
def test_an_execution_takes_the_time_of_its_batch(
    batchable: bool, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = ScriptedRuntime(Script([(1, 0.01), (3, 0.03)]), batchable=batchable)
    started = time.perf_counter()
    assert runtime.run(INPUTS) is INPUTS
    assert time.perf_counter() - started >= seconds
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    runtime.run(INPUTS)
    assert slept == pytest.approx([seconds], rel=0.05)


def test_busy_neighbours_make_an_execution_longer() -> None:
    script = Script([(1, 0.02)], interference=4.0)
    script.enter()  # another instance is at work
    started = time.perf_counter()
    ScriptedRuntime(script).run(INPUTS)
    assert time.perf_counter() - started >= 0.1


def test_random_times_follow_from_seed_and_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    for seed, index in ((1, 0), (1, 0), (1, 1), (2, 0)):
        ScriptedRuntime(Script([(1, 0.01)], exponential=True, seed=seed), index).run(INPUTS)
    assert slept[0] == slept[1]
    assert len(set(slept)) == 3


@pytest.mark.parametrize(("fault", "kind"), [("memory", TargetMemoryError), ("error", TargetError)])
def test_faults_come_on_time_whichever_instance_runs(fault: str, kind: type[Exception]) -> None:
    script = Script([(1, 0.0)], fault=fault, fault_after=2)  # type: ignore[arg-type]
    first, second = ScriptedRuntime(script, 0), ScriptedRuntime(script, 1)
    assert first.run(INPUTS) is INPUTS and second.run(INPUTS) is INPUTS
    for runtime in (first, second, first):
        with pytest.raises(kind):
            runtime.run(INPUTS)


def test_a_hang_lasts_until_it_is_closed() -> None:
    runtime = ScriptedRuntime(Script([(1, 0.0)], fault="hang"))
    ended = threading.Event()

    def work() -> None:
        with pytest.raises(TargetError):
            runtime.run(INPUTS)
        ended.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert not ended.wait(0.05)
    runtime.close()
    thread.join(5)
    assert ended.is_set()


def _crash() -> None:
    ScriptedRuntime(Script([(1, 0.0)], fault="crash")).run(INPUTS)


def test_a_crash_ends_the_process() -> None:
    process = multiprocessing.get_context("spawn").Process(target=_crash)
    process.start()
    process.join(30)
    assert process.exitcode == -signal.SIGABRT
