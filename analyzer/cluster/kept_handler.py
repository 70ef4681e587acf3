"""Keeps Ray's core from putting a signal handler of its own in the place of ours.

Ray's core installs one for SIGTERM while it connects, in C, whatever it is told: it prints a stack
trace and ends the process. Python can set handlers on its main thread alone, and Ray may start on
another; so what the kernel knows is put back as it was.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Larger than the kernel's ``struct sigaction`` in C libraries on Linux (152 bytes in glibc).
_BYTES = 512
# A signal that comes in between finds the other handler.
_POLL_S = 0.002


@contextmanager
def kept_handler(signum: int) -> Iterator[None]:
    """Holds the process's handler of ``signum`` within the block, and leaves it at its end."""
    libc = ctypes.CDLL(None, use_errno=True)
    ours, now = (ctypes.create_string_buffer(_BYTES) for _ in range(2))
    libc.sigaction(signum, None, ours)
    ended = threading.Event()

    def put_back() -> None:
        libc.sigaction(signum, None, now)
        # The handler's address comes first; the flags behind it the C library may complete.
        if now.raw[: ctypes.sizeof(ctypes.c_void_p)] != ours.raw[: ctypes.sizeof(ctypes.c_void_p)]:
            libc.sigaction(signum, ours, None)

    def watch() -> None:
        while not ended.wait(_POLL_S):
            put_back()

    watching = threading.Thread(target=watch, name="signal handler", daemon=True)
    watching.start()
    try:
        yield
    finally:
        ended.set()
        watching.join()
        put_back()
