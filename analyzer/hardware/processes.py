"""Memory and CPU of processes and their children, straight from ``/proc`` because it is cheap."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


def with_children(pids: Iterable[int]) -> tuple[int, ...]:
    """The processes that live, and all their descendants, each once."""
    found: dict[int, None] = {}
    queue = list(pids)
    while queue:
        pid = queue.pop(0)
        if pid in found:
            continue
        with suppress(OSError):
            tasks = list(Path(f"/proc/{pid}/task").iterdir())
            found[pid] = None
            for task in tasks:
                with suppress(OSError):
                    queue += map(int, (task / "children").read_text().split())
    return tuple(found)


def is_running(pid: int) -> bool:
    """Whether a process lives; one that is dead but not yet waited for does not."""
    with suppress(OSError, IndexError):
        # The command's name, in parentheses, may hold anything.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def resident_bytes(pid: int) -> int:
    """Resident memory now; 0 for a process that is gone."""
    with suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE_BYTES
    return 0


def resident_bytes_peak(pid: int) -> int | None:
    """Highest resident memory since the start or the last :func:`reset_peak`; None if unknown."""
    with suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def reset_peak(pid: int) -> bool:
    """Starts the peak anew at what is resident now; False where that is not allowed."""
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def cpu_seconds(pid: int) -> float:
    """CPU time of the process so far, user and system; 0 for a process that is gone."""
    with suppress(OSError, IndexError, ValueError):
        # The command's name, in parentheses, may hold anything; what follows it is numbers.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * _TICK_S
    return 0.0


def running_s(pid: int) -> float:
    """CPU time of the process's first thread, to the nanosecond; 0 where the kernel tells none."""
    with suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    return 0.0
