"""System shared memory that clients register, if the server allows it.

Whoever may register a region can make the server read and write any POSIX shared-memory object of
its user, so this is off by default (as in Triton since 2026). Regions are files below ``/dev/shm``.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analyzer.engine.fault import Fault

_FOLDER = Path("/dev/shm")
_KEY = re.compile(r"/?[^/\x00-\x1f]{1,255}")
# Each is a memory mapping, of which Linux allows a process 65,530 (vm.max_map_count).
_REGIONS_MAX = 4096
_CUDA = "CUDA shared memory is not supported: this server keeps tensors in the host's memory"
_OFF = "client shared memory is disabled. Start the server with --allow-client-shm=true to allow it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A part of a registered shared-memory region."""

    name: str
    offset: int
    byte_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """A registered region."""

    name: str
    key: str
    offset: int
    byte_size: int
    mapping: mmap.mmap


class SharedMemory:
    """The registered regions. Thread-safe.

    Args:
        allowed: Whether clients may register regions.
    """

    def __init__(self, *, allowed: bool) -> None:
        self._allowed = allowed
        self._lock = threading.Lock()
        self._regions: dict[str, Registered] = {}

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Maps a region; registering the same again does nothing.

        Raises:
            Fault: It is not allowed, or the region is not there or too small.
        """
        self._require()
        if not _KEY.fullmatch(key) or key.strip("/") in ("", ".", ".."):
            raise Fault("internal", f"Unable to open shared memory region: '{key}'")
        with self._lock:
            known = self._regions.get(name)
            if known is not None:
                raise Fault("already_exists", f"shared memory region '{name}' already in manager")
            if len(self._regions) >= _REGIONS_MAX:
                raise Fault("unavailable", "too many shared memory regions are registered")
            self._regions[name] = _map(name, key, offset, byte_size)

    def unregister(self, name: str | None) -> None:
        """Forgets a region, or all of them with None; an unknown name is no error."""
        self._require()
        with self._lock:
            names = list(self._regions) if name is None else [name]
            for one in names:
                region = self._regions.pop(one, None)
                if region is not None:
                    _close(region.mapping)

    def status(self, name: str | None) -> list[Registered]:
        """The region of that name, or all of them.

        Raises:
            Fault: There is no region of that name.
        """
        with self._lock:
            if name is None:
                return [self._regions[key] for key in sorted(self._regions)]
            if name not in self._regions:
                raise Fault("not_found", f"Unable to find system shared memory region: '{name}'")
            return [self._regions[name]]

    def read(self, region: Region) -> bytes:
        """A copy of what a region holds: the client may change it at any time.

        Raises:
            Fault: There is no such region, or it ends before.
        """
        with self._lock:
            known = self._find(region)
            start = known.offset + region.offset
            return known.mapping[start : start + region.byte_size]

    def check(self, region: Region) -> None:
        """Checks a part of a region before it is needed.

        Raises:
            Fault: There is no such region, or it ends before.
        """
        with self._lock:
            self._find(region)

    def write(self, region: Region, output: str, data: bytes) -> None:
        """Puts an output into a region.

        Raises:
            Fault: There is no such region, or it is too small.
        """
        if len(data) > region.byte_size:
            raise Fault(
                "internal",
                f"shared memory size specified with the request for output '{output}' "
                f"({region.byte_size} bytes) should be at least {len(data)} bytes to hold the "
                "results",
            )
        with self._lock:
            known = self._find(region)
            start = known.offset + region.offset
            known.mapping[start : start + len(data)] = data

    def close(self) -> None:
        """Forgets every region."""
        with self._lock:
            for region in self._regions.values():
                _close(region.mapping)
            self._regions.clear()

    def _require(self) -> None:
        if not self._allowed:
            raise Fault("unsupported", _OFF)

    def _find(self, region: Region) -> Registered:
        known = self._regions.get(region.name)
        if known is None:
            raise Fault("not_found", f"Unable to find shared memory region: '{region.name}'")
        if region.offset > known.byte_size:
            raise Fault("invalid", f"Invalid offset for shared memory region: '{region.name}'")
        if not region.byte_size or region.offset + region.byte_size > known.byte_size:
            raise Fault(
                "invalid",
                f"Invalid offset + byte size for shared memory region: '{region.name}'",
            )
        return known


def refuse_cuda() -> Fault:
    """The answer to every registration of CUDA shared memory."""
    return Fault("unsupported", _CUDA)


def _map(name: str, key: str, offset: int, byte_size: int) -> Registered:
    path = _FOLDER / key.lstrip("/")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError as error:
        raise Fault("internal", f"Unable to open shared memory region: '{key}'") from error
    try:
        size = os.fstat(descriptor).st_size
        if byte_size <= 0 or offset < 0 or offset + byte_size > size:
            raise Fault(
                "internal",
                f"failed to register shared memory region '{name}': invalid args: it has {size} "
                f"bytes, asked for {byte_size} at {offset}",
            )
        mapping = mmap.mmap(descriptor, offset + byte_size)
    except (OSError, ValueError) as error:
        raise Fault("internal", f"Unable to map shared memory region: '{key}'") from error
    finally:
        os.close(descriptor)
    return Registered(name=name, key=key, offset=offset, byte_size=byte_size, mapping=mapping)


def _close(mapping: Any) -> None:
    with contextlib.suppress(BufferError):  # still read by a request: it goes with that request
        mapping.close()
