"""Files that programs of any user of this machine lock."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def open_lock_file(path: Path) -> int:
    """A descriptor of the file at ``path``, made where there is none; the caller closes it.

    Raises:
        OSError: It can be neither opened nor made.
    """
    try:
        return os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        # Not opened like this where it exists: Linux refuses that for another user's file.
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, 0o666)
    with suppress(PermissionError):  # of another user, who made it just now and does this, too
        os.fchmod(descriptor, 0o666)  # for every user, whatever the umask
    return descriptor
