"""Workers that are killed, or asleep for longer than their lease: the job goes on elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from analyzer.resources import search_path

# A worker as a process of its own, whose command is scripted.
_WORKER = """
import sys
from pathlib import Path
from analyzer.service.content import ContentStore
from analyzer.service.database import open_service_database
from analyzer.service.folder import Program
from analyzer.service.limits import ServiceLimits
from analyzer.service.queue import Device
from analyzer.service.worker import Worker
url, data, name, tests = sys.argv[1:]
scripted = Program((sys.executable, f"{tests}/service/scripted.py"), reading=(tests,))
Worker(
    open_service_database(url, upgrade=False), ContentStore(Path(data)),
    Device(id=name, kind="cpu", host=name, name="a CPU"), ServiceLimits(),
    stopping=lambda: False, lease_s=3.0, analyze=scripted,
).run()
"""
TESTS = Path(__file__).parents[1]


def start_worker(url: str, data: Path, name: str) -> subprocess.Popen[bytes]:
    """A worker with a lease of three seconds."""
    return subprocess.Popen(
        [sys.executable, "-c", _WORKER, url, str(data), name, str(TESTS)],
        env=os.environ | {"PYTHONPATH": search_path("PYTHONPATH", TESTS.parent)},
    )


def wait_for_trials(client: httpx.Client, job: str, count: int) -> None:
    """Waits until so many trials are stored."""
    while len(client.get(f"/api/v1/jobs/{job}/trials").json()["trials"]) < count:
        time.sleep(0.1)


def running(mark: str) -> bool:
    """Whether a process has ``mark`` among its arguments."""
    return subprocess.run(["pgrep", "-f", mark], capture_output=True).returncode == 0


def test_the_job_of_a_killed_worker_goes_on_elsewhere_from_what_was_measured(
    client: httpx.Client, store_url: str, tmp_path: Path, submit: Callable[..., str], wait_for: Any
) -> None:
    mark = f"700.{time.monotonic_ns()}"
    job = submit(outcomes=6, pause_s=1.0, daemon=mark)
    first = start_worker(store_url, tmp_path / "data", "first")
    second = None
    try:
        wait_for_trials(client, job, 2)
        first.kill()
        first.wait()
        ends_at = time.monotonic() + 30
        while running(mark):
            assert time.monotonic() < ends_at, "the killed worker's command lives on"
            time.sleep(0.1)
        second = start_worker(store_url, tmp_path / "data", "second")
        done = wait_for(job, "SUCCEEDED", "FAILED", timeout_s=60)
    finally:
        for worker in (first, second):
            if worker is not None:
                worker.kill()
                worker.wait()
    assert (done["state"], done["attempt"]) == ("SUCCEEDED", 2), done["log_tail"]
    trials = client.get(f"/api/v1/jobs/{job}/trials").json()["trials"]
    assert [trial["trial_number"] for trial in trials] == list(range(6)), "none lost, none twice"
    log = client.get(f"/api/v1/jobs/{job}/log").text
    assert log.count("Note: 0 were there") == 1, "measured again from the beginning"


def test_a_worker_that_slept_past_its_lease_does_no_harm(
    client: httpx.Client, store_url: str, tmp_path: Path, submit: Callable[..., str], wait_for: Any
) -> None:
    mark = f"800.{time.monotonic_ns()}"
    job = submit(outcomes=5, pause_s=1.0, daemon=mark)
    sleeper = start_worker(store_url, tmp_path / "data", "sleeper")
    other = None
    try:
        wait_for_trials(client, job, 1)
        sleeper.send_signal(signal.SIGSTOP)
        ends_at = time.monotonic() + 30
        while running(mark):
            # Its command ends with its lease, though nobody told it to.
            assert time.monotonic() < ends_at
            time.sleep(0.1)
        other = start_worker(store_url, tmp_path / "data", "other")
        wait_for(job, "RUNNING")
        while client.get(f"/api/v1/jobs/{job}").json()["attempt"] < 2:
            time.sleep(0.1)
        sleeper.send_signal(signal.SIGCONT)
        done = wait_for(job, "SUCCEEDED", "FAILED", timeout_s=60)
        assert sleeper.poll() is None, "it goes on with other jobs"
    finally:
        for worker in (sleeper, other):
            if worker is not None:
                worker.kill()
                worker.wait()
    assert (done["state"], done["attempt"]) == ("SUCCEEDED", 2), done["log_tail"]
    trials = client.get(f"/api/v1/jobs/{job}/trials").json()["trials"]
    assert [trial["trial_number"] for trial in trials] == list(range(5))
