"""Model directories and repositories as plain tar archives: packed here, unpacked in a child.

``python -m analyzer.service.archive FILE FOLDER [COMMAND…]`` unpacks and then becomes the command:
an archive of a stranger's is read in the child alone that may write to its own folder only.

What is unpacked holds folders and plain files under one folder; its members take no more room than
the archive itself. Links, devices, sparse files, absolute names, names that lead upwards, and
compressed archives are refused.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterator, Set
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from analyzer.errors import AnalyzerError, ModelError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# A Triton repository has tens of files; more are a flood.
_MEMBERS_MAX = 10_000
_DEPTH_MAX = 16  # folders; a model directory has three
_NAME_MAX = 200  # characters of one part of a path: what file systems take
_PART = re.compile(r"[^\x00-\x1f\x7f\\]+")
_MAGIC_AT, _MAGIC = 257, b"ustar"  # POSIX.1-1988, and what GNU tar writes
HEAD_BYTES = tarfile.BLOCKSIZE
"""By which an archive is known."""
_COPY_BYTES = 1 << 20  # of one read: large beside a system call
_HINT = "Write it with: tar -cf model.tar DIRECTORY"


def is_archive(head: bytes) -> bool:
    """Whether a file that begins with these :data:`HEAD_BYTES` is a tar archive."""
    return head[_MAGIC_AT : _MAGIC_AT + len(_MAGIC)] == _MAGIC


class _Written(io.BufferedWriter):
    """A new file; ``between`` is called after each write."""

    def __init__(self, path: Path, between: Callable[[], object]) -> None:
        super().__init__(io.FileIO(path, "w"))
        self._between = between

    def write(self, data: ReadableBuffer) -> int:
        done = super().write(data)
        self._between()
        return done


def pack(
    folder: Path,
    name: str,
    target: Path,
    *,
    follow: bool = False,
    between: Callable[[], object] = lambda: None,
) -> None:
    """Writes ``folder`` as an archive whose one folder is ``name``: the same bytes each time.

    Args:
        follow: Whether what links lead to is packed; they are left out otherwise.
        between: Called between pieces: a large folder takes its time.
    """
    with (
        _Written(target, between) as stream,
        tarfile.open(fileobj=stream, mode="w", dereference=follow) as archive,
    ):
        below = _linked(folder, frozenset({folder.resolve()})) if follow else folder.rglob("*")
        for path in (folder, *sorted(below)):
            where = Path(name) / path.relative_to(folder)
            archive.add(path, arcname=str(where), recursive=False, filter=_plain)


def _linked(folder: Path, above: Set[Path]) -> Iterator[Path]:
    """What lies below a folder, in linked ones too; not in one that leads back ``above`` itself."""
    for path in folder.iterdir():
        if not path.is_dir():
            yield path
        elif (real := path.resolve()) not in above:
            yield path
            yield from _linked(path, above | {real})


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Files and folders alone, and nobody's in particular."""
    if not (member.isreg() or member.isdir()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = 0
    member.mode = 0o755 if member.isdir() else 0o644
    return member


def unpack(file: Path, folder: Path) -> None:
    """Unpacks what lies in the archive's one folder into ``folder``, which is made.

    Raises:
        ModelError: It is no archive, or holds what is refused.
    """
    try:
        size_bytes = file.stat().st_size
        with file.open("rb") as stream:
            if not is_archive(stream.read(HEAD_BYTES)):
                raise ModelError("It is no plain tar archive.", hint=_HINT)
            stream.seek(0)
            with tarfile.open(fileobj=stream, mode="r:") as archive:
                folder.mkdir(parents=True)
                for member, parts in _checked(archive, size_bytes):
                    _place(archive, member, folder.joinpath(*parts))
    except (tarfile.TarError, EOFError, UnicodeError, ValueError) as error:
        raise ModelError(
            f"It is no tar archive, or it is truncated: {error}.", hint=_HINT
        ) from error
    except OSError as error:
        raise ModelError(f"It cannot be unpacked: {error.strerror}.", hint=_HINT) from error


def _checked(
    archive: tarfile.TarFile, size_bytes: int
) -> Iterator[tuple[tarfile.TarInfo, list[str]]]:
    """The members with the parts of their names below the one folder; an unusable one raises."""
    top, left = None, size_bytes
    for number, member in enumerate(archive):
        told = repr(member.name[:_NAME_MAX])
        if number == _MEMBERS_MAX:
            raise ModelError(f"It holds more than {_MEMBERS_MAX:,} files.", hint=_HINT)
        if member.issparse() or not (member.isreg() or member.isdir()):
            raise ModelError(
                f"Its member {told} is neither a plain file nor a folder.",
                hint="Links are not taken: tar -h packs what they lead to.",
            )
        left -= member.size
        if left < 0:
            raise ModelError("Its members are larger than the archive.", hint=_HINT)
        parts = [part for part in member.name.split("/") if part != "."]
        if (
            not all(_PART.fullmatch(part) and part != ".." for part in parts)
            or len(parts) > _DEPTH_MAX
            or any(len(part) > _NAME_MAX for part in parts)
        ):
            raise ModelError(f"Its member {told} has a name that is not taken.", hint=_HINT)
        if not parts:
            continue
        if parts[0].startswith("._"):
            raise ModelError(
                f"Its member {told} is one that macOS adds beside the folder.",
                hint="Write it with: COPYFILE_DISABLE=1 tar -cf model.tar DIRECTORY",
            )
        top = top or parts[0]
        if parts[0] != top or (len(parts) == 1 and not member.isdir()):
            raise ModelError("It does not hold one folder with everything in it.", hint=_HINT)
        if len(parts) > 1:
            yield member, parts[1:]


def _place(archive: tarfile.TarFile, member: tarfile.TarInfo, where: Path) -> None:
    if member.isdir():
        where.mkdir(parents=True, exist_ok=True)
        return
    where.parent.mkdir(parents=True, exist_ok=True)
    source = archive.extractfile(member)
    assert source is not None
    with source, _new(where) as target:
        shutil.copyfileobj(source, target, _COPY_BYTES)
        if target.tell() != member.size:
            raise EOFError(f"{member.name[:_NAME_MAX]!r} ends before its end")


def _new(path: Path) -> BinaryIO:
    try:
        return path.open("xb")
    except FileExistsError as error:
        raise ModelError(f"It holds {path.name!r} twice.", hint=_HINT) from error


def main() -> int:
    """Unpacks, then becomes the command; 2 where the archive is refused."""
    file, folder, *command = sys.argv[1:]
    try:
        unpack(Path(file), Path(folder))
    except AnalyzerError as error:
        print(f"{error.message} {error.hint}", file=sys.stderr)
        return 2
    Path(file).unlink()
    if command:
        os.execv(command[0], command)
    return 0


if __name__ == "__main__":
    sys.exit(main())
