"""Workers that are killed, or asleep for longer than their lease: the job goes on elsewhere."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from analyzer.resources import search_path
from analyzer.store.database import Database

ROOT = Path(__file__).parents[2]
_LEASE_S = 3.0


@contextmanager
def worker(url: str, data: Path, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker with a short lease, whose command is scripted."""
    paths = search_path("PYTHONPATH", ROOT / "bench")
    with subprocess.Popen(
        [sys.executable, "-m", "benchlib.scripted_worker", url, str(data), name, f"{_LEASE_S}"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(ROOT), paths))},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_trials(client: httpx.Client, job: str, count: int) -> None:
    """Waits until so many trials are stored."""
    while len(client.get(f"/api/v1/jobs/{job}/trials").json()["trials"]) < count:
        time.sleep(0.1)


def wait_until_gone(mark: str) -> None:
    """Waits until no process has ``mark`` among its arguments."""
    ends_at = time.monotonic() + 30
    while subprocess.run(["pgrep", "-f", mark], capture_output=True).returncode == 0:
        assert time.monotonic() < ends_at, "the command lives on"
        time.sleep(0.1)


def stop_between_writes(process: subprocess.Popen[bytes], database: Database) -> None:
    """Stops a process that holds no lock of SQLite, which nobody but the process could end."""
    while True:
        process.send_signal(signal.SIGSTOP)
        if not database.sqlite:
            return
        connection = sqlite3.connect(str(database.url.database), timeout=0.1, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError:
            process.send_signal(signal.SIGCONT)
        finally:
            connection.close()
        time.sleep(0.05)


def test_workers_that_all_measure_take_the_job_of_a_killed_one_back(
    client: httpx.Client, store_url: str, tmp_path: Path, submit: Callable[..., str], wait_for: Any
) -> None:
    # The API here never sweeps.
    jobs = [submit(seconds=600) for _ in range(2)]
    with worker(store_url, tmp_path / "data", "first") as first:
        wait_for(jobs[0], "RUNNING")
        with worker(store_url, tmp_path / "data", "second"):
            wait_for(jobs[1], "RUNNING")
            first.kill()
            assert wait_for(jobs[0], "QUEUED", timeout_s=_LEASE_S + 3.0)["attempt"] == 2
            assert client.get(f"/api/v1/jobs/{jobs[1]}").json()["state"] == "RUNNING"


@pytest.mark.long_on_postgres
def test_the_job_of_a_killed_worker_goes_on_elsewhere_from_what_was_measured(
    client: httpx.Client, store_url: str, tmp_path: Path, submit: Callable[..., str], wait_for: Any
) -> None:
    mark = f"700.{time.monotonic_ns()}"
    job = submit(outcomes=6, hold=4, pause_s=0.3, daemon=mark)
    with worker(store_url, tmp_path / "data", "first") as first:
        wait_for_trials(client, job, 2)
        first.kill()
        first.wait()
        wait_until_gone(mark)
    with worker(store_url, tmp_path / "data", "second"):
        done = wait_for(job, "SUCCEEDED", "FAILED", timeout_s=60)
    assert (done["state"], done["attempt"]) == ("SUCCEEDED", 2), done["log_tail"]
    trials = client.get(f"/api/v1/jobs/{job}/trials").json()["trials"]
    assert [trial["trial_number"] for trial in trials] == list(range(6)), "none lost, none twice"
    log = client.get(f"/api/v1/jobs/{job}/log").text
    assert log.count("Note: 0 were there") == 1, "measured again from the beginning"


def test_a_worker_that_slept_past_its_lease_does_no_harm(
    client: httpx.Client, database: Database, store_url: str, tmp_path: Path,
    submit: Callable[..., str], wait_for: Any,
) -> None:  # fmt: skip
    mark = f"800.{time.monotonic_ns()}"
    job = submit(outcomes=5, hold=1, pause_s=0.5, daemon=mark)
    with worker(store_url, tmp_path / "data", "sleeper") as sleeper:
        wait_for_trials(client, job, 1)
        stop_between_writes(sleeper, database)
        # Its command ends with its lease, though nobody told it to.
        wait_until_gone(mark)
        with worker(store_url, tmp_path / "data", "other"):
            wait_for(job, "RUNNING")
            while client.get(f"/api/v1/jobs/{job}").json()["attempt"] < 2:
                time.sleep(0.1)
            sleeper.send_signal(signal.SIGCONT)
            done = wait_for(job, "SUCCEEDED", "FAILED", timeout_s=60)
            assert sleeper.poll() is None, "it goes on with other jobs"
    assert (done["state"], done["attempt"]) == ("SUCCEEDED", 2), done["log_tail"]
    trials = client.get(f"/api/v1/jobs/{job}/trials").json()["trials"]
    assert [trial["trial_number"] for trial in trials] == list(range(5))
