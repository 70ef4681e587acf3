"""Finds and kills every process that a job started, orphans included.

A worker marks its environment. Processes inherit the mark, so that one whose parent has died is
found as well; parenthood and the process group catch those that were started with a clean
environment.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

MARK = "TRITUNE_LEASE"
"""Environment variable by which the processes of a lease are found."""

# Short against what waits for it, long against a look at /proc.
_POLL_S = 0.02


def descendants(pid: int) -> set[psutil.Process]:
    """The live processes below ``pid``, without itself."""
    with suppress(psutil.NoSuchProcess):
        return {child for child in psutil.Process(pid).children(recursive=True) if lives(child)}
    return set()


def marked(mark: str) -> set[psutil.Process]:
    """The live processes, apart from this one, that started with ``MARK=mark`` around them."""
    wanted = f"{MARK}={mark}".encode()
    found = set()
    for pid in psutil.pids():
        if pid == os.getpid():
            continue
        with suppress(OSError, psutil.Error):  # it ended meanwhile, or belongs to somebody else
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                process = psutil.Process(pid)
                if lives(process):
                    found.add(process)
    return found


def in_group(leader: int) -> set[psutil.Process]:
    """The live processes of the group that ``leader`` made, itself included if it lives.

    A group outlives its leader, and its number is not given away while it does. Nothing if
    ``leader`` is of this process's own group, or never made one.
    """
    found = set()
    for pid in psutil.pids():
        with suppress(OSError, psutil.Error):
            if os.getpgid(pid) == leader != os.getpgrp():
                process = psutil.Process(pid)
                if lives(process):
                    found.add(process)
    return found


def kill_until_gone(find: Callable[[], set[psutil.Process]], *, timeout_s: float) -> bool:
    """Kills what ``find`` finds, again and again, since it may start more while it dies.

    Exit statuses are left for whoever waits for them: a dead process that nobody has waited for
    counts as gone, since its memory and devices are free.

    Returns:
        Whether nothing is left after at most ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    while alive := find():
        for process in alive:
            with suppress(psutil.Error):
                process.kill()
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def lives(process: psutil.Process) -> bool:
    """Whether it still runs; one that is dead but not yet waited for does not."""
    try:
        if process.status() != psutil.STATUS_ZOMBIE:
            return process.is_running()
        # The first thread may end before the others, which then still hold the memory.
        return len(os.listdir(f"/proc/{process.pid}/task")) > 1  # noqa: PTH208
    except (psutil.Error, OSError):
        return False
