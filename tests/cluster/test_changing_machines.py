"""Machines of a real cluster that are lost and that join while jobs run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchlib.made_up_cluster import made_up_cluster

NODE = {"num_cpus": 1, "num_gpus": 1}
# By Ray's own 3 s the loss of a machine is noticed after 15 s.
HEALTH_CHECK_MS = 500
# A driver: jobs note where they begin; one may take its machine with it, or wait for a file.
DRIVER = """
import os, signal, sys, time
from pathlib import Path
import json, psutil
from analyzer.cluster.ray_executor import RayExecutor
from analyzer.measure.jobs import Job

address, folder = sys.argv[1], Path(sys.argv[2])

def begin(name, context):
    with (folder / "began").open("a") as file:
        file.write(f"{name} {context.worker_id}\\n")

def began(name=""):
    path = folder / "began"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line.split()[1] for line in lines if line.startswith(name)]

def loses(times):
    def run(context):
        begin("loses", context)
        if len(began("loses")) <= times:
            (raylet,) = [p for p in psutil.Process().parents() if p.name() == "raylet"]
            raylet.kill()
            time.sleep(1000)
        return context.worker_id
    return run

def waits(context):
    begin("waits", context)
    while not (folder / "go").exists():
        time.sleep(0.05)
    return context.worker_id

def results(executor, count):
    found = [executor.next_result(60.0) for _ in range(count)]
    return sorted([r.job_id, r.value, str(r.error or ""), r.lost] for r in found)

def until(true):
    deadline = time.monotonic() + 60.0
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)

def say(**values):
    print(json.dumps(values), flush=True)

with RayExecutor(device="gpu", cache_dir=folder / "cache", ray_address=address) as executor:
    exec(sys.argv[3])
"""


@contextmanager
def driver(address: str, folder: Path, code: str) -> Iterator[subprocess.Popen[str]]:
    """A driver that runs ``code`` with its executor."""
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER, address, str(folder), code],
        env={**os.environ, "RAY_AUTH_MODE": "disabled"}, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def told(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next thing that a driver says."""
    assert process.stdout is not None and process.stderr is not None
    line = process.stdout.readline()
    assert line, process.stderr.read()[-3000:]
    found: dict[str, Any] = json.loads(line)
    return found


# A job that runs again, on another machine and with its value, is in both tests that follow too.
@pytest.mark.long
@pytest.mark.ray
@pytest.mark.timeout(180)
def test_a_job_runs_again_after_its_machine_is_lost(tmp_path: Path) -> None:
    code = """
executor.submit(Job("a", loses(1), 60.0))
first = results(executor, 1)
say(first=first, began=began(), workers=executor.workers)
executor.submit(Job("b", loses(0), 60.0))
say(second=results(executor, 1))
"""
    with (
        made_up_cluster([NODE] * 2, light=True, health_check_ms=HEALTH_CHECK_MS) as cluster,
        driver(cluster.address, tmp_path, code) as process,
    ):
        found = told(process)
        lost, again = found["began"]
        assert lost != again
        # As a job that was never lost: with its value, and once.
        assert found["first"] == [["a", again, "", False]]
        assert found["workers"] == 1
        assert told(process)["second"] == [["b", again, "", False]]


@pytest.mark.ray
@pytest.mark.timeout(180)
def test_jobs_wait_for_a_machine_after_the_last_one_is_lost(tmp_path: Path) -> None:
    code = """
executor.submit(Job("a", waits, 60.0))
executor.submit(Job("b", lambda context: context.worker_id, 60.0))
until(began)
say(began=began())
until(lambda: executor.workers == 0)
say(early=executor.next_result(1.0) is not None)
(folder / "go").touch()
say(results=results(executor, 2), began=began(), workers=executor.workers)
"""
    with (
        made_up_cluster([NODE], light=True, health_check_ms=HEALTH_CHECK_MS) as cluster,
        driver(cluster.address, tmp_path, code) as process,
    ):
        assert told(process) == {"began": ["gpu-0"]}
        cluster.remove(0)
        assert told(process) == {"early": False}
        cluster.add(NODE)
        assert told(process) == {
            "results": [["a", "gpu-1", "", False], ["b", "gpu-1", "", False]],
            "began": ["gpu-0", "gpu-1"],
            "workers": 1,
        }


@pytest.mark.ray
@pytest.mark.timeout(180)
def test_a_job_that_loses_three_machines_is_told_as_lost(tmp_path: Path) -> None:
    code = """
executor.submit(Job("a", loses(9), 60.0))
first = results(executor, 1)
say(first=first, began=began())
executor.submit(Job("b", lambda context: context.worker_id, 60.0))
say(second=results(executor, 1))
"""
    with (
        made_up_cluster([NODE] * 4, light=True, health_check_ms=HEALTH_CHECK_MS) as cluster,
        driver(cluster.address, tmp_path, code) as process,
    ):
        found = told(process)
        assert len(set(found["began"])) == len(found["began"]) == 3
        ((name, value, error, lost),) = found["first"]
        assert (name, value, lost) == ("a", None, True)
        assert "was lost with its machine, which left the cluster" in error
        # The fourth machine is still there for the others.
        ((_, worker, error, _),) = told(process)["second"]
        assert error == "" and worker not in found["began"]


@pytest.mark.ray
@pytest.mark.timeout(180)
def test_machines_that_join_take_what_waits(tmp_path: Path) -> None:
    code = """
for name in "abcd":
    executor.submit(Job(name, waits, 60.0))
until(lambda: len(began()) == 1)
say(workers=executor.workers)
until(lambda: len(began()) == 3)
say(workers=executor.workers, began=began())
(folder / "go").touch()
say(results=results(executor, 4), began=began())
"""
    with (
        made_up_cluster([NODE], light=True) as cluster,
        driver(cluster.address, tmp_path, code) as process,
    ):
        assert told(process) == {"workers": 1}
        cluster.add(NODE, NODE)
        found = told(process)
        assert found["workers"] == 3
        assert len(set(found["began"])) == 3  # each on a machine of its own, none for long
        ended = told(process)
        assert [name for name, *_ in ended["results"]] == ["a", "b", "c", "d"]
        assert not any(error or lost for _, _, error, lost in ended["results"])
        assert len(ended["began"]) == 4
