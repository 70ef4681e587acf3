"""Ties a child process to its parent, so that no SIGKILL leaves an orphan."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent(signum: int = signal.SIGKILL) -> None:
    """Makes the kernel send this process ``signum`` when its parent's thread ends (Linux).

    Called first thing in the child; a parent that is already gone ends it at once.
    """
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
    if parent == 1 or os.getppid() != parent:
        os.kill(os.getpid(), signum)
