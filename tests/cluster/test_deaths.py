"""What is said of a worker's death: no more than is known."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from analyzer.cluster.ray_lease import Device, Lease, _Process
from analyzer.cluster.worker import TreeEnd, WorkerProcess
from analyzer.errors import TargetCrashError, TargetMemoryError
from analyzer.measure.jobs import Job


class OutOfMemoryError(Exception):
    """Ray's."""


RAYS_OWN = OutOfMemoryError(
    "Task was killed due to the node running low on memory.\nMemory on the node (IP: 10.0.0.1, "
    "ID: ab) was 22.87GB used / 23.54GB limit (0.95), which exceeds the threshold."
)


@pytest.fixture
def lease(tmp_path: Path) -> Lease:
    ray: Any = SimpleNamespace(exceptions=SimpleNamespace(OutOfMemoryError=OutOfMemoryError))
    device = Device(worker_id="cpu-0", node_id="n", kind="cpu", cores=2)
    return Lease(ray, device, cache_dir=tmp_path, start_timeout_s=1.0)


@pytest.mark.parametrize(
    ("error", "kills", "kind", "told"),
    [
        (RAYS_OWN, 3, TargetMemoryError, "nearly full (22.87GB used / 23.54GB limit, other"),
        (OSError("gone"), 4, TargetCrashError, "killed a process for want of memory, perhaps this"),
        (OSError("gone"), 3, TargetCrashError, "crashed its process on worker cpu-0"),
    ],
)
def test_a_kill_for_want_of_memory_is_not_claimed_where_it_may_be_anothers(
    lease: Lease,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    kills: int,
    kind: type[Exception],
    told: str,
) -> None:
    identity = WorkerProcess(pid=1, created_at=0.0, node="n", version="1", oom_kills=3)
    lease._process = _Process(actor=None, mark="m", identity=identity)
    monkeypatch.setattr(Lease, "release", lambda self: TreeEnd(True, kills))
    monkeypatch.setattr(Lease, "alive", lambda self: True)
    death = lease._explain_death(Job("j", lambda context: None, 1.0), error)
    assert type(death) is kind and told in death.message


@pytest.mark.parametrize(
    ("alive", "told"),
    [(False, "has left the cluster"), (True, "did not start: no core is free")],
)
def test_a_start_on_a_machine_that_is_gone_says_so(
    lease: Lease, monkeypatch: pytest.MonkeyPatch, alive: bool, told: str
) -> None:
    lease._ray.exceptions.GetTimeoutError = TimeoutError
    monkeypatch.setattr(Lease, "alive", lambda self: alive)
    assert told in lease._explain_start(OSError("The actor\nno core is free")).message


def test_a_cluster_that_does_not_answer_for_a_moment_has_lost_no_machine(lease: Lease) -> None:
    """The thread that asked ended by that, and its job never came back."""

    def silent() -> None:
        raise OSError("the head does not answer")

    lease._ray.nodes = silent  # type: ignore[attr-defined]
    assert lease.alive()
    lease._ray.nodes = lambda: [{"NodeID": "n", "Alive": False}]  # type: ignore[attr-defined]
    assert not lease.alive()
