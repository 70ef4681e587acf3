"""Workers that are killed, or asleep for longer than their lease: the job goes on elsewhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from analyzer.resources import search_path

ROOT = Path(__file__).parents[2]


@contextmanager
def worker(url: str, data: Path, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker with a lease of three seconds, whose command is scripted."""
    paths = search_path("PYTHONPATH", ROOT / "bench")
    with subprocess.Popen(
        [sys.executable, "-m", "benchlib.scripted_worker", url, str(data), name, "3"],
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


def test_the_job_of_a_killed_worker_goes_on_elsewhere_from_what_was_measured(
    client: httpx.Client, store_url: str, tmp_path: Path, submit: Callable[..., str], wait_for: Any
) -> None:
    mark = f"700.{time.monotonic_ns()}"
    job = submit(outcomes=6, pause_s=1.0, daemon=mark)
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
    client: httpx.Client, store_url: str, tmp_path: Path, submit: Callable[..., str], wait_for: Any
) -> None:
    mark = f"800.{time.monotonic_ns()}"
    job = submit(outcomes=5, pause_s=1.0, daemon=mark)
    with worker(store_url, tmp_path / "data", "sleeper") as sleeper:
        wait_for_trials(client, job, 1)
        sleeper.send_signal(signal.SIGSTOP)
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
