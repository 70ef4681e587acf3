"""A local Ray, started once for the tests that need one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from analyzer.cluster.in_process import InProcessExecutor
from analyzer.cluster.ray_executor import RayExecutor
from analyzer.measure.jobs import Executor


@pytest.fixture(scope="module")
def ray_executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayExecutor]:
    pytest.importorskip("ray", reason="Ray is not installed")
    cache_dir: Path = tmp_path_factory.mktemp("ray") / "cache"
    with RayExecutor(device="cpu", cache_dir=cache_dir) as executor:
        yield executor


@pytest.fixture(
    params=["in_process", pytest.param("ray", marks=[pytest.mark.ray, pytest.mark.timeout(180)])]
)
def executor(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Executor]:
    """Each kind of executor."""
    if request.param == "in_process":
        with InProcessExecutor(device="cpu", cache_dir=tmp_path / "cache") as own:
            yield own
    else:
        shared: Executor = request.getfixturevalue("ray_executor")
        yield shared
        shared.cancel_all()
