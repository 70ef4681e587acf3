"""What only workers in processes of their own can bear: crashes, lost machines, a killed driver."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from analyzer.cluster.processes import descendants, lives
from analyzer.cluster.ray_executor import RayExecutor
from analyzer.cluster.ray_lease import choose_devices, find_devices
from analyzer.errors import AnalyzerError, MissingPartError, TargetCrashError, UsageError
from analyzer.measure.jobs import Job, JobResult, WorkerContext
from benchlib.made_up_cluster import MadeUpCluster, made_up_cluster

RUN_S = 60.0


def node(name: str, *, alive: bool = True, **resources: float) -> dict[str, object]:
    return {"NodeID": name, "NodeManagerAddress": name, "Alive": alive, "Resources": resources}


def test_devices_are_gpus_or_whole_machines() -> None:
    nodes = [node("b", CPU=7.0, GPU=2.0), node("a", CPU=4.0), node("c", CPU=8, GPU=8, alive=False)]
    nodes.append(node("d", memory=1.0))
    gpus = find_devices(nodes, "gpu")
    assert [(d.worker_id, d.node_id, d.cores) for d in gpus] == [
        ("gpu-0", "b", 3),
        ("gpu-1", "b", 3),
    ]
    cpus = find_devices(nodes, "cpu")
    assert [(d.worker_id, d.node_id, d.cores) for d in cpus] == [
        ("cpu-0", "a", 4),
        ("cpu-1", "b", 7),
    ]
    assert choose_devices(gpus, "gpu", None) == gpus
    assert choose_devices(gpus, "gpu", 1) == gpus[:1]
    for wrong in (0, 3):
        with pytest.raises(UsageError, match=f"--workers {wrong}: .* of 2 devices"):
            choose_devices(gpus, "gpu", wrong)
    with pytest.raises(MissingPartError, match="no GPU"):
        choose_devices([], "gpu", None)


def test_fewer_cores_than_gpus_are_shared() -> None:
    """Each worker asked for a whole core, which some never got."""
    devices = find_devices([node("a", CPU=2.0, GPU=3.0), node("b", CPU=4.0, GPU=4.0)], "gpu")
    assert [(d.node_id, d.cores, d.share) for d in devices] == [
        *[("a", 1, 0.6666)] * 3,
        *[("b", 1, None)] * 4,
    ]


@pytest.mark.ray
def test_every_gpu_gets_a_worker_where_cores_are_few(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from analyzer.cluster.ray_executor import RayExecutor
from analyzer.hardware.gpus import GpuIdentity
from analyzer.measure.jobs import Job

folder = Path(sys.argv[1])

def run(context):
    import time
    (folder / context.gpu.uuid).touch()
    while len(list(folder.glob("GPU-*"))) < 3:  # each worker takes one
        time.sleep(0.02)
    return context.cores

gpus = [GpuIdentity(uuid=f"GPU-{letter * 4}") for letter in "abc"]
with RayExecutor(device="gpu", cache_dir=folder, cores=1, gpus=gpus) as executor:
    for number in range(3):
        executor.submit(Job(str(number), run, 60.0))
    print(*(executor.next_result(90.0).value for _ in range(3)))
"""
    environment = {name: os.environ[name] for name in os.environ if not name.startswith("CUDA")}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=110,
        env=environment,
    )  # fmt: skip
    assert done.stdout.split() == ["1"] * 3, done.stderr


def test_two_workers_on_one_machine_are_refused_before_ray_starts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--workers 2"):
        RayExecutor(device="cpu", cache_dir=tmp_path, workers=2)


def results(executor: RayExecutor, count: int) -> list[JobResult]:
    found = [executor.next_result(RUN_S) for _ in range(count)]
    assert None not in found
    return [result for result in found if result is not None]


# Pickled by value: a worker cannot import this module.
CRASHES = {
    "exit": lambda context: os._exit(3),
    "signal": lambda context: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda context: __import__("ctypes").string_at(0),
}


