"""Folders that appear whole or not at all."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# From Linux's headers (fcntl.h, fs.h), for renameat2(2).
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
STAGING_PREFIX = ".tritune-"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds an exclusive lock on ``folder``, so that two exports into it take turns."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextmanager
def staging_folder(beside: Path) -> Iterator[Path]:
    """A new folder on the file system of ``beside``, removed at the end with what is left in it.

    It lies next to ``beside`` rather than in it where that works, since a Triton that polls the
    repository takes every folder in it for a model.
    """
    parent = beside.parent
    same_device = parent.stat().st_dev == beside.stat().st_dev
    home = parent if same_device and os.access(parent, os.W_OK | os.X_OK) else beside
    folder = Path(tempfile.mkdtemp(prefix=STAGING_PREFIX, dir=home))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def copy_durably(source: Path | bytes, target: Path) -> None:
    """Writes ``source`` (a file or bytes) to the new file ``target`` and flushes it to the disk."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as sink:
        if isinstance(source, bytes):
            sink.write(source)
        else:
            with source.open("rb") as file:
                shutil.copyfileobj(file, sink, 1 << 20)
        sink.flush()
        os.fsync(sink.fileno())
    target.chmod(0o644)


def link_or_copy(source: str, target: str) -> str:
    """Makes ``target`` the same file as ``source``; a copy where the file system has no links."""
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)
    return target


def put_in_place(staged: Path, target: Path) -> None:
    """Makes the folder ``staged`` appear as ``target``.

    An existing ``target`` is exchanged in one step (``renameat2``), so that a reader finds the old
    folder or the new one; the old one is then at ``staged``. Where the file system cannot exchange,
    the old one is moved away first, and back if the new one cannot be put there.

    Raises:
        OSError: It could not be done; ``target`` is as it was.
    """
    flush_folder(staged)
    if not target.exists():
        staged.rename(target)
    elif not _exchange(staged, target):
        aside = staged.with_name(staged.name + ".old")
        target.rename(aside)
        try:
            staged.rename(target)
        except OSError:
            aside.rename(target)
            raise
        aside.rename(staged)
    flush_folder(target.parent)


def flush_folder(folder: Path) -> None:
    """Flushes a folder's list of names to the disk, where the file system can."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):
            os.fsync(handle)
    finally:
        os.close(handle)


def _exchange(first: Path, second: Path) -> bool:
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    done = renameat2(
        _AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE
    )
    return bool(done == 0)
