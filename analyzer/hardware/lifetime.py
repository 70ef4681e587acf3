"""Ties a child process to its parent, so that no SIGKILL leaves an orphan."""

from __future__ import annotations

import ctypes
import os
import signal

# From Linux's header (prctl.h).
_PR_SET_PDEATHSIG = 1


def die_with_parent(signum: int = signal.SIGKILL, *, parent_pid: int | None = None) -> None:
    """Makes the kernel send this process ``signum`` when its parent's thread ends (Linux).

    Called first thing in the child. With ``parent_pid`` (the parent's own ``os.getpid()``) a parent
    that is gone already ends the child at once.
    """
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
    if os.getppid() != parent or (parent_pid is not None and parent != parent_pid):
        os.kill(os.getpid(), signum)
