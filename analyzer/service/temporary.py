"""Folders for temporary files of which none stays: not even that of a process that was killed.

A process locks a file in its folder for as long as it lives; whoever finds the lock free removes
the folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import BinaryIO

# Short: a job's folder is part of the path of a socket of Ray's, which is short.
_PREFIX, _LOCK = "tj-", "lock"


def make_folder() -> tuple[Path, BinaryIO]:
    """A new folder that is closed to other users, and the file whose lock keeps it.

    Raises:
        OSError: There is no room, or no right to.
    """
    own = Path(tempfile.mkdtemp(prefix=_PREFIX))
    new = own / "new"
    lock = new.open("xb")
    fcntl.flock(lock, fcntl.LOCK_EX)
    new.rename(own / _LOCK)  # it is locked from the moment that it is there
    return own, lock


def remove_abandoned() -> int:
    """Removes the folders of processes that were killed; returns how many."""
    removed = 0
    for own in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        # It is being made, is another user's, or somebody else removes it, too.
        with contextlib.suppress(OSError):
            handle = os.open(own / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
            with os.fdopen(handle, "rb"):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                removed += _remove(own)
    return removed


def _remove(own: Path) -> bool:
    """Removes a folder whose lock is held; the lock goes last, since a command that is being killed
    may still write."""
    for path in own.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != _LOCK:
            path.unlink(missing_ok=True)
    if [path.name for path in own.iterdir()] != [_LOCK]:
        return False
    shutil.rmtree(own, ignore_errors=True)
    return True
