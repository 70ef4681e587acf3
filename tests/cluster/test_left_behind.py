"""A measurement that is killed leaves no model on the server that it measured."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from analyzer.cluster.in_process import InProcessExecutor
from analyzer.cluster.left_behind import for_another_worker, unload_left
from analyzer.domain.configuration import Configuration
from analyzer.domain.sla import Sla
from analyzer.domain.workload import Poisson
from analyzer.measure.jobs import Executor, Job, WorkerContext
from analyzer.measure.plan import LoadPlan
from analyzer.measure.tasks import Assets, MeasureTask
from analyzer.targets.address import open_endpoint
from analyzer.targets.endpoint_target import temporary_name
from analyzer.variants.inspect import inspect_model
from benchlib.own_server import own_server

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits.onnx"
START_S = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that loads models on request."""
    repository = tmp_path_factory.mktemp("repository")
    with own_server(repository, "--model-control-mode", "explicit") as started:
        yield f"grpc://{started.grpc}"


def task_on(server: str) -> MeasureTask:
    """Two minutes of requests at a light load."""
    return MeasureTask(
        assets=Assets(model=inspect_model(DIGITS)),
        configuration=Configuration(max_batch_size=4, dynamic_batching=True, intra_op_threads=1),
        load=LoadPlan(sla=Sla(latency_budget_ms=1e3, target_rate_rps=20.0), arrivals=Poisson()),
        server=server,
        target_seconds=120.0,
    )


def loaded_name(task: MeasureTask) -> str:
    return temporary_name(task.assets.model.name, task.configuration, task.token)


def test_a_killed_measurement_leaves_no_model_loaded(executor: Executor, server: str) -> None:
    """Its process, which would have unloaded it, was gone: the user's server kept the model."""
    task = task_on(server)
    with closing(open_endpoint(server)) as endpoint:
        executor.submit(Job("measure", task, 120.0))
        deadline = time.monotonic() + START_S
        while not endpoint.ready(loaded_name(task)):
            assert executor.next_result(0.05) is None and time.monotonic() < deadline
        executor.cancel_all()
        assert not endpoint.ready(loaded_name(task))


class Endless:
    """Work without an end, which notes when what it left is asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, context: WorkerContext) -> object:
        while True:
            time.sleep(0.01)

    def unload_left(self) -> str:
        self.asked += 1
        raise KeyError("state")

    def renamed(self) -> Endless:
        raise AssertionError("it runs on no other machine")


def test_in_process_what_was_interrupted_is_unloaded_as_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The exceptions that end a job's thread may end its own unloading; and a fault ends none."""
    work = Endless()
    with InProcessExecutor(device="cpu", cache_dir=tmp_path) as executor:
        executor.submit(Job("late", work, 0.1))
        assert executor.next_result(START_S) is not None
        assert work.asked == 1
        executor.submit(Job("next", lambda context: 1, START_S))
        after = executor.next_result(START_S)
        assert after is not None and after.value == 1
    assert work.asked == 1
    told = capsys.readouterr().err
    assert told == "Note: The job late may have left its model loaded: KeyError: 'state'\n"


def test_what_could_not_be_unloaded_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    task = task_on("http://127.0.0.1:1")
    unload_left(Job("measure", task, 1.0))
    told = capsys.readouterr().err
    assert f"Note: The model {loaded_name(task)} may still be loaded" in told
    assert "127.0.0.1:1 does not answer" in told


def test_a_job_whose_machine_was_lost_loads_under_another_name() -> None:
    """That machine may live on, and unload what it loaded in the middle of the new measurement."""
    task = task_on("http://127.0.0.1:1")
    again = for_another_worker(Job("measure", task, 1.0, "a label"))
    assert again.job_id == "measure" and again.label == "a label"
    assert isinstance(again.run, MeasureTask)
    assert again.run.token != task.token and replace(again.run, token=task.token) == task
    other = Job("other", lambda context: None, 1.0)
    assert for_another_worker(other) is other


def test_other_jobs_leave_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    def run(context: WorkerContext) -> object:
        return None

    unload_left(Job("other", run, 1.0))
    unload_left(Job("measure", task_on("embedded"), 1.0))
    assert capsys.readouterr().err == ""
