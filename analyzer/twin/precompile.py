"""Compiles the simulator's kernel while a command does something else.

The compiled code is cached on disk (``twin/kernel.py``). Where it is not yet, a child process
compiles: for seconds it would otherwise keep this one's other threads from running.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from analyzer.resources import child_environment

# Compiling takes seconds; beyond this the search compiles itself.
_TIMEOUT_S = 120.0


def start_compiling() -> Callable[[float], bool]:
    """Makes the kernel ready on a thread.

    Returns:
        A function that waits so many seconds for it, and tells whether it is ready.
    """
    # SciPy's packages import each other. Begun on two threads, by Numba there and by the search
    # here, these imports may wait for each other, and one fails. A search needs them anyway.
    import scipy.optimize  # noqa: F401

    thread = threading.Thread(target=_prepare, daemon=True, name="compile the twin")
    thread.start()

    def ready(timeout_s: float) -> bool:
        thread.join(max(timeout_s, 0.0))
        return not thread.is_alive()

    return ready


def _prepare() -> None:
    from analyzer.twin import kernel

    folder = kernel.run.stats.cache_path  # type: ignore[attr-defined]
    if folder is not None and not _is_cached(Path(folder), Path(kernel.__file__)):
        with suppress(OSError, subprocess.TimeoutExpired):  # then it is compiled here
            subprocess.run(
                [sys.executable, "-m", "analyzer.twin.precompile"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TIMEOUT_S,
                check=False,
                env=child_environment(),
            )
    compile_kernel()


def _is_cached(folder: Path, source: Path) -> bool:
    """Whether ``folder`` has compiled code of ``source``: that of an earlier one is of no use."""
    changed_ns = source.stat().st_mtime_ns
    return any(index.stat().st_mtime_ns >= changed_ns for index in folder.glob("kernel._run-*.nbi"))


def compile_kernel() -> None:
    """Runs the kernel once: loads it from the cache, or compiles and caches it."""
    from analyzer.domain.workload import Poisson
    from analyzer.engine.policy import BatchingPolicy
    from analyzer.twin.arrivals import UnitArrivals
    from analyzer.twin.server_model import ServerModel
    from analyzer.twin.service import ServiceTime

    policy = BatchingPolicy(max_batch_size=2, dynamic_batching=True)
    model = ServerModel(policy=policy, service=ServiceTime.constant(1.0))
    model.edge(UnitArrivals.draw(Poisson(), count=2000), budget_ms=10.0)


if __name__ == "__main__":
    from analyzer.hardware.lifetime import die_with_parent

    die_with_parent()
    compile_kernel()
