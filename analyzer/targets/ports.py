"""Ports of the loopback interface, and who listens to them."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

LOOPBACK = "127.0.0.1"
_TCP_LISTEN = "0A"  # a socket's state in /proc/net/tcp


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface that nobody listens to at this moment."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind((LOOPBACK, 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def shared_with_others(port: int, pid: int) -> bool:
    """Whether a process other than ``pid`` listens to ``port`` too.

    Two servers can share a port without an error (SO_REUSEPORT), and requests go to either.
    """
    return bool(_listeners(port) - _sockets(pid))


def _sockets(pid: int) -> set[str]:
    """Inodes of the sockets that a process has open."""
    inodes = set()
    with suppress(OSError):
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                link = str(handle.readlink())
                if link.startswith("socket:["):
                    inodes.add(link[8:-1])
    return inodes


def _listeners(port: int) -> set[str]:
    """Inodes of the sockets in this network namespace that listen to ``port``."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                listening = fields[3] == _TCP_LISTEN
                if listening and int(fields[1].rsplit(":", 1)[1], 16) == port:
                    inodes.add(fields[9])
    return inodes
