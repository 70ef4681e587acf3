"""How many load tests a search makes at a time: one on each device, one on a server that runs."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from analyzer.cli.search_options import SearchOptions
from analyzer.cli.search_run import _executor
from analyzer.cluster.ray_executor import RayExecutor
from analyzer.errors import UsageError
from analyzer.hardware.gpus import GpuIdentity

REMOTE = "grpc://triton:8001"
MACHINE: Any = SimpleNamespace(cores=2)
PLAN: Any = SimpleNamespace(suffices=lambda what: True)


def options(**given: Any) -> SearchOptions:
    values: dict[str, Any] = dict.fromkeys(field.name for field in fields(SearchOptions))
    return SearchOptions(**values | {"executor": "ray", "server": "embedded"} | given)


@pytest.mark.ray
@pytest.mark.parametrize(("server", "workers"), [(REMOTE, 1), ("embedded", 2)])
def test_a_server_that_runs_gets_one_load_test_at_a_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: str, workers: int
) -> None:
    """Each GPU's worker loaded a configuration of its own on the one Triton, and all loaded it."""
    gpus = (GpuIdentity(uuid="GPU-aaaa"), GpuIdentity(uuid="GPU-bbbb"))
    monkeypatch.setattr("analyzer.cluster.ray_executor.visible_gpus", lambda: gpus)
    monkeypatch.setenv("TRITUNE_CACHE", str(tmp_path))
    with _executor(options(server=server), "gpu", MACHINE, PLAN) as executor:
        assert executor.workers == workers


@pytest.mark.parametrize("ray_address", [None, "head:6379"])
def test_several_workers_on_a_server_that_runs_are_refused(
    monkeypatch: pytest.MonkeyPatch, ray_address: str | None
) -> None:
    asked: list[int | None] = []

    def start(self: RayExecutor) -> None:
        asked.append(self._asked)

    monkeypatch.setattr(RayExecutor, "start_async", start)
    monkeypatch.setattr("analyzer.cluster.ray_executor.visible_gpus", lambda: ())
    with pytest.raises(UsageError, match=f"--workers 2: --server {REMOTE} is one") as caught:
        wanted = options(server=REMOTE, workers=2, ray_address=ray_address)
        _executor(wanted, "gpu", MACHINE, PLAN)
    assert "Leave --workers out" in caught.value.hint
    for given in (None, 1):
        wanted = options(server=REMOTE, workers=given, ray_address=ray_address)
        _executor(wanted, "gpu", MACHINE, PLAN)
    _executor(options(server="triton", workers=2), "gpu", MACHINE, PLAN)
    assert asked == [1, 1, 2]
