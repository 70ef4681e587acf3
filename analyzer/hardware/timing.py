"""How exactly this thread wakes up."""

from __future__ import annotations

import ctypes

_PR_SET_TIMERSLACK = 29
_PR_GET_TIMERSLACK = 30


def set_timer_slack_ns(slack_ns: int) -> int:
    """Sets by how much the kernel may delay this thread's wake-ups; returns what it was.

    Linux delays them by up to 50 µs to wake several threads at once. Threads inherit it from the
    one that starts them. ``slack_ns`` is at least 1.
    """
    libc = ctypes.CDLL(None)
    before = int(libc.prctl(_PR_GET_TIMERSLACK, 0, 0, 0, 0))
    libc.prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(slack_ns), 0, 0, 0)
    return before
