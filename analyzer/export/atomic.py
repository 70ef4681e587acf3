"""Folders that appear whole or not at all."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from analyzer.paths import is_dir

# From Linux's headers (fcntl.h, fs.h), for renameat2(2).
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
# What begins with it is removed where its export was killed; nothing else may be called so.
STAGING_PREFIX = ".tritune-export-"
# Ends the name of a model's folder that was moved away for the time of two renames.
_ASIDE = ".old"


@contextmanager
def locked(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Holds an exclusive lock on ``folder``, so that two exports into it take turns.

    Raises:
        BlockingIOError: Somebody else holds it, and ``wait`` is not set.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


@contextmanager
def staging_folder(beside: Path) -> Iterator[Path]:
    """A new folder on the file system of ``beside``, removed at the end with what is left in it.

    It lies next to ``beside`` rather than in it where that works, since a Triton that polls the
    repository takes every folder in it for a model. Those of exports that were killed are removed
    from both.
    """
    parent = beside.parent
    for home in (beside, parent):
        _remove_left(home)
    same_device = parent.stat().st_dev == beside.stat().st_dev
    with ExitStack() as stack:
        folder = None
        if same_device and os.access(parent, os.W_OK | os.X_OK):
            folder = stack.enter_context(_own_folder(parent))
        if folder is None or not _can_move(folder, beside):
            folder = stack.enter_context(_own_folder(beside))
        yield folder


@contextmanager
def _own_folder(home: Path) -> Iterator[Path]:
    """A new folder in ``home``, locked until it is removed at the end."""
    with ExitStack() as stack:
        while True:
            folder = Path(tempfile.mkdtemp(prefix=STAGING_PREFIX, dir=home))
            with suppress(FileNotFoundError):
                stack.enter_context(locked(folder))
            if folder.exists():
                break  # otherwise another export found it before it was locked, and removed it
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_left(home: Path) -> None:
    """Removes the staging folders in ``home`` that nobody holds: their exports were killed.

    One with a model's folder that was moved away stays: nothing else may be left of that model.
    """
    for folder in home.glob(f"{STAGING_PREFIX}*"):
        with suppress(OSError), locked(folder, wait=False):
            if not any(folder.glob(f"*{_ASIDE}")):
                shutil.rmtree(folder, ignore_errors=True)


def _can_move(folder: Path, into: Path) -> bool:
    """Whether ``folder``, which is empty, can be renamed into ``into``; it is where it was then.

    Not from one mount into another, even of one file system, nor between projects of a quota.
    """
    try:
        folder.rename(into / folder.name).rename(folder)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    return True


def make_readable(folder: Path) -> None:
    """Makes ``folder``, and what is missing above it, readable by everybody whatever the umask is.

    Triton runs as a user of its own. What is in the way is found by whoever writes into ``folder``.
    """
    if is_dir(folder) or folder == folder.parent:
        return
    make_readable(folder.parent)
    with suppress(FileExistsError):  # another export's by now, or a file
        folder.mkdir()
        folder.chmod(stat.S_IMODE(folder.stat().st_mode) | 0o755)


def copy_durably(source: Path | bytes, target: Path) -> None:
    """Writes ``source`` (a file or bytes) to the new file ``target`` and flushes it to the disk."""
    make_readable(target.parent)
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
        aside = staged.with_name(staged.name + _ASIDE)
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
