"""A measurement's time counts from when it was asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from analyzer.domain.configuration import baseline_configuration
from analyzer.domain.measurement import Edge, Measurement
from analyzer.domain.model import TensorSpec
from analyzer.domain.sla import Sla
from analyzer.domain.workload import Poisson
from analyzer.engine.tensor_file import read_tensors
from analyzer.errors import AnalyzerError
from analyzer.hardware.gpus import GpuIdentity
from analyzer.hardware.machine import machine_id
from analyzer.measure import tasks
from analyzer.measure.jobs import WorkerContext
from analyzer.measure.plan import LoadPlan
from analyzer.measure.tasks import Assets, MeasureTask
from analyzer.search.virtual import VIRTUAL_MODEL


@pytest.mark.parametrize(("machine", "left_s"), [("here", 20.0), ("another", 30.0)])
def test_what_a_worker_took_to_start_is_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, machine: str, left_s: float
) -> None:
    """A first measurement that began 10 s late was cut off at the budget's end, and lost."""
    given: list[float] = []

    def session(*args: Any, seconds_max: float, **more: Any) -> None:
        given.append(seconds_max)
        raise AnalyzerError("enough")

    monkeypatch.setattr(tasks, "LiveSession", session)
    monkeypatch.setattr(tasks, "open_target", lambda *args, **more: nullcontext())
    monkeypatch.setattr(Assets, "variant", lambda *args: SimpleNamespace(path="m", engine=None))
    monkeypatch.setattr(Assets, "request_inputs", lambda *args: tmp_path)
    task = MeasureTask(
        assets=Assets(model=VIRTUAL_MODEL),
        configuration=baseline_configuration(batchable=True),
        load=LoadPlan(sla=Sla(latency_budget_ms=10.0), arrivals=Poisson()),
        seconds_max=30.0,
        asked=(machine_id() if machine == "here" else machine, time.monotonic() - 10.0),
    )
    task(
        WorkerContext(
            worker_id="cpu-0", device="cpu", gpu=None, cores=1, cache_dir=tmp_path, node="here"
        )
    )
    assert given == [pytest.approx(left_s, abs=3.0)]


