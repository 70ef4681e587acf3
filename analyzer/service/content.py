"""The content store: files by the SHA-256 of what is in them, in one folder.

A file is written under a name of its own first and renamed when it is whole, in the transaction
that notes it in the database: there is never half a file under its hash, and ``analyze service gc``
(which takes a file away in the transaction that removes its row) never takes one that is being
noted. A folder on a network file system serves several machines.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from sqlalchemy import Connection, Select, select, update

from analyzer.errors import DataError, StoreError
from analyzer.service.archive import HEAD_BYTES, is_archive
from analyzer.service.rows import upsert
from analyzer.service.schema import OBJECTS, DatabaseTime

_CHUNK_BYTES = 1 << 20  # of one read; any size that is large beside a system call will do
_LOOKED_AT = 20  # newest files: one may be lost, and all of them are not
_RANGE_BYTES = 16 << 20  # that the kernel copies at a time: well below a second on a slow disk
_HASH = re.compile(r"[0-9a-f]{64}")
_PREFIX = re.compile(r"[0-9a-f]{2}")  # as :func:`_place` names the folders
# The kernel does not copy between these two files.
_NOT_IN_KERNEL = {errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}


def is_of(connection: Connection, root: Path) -> bool:
    """Whether the folder ``root`` may be that of the database: False without its newest files."""
    newest = select(OBJECTS.c.sha256).order_by(OBJECTS.c.created_at.desc()).limit(_LOOKED_AT)
    found = connection.execute(newest).scalars().all()
    return not found or any(_place(root, sha256).is_file() for sha256 in found)


def let_go(connection: Connection, hashes: Select[tuple[str]]) -> None:
    """Notes that the transaction takes references to these files away.

    They stay for a while from now on, whether or not anything else refers to them: a backup of
    the database that was made before does, and their files may still have to be copied.
    """
    # Another transaction that holds one notes it now, or lets it go, too. Not to wait for that
    # keeps two that hold several from waiting for each other.
    free = (
        select(OBJECTS.c.sha256)
        .where(OBJECTS.c.sha256.in_(hashes))
        .with_for_update(skip_locked=True, key_share=True)
    )
    connection.execute(
        update(OBJECTS).where(OBJECTS.c.sha256.in_(free)).values(created_at=DatabaseTime())
    )


def _place(root: Path, sha256: str) -> Path:
    return root / "objects" / sha256[:2] / sha256


def _nothing() -> None:
    """What is done between pieces where nobody waits."""


def copy_file(source: BinaryIO, target: BinaryIO, between: Callable[[], object]) -> None:
    """Copies a file that was just opened; both share their blocks where the file system can.

    A hard link would be faster still, and let the reader of the copy change the original.

    Args:
        between: Called between pieces.
    """
    with contextlib.suppress(_CopiedByHand):
        while _copy_range(source.fileno(), target.fileno()):
            between()
        return
    while data := source.read(_CHUNK_BYTES):
        target.write(data)
        between()


class _CopiedByHand(Exception):
    """The kernel does not copy between these two files."""


def _copy_range(source: int, target: int) -> int:
    try:
        return os.copy_file_range(source, target, _RANGE_BYTES)
    except OSError as error:
        if error.errno in _NOT_IN_KERNEL:
            raise _CopiedByHand from error
        raise


@dataclass(frozen=True, slots=True)
class Staged:
    """A file that is written, and noted nowhere yet."""

    path: Path
    sha256: str
    size_bytes: int


class Incoming:
    """A file that is being written and hashed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("xb")
        self._hash = hashlib.sha256()
        self.size_bytes = 0

    @property
    def path(self) -> Path:
        """Where it lies until it is noted."""
        return self._path

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Appends ``data``."""
        self._file.write(data)
        self._hash.update(data)
        self.size_bytes += len(data)

    def finish(self) -> Staged:
        """Closes the file, after it has reached the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        return Staged(self._path, self._hash.hexdigest(), self.size_bytes)

    def discard(self) -> None:
        """Removes it; nothing happens where it was noted meanwhile."""
        # On a full disk even closing fails, for what is not written yet.
        with contextlib.suppress(OSError):
            self._file.close()
        self._path.unlink(missing_ok=True)


