"""Compiling the simulator's kernel beside a command."""

from __future__ import annotations

import subprocess
import sys

from analyzer.resources import child_environment

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
