"""Probes and what is learned from them: plans, curves, interference, the cache's round trip."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from analyzer.domain.configuration import DEFAULT_EXECUTION, Configuration
from analyzer.engine.tensor_file import write_tensors
from analyzer.measure import probe_main
from analyzer.measure.probe import ProbedModel, run_probes
from analyzer.twin.calibration import VariantCalibration
from analyzer.twin.probes import PROBES_MAX, Probe, ProbeResult, plan_probes

FP32 = Configuration().variant
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def result(threads: int, busy: int, batch: int, mean_ms: float, *, count: int = 10) -> ProbeResult:
    samples = tuple(mean_ms * (1.0 + 0.001 * (index % 3 - 1)) for index in range(count))
    return ProbeResult(probe=Probe(threads=threads, busy=busy, batch=batch), samples_ms=samples)


def calibrated(*results: ProbeResult) -> VariantCalibration:
    return VariantCalibration(variant=FP32, results=results)


@given(
    deployments=st.lists(
        st.tuples(st.integers(1, 8), st.integers(0, 8)), min_size=1, max_size=12, unique=True
    ),
    batch_max=st.integers(1, 512),
    request=st.integers(1, 64),
)
def test_a_plan_has_at_most_twenty_probes_that_the_space_allows(
    deployments: list[tuple[int, int]], batch_max: int, request: int
) -> None:
    probes = plan_probes(deployments=deployments, batch_max=batch_max, request_batch_size=request)
    assert 0 < len(probes) <= PROBES_MAX
    assert len(set(probes)) == len(probes)
    assert all(1 <= probe.batch <= batch_max for probe in probes)
    pairs = {(1, threads) for _, threads in deployments} | set(deployments)
    assert all((probe.busy, probe.threads) in pairs for probe in probes)
    assert any(probe.busy == 1 for probe in probes)


def test_contention_on_a_gpu_stays_in_and_that_of_crowded_cores_goes() -> None:
    # Half of the executions wait for another instance's kernels.
    samples = (1.0, 2.0) * 20
    crowded = ProbeResult(probe=Probe(threads=0, busy=4, batch=8), samples_ms=samples)
    shared = ProbeResult(probe=Probe(threads=0, busy=4, batch=8, on_gpu=True), samples_ms=samples)
    assert crowded.mean_ms == pytest.approx(1.0)
    assert shared.mean_ms == pytest.approx(1.5, abs=0.03)
    calibration = VariantCalibration(variant=FP32, results=(shared,))
    assert VariantCalibration.from_dict(FP32, calibration.to_dict()) == calibration
    plan = plan_probes(deployments=[(1, 0), (4, 0)], batch_max=64, on_gpu=True)
    assert all(probe.on_gpu for probe in plan)


def test_a_model_that_cannot_be_batched_is_probed_with_one() -> None:
    probes = plan_probes(deployments=[(1, 1), (2, 1)], batch_max=1)
    assert {probe.batch for probe in probes} == {1}
    assert {probe.busy for probe in probes} == {1, 2}


def test_the_curve_and_the_interference_are_those_of_the_probes() -> None:
    known = calibrated(
        result(1, 1, 1, 2.0), result(1, 1, 8, 9.0), result(1, 2, 1, 2.4), result(1, 2, 8, 10.8)
    )
    service = known.service(1, 2, cores=2)
    assert service is not None
    assert service.batch_sizes == (1, 8)
    assert service.service_ms == pytest.approx((2.0, 9.0), rel=0.01)
    assert [size for size, _ in service.interference_by_size] == [1, 8]
    assert service.interference_at(2, np.array([1, 3, 8]))[1] == pytest.approx(1.2, rel=0.01)
    assert service.distribution == "empirical"


def test_between_probed_numbers_of_instances_a_straight_line() -> None:
    known = calibrated(result(1, 1, 1, 2.0), result(1, 3, 1, 3.0))
    service = known.service(1, 3, cores=2)
    assert service is not None
    assert service.interference_at(3, np.array([1]))[:, 0] == pytest.approx(
        (1.0, 1.25, 1.5), rel=0.01
    )


def test_neighbours_that_seem_to_help_do_not() -> None:
    known = calibrated(result(1, 1, 1, 2.0), result(1, 2, 1, 1.9))
    service = known.service(1, 2, cores=2)
    assert service is not None and service.interference_at(2, np.array([1])).min() >= 1.0


def test_unprobed_threads_are_taken_from_probed_ones() -> None:
    known = calibrated(result(1, 1, 1, 4.0))
    service = known.service(2, 1, cores=2)
    assert service is not None and 2.0 < service.service_ms[0] < 4.0
    assert known.service(0, 1, cores=2) is None


def test_without_probes_nothing_is_known() -> None:
    assert calibrated().service(1, 1, cores=2) is None
    skipped = ProbeResult(probe=Probe(threads=1, busy=1, batch=64), samples_ms=())
    assert calibrated(skipped).service(1, 1, cores=2) is None


def test_the_slowest_percent_does_not_move_the_mean() -> None:
    samples = (1.0,) * 199 + (500.0,)
    probe = ProbeResult(probe=Probe(threads=1, busy=1, batch=1), samples_ms=samples)
    assert probe.mean_ms == pytest.approx(1.0)


def test_a_calibration_survives_the_cache() -> None:
    known = calibrated(
        result(1, 1, 1, 2.0),
        ProbeResult(probe=Probe(threads=1, busy=1, batch=64, seconds=0.4), samples_ms=()),
    )
    text = json.dumps(known.to_dict())
    assert VariantCalibration.from_dict(FP32, json.loads(text)) == known


def test_only_what_was_not_probed_is_probed_again() -> None:
    known = calibrated(result(1, 1, 1, 2.0))
    plan = [Probe(threads=1, busy=1, batch=1, seconds=9.0), Probe(threads=1, busy=2, batch=1)]
    assert known.lacks(plan) == plan[1:]
    newer = result(1, 1, 1, 3.0)
    assert known.merged([newer]).results == (newer,)


def test_a_batch_that_was_too_slow_is_tried_again_only_under_a_longer_budget() -> None:
    probe = Probe(threads=1, busy=1, batch=64)
    known = calibrated(ProbeResult(probe=probe, samples_ms=(), limit_ms=20.0))
    assert known.lacks([probe], limit_ms=20.0) == []
    assert known.lacks([probe], limit_ms=50.0) == [probe]
    kept = VariantCalibration.from_dict(FP32, json.loads(json.dumps(known.to_dict())))
    assert kept == known


def probed_model(path: Path, *probes: Probe) -> ProbedModel:
    return ProbedModel(
        path=path,
        backend="onnxruntime",
        execution=DEFAULT_EXECUTION,
        accelerator_options={},
        size_bytes=1 << 20,
        probes=probes,
    )


def test_a_batch_that_the_model_does_not_run_is_known_and_not_tried_again(tmp_path: Path) -> None:
    """A graph with a table of three positions, one for each row."""
    positions = numpy_helper.from_array(np.zeros((3, 4), np.float32), "positions")
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"], end=1),
        helper.make_node("Squeeze", ["shape"], ["rows"]),
        helper.make_node("Range", ["zero", "rows", "one"], ["indices"]),
        helper.make_node("Gather", ["positions", "indices"], ["own"]),
        helper.make_node("Add", ["x", "own"], ["y"]),
    ]
    numbers = {"zero": np.array(0, np.int64), "one": np.array(1, np.int64)}
    scalars = [numpy_helper.from_array(array, name) for name, array in numbers.items()]
    tensors = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 4]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", tensors[:1], tensors[1:], [positions, *scalars])
    onnx_model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(onnx_model, str(tmp_path / "model.onnx"))
    write_tensors(tmp_path / "inputs.npz", {"x": np.ones((8, 4), np.float32)})
    probes = tuple(Probe(threads=1, busy=1, batch=batch, seconds=0.05) for batch in (1, 2, 8, 4))
    model = probed_model(tmp_path / "model.onnx", *probes)
    (results,) = run_probes(
        [model],
        device="cpu",
        batchable=True,
        inputs_path=tmp_path / "inputs.npz",
        batch_ms_max=1e4,
        seconds_max=30.0,
    )
    known = VariantCalibration.from_dict(FP32, calibrated(*results).to_dict())
    assert [(r.probe.batch, bool(r.samples_ms), bool(r.failed)) for r in known.results] == [
        (1, True, False),
        (2, True, False),
        (8, False, True),
        (4, False, True),
    ]
    assert known.failure is not None and known.failure.probe.batch == 4
    assert known.lacks(probes) == []


def test_models_take_turns_in_one_process_and_end_in_time(tmp_path: Path) -> None:
    inputs = tmp_path / "inputs.npz"
    images = np.load(EXAMPLES / "digits.npz")["image"][:8].astype(np.float32)
    write_tensors(inputs, {"image": images})
    model = probed_model(
        EXAMPLES / "digits.onnx",
        Probe(threads=1, busy=2, batch=1, seconds=0.1),
        Probe(threads=1, busy=1, batch=1, seconds=0.1),
        Probe(threads=1, busy=1, batch=4, seconds=0.1),
        Probe(threads=1, busy=1, batch=8, seconds=0.1),
    )

    def probed(batch_ms_max: float, seconds_max: float) -> list[list[ProbeResult]]:
        return run_probes(
            [model, model],
            device="cpu",
            batchable=True,
            inputs_path=inputs,
            batch_ms_max=batch_ms_max,
            seconds_max=seconds_max,
        )

    for results in probed(1e4, 30.0):
        assert {result.probe for result in results} == set(model.probes)
        assert all(result.samples_ms and result.limit_ms is None for result in results)
    for results in probed(1e-3, 30.0):
        slow = {result.probe.batch for result in results if result.limit_ms == 1e-3}
        assert slow == {4, 8}, "the smallest batch is always probed"
    assert probed(1e4, 0.0) == [[], []]


def test_a_probe_of_few_executions_goes_on_where_its_rounds_contradict_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    took_ms = iter([10.0, 10.0, 100.0, 10.0, 10.0, 10.0, *[5.0] * 3])

    def execute(*_: object) -> list[float]:
        return [next(took_ms)] * 3

    monkeypatch.setattr(probe_main, "_time_executions", execute)
    instances: Any = SimpleNamespace(take=lambda model, threads, count: [None] * count)
    spec = {"batchable": True, "batch_ms_max": 1e4}

    def probed() -> dict[str, Any]:
        record: dict[str, Any] = {"model": 0, "probe": 0, "threads": 1, "busy": 1, "batch": 1}
        record |= {"seconds": 1.0, "samples_ms": [], "rounds": [], "skipped": False, "failed": ""}
        record |= {"on_gpu": False, "changed_ms": []}
        monkeypatch.setattr(probe_main, "_ROUND_S", 0.4)
        probe_main._run_group([record], instances, {"x": np.zeros((1, 1))}, spec, float("inf"))
        return record

    assert len(probed()["rounds"]) == 6
    assert len(probed()["rounds"]) == 3


def test_a_turn_in_which_the_machine_was_slow_for_every_probe_is_not_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their ratios are the same in it; a probe that was slow alone is probed again."""
    factors = {1: 1.0, 2: 2.5, 3: 1.1}

    def rounds_of(disturbed: bool) -> list[int]:
        turns = itertools.count()

        def execute(runtimes: list[Any], inputs: dict[str, np.ndarray], *_: Any) -> list[float]:
            turn = 1 + next(turns) // 5
            batch = len(inputs["x"])
            alone = 4.0 if disturbed and batch == 4 and turn == 3 else 1.0
            return [10.0 * batch * factors.get(turn, 1.0) * alone] * 3

        monkeypatch.setattr(probe_main, "_time_executions", execute)
        instances: Any = SimpleNamespace(take=lambda model, threads, count: [None] * count)
        records: list[dict[str, Any]] = [
            {"model": 0, "probe": index, "threads": 1, "busy": 1, "batch": batch, "seconds": 1e3}
            | {"samples_ms": [], "rounds": [], "skipped": False, "failed": "", "changed_ms": []}
            | {"on_gpu": False}
            for index, batch in enumerate((1, 2, 4, 8, 16))
        ]
        spec = {"batchable": True, "batch_ms_max": 1e4}
        monkeypatch.setattr(probe_main, "_ROUND_S", 1e3)
        probe_main._run_group(records, instances, {"x": np.zeros((1, 1))}, spec, float("inf"))
        return [len(record["rounds"]) for record in records]

    assert rounds_of(disturbed=False) == [3, 3, 3, 3, 3]
    assert rounds_of(disturbed=True) == [3, 3, 6, 3, 3]


