"""A command without a network reaches one endpoint, and nothing else.

The command's namespace has a loopback alone. A process that stays outside (:func:`start_relay`)
takes the connections to a port of that loopback and opens one each to the endpoint that the
operator allowed: names that resolve to something else and redirects lead nowhere, since there is no
other way out.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
import time
from typing import NamedTuple

from analyzer.hardware.lifetime import die_with_parent
from analyzer.targets.address import parse_address

# Triton's own, in the command's namespace.
_PORTS = {"grpc": 8001, "http": 8000}
_READ_BYTES = 1 << 16
_BACKLOG = 128
_CONNECTIONS_MAX = 4096  # as many as a load test opens (analyzer.targets.http_connection)
_STACK_BYTES = 1 << 18  # of a thread, of which there are two for each connection: they call little
_AGAIN_S = 0.05  # after which connections may have ended, where no more can be opened: a choice
_CONNECT_S = 10.0  # a server that takes longer is lost


class Endpoint(NamedTuple):
    """Where a Triton answers."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        """As it is written on the command line; two spellings of one address are the same."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    @property
    def inner_port(self) -> int:
        """Where the command finds it on a loopback of its own."""
        return _PORTS[self.scheme]


def parse_endpoint(text: str) -> Endpoint:
    """The endpoint that ``grpc://HOST:PORT`` or ``http://HOST:PORT`` names.

    Raises:
        UsageError: It names none.
    """
    return Endpoint(*parse_address(text.lower()))


def start_relay(host: str, port: int) -> socket.socket:
    """Forks the process that stays outside; what comes back takes the listener (:func:`listen`)."""
    own, other = socket.socketpair()
    if os.fork():
        other.close()
        return own
    try:
        own.close()
        die_with_parent()
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        threading.stack_size(_STACK_BYTES)
        _, (handle, *_), _, _ = socket.recv_fds(other, 1, 1)
        _serve(socket.socket(fileno=handle), host, port)
    except BaseException as error:
        os.write(2, f"The relay to {host}:{port} ended: {error}\n".encode())
    os._exit(1)


def listen(relay: socket.socket, port: int) -> None:
    """Listens on this process's loopback, and hands the listener to the relay.

    Raises:
        OSError: The port is taken.
    """
    with relay, socket.create_server(("127.0.0.1", port), backlog=_BACKLOG) as listener:
        socket.send_fds(relay, [b"l"], [listener.fileno()])


def _serve(listener: socket.socket, host: str, port: int) -> None:
    room = threading.BoundedSemaphore(_CONNECTIONS_MAX)
    while True:
        room.acquire()
        try:
            inner, _ = listener.accept()
        except OSError:
            # No handle is left: who comes waits until others have ended.
            room.release()
            time.sleep(_AGAIN_S)
            continue
        try:
            threading.Thread(target=_join, args=(inner, host, port, room), daemon=True).start()
        except RuntimeError:
            # Nor is a thread.
            inner.close()
            room.release()


def _join(inner: socket.socket, host: str, port: int, room: threading.BoundedSemaphore) -> None:
    """Carries what both sides say until both have ended."""
    try:
        with inner, socket.create_connection((host, port), _CONNECT_S) as outer:
            outer.settimeout(None)
            for side in (inner, outer):
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=_carry, args=(outer, inner), daemon=True)
            back.start()
            _carry(inner, outer)
            back.join()
    except (OSError, RuntimeError):
        pass  # the command sees a connection that ends
    finally:
        room.release()


def _carry(source: socket.socket, target: socket.socket) -> None:
    buffer = memoryview(bytearray(_READ_BYTES))
    try:
        while read := source.recv_into(buffer):
            target.sendall(buffer[:read])
        target.shutdown(socket.SHUT_WR)
    except OSError:
        # One side is gone: so is the other.
        for side in (source, target):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
