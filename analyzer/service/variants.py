"""Variants of a model that one job has built, for the next job with the same model and project.

Without them each job would build everything anew, and a job that goes on with a study would miss
the TensorRT engines that were measured in it. What a job leaves was written beside an uploaded
model, which may do as it likes there: so it is kept for that model and project alone, is read by
handles (no link leads out of the job's folder), is bounded, and is used by commands only, which
check its hashes and are kept from everything else.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Set
from pathlib import Path

from sqlalchemy import Connection, select

from analyzer.domain.configuration import PRECISIONS
from analyzer.service.content import copy_file
from analyzer.service.schema import JOBS, UPLOADS
from analyzer.variants.cache import OWN, RECORD_NAME

_LOG = logging.getLogger(__name__)
# An entry of the cache of variants (:mod:`analyzer.variants.cache`); those that say why a variant
# is of no use are cheap to make again.
_ENTRY = re.compile(rf"[0-9a-f]{{24}}({OWN}[0-9a-f]{{12}})?")
_INCOMING = "incoming-"
_READ_BYTES = 1 << 20
_DEVICES = frozenset({"cpu", "gpu"})
_RECORD_MAX = 1 << 20  # bytes; one has thousands, and as many hashes as the entry has files
_FILES_MAX = 10_000  # of one entry; weights may lie in a file for each tensor
_ABANDONED_S = 86_400.0  # as for half-written uploads (:mod:`analyzer.service.gc`)


class _UnfitError(OSError):
    """An entry that cannot be kept, however often it is tried."""


class KeptVariants:
    """The entries of one model of a project; several workers may share them.

    Args:
        folder: Where they lie, ``PROJECT/MODEL`` in the folder for all of them.
        bytes_max: Of all together; what comes beyond is not kept.
    """

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self._folder = folder
        self._bytes_max = bytes_max
        self._unfit: set[str] = set()

    def give(
        self,
        place: Path,
        between: Callable[[], object],
        devices: Set[str] = _DEVICES,
        precisions: Set[str] = frozenset(PRECISIONS),
    ) -> None:
        """Copies what is kept into the folder ``place`` of a job whose command has not begun.

        Args:
            between: Called between pieces of files.
            devices: That the job may measure on, ``cpu`` and ``gpu``.
            precisions: That the job may choose from, beside ``fp32``, which it starts from.
        """
        for entry in _entries(self._folder):
            if not _usable(entry, devices, {*precisions, "fp32"}):
                continue
            # It may go meanwhile (``analyze service gc``): the command builds it then.
            try:
                for source in sorted(entry.iterdir()):
                    target = place / entry.name / source.name
                    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    with source.open("rb") as read, target.open("xb") as written:
                        copy_file(read, written, between)
                os.utime(entry)
            except FileNotFoundError:
                shutil.rmtree(place / entry.name, ignore_errors=True)

    def take(self, work: Path, below: str, between: Callable[[], object]) -> None:
        """Keeps what a job has built in ``work / below`` and is not kept yet; its command may run.

        What cannot be read or written is left out: it costs the next job time, nothing else.

        Args:
            between: Called between pieces of files.
        """
        with contextlib.suppress(OSError), contextlib.ExitStack() as ends:
            known = {entry.name for entry in _entries(self._folder)}
            room = self._bytes_max - sum(_size(entry) for entry in _entries(self._folder))
            folder = ends.enter_context(_opened(str(work), os.O_DIRECTORY))
            for part in below.split("/"):
                folder = ends.enter_context(_opened(part, os.O_DIRECTORY, folder))
            for name in sorted(os.listdir(folder)):  # noqa: PTH208 - of a handle
                if _ENTRY.fullmatch(name) is None or name in known | self._unfit:
                    continue
                incoming = self._folder / f"{_INCOMING}{uuid.uuid4().hex}"
                try:
                    room -= _copy(folder, name, incoming, room, between)
                    incoming.rename(self._folder / name)
                except OSError as error:
                    if isinstance(error, _UnfitError):
                        self._unfit.add(name)
                    _LOG.warning("The variant %s was not kept: %s", name, error)
                finally:
                    shutil.rmtree(incoming, ignore_errors=True)


def needed_models(connection: Connection) -> set[tuple[str, str]]:
    """Project and SHA-256 of each model that is there, or that a job has not ended with."""
    needing = (
        select(UPLOADS.c.project, UPLOADS.c.sha256)
        .where(UPLOADS.c.kind == "model")
        .union(select(JOBS.c.project, JOBS.c.model).where(JOBS.c.finished_at.is_(None)))
    )
    return {(project, model) for project, model in connection.execute(needing)}


def remove_unused(root: Path, needed: Set[tuple[str, str]], *, keep_s: float, now: float) -> int:
    """Removes what no job has used for ``keep_s``, and that of models that are gone; its bytes.

    Args:
        needed: As :func:`needed_models` found it.
    """
    removed = 0
    for own in root.glob("*/*"):
        gone = (own.parent.name, own.name) not in needed
        for entry in list(own.iterdir()):
            old_s = _ABANDONED_S if entry.name.startswith(_INCOMING) else keep_s
            with contextlib.suppress(FileNotFoundError):
                if gone or entry.stat().st_mtime < now - old_s:
                    removed += _size(entry)
                    shutil.rmtree(entry, ignore_errors=True)
        with contextlib.suppress(OSError):
            own.rmdir()  # unless something is left, or comes
    return removed


def _entries(own: Path) -> list[Path]:
    """What is kept of one model."""
    try:
        return sorted(entry for entry in own.iterdir() if _ENTRY.fullmatch(entry.name))
    except FileNotFoundError:
        return []


def _usable(entry: Path, devices: Set[str], precisions: Set[str]) -> bool:
    """Whether an entry may be of use; it is where it does not say what it is."""
    try:
        with (entry / RECORD_NAME).open("rb") as stream:
            built = json.loads(stream.read(_RECORD_MAX))["built_for"]
        return built["device"] in devices and built["precision"] in precisions
    except (OSError, ValueError, KeyError, TypeError):
        return True


def _size(entry: Path) -> int:
    size_bytes = 0
    with contextlib.suppress(FileNotFoundError):
        size_bytes = sum(file.stat().st_size for file in entry.iterdir())
    return size_bytes


@contextlib.contextmanager
def _opened(name: str, flags: int, folder: int | None = None) -> Iterator[int]:
    """A handle of what has this name, links and what would block excepted."""
    safe = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(name, flags | safe, dir_fd=folder)
    try:
        yield handle
    finally:
        os.close(handle)


def _copy(folder: int, name: str, target: Path, room: int, between: Callable[[], object]) -> int:
    """Copies an entry of an opened folder to a new one that has reached the disk; its bytes.

    Raises:
        _UnfitError: It has anything but files in it, too many, or is larger than ``room``.
        OSError: It cannot be read, or not be written.
    """
    size_bytes = 0
    with _opened(name, os.O_DIRECTORY, folder) as entry:
        files = os.listdir(entry)  # noqa: PTH208 - of a handle
        _check_fits(entry, files, room)
        target.mkdir(mode=0o700, parents=True)
        for file in files:
            with _opened(file, 0, entry) as handle, (target / file).open("xb") as written:
                if not stat.S_ISREG(os.fstat(handle).st_mode):
                    raise OSError(f"{file!r} is no file")
                while data := os.read(handle, _READ_BYTES):
                    size_bytes += len(data)
                    if size_bytes > room:
                        raise OSError("it grows beyond its room")
                    written.write(data)
                    between()
                written.flush()
                os.fsync(written.fileno())
    os.utime(target, (time.time(), time.time()))
    return size_bytes


def _check_fits(entry: int, files: list[str], room: int) -> None:
    """Raises _UnfitError where an entry cannot be kept: before gigabytes of it are copied."""
    if len(files) > _FILES_MAX:
        raise _UnfitError(f"it has {len(files):,} files")
    found = [os.stat(file, dir_fd=entry, follow_symlinks=False) for file in files]
    if not all(stat.S_ISREG(one.st_mode) for one in found):
        raise _UnfitError("it has something else than files in it")
    if sum(one.st_size for one in found) > room:
        raise _UnfitError("the model's variants have no room for it")
