"""The embedded server as a process: replies, counters, crashes, hangs, and no orphans."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analyzer.domain.configuration import Configuration
from analyzer.domain.load_test import (
    STATUS_ERROR,
    STATUS_OK,
    STATUS_TIMEOUT,
)
from analyzer.engine.tensor_file import write_tensors
from analyzer.errors import (
    MissingPartError,
    TargetCrashError,
    TargetMemoryError,
    TargetStartError,
    TargetTimeoutError,
)
from analyzer.hardware.memory_kills import MemoryKills
from analyzer.hardware.processes import is_running
from analyzer.load.generator import run_closed_loop, run_open_loop
from analyzer.targets.embedded import EmbeddedTarget
from analyzer.targets.embedded_spec import EmbeddedSpec, FileModel, NullModel, ScriptedModel

BATCHED = Configuration(max_batch_size=8, dynamic_batching=True)
PLAIN = Configuration(max_batch_size=1)


def spec(model=None, configuration=BATCHED, **fields) -> EmbeddedSpec:
    model = model or ScriptedModel(points=((1, 2.0), (8, 9.0)))
    return EmbeddedSpec(
        name="m",
        model=model,
        configuration=configuration,
        batchable=True,
        **fields,
    )


def test_warm_up_covers_every_batch_size_on_a_gpu_largest_first() -> None:
    assert spec(configuration=replace(BATCHED, device="gpu")).warmup_sizes() == tuple(
        range(8, 0, -1)
    )
    assert spec(configuration=replace(BATCHED, preferred_batch_size=(4,))).warmup_sizes() == (
        8, 4, 1,
    )  # fmt: skip


def test_a_hidden_gpu_is_a_sentence_and_not_unhidden(monkeypatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    on_gpu = replace(BATCHED, device="gpu")
    with (
        pytest.raises(MissingPartError, match="GPU"),
        EmbeddedTarget(spec(configuration=on_gpu)),
    ):
        pass


def test_the_child_sees_the_one_gpu_by_uuid(monkeypatch) -> None:
    uuid = "GPU-11111111-2222-3333-4444-555555555555"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", uuid)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    with EmbeddedTarget(spec(configuration=replace(BATCHED, device="gpu"))) as target:
        (pid,) = target.pids
        environment = Path(f"/proc/{pid}/environ").read_text().split("\0")
    assert f"CUDA_VISIBLE_DEVICES={uuid}" in environment
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in environment


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 60
    while is_running(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.01)


def test_a_specification_survives_json() -> None:
    for model in (
        NullModel(),
        FileModel(path="m.onnx"),
        ScriptedModel(points=((1, 2.0), (8, 3.5))),
    ):
        before = spec(
            model, inputs_path="rows.npz", memory_limit_bytes=5, warmup_batch_sizes=(1, 3)
        )
        assert EmbeddedSpec.from_json(before.to_json()) == replace(
            before, configuration=before.configuration.canonical()
        )


@pytest.mark.timing
def test_requests_are_answered_once_and_the_counters_agree() -> None:
    with EmbeddedTarget(spec()) as target:
        with target.connect() as connection:
            run = run_closed_loop(connection, 16, 2, requests=200)
        counters = target.statistics()
        (pid,) = target.pids
        assert target.alive()
    assert not is_running(pid)
    assert not target.alive()
    target.close()
    assert run.strays == 0
    assert (run.log.status == STATUS_OK).all()
    assert counters.success_count == 200
    assert counters.inference_count == 400
    assert counters.fail_count == 0
    assert sum(size * count for size, count in counters.batches) == 400
    assert max(size for size, _ in counters.batches) == 8, "requests of 2 fill batches of 8"
    executed = dict(counters.batches)
    assert all(ns >= executed[size] * 2e6 for size, ns in counters.batches_ns)
    assert [size for size, _ in counters.batches_ns] == list(executed)
    # Each reply tells its own stages: together they are the counters.
    assert np.isclose(run.log.queue_s.sum(dtype=float), counters.queue_ns / 1e9, rtol=1e-4)
    told = run.log.compute_infer_s.sum(dtype=float)
    assert np.isclose(told, counters.compute_infer_ns / 1e9, rtol=1e-4)
    # No request is quicker than its stages, and no batch quicker than scripted.
    assert (run.log.latency_s >= run.log.queue_s + run.log.compute_infer_s - 1e-6).all()
    assert run.log.compute_infer_s.min() >= 0.002


@pytest.mark.timing
def test_the_queue_delay_is_honoured_on_the_real_clock() -> None:
    delayed = Configuration(max_batch_size=8, dynamic_batching=True, max_queue_delay_us=20_000)
    model = ScriptedModel(points=((1, 0.5), (8, 0.5)))
    arrivals = np.array([0.0, 0.001, 0.002])
    with (
        EmbeddedTarget(spec(model, delayed)) as target,
        target.connect() as connection,
    ):
        run = run_open_loop(connection, arrivals, timeout_s=5, drain_s=5)
        assert target.statistics().batches == ((3, 1),)
    assert run.log.queue_s.max() >= 0.020
    assert run.log.latency_s.max() >= 0.0205


def test_more_is_sent_than_a_socket_holds() -> None:
    with EmbeddedTarget(spec(NullModel())) as target, target.connect() as connection:
        count = 60_000
        for number in range(count):
            connection.send(number, 1)
        seen = np.zeros(count, int)
        deadline = time.monotonic() + 60
        while seen.sum() < count and time.monotonic() < deadline:
            for completion in connection.receive(1.0):
                seen[completion.request] += 1
    assert (seen == 1).all()


@pytest.mark.timing
def test_what_a_connection_leaves_behind_is_taken_back() -> None:
    slow = ScriptedModel(points=((1, 20.0),))
    with EmbeddedTarget(spec(slow, PLAIN, warmup_batch_sizes=(1,))) as target:
        with target.connect() as connection:
            for number in range(1000):
                connection.send(number, 1)
            connection.receive(0.05)
        start = time.monotonic()
        with target.connect() as connection:
            run = run_closed_loop(connection, 1, requests=3)
        assert time.monotonic() - start < 10, "a thousand requests of 20 ms were left"
        assert (run.log.status == STATUS_OK).all()
        assert run.strays == 0


def test_a_crash_in_the_middle_of_a_run() -> None:
    model = ScriptedModel(points=((1, 1.0),), fault="crash", fault_after=50)
    with (
        EmbeddedTarget(spec(model, PLAIN)) as target,
        target.connect() as connection,
        pytest.raises(TargetCrashError, match="SIGABRT"),
    ):
        run_closed_loop(connection, 4, requests=1000)
    with pytest.raises(AssertionError):
        target.statistics()


def test_a_kill_in_the_middle_of_a_run() -> None:
    with EmbeddedTarget(spec()) as target, target.connect() as connection:
        connection.send(0, 1)
        assert connection.receive(5.0)
        os.kill(target.pids[0], signal.SIGKILL)
        with pytest.raises(TargetCrashError, match="SIGKILL"):
            for _ in range(100):
                connection.send(1, 1)
                connection.receive(0.1)
        with pytest.raises(TargetCrashError):
            target.statistics()
        assert not target.alive()


@pytest.mark.parametrize(
    ("group", "kind", "told"),
    [
        # The machine's count rises each time: for another's process, if the group tells of none.
        ([4, 4], TargetCrashError, "was killed by SIGKILL$"),
        ([4, 5], TargetMemoryError, "SIGKILL, probably for want of memory"),
        ([None, None], TargetCrashError, "for want of memory, perhaps this one"),
    ],
)
def test_a_kill_for_want_of_memory_is_ours_only_if_our_group_tells_of_one(
    group: list[int | None], kind: type[Exception], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = [MemoryKills(group=count, machine=7 + n) for n, count in enumerate(group)]
    monkeypatch.setattr(MemoryKills, "until_now", lambda: counts.pop(0))
    with EmbeddedTarget(spec()) as target:
        os.kill(target.pids[0], signal.SIGKILL)
        with pytest.raises(kind, match=told):
            target.statistics()


def test_running_out_of_memory_is_told_apart() -> None:
    model = ScriptedModel(points=((1, 1.0),), fault="memory", fault_after=50)
    with (
        EmbeddedTarget(spec(model, PLAIN)) as target,
        target.connect() as connection,
        pytest.raises(TargetMemoryError, match="as it was told"),
    ):
        run_closed_loop(connection, 4, requests=1000)


@pytest.mark.timing
def test_a_memory_limit_ends_the_server() -> None:
    with (
        pytest.raises(TargetMemoryError, match="its limit is 1000000"),
        EmbeddedTarget(spec(memory_limit_bytes=1_000_000)) as target,
        target.connect() as connection,
    ):
        run_closed_loop(connection, 1, requests=1000)


def test_a_failing_model_answers_with_errors_and_lives_on() -> None:
    model = ScriptedModel(points=((1, 1.0),), fault="error", fault_after=5)
    with EmbeddedTarget(spec(model, PLAIN, warmup_batch_sizes=(1,))) as target:
        with target.connect() as connection:
            run = run_closed_loop(connection, 1, requests=20)
        assert target.alive()
        assert target.statistics().fail_count == np.count_nonzero(run.log.status == STATUS_ERROR)
    assert 15 <= np.count_nonzero(run.log.status == STATUS_ERROR) <= 20
    assert np.isinf(run.log.latency_s[run.log.status == STATUS_ERROR]).all()


@pytest.mark.timing
def test_a_hang_times_requests_out_and_can_be_ended() -> None:
    model = ScriptedModel(points=((1, 1.0),), fault="hang", fault_after=10)
    with EmbeddedTarget(spec(model, PLAIN)) as target:
        (pid,) = target.pids
        with target.connect() as connection:
            arrivals = np.arange(50) * 0.002
            run = run_open_loop(connection, arrivals, timeout_s=0.3, drain_s=1.0)
        assert target.alive()
    assert not is_running(pid)
    late = run.log.status == STATUS_TIMEOUT
    assert late.sum() >= 40
    assert np.isinf(run.log.latency_s[late]).all()
    assert len(run.log) == 50


def test_a_missing_model_says_so_at_the_start(tmp_path) -> None:
    model = FileModel(path=str(tmp_path / "none.onnx"))
    with pytest.raises(TargetStartError, match=r"none\.onnx"), EmbeddedTarget(spec(model)):
        pass


def test_a_server_that_is_never_ready_times_out() -> None:
    model = ScriptedModel(points=((1, 1.0),), fault="hang")
    start = time.monotonic()
    target = EmbeddedTarget(spec(model), start_timeout_s=1.0)
    with pytest.raises(TargetTimeoutError, match="not ready within 1 s"), target:
        pass
    assert time.monotonic() - start < 30
    assert not target.alive()


def test_memory_exhausted_at_the_start_is_told_apart() -> None:
    model = ScriptedModel(points=((1, 1.0),), fault="memory")
    with pytest.raises(TargetMemoryError), EmbeddedTarget(spec(model)):
        pass


@pytest.mark.timing
def test_a_killed_parent_leaves_no_orphan() -> None:
    program = textwrap.dedent(
        """
        import sys, time
        from analyzer.domain.configuration import Configuration
        from analyzer.targets.embedded import EmbeddedTarget
        from analyzer.targets.embedded_spec import EmbeddedSpec, ScriptedModel
        spec = EmbeddedSpec(
            name="m", model=ScriptedModel(points=((1, 1.0),)),
            configuration=Configuration(), batchable=True,
        )
        with EmbeddedTarget(spec) as target:
            print(target.pids[0], flush=True)
            time.sleep(60)
        """
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        pid = int(parent.stdout.readline())
        assert is_running(pid)
        parent.kill()
    wait_until_gone(pid)


def test_real_rows_reach_a_real_model(tmp_path) -> None:
    onnx = pytest.importorskip("onnx", reason="onnx is not installed")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    helper, tensor = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", tensor, ["n", 4])],
        [helper.make_tensor_value_info("y", tensor, ["n", 3])],
        [helper.make_tensor("w", tensor, [4, 3], np.ones(12, np.float32))],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    rows = np.random.default_rng(0).normal(size=(6, 4)).astype("f4")
    write_tensors(tmp_path / "rows.npz", {"x": rows})
    configuration = Configuration(
        max_batch_size=8, dynamic_batching=True, instance_count=2, intra_op_threads=1
    )
    served = spec(
        FileModel(path=str(tmp_path / "m.onnx")),
        configuration,
        inputs_path=str(tmp_path / "rows.npz"),
    )
    with EmbeddedTarget(served) as target, target.connect() as connection:
        # 8 rows of a pool of 6: the pool is repeated.
        sizes = np.resize(np.array([1, 3, 8], np.int32), 120)
        run = run_open_loop(connection, np.arange(120) * 0.001, sizes, timeout_s=5, drain_s=5)
    assert (run.log.status == STATUS_OK).all()


def test_a_process_with_very_many_files_can_still_wait() -> None:
    # select() knows no file beyond number 1023; a Ray worker may have more.
    files = [os.dup(0) for _ in range(1100)]
    try:
        with EmbeddedTarget(spec()) as target, target.connect() as connection:
            run = run_open_loop(connection, np.arange(50) * 0.003, timeout_s=5, drain_s=5)
    finally:
        for file in files:
            os.close(file)
    assert (run.log.status == STATUS_OK).all()


def test_a_talkative_server_is_not_blocked_and_its_last_lines_are_kept(tmp_path) -> None:
    loud = tmp_path / "sitecustomize.py"
    loud.write_text("import sys\nsys.stderr.write('noise\\n' * 100_000 + 'the last word\\n')\n")
    target = EmbeddedTarget(spec(FileModel(path="none"), inputs_path=str(tmp_path / "no.npz")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        with pytest.raises(TargetStartError, match=r"no\.npz"), target:
            pass
        crashing = ScriptedModel(points=((1, 1.0),), fault="crash")
        with (
            pytest.raises(TargetStartError, match="noise\nthe last word"),
            EmbeddedTarget(spec(crashing)),
        ):
            pass
