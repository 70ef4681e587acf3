"""A folder of variants keyed by content; several processes may use it at once."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from analyzer.errors import BuildError

RECORD_NAME = "variant.json"
_BUILD_PREFIX = ".build-"
# In the name of an entry that is its owner's alone; a hash of the owner follows.
OWN = "-of-"
# Longer than any build: what is older was left by a process that died.
_STALE_SECONDS = 24 * 3600


def cache_key(facts: dict[str, Any]) -> str:
    """A name for what ``facts`` (JSON-ready) determine: 24 hex digits of their SHA-256."""
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def load_entry(
    cache_dir: Path, key: str, *, seconds_kept: float = math.inf
) -> tuple[Path, dict[str, Any]] | None:
    """Folder and record of the entry ``key``; None if there is none or it is damaged or too old.

    A damaged entry (a file that is missing or whose hash differs) is removed, and so is one that
    was published longer than ``seconds_kept`` ago.
    """
    folder = cache_dir / key
    try:
        record = json.loads((folder / RECORD_NAME).read_text(encoding="utf-8"))
        intact = all(file_sha256(folder / name) == value for name, value in record["files"].items())
        intact &= time.time() - record.get("published_at", 0.0) <= seconds_kept
    except FileNotFoundError:
        if not folder.exists():
            return None
        intact = False
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        intact = False
    if intact:
        return folder, record
    shutil.rmtree(folder, ignore_errors=True)
    return None


def own_key(key: str, owner: str) -> str:
    """The name of the entry that stands in for ``key`` for ``owner`` alone."""
    return f"{key}{OWN}{hashlib.sha256(owner.encode()).hexdigest()[:12]}"


@contextlib.contextmanager
def building(cache_dir: Path) -> Iterator[Path]:
    """A private folder in the cache to build in; removed at the end, whatever happens.

    Raises:
        BuildError: The cache cannot be written.
    """
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        _remove_stale(cache_dir)
        folder = Path(tempfile.mkdtemp(prefix=_BUILD_PREFIX, dir=cache_dir))
    except OSError as error:
        raise write_error(cache_dir, error) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def publish(cache_dir: Path, key: str, folder: Path, record: dict[str, Any]) -> Path:
    """Makes ``folder`` (inside :func:`building`'s) the entry ``key`` in one step.

    Where another process was faster, its entry is kept. Returns the entry's folder.

    Raises:
        BuildError: The cache cannot be written.
    """
    final = cache_dir / key
    try:
        files = {entry.name: file_sha256(entry) for entry in folder.iterdir() if entry.is_file()}
        whole = {**record, "files": files, "published_at": time.time()}
        (folder / RECORD_NAME).write_text(json.dumps(whole), encoding="utf-8")
        for name in (*files, RECORD_NAME):
            with (folder / name).open("rb") as stream:
                os.fsync(stream.fileno())
        folder.rename(final)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise write_error(cache_dir, error) from error
    return final


def write_error(folder: Path, error: OSError) -> BuildError:
    """The error of a cache that cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return BuildError(
            f"The disk of {folder} is full; nothing half-written was left there.",
            hint="Free some space and start again: what is finished is kept.",
        )
    return BuildError(
        f"{folder} cannot be written: {error.strerror or error}.",
        hint="Check its permissions, or choose another cache folder with TRITUNE_CACHE.",
    )


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, 64 hex digits."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def data_sha256(path: Path) -> str:
    """As :func:`file_sha256`, read once by a process while size and time of the file are the same.

    Data may be large, and every load test asks.
    """
    found = path.stat()
    return _sha256_as_of(path.absolute(), found.st_size, found.st_mtime_ns)


@functools.lru_cache(maxsize=16)
def _sha256_as_of(path: Path, size: int, mtime_ns: int) -> str:
    return file_sha256(path)


def _remove_stale(cache_dir: Path) -> None:
    """Removes what builds left that were killed a day ago or longer."""
    limit = time.time() - _STALE_SECONDS
    for entry in cache_dir.glob(_BUILD_PREFIX + "*"):
        with contextlib.suppress(OSError):
            if entry.stat().st_mtime < limit:
                shutil.rmtree(entry, ignore_errors=True)
