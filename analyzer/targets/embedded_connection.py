"""Sends requests to an embedded server over a socket pair: the hot path."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Sequence

from analyzer.errors import TargetError
from analyzer.targets.embedded_wire import RECEIVE_BYTES, REPLY, REQUEST
from analyzer.targets.target import Completion
from analyzer.targets.waiting import wait_for


class EmbeddedConnection:
    """One connection to an embedded server; used by one thread.

    Args:
        connection: Our end of a socket pair, whose other end the server has.
        gone: What to raise when the server has closed it.
        failure: What the server noted of the first request that failed since it started; empty
            without one.
    """

    def __init__(
        self, connection: socket.socket, gone: Callable[[], TargetError], failure: Callable[[], str]
    ) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._gone = gone
        self._failure = failure
        self._fd = connection.fileno()
        self._unsent = bytearray()
        self._rest = b""

    def prepare(self, batch_sizes: Iterable[int]) -> None:
        """Nothing: the server has the inputs."""

    def send(self, request: int, batch_size: int) -> None:
        """Takes a request; it leaves with the others at the next :meth:`receive`."""
        self._unsent += REQUEST.pack(request, batch_size, request)

    def receive(self, timeout_s: float) -> Sequence[Completion]:
        """Sends what waits, then returns the replies that are there or come within the time.

        Raises:
            TargetCrashError, TargetMemoryError: The server is gone.
        """
        if self._unsent:
            self._flush()
        # Also returns when unsent requests can leave.
        if not wait_for((self._fd,), timeout_s, writers=(self._fd,) if self._unsent else ()):
            return ()
        try:
            data = self._connection.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return ()
        except OSError:
            data = b""
        if not data:
            raise self._gone()
        data = self._rest + data
        whole = len(data) - len(data) % REPLY.size
        self._rest = data[whole:]
        return [*map(Completion._make, REPLY.iter_unpack(data[:whole]))]

    @property
    def failure(self) -> str:
        """As of :class:`~analyzer.targets.target.Connection`."""
        return self._failure()

    def _flush(self) -> None:
        try:
            sent = self._connection.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:
            raise self._gone() from None
        del self._unsent[:sent]
