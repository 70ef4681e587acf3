"""Whether another of our searches measures on this machine's cores at the same time.

Nothing waits for it: a search has a budget of wall time. The lock is the kernel's: it holds among
all programs that see the same ``/tmp``, and ends with its process.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from analyzer.hardware.lock_file import open_lock_file

# Not the folder of temporary files, which differs between processes.
LOCK = Path("/tmp/tritune-measuring.lock")


@contextmanager
def measuring_here(path: Path = LOCK) -> Iterator[Callable[[], bool]]:
    """Says to others that this process measures here; gives what tells whether another one does.

    Where the lock cannot be opened nothing is known, and nobody is told of.
    """
    try:
        descriptor = open_lock_file(path)
    except OSError:
        yield lambda: False
        return

    def accompanied() -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            # A change of the lock that fails has given it up.
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        return False

    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield accompanied
    finally:
        os.close(descriptor)