@pytest.mark.ray
@pytest.mark.parametrize("kind", CRASHES)
def test_a_crash_costs_one_job(
    ray_executor: RayExecutor, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    ray_executor.submit(Job("crash", CRASHES[kind], RUN_S, "of a crash"))
    ray_executor.submit(Job("next", lambda context: os.getpid(), RUN_S))
    crash, after = results(ray_executor, 2)
    assert type(crash.error) is TargetCrashError and crash.lost
    assert "job of a crash crashed its process" in str(crash.error)
    assert after.error is None and isinstance(after.value, int)
    assert crash.worker_id == after.worker_id
    time.sleep(0.5)
    assert capfd.readouterr() == ("", "")  # Ray would tell on standard output


@pytest.mark.ray
def test_a_crash_leaves_no_process(ray_executor: RayExecutor, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"

    def run(context: WorkerContext) -> object:
        child = subprocess.Popen(["sleep", "1000"], env={})  # without the mark
        orphan = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        pid_file.write_text(f"{child.pid} {orphan.pid}")
        # An abrupt end: nobody tells the children.
        os.kill(os.getpid(), signal.SIGKILL)
        return None

    ray_executor.submit(Job("crash", run, RUN_S))
    (crash,) = results(ray_executor, 1)
    assert crash.lost
    for pid in map(int, pid_file.read_text().split()):
        with suppress(psutil.NoSuchProcess):
            assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.ray
def test_a_worker_that_died_while_idle_costs_no_job(ray_executor: RayExecutor) -> None:
    ray_executor.submit(Job("first", lambda context: os.getpid(), RUN_S))
    (first,) = results(ray_executor, 1)
    assert isinstance(first.value, int)
    psutil.Process(first.value).kill()
    time.sleep(0.2)
    ray_executor.submit(Job("second", lambda context: os.getpid(), RUN_S))
    (second,) = results(ray_executor, 1)
    assert second.error is None and second.value != first.value and not second.lost


@pytest.mark.ray
def test_what_cannot_be_pickled_is_an_error_not_a_crash(ray_executor: RayExecutor) -> None:
    lock = __import__("threading").Lock()
    ray_executor.submit(Job("in", lambda context: lock, RUN_S))
    ray_executor.submit(Job("out", lambda context: __import__("threading").Lock(), RUN_S))
    for result in results(ray_executor, 2):
        assert type(result.error) is AnalyzerError and not result.lost
        assert "pickle" in str(result.error)


@pytest.mark.ray
def test_errors_bring_their_traceback(ray_executor: RayExecutor) -> None:
    ray_executor.submit(Job("j", lambda context: 1 / 0, RUN_S))
    (result,) = results(ray_executor, 1)
    assert result.error is not None
    assert "Traceback" in str(result.error.__cause__) and "1 / 0" in str(result.error.__cause__)


@pytest.mark.ray
def test_large_values_are_our_own_memory(ray_executor: RayExecutor) -> None:
    def run(context: WorkerContext) -> object:
        import numpy

        return numpy.arange(2_000_000)

    ray_executor.submit(Job("j", run, RUN_S))
    (result,) = results(ray_executor, 1)
    result.value[0] = 7  # type: ignore[index]  # Ray's own memory would be read-only
    assert result.value[-1] == 1_999_999  # type: ignore[index]


@pytest.mark.ray
def test_the_environment_is_the_users(ray_executor: RayExecutor) -> None:
    names = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
    ray_executor.submit(Job("j", lambda context: [os.environ.get(n) for n in names], RUN_S))
    (result,) = results(ray_executor, 1)
    assert result.value == [os.environ.get(name) for name in names]


@pytest.mark.ray
def test_leases_of_a_local_ray_are_by_uuid_mig_too(tmp_path: Path) -> None:
    """Two made-up devices; what a job starts sees its own alone, in the order of the PCI bus."""
    code = """
import json, subprocess, sys, time
from pathlib import Path
from analyzer.cluster.ray_executor import RayExecutor
from analyzer.hardware.gpus import GpuIdentity
from analyzer.measure.jobs import Job

folder = Path(sys.argv[1])

def run(context):
    (folder / context.gpu.uuid).touch()
    while len(list(folder.glob("*-????"))) < 2:  # each worker takes one
        time.sleep(0.02)
    names = "('CUDA_DEVICE_ORDER', 'CUDA_VISIBLE_DEVICES')"
    code = f"import os; print(*map(os.environ.get, {names}))"
    return context.gpu.uuid, subprocess.check_output([sys.executable, "-c", code], text=True)

gpus = [GpuIdentity(uuid="GPU-aaaa"), GpuIdentity(uuid="MIG-bbbb")]
with RayExecutor(device="gpu", cache_dir=folder, cores=2, gpus=gpus) as executor:
    assert executor.workers == 2
    for number in range(2):
        executor.submit(Job(str(number), run, 60.0))
    print(json.dumps([executor.next_result(60.0).value for _ in range(2)]))
"""
    environment = {name: os.environ[name] for name in os.environ if not name.startswith("CUDA")}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=110,
        env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(json.loads(done.stdout)) == [
        ["GPU-aaaa", "PCI_BUS_ID GPU-aaaa\n"],
        ["MIG-bbbb", "PCI_BUS_ID MIG-bbbb\n"],
    ]


@pytest.fixture
def cluster() -> Iterator[MadeUpCluster]:
    """Two machines with made-up GPUs, one without; a loss is noticed within seconds."""
    nodes = [{"num_cpus": 1}, {"num_cpus": 2, "num_gpus": 1}, {"num_cpus": 4, "num_gpus": 2}]
    with made_up_cluster(nodes, light=True, health_check_ms=500) as started:
        yield started


DRIVER = """
import json, os, sys, time
from pathlib import Path
from analyzer.cluster.ray_executor import RayExecutor
from analyzer.errors import AnalyzerError
from analyzer.measure.jobs import Job

address, folder = sys.argv[1], Path(sys.argv[2])

def run(context):
    start = time.time()
    (folder / f"began-{context.worker_id}").touch()
    while len(list(folder.glob("began-*"))) < 3:  # each worker takes one
        time.sleep(0.02)
    time.sleep(0.2)
    return context.worker_id, context.gpu.uuid, context.cores, start, time.time(), os.getpid()

def wait(executor, count):
    return [executor.next_result(60.0) for _ in range(count)]

with RayExecutor(device="gpu", cache_dir=folder, ray_address=address) as executor:
    found = {"workers": executor.workers}
    for number in range(9):
        executor.submit(Job(str(number), run, 60.0))
    found["runs"] = [result.value for result in wait(executor, 9)]
    for number in range(3):
        executor.submit(Job(str(number), lambda context: time.sleep(1000), 1.0))
    found["hung"] = [type(result.error).__name__ for result in wait(executor, 3)]
    for number in range(3):
        executor.submit(Job(str(number), run, 60.0))
    found["after"] = [result.value for result in wait(executor, 3)]
    print(json.dumps(found), flush=True)
    assert sys.stdin.readline()
    for number in range(6):  # the loss may be noticed only when a job is lost with it
        executor.submit(Job(str(number), run, 60.0))
    left = wait(executor, 6)
    executor.submit(Job("last", run, 60.0))
    left += wait(executor, 1)
    print(json.dumps([[r.value, str(r.error), r.lost] for r in left]), flush=True)
try:
    with RayExecutor(device="gpu", cache_dir=folder, ray_address=address, workers=9) as executor:
        executor.workers
except AnalyzerError as error:
    print(json.dumps([type(error).__name__, str(error)]), flush=True)
"""


@pytest.mark.ray
@pytest.mark.timeout(240)
def test_a_mixed_cluster_runs_one_job_per_gpu(cluster: MadeUpCluster, tmp_path: Path) -> None:
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, cluster.address, str(tmp_path)], env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as driver:  # fmt: skip
        assert driver.stdin is not None and driver.stdout is not None
        found = json.loads(driver.stdout.readline())
        assert found["workers"] == 3
        by_worker: dict[str, list[tuple[float, float]]] = {}
        for worker, gpu, cores, start, end, _ in found["runs"]:
            assert cores == 2 and gpu in ("0", "1")
            by_worker.setdefault(worker, []).append((start, end))
        assert sorted(by_worker) == ["gpu-0", "gpu-1", "gpu-2"]
        for spans in by_worker.values():
            spans.sort()
            assert all(before[1] <= after[0] for before, after in pairwise(spans))
        assert found["hung"] == ["TargetTimeoutError"] * 3
        before, after = ({run[5] for run in found[key]} for key in ("runs", "after"))
        assert not before & after  # fresh processes
        cluster.remove_last()
        driver.stdin.write("go\n")
        driver.stdin.flush()
        left = json.loads(driver.stdout.readline())
        for value, message, lost in left[:-1]:
            assert value is not None or (lost and "left the cluster" in message), message
        assert left[-1][0] is not None, left
        kind, message = json.loads(driver.stdout.readline())
        assert kind == "UsageError" and "--workers 9" in message
    assert driver.returncode == 0


@pytest.mark.ray
def test_no_cluster_at_the_address_is_a_sentence(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
from analyzer.cluster.ray_executor import RayExecutor
from analyzer.errors import AnalyzerError
from analyzer.measure.jobs import Job
try:
    with RayExecutor(device="cpu", cache_dir=Path(sys.argv[1]), ray_address="127.0.0.1:1") as e:
        e.workers
except AnalyzerError as error:
    print(type(error).__name__, error, error.hint)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stdout.startswith("UsageError No Ray cluster could be used at '127.0.0.1:1'"), done


@pytest.mark.ray
@pytest.mark.parametrize("how", ["returns", "killed"])
def test_nothing_is_left_of_a_driver(tmp_path: Path, how: str) -> None:
    """Neither Ray's daemons nor workers nor what jobs started, nor Ray's folder."""
    code = """
import subprocess, sys, time
from pathlib import Path
from analyzer.cluster.ray_executor import RayExecutor
from analyzer.measure.jobs import Job

def run(context):
    child = subprocess.Popen(["sleep", "1000"])
    print_to.write_text(str(child.pid))
    return child.wait()

print_to = Path(sys.argv[1], "child")
with RayExecutor(device="cpu", cache_dir=Path(sys.argv[1])) as executor:
    executor.submit(Job("j", run, 100.0))
    while not (print_to.exists() and print_to.read_text()):
        assert executor.next_result(0.05) is None
    print("running", flush=True)
    sys.stdin.readline()
executor.__exit__(None, None, None)  # closing twice is nothing
"""
    tag = f"{tmp_path.name}-{how}-{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="t") as folder:  # short, for Ray's sockets
        started = end_a_driver(code, how, tmp_path, {"TRITUNE_TEST_TAG": tag, "TMPDIR": folder})
        deadline = time.monotonic() + 20
        while (left := [p for p in tagged(tag) | started if lives(p)]) and (
            time.monotonic() < deadline
        ):
            time.sleep(0.1)
        assert left == []
        assert list(Path(folder).iterdir()) == []


def end_a_driver(
    code: str, how: str, tmp_path: Path, variables: dict[str, str]
) -> set[psutil.Process]:
    """Runs a driver until it says that it runs, then ends it; the processes below it until then.

    Ray's agents overwrite their environment, so a tag does not find them.
    """
    environment = {**os.environ, **variables}
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], env=environment, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as driver:  # fmt: skip
        assert driver.stdin is not None and driver.stdout is not None and driver.stderr is not None
        assert driver.stdout.readline() == "running\n", driver.stderr.read()
        started = descendants(driver.pid)
        assert len(started) > 5
        if how == "killed":
            driver.kill()
        else:
            driver.stdin.write("\n")
            driver.stdin.close()
        driver.wait(30)
        said = driver.stderr.read() if how == "returns" else ""
    assert said == ""  # quiet
    return started


def tagged(tag: str) -> set[psutil.Process]:
    """The processes that inherited the tag, and show it still."""
    wanted = f"TRITUNE_TEST_TAG={tag}".encode()
    found = set()
    for process in psutil.process_iter():
        try:
            if wanted in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                found.add(process)
        except (OSError, psutil.Error):
            continue
    return found