@pytest.mark.timing
def test_a_batch_that_would_outlast_the_time_is_not_begun() -> None:
    """Four executions of 16 at a tenth of a second each took 6 s where 1 s was left."""

    def execute(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        time.sleep(0.1 * len(inputs["x"]))
        return inputs

    instances: Any = SimpleNamespace(
        take=lambda model, threads, count: [SimpleNamespace(run=execute)] * count
    )
    records = [
        {"model": 0, "probe": index, "threads": 1, "busy": 1, "batch": batch, "seconds": 0.1}
        | {"samples_ms": [], "rounds": [], "skipped": False, "failed": "", "on_gpu": False}
        for index, batch in enumerate((1, 16))
    ]
    began = time.monotonic()
    spec = {"batchable": True, "batch_ms_max": 1e4}
    pool = {"x": np.zeros((1, 1))}
    probe_main._run_group(records, instances, pool, spec, began + 1.0)
    assert time.monotonic() - began < 2.0
    assert records[0]["samples_ms"] and not records[1]["samples_ms"]
    assert not records[1]["skipped"], "nothing is known of it"


def test_on_a_gpu_the_first_execution_after_another_batch_size_is_told() -> None:
    """But not the very first of a batch size, which loads kernels and searches for algorithms."""
    last = {"batch": 0}

    def execute(inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        time.sleep(0.03 if len(inputs["x"]) != last["batch"] else 0.001)
        last["batch"] = len(inputs["x"])
        return inputs

    session = SimpleNamespace(run=execute)
    instances: Any = SimpleNamespace(take=lambda model, threads, count: [session] * count)

    def records(on_gpu: bool) -> list[dict[str, Any]]:
        return [
            {"model": 0, "probe": index, "threads": 0, "busy": 1, "batch": batch, "seconds": 0.05}
            | {"samples_ms": [], "rounds": [], "skipped": False, "failed": "", "changed_ms": []}
            | {"on_gpu": on_gpu}
            for index, batch in enumerate((1, 4))
        ]

    spec = {"batchable": True, "batch_ms_max": 1e4}
    probed = records(on_gpu=True)
    probe_main._run_group(probed, instances, {"x": np.zeros((1, 1))}, spec, float("inf"))
    for record in probed:
        # A round that others contradict is followed by more: one less than there were, at most.
        assert 1 <= len(record["changed_ms"]) < len(record["rounds"]), record
        assert min(record["changed_ms"]) >= 29 and np.median(record["samples_ms"]) < 15
    on_cpu = records(on_gpu=False)
    probe_main._run_group(on_cpu, instances, {"x": np.zeros((1, 1))}, spec, float("inf"))
    assert not any(record["changed_ms"] for record in on_cpu)
