"""What every target promises the generator. A new target adds itself to ``TARGETS``."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from analyzer.domain.configuration import Configuration
from analyzer.domain.load_test import STATUS_ERROR, STATUS_OK
from analyzer.errors import TargetCrashError
from analyzer.load.generator import run_closed_loop, run_open_loop
from analyzer.load.summarize import statistics_between
from analyzer.targets.embedded import EmbeddedTarget
from analyzer.targets.embedded_spec import EmbeddedSpec, ScriptedModel
from analyzer.targets.endpoint_target import existing_model_target
from analyzer.targets.null import NullTarget
from analyzer.targets.scripted import ScriptedTarget
from analyzer.targets.target import Connection, Target
from analyzer.targets.triton_server import TritonServer
from benchlib.own_server import own_server
from benchlib.scripted_triton import Script, inputs, triton_target

BATCH_MAX = 4
BATCH_MS = 20.0
CONFIGURATION = Configuration(backend="python", max_batch_size=BATCH_MAX, dynamic_batching=True)
# Every target that can fail a request fails this one: too large, or by its script.
REFUSED, TOO_LARGE = 1_000_000, BATCH_MAX + 1

SERVED = f"""
backend: "scripted"
max_batch_size: {BATCH_MAX}
input [{{ name: "X" data_type: TYPE_FP32 dims: [1] }}]
output [{{ name: "Y" data_type: TYPE_FP32 dims: [1] }}]
instance_group [{{ count: 1 kind: KIND_CPU }}]
dynamic_batching {{}}
parameters {{ key: "service_time_ms" value {{ string_value: "1={BATCH_MS}" }} }}
"""


@contextmanager
def null(request: pytest.FixtureRequest) -> Iterator[tuple[Target, int | None]]:
    yield NullTarget(), None


@contextmanager
def scripted(request: pytest.FixtureRequest) -> Iterator[tuple[Target, int | None]]:
    status = lambda request: STATUS_ERROR if request == REFUSED else STATUS_OK  # noqa: E731
    yield ScriptedTarget(lambda request, size: BATCH_MS / 1e3, status=status), None


@contextmanager
def embedded(request: pytest.FixtureRequest) -> Iterator[tuple[Target, int | None]]:
    spec = EmbeddedSpec(
        name="m",
        model=ScriptedModel(points=((1, BATCH_MS),)),
        configuration=CONFIGURATION,
        batchable=True,
    )
    with EmbeddedTarget(spec) as target:
        yield target, target.pids[0]


@contextmanager
def endpoint(
    request: pytest.FixtureRequest, *, protocol: str
) -> Iterator[tuple[Target, int | None]]:
    """Our own server as a process, reached by its address."""
    repository = request.getfixturevalue("tmp_path_factory").mktemp("repository")
    (repository / "m" / "1").mkdir(parents=True)
    (repository / "m" / "config.pbtxt").write_text(SERVED)
    with own_server(repository) as server:
        address = f"{protocol}://{getattr(server, protocol)}"
        with existing_model_target(address, "m", inputs(), batchable=True) as target:
            yield target, server.process.pid


@contextmanager
def real_triton(
    request: pytest.FixtureRequest, *, protocol: str
) -> Iterator[tuple[Target, int | None]]:
    script = Script(fixed_ms=BATCH_MS, item_ms=0.0)
    with (
        TritonServer(request.getfixturevalue("triton_install")) as server,
        triton_target(server, "m", CONFIGURATION, script, protocol=protocol) as target,
    ):
        yield target, server.pids[0]


# Each yields the target and the process that can be killed, if there is one.
Opener = Callable[[pytest.FixtureRequest], AbstractContextManager[tuple[Target, int | None]]]
TARGETS: dict[str, Opener] = {
    "null": null,
    "scripted": scripted,
    "embedded": embedded,
    "http": partial(endpoint, protocol="http"),
    "grpc": partial(endpoint, protocol="grpc"),
    "triton-http": partial(real_triton, protocol="http"),
    "triton-grpc": partial(real_triton, protocol="grpc"),
}


def kinds(*left_out: str) -> list[object]:
    return [
        pytest.param(kind, marks=[pytest.mark.triton] if kind.startswith("triton") else [])
        for kind in TARGETS
        if kind not in left_out
    ]


@pytest.fixture(scope="module", params=kinds())
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    with TARGETS[request.param](request) as (target, _):
        yield target


def receive_all(connection: Connection, count: int) -> dict[int, int]:
    """The status by the number of each request; each must be answered once."""
    statuses: dict[int, int] = {}
    deadline = time.monotonic() + 60
    while len(statuses) < count and time.monotonic() < deadline:
        for completion in connection.receive(0.5):
            assert completion.request not in statuses, "answered twice"
            statuses[completion.request] = completion.status
    return statuses


def test_each_request_is_answered_exactly_once(target: Target) -> None:
    with target.connect() as connection:
        for _ in range(2):  # every run numbers its requests from 0
            for number in range(60):
                connection.send(number, 1 + number % BATCH_MAX)
            assert receive_all(connection, 60) == dict.fromkeys(range(60), STATUS_OK)
        assert list(connection.receive(0.01)) == []


@pytest.mark.timing
def test_sending_does_not_wait(target: Target) -> None:
    count = 60
    with target.connect() as connection:
        connection.send(count, BATCH_MAX)  # connections, encoded requests
        receive_all(connection, 1)
        start = time.perf_counter()
        for number in range(count):
            connection.send(number, BATCH_MAX)
        sent_s = time.perf_counter() - start
        assert len(receive_all(connection, count)) == count
    assert sent_s < count * BATCH_MS / 1e3 / 2, "as if each waited for the one before"


def test_receive_comes_back_without_replies(target: Target) -> None:
    with target.connect() as connection:
        assert list(connection.receive(0.0)) == []
        assert list(connection.receive(0.01)) == []


def test_connections_do_not_mix(target: Target) -> None:
    with target.connect() as first, target.connect() as second:
        for number in range(8):
            first.send(number, 1)
            second.send(number + 4, 1)
        assert sorted(receive_all(first, 8)) == list(range(8))
        assert sorted(receive_all(second, 8)) == list(range(4, 12))


def test_replies_of_an_earlier_connection_do_not_come_to_the_next(target: Target) -> None:
    with target.connect() as connection:
        for number in range(50):
            connection.send(number, 1)
    with target.connect() as connection:
        run = run_closed_loop(connection, 2, requests=10)
    assert run.strays == 0
    assert (run.log.status == STATUS_OK).all()


@pytest.mark.timing
def test_counters_grow_by_what_was_answered(target: Target) -> None:
    with target.connect() as connection:
        run_closed_loop(connection, 4, 2, requests=20)
        time.sleep(0.2)  # a server may count a request after its reply was sent
        before = target.statistics()
        run = run_open_loop(connection, np.arange(30) * 0.001, 3, timeout_s=5, drain_s=5)
        time.sleep(0.2)
        counted = statistics_between(before, target.statistics())
    assert (run.log.status == STATUS_OK).all()
    assert counted is not None, "every target of ours counts"
    assert (counted.success_count, counted.inference_count) == (30, 90)
    assert counted.fail_count == 0
    assert sum(size * count for size, count in counted.batches) == 90
    assert sum(count for _, count in counted.batches) == counted.execution_count
    # What a reply tells of its stages is what the server counts.
    told_s = float(run.log.compute_infer_s.sum(dtype=float))
    if not np.isnan(told_s):
        assert told_s == pytest.approx(counted.compute_infer_ns / 1e9, rel=1e-4, abs=1e-6)


def test_it_is_alive_and_tells_of_itself(target: Target) -> None:
    assert target.alive()
    assert all(Path(f"/proc/{pid}").exists() for pid in target.pids)
    assert all(isinstance(note, str) for note in target.notes)


@pytest.mark.parametrize("kind", kinds("null"))
def test_a_failed_request_is_a_failed_completion_and_no_more(
    kind: str, request: pytest.FixtureRequest
) -> None:
    with TARGETS[kind](request) as (target, _), target.connect() as connection:
        assert connection.failure == ""
        connection.send(REFUSED, TOO_LARGE)
        connection.send(0, 1)
        assert receive_all(connection, 2) == {REFUSED: STATUS_ERROR, 0: STATUS_OK}
        if kind != "scripted":  # whose script tells no reason
            deadline = time.monotonic() + 5  # a log is read by a thread of its own
            while not connection.failure and time.monotonic() < deadline:
                time.sleep(0.01)
            assert "batch" in connection.failure
        assert target.alive()


@pytest.mark.parametrize("kind", kinds("null", "scripted"))
def test_a_server_that_is_killed_is_a_crash(kind: str, request: pytest.FixtureRequest) -> None:
    with TARGETS[kind](request) as (target, pid):
        with target.connect() as connection:
            connection.send(0, 1)
            assert receive_all(connection, 1) == {0: STATUS_OK}
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(TargetCrashError):
                deadline, number = time.monotonic() + 60, 0
                while time.monotonic() < deadline:
                    number += 1
                    connection.send(number, 1)
                    connection.receive(0.1)
        with pytest.raises(TargetCrashError):
            target.statistics()
        assert not target.alive()


@pytest.mark.parametrize("kind", kinds("null", "scripted"))
def test_what_has_ended_is_not_alive(kind: str, request: pytest.FixtureRequest) -> None:
    with TARGETS[kind](request) as (target, _):
        pass
    assert not target.alive()
