"""Runs build requests in a child process, one after the other, so that libraries load once."""

from __future__ import annotations

import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from analyzer.domain.configuration import VariantKey
from analyzer.errors import AnalyzerError, BuildError, BuildTimeoutError, TargetMemoryError
from analyzer.hardware.memory_kills import PERHAPS_STARVED, Likelihood, MemoryKills
from analyzer.resources import child_environment
from analyzer.variants.worker import (
    BEGUN_FILE,
    REQUEST_FILE,
    RESULT_FILE,
    BuildRequest,
    BuildResult,
)

# Short against a build, which takes seconds.
_POLL_S = 0.02
_HINT = "Leave this precision out with --precisions."


def prepare(folder: Path, request: BuildRequest) -> None:
    """Puts ``request`` into ``folder`` (empty) for :func:`run_builds`.

    Raises:
        OSError: The folder cannot be written.
    """
    for part in ("out", "work", "tmp"):
        (folder / part).mkdir()
    (folder / REQUEST_FILE).write_bytes(pickle.dumps(request))


def run_builds(
    folders: Sequence[tuple[VariantKey, Path]],
    *,
    begin_s: float = math.inf,
    timeout_s: float,
    cancelled: threading.Event,
) -> dict[VariantKey, BuildResult | AnalyzerError]:
    """Builds what the requests in ``folders`` ask for.

    The libraries can end the process: then the variant that it was at has failed, and another
    process goes on with the next.

    Args:
        folders: Each variant with its prepared folder.
        begin_s: What is not begun by then fails, unless it is the model itself.
        timeout_s: What is not built by then fails; the process is killed.
        cancelled: Ends the process when it is set; what is not built fails.
    """
    begin_by = time.monotonic() + begin_s
    deadline = time.monotonic() + timeout_s
    results: dict[VariantKey, BuildResult | AnalyzerError] = {}
    waiting = list(folders)
    while waiting:
        log = waiting[0][1] / "build.log"
        kills_before = MemoryKills.until_now()
        code = _run([folder for _, folder in waiting], log, begin_by, deadline, cancelled)
        for key, folder in waiting:
            if (folder / RESULT_FILE).is_file():
                results[key] = pickle.loads((folder / RESULT_FILE).read_bytes())
        waiting = [(key, folder) for key, folder in waiting if key not in results]
        if not waiting:
            break
        # Not always the first: it passes over what it has no time to begin.
        at = next((key for key, folder in waiting if (folder / BEGUN_FILE).exists()), waiting[0][0])
        if code is None or (code == 0 and time.monotonic() > begin_by):
            for key, _ in waiting:
                begun = code is None and key == at
                results[key] = _ended(key, timeout_s, cancelled, begun=begun)
            break
        starved = MemoryKills.until_now().likely_since(kills_before)
        results[at] = _death(at, code, log, starved)
        waiting = [(key, folder) for key, folder in waiting if key != at]
    return results


def _run(
    folders: Sequence[Path],
    log: Path,
    begin_by: float,
    deadline: float,
    cancelled: threading.Event,
) -> int | None:
    """The exit code of a process that builds in ``folders``; None if it was ended by us."""
    command = [sys.executable, "-P", "-m", "analyzer.variants.worker"]
    # The requests' process group goes with it: builders start processes of their own.
    with (
        log.open("wb") as stream,
        subprocess.Popen(
            [*command, str(begin_by), *map(str, folders)],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=child_environment() | {"TMPDIR": str(folders[0] / "tmp")},
            start_new_session=True,
        ) as process,
    ):
        try:
            while process.poll() is None:
                if time.monotonic() > deadline or cancelled.wait(_POLL_S):
                    return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode


def _ended(
    key: VariantKey, timeout_s: float, cancelled: threading.Event, *, begun: bool
) -> BuildError:
    if cancelled.is_set():
        return BuildError(f"Building {key.label} was cancelled.")
    late = f"took longer than {timeout_s:.3g} s and was ended" if begun else "had no time to begin"
    return BuildTimeoutError(
        f"Building {key.label} {late}.",
        hint=f"Give the search more time with --budget. {_HINT}",
    )


def _death(key: VariantKey, code: int, log: Path, starved: Likelihood) -> AnalyzerError:
    """What to say of a process that ended by itself.

    Args:
        starved: How likely it was killed for want of memory, if it was killed.
    """
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    if code == -signal.SIGKILL and starved == "probably":
        return TargetMemoryError(
            f"The process that built {key.label} {how}, probably for want of memory.",
            hint=f"Use a machine with more memory. {_HINT}",
        )
    if code == -signal.SIGKILL and starved == "perhaps":
        how += f"; {PERHAPS_STARVED}"
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return BuildError(
        f"The process that built {key.label} {how}" + (f": {lines[-1][:300]}" if lines else "."),
        hint=_HINT,
    )
