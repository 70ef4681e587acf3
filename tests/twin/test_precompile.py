"""Compiling the simulator's kernel beside a command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from analyzer.resources import child_environment
from analyzer.twin import precompile

# What is imported of SciPy after the thread was begun: by the thread, since nothing else runs.
LATE_IMPORTS = """
import sys, threading
from analyzer.twin import precompile

class Waiting(threading.Thread):
    def start(self):
        self.before = set(sys.modules)
        super().start()

precompile.threading.Thread = Waiting
waiting = precompile.start_compiling()
assert waiting(100.0)
thread = waiting.__closure__[0].cell_contents
assert "numba" not in thread.before and "numba" in sys.modules
print(*sorted(name for name in set(sys.modules) - thread.before if name.startswith("scipy")))
"""


def test_the_thread_imports_nothing_of_scipy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LATE_IMPORTS],
        capture_output=True, text=True, check=False, env=child_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_compiled_code_of_an_earlier_kernel_is_not_ready(tmp_path: Path) -> None:
    """It was taken for ready, so that the search's own process compiled for seconds."""
    source, index = tmp_path / "kernel.py", tmp_path / "kernel._run-34.py311.nbi"
    source.touch()
    assert not precompile._is_cached(tmp_path, source)
    index.touch()
    os.utime(source, ns=(10**18, 10**18))
    os.utime(index, ns=(10**18, 10**18))
    assert precompile._is_cached(tmp_path, source)
    os.utime(source, ns=(10**18, 10**18 + 1))
    assert not precompile._is_cached(tmp_path, source)
