"""How exactly this thread wakes up."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

#: How a thread was put first in line; see :func:`first_in_line`.
Priority = Literal["realtime", "short_slice", "normal"]

# Numbers of the system call and of prctl's options, from Linux's own headers.
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_SLICE_NS = 100_000  # the least that Linux takes (sched_setattr(2))
_SLICE_NS_DEFAULT = 0  # the kernel puts its own in
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


@contextmanager
def first_in_line() -> Iterator[Priority]:
    """Lets this thread run as soon as it wakes up, even while others keep every core busy.

    Real-time scheduling where that is allowed (root, CAP_SYS_NICE, an rtprio limit); else a short
    time slice, which Linux 6.12 and newer take for a wish to be served soon. For a thread that
    sleeps most of the time. All is put back at the end; threads started meanwhile are ordinary.
    Without real time the server must stand back too (:func:`give_way`).

    Yields which of the two worked. On two cores that a model kept busy, the lag of 2,000 sends a
    second was 0.1 ms at p99 with the first, 2 ms with the second and 5 ms with neither; a higher
    niceness of the server changed nothing.
    """
    policy, parameters = _policy(), os.sched_getparam(0)
    if policy != os.SCHED_OTHER:
        yield "normal"  # someone has chosen for us
        return
    try:
        lowest = os.sched_param(os.sched_get_priority_min(os.SCHED_FIFO))
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, lowest)
    except OSError:
        shortened = _set_slice_ns(_SLICE_NS)
        try:
            yield "short_slice" if shortened else "normal"
        finally:
            if shortened:
                _set_slice_ns(_SLICE_NS_DEFAULT)
        return
    try:
        yield "realtime"
    finally:
        try:
            os.sched_setscheduler(0, policy, parameters)
        except PermissionError:
            # Only CAP_SYS_NICE takes that flag back (sched(7)), an rtprio limit does not.
            os.sched_setscheduler(0, policy | os.SCHED_RESET_ON_FORK, parameters)


def give_way() -> None:
    """Lets a load generator run as soon as it wakes up, where it may not run in real time.

    This process and what it starts then only use what others leave of a core (SCHED_IDLE). Linux
    weighs that within a session (sched(7), autogroups) or a control group: the generator must be in
    the same one, and what else runs there comes first too. On two cores that a model kept busy, the
    lag of 200 sends a second was 0.5 ms at p99 with it, and 3 to 4 ms without, at any niceness; of
    sends to a real Triton (gRPC, python backend, two instances) 0.5 to 1.1 ms and 3.6 to 3.8 ms.
    """
    if _policy() != os.SCHED_OTHER:
        return  # someone has chosen for us
    with first_in_line() as priority:
        pass
    if priority != "realtime":
        with suppress(OSError):  # a sandbox that lets nobody change it
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _policy() -> int:
    """This thread's, without the flag that makes its children ordinary."""
    return os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK


def _set_slice_ns(slice_ns: int) -> bool:
    """Asks for a time slice of this thread; False where the kernel does not take it."""
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None:
        return False
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    # struct sched_attr, version 0: size, policy, flags, nice, priority, runtime, deadline, period
    attributes = struct.pack("<IIQiIQQQ", 48, os.SCHED_OTHER, 0, nice, 0, slice_ns, 0, 0)
    return bool(ctypes.CDLL(None).syscall(number, 0, attributes, 0) == 0)
