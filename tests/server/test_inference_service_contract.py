"""What a client is answered, whichever way it asks: directly, over HTTP or over gRPC."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from service_drivers import Ask, Driver, direct, over_grpc, over_http

from analyzer.engine.fault import Fault, FaultKind
from analyzer.server.limits import Limits

CONFIG = """
backend: "%s"
max_batch_size: 4
input [{ name: "X" data_type: TYPE_FP32 dims: [2] }]
output [{ name: "Y" data_type: TYPE_FP32 dims: [2] }]
instance_group [{ count: 1 kind: KIND_CPU }]
"""
SCRIPTED = CONFIG % "scripted"
QUICK, SLOW_S = CONFIG % "identity", 0.4
SLOW = SCRIPTED + 'parameters { key: "service_time_ms" value { string_value: "1=400" } }'
FAILING = SCRIPTED + 'parameters { key: "fault" value { string_value: "error" } }'
QUEUE = "dynamic_batching { preferred_batch_size: [1] default_queue_policy { %s } }"
MODELS = {
    "quick": QUICK,
    "slow": SLOW,
    "failing": FAILING,
    "limited": SLOW + QUEUE % "max_queue_size: 1",
    "timed": SLOW + QUEUE % "default_timeout_microseconds: 60000000 allow_timeout_override: true",
}
REQUESTS_MAX = 3
ONE = np.array([[1, 2]], np.float32)
ID = "[request id: <id_unknown>] "

Open = Callable[[Path, Limits], AbstractContextManager[Driver]]


@pytest.fixture(params=[direct, over_http, over_grpc], ids=lambda opened: opened.__name__)
def driver(request: pytest.FixtureRequest, repository: Path) -> Iterator[Driver]:
    for name, config in MODELS.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(config)
    opened: Open = request.param
    with opened(repository, Limits(requests_max=REQUESTS_MAX)) as found:
        yield found


class Background:
    """Requests on threads of their own; ``wait`` gives their outputs or faults."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._answers: list[Any] = []

    def start(self, driver: Driver, model: str, **call: Any) -> None:
        def ask() -> None:
            try:
                self._answers.append(driver.infer(Ask(model=model, inputs={"X": ONE}, **call)))
            except Fault as fault:
                self._answers.append((fault.kind, fault.message))

        self._threads.append(threading.Thread(target=ask))
        self._threads[-1].start()

    def wait(self) -> tuple[int, list[tuple[FaultKind, str]]]:
        """How many went well, and the faults."""
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        faults = [answer for answer in self._answers if isinstance(answer, tuple)]
        return len(self._answers) - len(faults), faults


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)


def start_and_queue(driver: Driver, model: str, waiting: int, **call: Any) -> Background:
    """A request that runs and ``waiting`` that wait behind it."""
    background = Background()
    background.start(driver, model)
    time.sleep(SLOW_S / 4)
    for number in range(waiting):
        background.start(driver, model, **call)
        until(lambda number=number: driver.repository.get(model).details().waiting_count > number)  # type: ignore[misc]
    return background


def refused(driver: Driver, model: str, inputs: Any, **call: Any) -> tuple[FaultKind, str]:
    with pytest.raises(Fault) as caught:
        driver.infer(Ask(model=model, inputs=inputs, **call))
    return caught.value.kind, caught.value.message


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("call", [{}, {"version": "1"}, {"outputs": ("Y",)}])
def test_outputs(driver: Driver, rows: int, call: dict[str, Any]) -> None:
    x = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
    outputs = driver.infer(Ask(model="quick", inputs={"X": x}, **call))
    assert list(outputs) == ["Y"]
    np.testing.assert_array_equal(outputs["Y"], x)


@pytest.mark.parametrize(
    ("model", "version", "kind", "message"),
    [
        ("nope", "", "not_found", "Request for unknown model: 'nope' is not found"),
        ("quick", "9", "not_found", "Request for unknown model: 'quick' version 9 is not found"),
        ("quick", "9" * 19, "invalid", "failed to get model version from specified version"),
    ],
)
def test_unknown_models(
    driver: Driver, model: str, version: str, kind: FaultKind, message: str
) -> None:
    found = refused(driver, model, {"X": ONE}, version=version)
    assert found[0] == kind
    assert found[1].startswith(message)


@pytest.mark.parametrize(
    ("inputs", "call", "message"),
    [
        ({}, {}, ID + "expected 1 inputs but got 0 inputs for model 'quick'"),
        ({"Z": ONE}, {}, "unexpected inference input 'Z' for model 'quick'"),
        ({"X": ONE, "Z": ONE}, {}, ID + "expected 1 inputs but got 2 inputs"),
        (
            {"X": np.zeros((1, 3), np.float32)},
            {},
            ID + "unexpected shape for input 'X' for model 'quick'. Expected [-1,2], got [1,3]",
        ),
        (
            {"X": np.zeros((1, 2), np.int32)},
            {},
            ID + "inference input 'X' data-type is 'INT32', but model 'quick' expects 'FP32'",
        ),
        (
            {"X": np.zeros((5, 2), np.float32)},
            {},
            ID + "inference request batch-size must be <= 4 for 'quick'",
        ),
        ({"X": ONE}, {"outputs": ("Z",)}, "unexpected inference output 'Z' for model 'quick'"),
    ],
)
def test_requests_that_do_not_fit(
    driver: Driver, inputs: Any, call: dict[str, Any], message: str
) -> None:
    kind, found = refused(driver, "quick", inputs, **call)
    assert kind == "invalid"
    assert found.startswith(message)