def test_it_tells_how_long_it_took_to_its_first_load_test(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Ten seconds since it was asked for, of which three were load tests."""
    session: Any = nullcontext()
    session.tests = [SimpleNamespace(started_at=time.time() - 3.0)]
    session.logs = []
    monkeypatch.setattr(tasks, "LiveSession", lambda *args, **more: session)
    ready = SimpleNamespace(notes=())
    monkeypatch.setattr(tasks, "open_target", lambda *args, **more: nullcontext(ready))
    monkeypatch.setattr(Assets, "variant", lambda *args: SimpleNamespace(path="m", engine=None))
    monkeypatch.setattr(Assets, "request_inputs", lambda *args: tmp_path)
    configuration = baseline_configuration(batchable=True)
    found = Measurement(configuration=configuration, edge=Edge(interval_rps=(None, None)))
    monkeypatch.setattr(MeasureTask, "measure", lambda self, session: found)
    task = MeasureTask(
        assets=Assets(model=VIRTUAL_MODEL),
        configuration=configuration,
        load=LoadPlan(sla=Sla(latency_budget_ms=10.0), arrivals=Poisson()),
        asked=(machine_id(), time.monotonic() - 10.0),
    )
    context = WorkerContext(
        worker_id="cpu-0", device="cpu", gpu=None, cores=1, cache_dir=tmp_path, node="here"
    )
    outcome = task(context).outcome
    assert isinstance(outcome, Measurement) and outcome.start_s == pytest.approx(7.0, abs=1.0)


@pytest.mark.parametrize(
    ("server", "ours"),
    [("embedded", True), ("grpc://localhost:8001", True), ("grpc://10.0.0.5:8001", False)],
)
def test_a_server_elsewhere_is_not_on_the_workers_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: str, ours: bool
) -> None:
    """Memory, power and throttling of the worker's own GPU were told as the server's."""
    given: list[GpuIdentity | None] = []

    def session(*args: Any, gpu: GpuIdentity | None, **more: Any) -> None:
        given.append(gpu)
        raise AnalyzerError("enough")

    monkeypatch.setattr(tasks, "LiveSession", session)
    monkeypatch.setattr(tasks, "open_target", lambda *args, **more: nullcontext())
    monkeypatch.setattr(tasks, "gpu_used_bytes", lambda gpu: 1 << 30)
    monkeypatch.setattr(tasks, "measuring_on", lambda gpu: nullcontext())
    monkeypatch.setattr(tasks, "first_gpu", lambda: None)
    monkeypatch.setattr(Assets, "variant", lambda *args: SimpleNamespace(path="m", engine=None))
    monkeypatch.setattr(Assets, "request_inputs", lambda *args: tmp_path)
    task = MeasureTask(
        assets=Assets(model=VIRTUAL_MODEL),
        configuration=baseline_configuration(batchable=True),
        load=LoadPlan(sla=Sla(latency_budget_ms=10.0), arrivals=Poisson()),
        server=server,
    )
    own = GpuIdentity(uuid="GPU-1")
    task(
        WorkerContext(
            worker_id="gpu-0", device="gpu", gpu=own, cores=1, cache_dir=tmp_path, node="here"
        )
    )
    assert given == [own if ours else None]


def test_what_goes_wrong_at_the_servers_end_is_a_note(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A model that could not be unloaded stayed on the user's server without a word."""
    tokens: list[str] = []

    @contextmanager
    def opened(*args: Any, token: str, **more: Any) -> Iterator[SimpleNamespace]:
        tokens.append(token)
        target = SimpleNamespace(notes=("python instead",))
        yield target
        target.notes = (*target.notes, "still loaded")

    session: Any = nullcontext()
    session.tests = session.logs = []
    monkeypatch.setattr(tasks, "LiveSession", lambda *args, **more: session)
    monkeypatch.setattr(tasks, "open_target", opened)
    monkeypatch.setattr(Assets, "variant", lambda *args: SimpleNamespace(path="m", engine=None))
    monkeypatch.setattr(Assets, "request_inputs", lambda *args: tmp_path)
    configuration = baseline_configuration(batchable=True)
    found = Measurement(
        configuration=configuration,
        edge=Edge(interval_rps=(None, None)),
        notes=("python instead",),
    )
    monkeypatch.setattr(MeasureTask, "measure", lambda self, session: found)
    task = MeasureTask(
        assets=Assets(model=VIRTUAL_MODEL),
        configuration=configuration,
        load=LoadPlan(sla=Sla(latency_budget_ms=10.0), arrivals=Poisson()),
        server="grpc://localhost:8001",
    )
    outcome = task(
        WorkerContext(
            worker_id="cpu-0", device="cpu", gpu=None, cores=1, cache_dir=tmp_path, node="here"
        )
    ).outcome
    assert isinstance(outcome, Measurement)
    assert outcome.notes == ("python instead", "still loaded")
    assert tokens == [task.token] and task.token


def test_requests_are_made_of_rows_with_any_names(tmp_path: Path) -> None:
    """An input called "file" ended the search with a TypeError of numpy's."""
    inputs = tuple(TensorSpec(name=name, datatype="FP32", shape=(3,)) for name in ("file", "a/b"))
    assets = Assets(model=replace(VIRTUAL_MODEL, inputs=inputs))
    rows = read_tensors(assets.request_inputs(tmp_path))
    assert [(name, array.shape[1:]) for name, array in rows.items()] == [
        ("file", (3,)),
        ("a/b", (3,)),
    ]


def test_the_same_data_elsewhere_makes_the_same_requests(tmp_path: Path) -> None:
    """Jobs copy the data to places of their own: each left another file in the cache."""
    spec = TensorSpec(name="x", datatype="FP32", shape=(3,))
    model = replace(VIRTUAL_MODEL, inputs=(spec,))
    cache = tmp_path / "cache"

    def made(folder: str, rows: np.ndarray) -> Path:
        data = tmp_path / folder / "rows.npz"
        data.parent.mkdir(exist_ok=True)
        np.savez(data, x=rows)
        return Assets(model=model, calibration_path=str(data)).request_inputs(cache)

    first = made("a", np.zeros((4, 3), np.float32))
    assert made("b", np.zeros((4, 3), np.float32)) == first
    assert made("a", np.ones((4, 3), np.float32)) != first
    assert len(list(cache.iterdir())) == 2
