"""Waits for sockets as exactly as the system can."""

from __future__ import annotations

import select
from collections.abc import Collection, Sequence

_FD_SETSIZE = 1024  # of the C library: select() knows no file beyond


def wait_for(
    readers: Sequence[int], timeout_s: float, *, writers: Sequence[int] = ()
) -> Collection[int]:
    """Those of the files that can be read from (or written to), as soon as one can.

    Waits at most ``timeout_s``: by microseconds; by milliseconds, rounded down, where this process
    has so many files open that only ``poll`` can name them.
    """
    if max(readers) < _FD_SETSIZE:
        readable, writable, _ = select.select(readers, writers, (), timeout_s)
        return [*readable, *writable] if writable else readable
    poller = select.poll()
    for reader in readers:
        poller.register(reader, select.POLLIN | (select.POLLOUT if reader in writers else 0))
    return [number for number, _ in poller.poll(int(timeout_s * 1e3))]
