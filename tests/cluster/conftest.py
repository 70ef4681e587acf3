"""A local Ray, started once for the tests that need one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from analyzer.cluster.ray_executor import RayExecutor


@pytest.fixture(scope="module")
def ray_executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayExecutor]:
    pytest.importorskip("ray", reason="Ray is not installed")
    cache_dir: Path = tmp_path_factory.mktemp("ray") / "cache"
    with RayExecutor(device="cpu", cache_dir=cache_dir) as executor:
        yield executor
