"""The contract of executors, kept by every one of them, with real processes that hang and die."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from analyzer.cluster.in_process import InProcessExecutor
from analyzer.errors import AnalyzerError, TargetMemoryError, TargetStartError, TargetTimeoutError
from analyzer.measure.jobs import Executor, Job, JobResult, WorkerContext

RUN_S = 60.0


def job(run: Callable[[WorkerContext], object], timeout_s: float = RUN_S, name: str = "j") -> Job:
    return Job(name, run, timeout_s, f"job named {name}")


def result_of(executor: Executor, one: Job) -> JobResult:
    executor.submit(one)
    result = executor.next_result(RUN_S)
    assert result is not None
    assert result.job_id == one.job_id
    return result


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def read_pid(path: Path) -> int:
    for _ in range(1000):
        if path.exists() and path.read_text().endswith("\n"):
            return int(path.read_text())
        time.sleep(0.02)
    raise AssertionError(f"{path} was not written")


def hang(path: Path) -> Callable[[WorkerContext], object]:
    """A job that starts a process and waits for it, which takes for ever."""

    def run(context: WorkerContext) -> object:
        with subprocess.Popen(["sleep", "1000"]) as process:
            path.write_text(f"{process.pid}\n")
            return process.wait()

    return run


def hang_with_orphan(path: Path) -> Callable[[WorkerContext], object]:
    """A job whose grandchild has lost its parent: only the mark finds it."""

    def run(context: WorkerContext) -> object:
        subprocess.run(["sh", "-c", f"sleep 1000 & echo $! > {path}"], check=True)
        time.sleep(1000)
        return None

    return run


def test_a_value_comes_back(executor: Executor, tmp_path: Path) -> None:
    offset = 40

    def run(context: WorkerContext) -> object:
        assert context.cache_dir.is_dir()
        return offset + 2, context

    result = result_of(executor, job(run))
    assert result.error is None and not result.lost
    value, context = result.value  # type: ignore[misc]
    assert value == 42
    assert context.device == "cpu" and context.gpu is None and context.cores >= 1
    assert context.worker_id == result.worker_id
    assert 0 <= result.seconds < RUN_S


def test_jobs_come_back_once_and_in_order(executor: Executor) -> None:
    assert executor.workers == 1
    assert executor.next_result(0.0) is None
    for number in range(5):
        executor.submit(job(lambda context, n=number: n, name=str(number)))  # type: ignore[misc]
    results = [executor.next_result(RUN_S) for _ in range(5)]
    assert [r.value for r in results if r] == [0, 1, 2, 3, 4]
    assert executor.next_result(0.05) is None


def test_an_error_comes_back_as_itself(executor: Executor) -> None:
    def run(context: WorkerContext) -> object:
        raise TargetStartError("It did not start.", hint="Look at the log.")

    result = result_of(executor, job(run))
    assert type(result.error) is TargetStartError
    assert (result.error.message, result.error.hint) == ("It did not start.", "Look at the log.")
    assert not result.lost and result.value is None


def test_other_exceptions_are_wrapped(executor: Executor) -> None:
    result = result_of(executor, job(lambda context: {}["key"]))
    assert type(result.error) is AnalyzerError
    assert "job named j" in str(result.error) and "KeyError" in str(result.error)


def test_want_of_memory_is_named(executor: Executor) -> None:
    def run(context: WorkerContext) -> object:
        raise MemoryError

    assert type(result_of(executor, job(run)).error) is TargetMemoryError


def test_leaving_the_interpreter_is_no_result(executor: Executor) -> None:
    def run(context: WorkerContext) -> object:
        raise SystemExit(3)

    assert result_of(executor, job(run)).error is not None
    assert result_of(executor, job(lambda context: 1)).value == 1


@pytest.mark.parametrize("make", [hang, hang_with_orphan])
def test_a_hang_is_killed_with_its_processes(
    executor: Executor, tmp_path: Path, make: Callable[[Path], Callable[[WorkerContext], object]]
) -> None:
    if make is hang_with_orphan and isinstance(executor, InProcessExecutor):
        pytest.skip("a thread asleep in compiled code cannot be ended; see the test of that")
    pid_file = tmp_path / "pid"
    result = result_of(executor, job(make(pid_file), timeout_s=1.5))
    assert gone(read_pid(pid_file))
    assert type(result.error) is TargetTimeoutError
    assert "job named j" in str(result.error) and "1.5 s" in str(result.error)
    assert result.lost and result.seconds >= 1.5
    assert result_of(executor, job(lambda context: 1)).value == 1


def test_a_job_that_computes_for_ever_is_ended(executor: Executor) -> None:
    def run(context: WorkerContext) -> object:
        while True:
            with suppress(Exception):
                sum(range(1000))

    assert type(result_of(executor, job(run, timeout_s=0.5)).error) is TargetTimeoutError
    assert result_of(executor, job(lambda context: 1)).value == 1


def test_cancel_kills_what_runs_and_forgets_what_waits(executor: Executor, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    executor.submit(job(hang(pid_file), name="running"))
    executor.submit(job(lambda context: 2, name="waiting"))
    pid = read_pid(pid_file)
    executor.cancel_all()
    assert gone(pid)
    assert executor.next_result(0.2) is None
    assert result_of(executor, job(lambda context: 3, name="later")).value == 3


def test_cancel_forgets_results_that_nobody_took(executor: Executor, tmp_path: Path) -> None:
    done = tmp_path / "done"
    executor.submit(job(lambda context: done.write_text("\n"), name="early"))
    executor.submit(job(hang(tmp_path / "pid"), name="running"))
    read_pid(tmp_path / "pid")  # one worker: the job before has ended
    assert done.exists()
    executor.cancel_all()
    assert executor.next_result(0.2) is None
    executor.cancel_all()  # with nothing to cancel
    assert result_of(executor, job(lambda context: 1)).value == 1


def test_a_time_limit_is_each_jobs_own(executor: Executor, tmp_path: Path) -> None:
    executor.submit(job(hang(tmp_path / "pid"), timeout_s=0.5, name="short"))
    executor.submit(job(lambda context: time.sleep(0.7), name="long"))
    short, long = executor.next_result(RUN_S), executor.next_result(RUN_S)
    assert short is not None and type(short.error) is TargetTimeoutError
    assert long is not None and long.error is None and long.seconds >= 0.7


def test_a_killed_child_is_the_jobs_own_affair(executor: Executor) -> None:
    def run(context: WorkerContext) -> object:
        with subprocess.Popen(["sleep", "1000"]) as process:
            os.kill(process.pid, signal.SIGKILL)
            return process.wait()

    assert result_of(executor, job(run)).value == -signal.SIGKILL


@pytest.mark.timing
def test_in_process_a_stuck_thread_keeps_the_lease(tmp_path: Path) -> None:
    release = threading.Event()
    with InProcessExecutor(device="cpu", cache_dir=tmp_path, kill_timeout_s=0.6) as executor:
        # Asleep in one long call, it sees no exception until that returns.
        stuck = job(lambda context: time.sleep(3), timeout_s=0.1, name="stuck")
        result = result_of(executor, stuck)
        assert "could not be ended" in str(result.error)
        refused = result_of(executor, job(lambda context: release.set(), timeout_s=0.1))
        assert "named stuck hangs" in str(refused.error)
        assert not release.is_set()
        assert result_of(executor, job(lambda context: 1)).value == 1  # after it has ended


def test_in_process_ends_what_runs_when_it_is_closed_and_can_be_closed_twice(
    tmp_path: Path,
) -> None:
    with InProcessExecutor(device="cpu", cache_dir=tmp_path) as executor:
        executor.submit(job(hang(tmp_path / "pid")))
        pid = read_pid(tmp_path / "pid")
    assert gone(pid)
    executor.__exit__(None, None, None)


def test_what_is_measured_has_the_priority_of_the_command(executor: Executor) -> None:
    """Ray's workers, and the servers that they start, would stand behind every other program."""
    done = result_of(executor, job(lambda context: os.getpriority(os.PRIO_PROCESS, 0)))
    assert done.value == os.getpriority(os.PRIO_PROCESS, 0)


def test_in_process_leaves_no_thread_and_no_mark(tmp_path: Path) -> None:
    before = threading.active_count()
    with InProcessExecutor(device="cpu", cache_dir=tmp_path / "new" / "cache") as executor:
        assert result_of(executor, job(lambda context: os.environ["TRITUNE_LEASE"])).value
    assert threading.active_count() == before
    assert "TRITUNE_LEASE" not in os.environ
