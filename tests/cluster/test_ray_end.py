"""How long the end of a local Ray takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# On a busy machine a worker's process takes as long to come up.
SLOW_WORKERS = """
import sys, time
if any("default_worker.py" in word for word in sys.orig_argv):
    time.sleep(60.0)
"""
END_WHILE_A_WORKER_STARTS = """
import sys, time
from pathlib import Path
from analyzer.cluster.ray_executor import RayExecutor

with RayExecutor(device="cpu", cache_dir=Path(sys.argv[1]), cores=1) as executor:
    assert executor.ready(60.0)
    time.sleep(2.0)
    began = time.monotonic()
print(time.monotonic() - began)
"""


@pytest.mark.ray
@pytest.mark.timing
def test_a_worker_that_still_starts_is_not_waited_for(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    (tmp_path / "sitecustomize.py").write_text(SLOW_WORKERS)
    done = subprocess.run(
        [sys.executable, "-c", END_WHILE_A_WORKER_STARTS, str(tmp_path / "cache")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # Ray's own end takes one of them; the worker was waited for 15.
    assert float(done.stdout) < 6.0