def test_an_execution_that_fails(driver: Driver) -> None:
    kind, message = refused(driver, "failing", {"X": ONE})
    assert (kind, message) == (
        "internal",
        "the scripted model fails, as it was told",
    )


@pytest.mark.timing
def test_a_full_queue(driver: Driver) -> None:
    background = start_and_queue(driver, "limited", 1)
    assert refused(driver, "limited", {"X": ONE}) == ("unavailable", "Exceeds maximum queue size")
    assert background.wait() == (2, [])


@pytest.mark.timing
def test_a_timeout_in_the_queue(driver: Driver) -> None:
    background = start_and_queue(driver, "timed", 1, timeout_us=50_000)
    assert background.wait() == (1, [("unavailable", "Request timeout expired")])


@pytest.mark.timing
def test_the_limit_of_requests_in_the_server(driver: Driver) -> None:
    background = start_and_queue(driver, "slow", REQUESTS_MAX - 1)
    expected = ("unavailable", "too many requests are in the server")
    assert refused(driver, "quick", {"X": ONE}) == expected
    assert background.wait() == (REQUESTS_MAX, [])
    driver.infer(Ask(model="quick", inputs={"X": ONE}))


def test_a_model_that_is_not_ready(driver: Driver) -> None:
    driver.unload("quick")
    unknown = "Request for unknown model: 'quick' "
    assert refused(driver, "quick", {"X": ONE}) == (
        "not_found",
        f"{unknown}has no available versions",
    )
    assert refused(driver, "quick", {"X": ONE}, version="1") == (
        "unavailable",
        f"{unknown}version 1 is not at ready state",
    )
    deadline = time.monotonic() + 30
    while (state := driver.index()["quick"]) == "UNLOADING" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert state == "UNAVAILABLE"
    driver.load("quick")
    assert driver.index()["quick"] == "READY"
    driver.infer(Ask(model="quick", inputs={"X": ONE}))


@pytest.mark.parametrize("loaded", [True, False])
def test_a_model_that_stops_between_look_up_and_start(
    driver: Driver, repository: Path, monkeypatch: pytest.MonkeyPatch, loaded: bool
) -> None:
    """What has taken its place runs the call; it was refused as unavailable."""
    old, look_up = driver.repository.get("quick"), driver.repository.get
    if loaded:
        (repository / "quick" / "2").mkdir()
        driver.load("quick")
    else:
        driver.unload("quick")
    old.close()
    monkeypatch.setattr(
        driver.repository,
        "get",
        lambda name, version="": look_up(name, version) if old.rejected_count else old,
    )
    if loaded:
        outputs = driver.infer(Ask(model="quick", inputs={"X": ONE}))
        np.testing.assert_array_equal(outputs["Y"], ONE)
    else:
        assert refused(driver, "quick", {"X": ONE})[0] == "not_found"
    assert old.rejected_count == 1


def test_a_model_that_cannot_be_loaded(driver: Driver) -> None:
    with pytest.raises(Fault, match="failed to load 'nope', failed to poll from model") as caught:
        driver.load("nope")
    assert caught.value.kind == "internal"


@pytest.mark.timing
def test_requests_are_answered_though_their_model_is_unloaded(driver: Driver) -> None:
    background = start_and_queue(driver, "slow", 1)
    driver.unload("slow")
    assert refused(driver, "slow", {"X": ONE})[0] == "not_found"
    assert background.wait() == (2, [])


def test_metadata(driver: Driver) -> None:
    metadata = driver.metadata("quick")
    assert metadata["name"] == "quick"
    assert [int(version) for version in metadata["versions"]] == [1]
    assert metadata["inputs"] == [{"name": "X", "datatype": "FP32", "shape": [-1, 2]}]
    with pytest.raises(Fault, match="'nope' is not found") as caught:
        driver.metadata("nope")
    assert caught.value.kind == "not_found"


def test_statistics(driver: Driver) -> None:
    for rows in (1, 3, 3):
        driver.infer(Ask(model="quick", inputs={"X": np.zeros((rows, 2), np.float32)}))
    refused(driver, "quick", {"X": np.zeros((5, 2), np.float32)})  # touches no counter
    refused(driver, "failing", {"X": ONE})
    found = driver.statistics("quick")
    assert (found["inference_count"], found["execution_count"]) == (7, 3)
    assert found["inference_stats"]["success"]["count"] == 3
    batches = {entry["batch_size"]: entry["compute_infer"] for entry in found["batch_stats"]}
    assert {size: times["count"] for size, times in batches.items()} == {1: 1, 3: 2}
    assert driver.statistics("failing")["inference_stats"]["fail"]["count"] == 1
    with pytest.raises(Fault, match="requested model 'nope' is not available") as caught:
        driver.statistics("nope")
    assert caught.value.kind == "invalid"