class ContentStore:
    """Files under ``root``, each by its hash."""

    def __init__(self, root: Path) -> None:
        #: Of all of them.
        self.root = root
        self._incoming = root / "incoming"
        #: For :class:`~analyzer.service.variants.KeptVariants`.
        self.variants = root / "variants"
        try:
            for folder in (root, root / "objects", self._incoming):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"The service's folder {root} cannot be used: {error.strerror}.",
                hint="Choose another one with --data.",
            ) from error

    def path(self, sha256: str) -> Path:
        """Where the content with this hash lies, or would lie."""
        return _place(self.root, sha256)

    @contextlib.contextmanager
    def incoming(self) -> Iterator[Incoming]:
        """A new file; it is removed at the end unless :meth:`keep` took it."""
        own = Incoming(self._incoming / uuid.uuid4().hex)
        try:
            yield own
        finally:
            own.discard()

    def keep(self, connection: Connection, staged: Staged) -> None:
        """Notes a file in the database and moves it to its place, in one transaction."""
        upsert(
            connection,
            OBJECTS,
            {
                "sha256": staged.sha256,
                "size_bytes": staged.size_bytes,
                "created_at": DatabaseTime(),
            },
            update=("created_at",),
        )
        place = self.path(staged.sha256)
        place.parent.mkdir(mode=0o700, exist_ok=True)
        staged.path.replace(place)

    def open(self, sha256: str) -> BinaryIO:
        """The content with this hash.

        Raises:
            DataError: It is gone.
        """
        try:
            return self.path(sha256).open("rb")
        except FileNotFoundError as error:
            raise DataError(
                f"The service's folder has lost the content {sha256}.",
                hint="Restore the folder from the backup that belongs to the database.",
            ) from error

    def is_archive(self, sha256: str) -> bool:
        """Whether the content is a tar: a model directory; False where it is gone."""
        try:
            with self.path(sha256).open("rb") as stream:
                return is_archive(stream.read(HEAD_BYTES))
        except FileNotFoundError:
            return False

    def copy_to(
        self, sha256: str, place: Path, *, between: Callable[[], object] = _nothing
    ) -> None:
        """Writes the content with this hash to ``place``: a copy, which may be changed.

        Args:
            between: Called between pieces: a large file takes its time.
        """
        with self.open(sha256) as source, place.open("xb") as target:
            copy_file(source, target, between)

    def stage_file(
        self, incoming: Incoming, source: BinaryIO, *, between: Callable[[], object] = _nothing
    ) -> Staged:
        """Copies an open file into ``incoming``.

        Args:
            between: Called between pieces.
        """
        while data := source.read(_CHUNK_BYTES):
            incoming.write(data)
            between()
        between()  # reaching the disk may take as long as all of that
        return incoming.finish()

    def files(self) -> Iterator[tuple[str, list[Path]]]:
        """All that were noted once, by what their hashes begin with.

        Whatever else lies there is passed over: ``lost+found`` of a disk of its own, for one.
        """
        for folder in sorted((self.root / "objects").iterdir()):
            if _PREFIX.fullmatch(folder.name) and folder.is_dir():
                found = [path for path in folder.iterdir() if _HASH.fullmatch(path.name)]
                yield folder.name, found

    def remove(self, sha256: str) -> None:
        """Removes the content with this hash, if it is there."""
        self.path(sha256).unlink(missing_ok=True)

    def abandoned(self, *, older_than_s: float, now: float) -> Iterator[Path]:
        """Files that uploads left half-written, by this machine's clock."""
        for path in self._incoming.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_mtime < now - older_than_s:
                    yield path
