"""Sends prepared requests over HTTP: the hot path, written by hand to cost as little as it can.

A request is one prepared block of bytes (binary tensors) and its reply's body is not decoded.
HTTP/1.1 has one request at a time on a socket, and there are as many sockets as requests were ever
in flight together.
"""

from __future__ import annotations

import json
import resource
import select
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import httptools
from numpy.typing import NDArray

from analyzer.domain.load_test import STATUS_ERROR, STATUS_OK
from analyzer.errors import TargetCrashError
from analyzer.targets.endpoint import authority
from analyzer.targets.payload import Payloads, RequestPool, datatype_of
from analyzer.targets.target import Completion
from analyzer.targets.waiting import wait_for

# A server on this machine answers in milliseconds.
_CONNECT_S = 5.0
_RECEIVE_BYTES = 1 << 18  # most replies in one call
# With more in flight the server is lost, and Linux has 28,000 ports for all our connections to it.
_SOCKETS_MAX = 4096
# Of an answer that is no success and not in JSON.
_TOLD_CHARACTERS = 200


class HttpConnection:
    """Sends prepared requests over a pool of sockets; used by one thread.

    All sockets go to the address that the first one reached: a name is looked up once.
    """

    def __init__(self, host: str, port: int, model: str, pool: RequestPool) -> None:
        self._where = (host, port)
        self._authority = authority(host, port)
        self._payloads = Payloads(pool, RequestEncoder(self._authority, model))
        self._poll = select.epoll()
        self._handle = self._poll.fileno()
        self._idle: list[_Socket] = []
        self._by_handle: dict[int, _Socket] = {}
        self._ended: list[Completion] = []
        #: As of :class:`~analyzer.targets.target.Connection`.
        self.failure = ""
        _allow_open_files()
        try:
            first = self._open()
            self._where = first.socket.getpeername()[:2]
        except (OSError, UnicodeError) as error:  # the latter of a name that can be none
            self.close()
            raise TargetCrashError(
                f"The server at http://{self._authority} does not answer: {error}."
            ) from error
        self._idle.append(first)

    def prepare(self, batch_sizes: Iterable[int]) -> None:
        """Encodes the requests of these sizes, which :meth:`send` would do else."""
        self._payloads.prepare(batch_sizes)

    def send(self, request: int, batch_size: int) -> None:
        """Sends a request; waits only where a new socket must be opened.

        Raises:
            TargetCrashError: The server is gone: no socket is left and none can be opened.
        """
        payload = next(self._payloads[batch_size])
        one: _Socket | None = None
        try:
            one = self._idle.pop() if self._idle else self._open()
            one.begin(request, payload)
        except OSError as error:
            # A socket that the server closed while it was idle, or no further one to be had.
            if one is None and not self._by_handle:
                raise self._gone(error) from error
            self._ended.append(Completion(request, STATUS_ERROR))
            if one is not None:
                self._drop(one)
            return
        if one.unsent is not None:
            self._poll.modify(one.handle, select.EPOLLIN | select.EPOLLOUT)

    def receive(self, timeout_s: float) -> Sequence[Completion]:
        """Replies that are there, waiting at most ``timeout_s`` for the first.

        Raises:
            TargetCrashError: The server is gone.
        """
        # An epoll handle can itself be waited for, with the resolution that epoll's own lacks.
        if timeout_s > 0 and not self._ended and not wait_for((self._handle,), timeout_s):
            return ()
        for handle, event in self._poll.poll(0):
            one = self._by_handle[handle]
            try:
                if event & select.EPOLLOUT:
                    one.go_on()
                    if one.unsent is None:
                        self._poll.modify(handle, select.EPOLLIN)
                if event & ~select.EPOLLOUT:
                    self._read(one)
            except (OSError, httptools.HttpParserError):
                self._lost(one)
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        """Closes every socket; the server drops what is in flight."""
        for one in self._by_handle.values():
            one.socket.close()
        self._by_handle.clear()
        self._idle.clear()
        if not self._poll.closed:
            self._poll.close()

    def _read(self, one: _Socket) -> None:
        data = one.socket.recv(_RECEIVE_BYTES)
        # What comes without a request (408 before the server closes an idle socket) answers none.
        if not data or one.request < 0:
            self._lost(one)
            return
        one.parser.feed_data(data)
        if one.done:
            one.done = False
            code = one.parser.get_status_code()
            if code != 200:
                self.failure = self.failure or _failure_of(code, data)
            self._ended.append(Completion(one.request, STATUS_OK if code == 200 else STATUS_ERROR))
            one.request = -1
            if one.kept_alive:
                self._idle.append(one)
            else:
                self._drop(one)

    def _lost(self, one: _Socket) -> None:
        """The server closed the socket: what was in flight on it failed."""
        if one.request >= 0:
            self.failure = self.failure or "the connection was closed"
            self._ended.append(Completion(one.request, STATUS_ERROR))
            one.request = -1
        elif one in self._idle:
            self._idle.remove(one)
        self._drop(one)
        if not self._by_handle:
            try:
                self._idle.append(self._open())
            except OSError as error:
                raise self._gone(error) from error

    def _gone(self, error: OSError) -> TargetCrashError:
        return TargetCrashError(
            f"The server at http://{self._authority} went away: {error}.",
            hint="Its own log may say why.",
        )

    def _open(self) -> _Socket:
        if len(self._by_handle) >= _SOCKETS_MAX:
            raise OSError(f"{_SOCKETS_MAX} requests are in flight")
        one = _Socket(socket.create_connection(self._where, timeout=_CONNECT_S))
        self._by_handle[one.handle] = one
        self._poll.register(one.handle, select.EPOLLIN)
        return one

    def _drop(self, one: _Socket) -> None:
        if self._by_handle.pop(one.handle, None) is not None:
            one.socket.close()  # which also takes it out of the epoll set


def _failure_of(code: int, data: bytes) -> str:
    """What a reply that is no success says: ``error`` of its body, else its beginning.

    Args:
        data: The last bytes of the reply; of a short one all.
    """
    _, _, body = data.rpartition(b"\r\n\r\n")
    with suppress(ValueError, TypeError, LookupError):
        return str(json.loads(body)["error"])
    text = body.decode(errors="replace").strip()
    return f"HTTP status {code}" + (f": {text[:_TOLD_CHARACTERS]}" if text else "")


def _allow_open_files() -> None:
    """Raises this process's limit on open files to its highest: each request in flight is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _Socket:
    """A kept-alive socket, its parser and the request on it."""

    __slots__ = ("done", "handle", "kept_alive", "parser", "request", "socket", "unsent")

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connected
        self.handle = connected.fileno()
        self.parser = httptools.HttpResponseParser(self)
        self.request = -1
        self.done = self.kept_alive = False
        self.unsent: memoryview | None = None

    def begin(self, request: int, payload: bytes) -> None:
        self.request = request
        try:
            sent = self.socket.send(payload)
        except BlockingIOError:
            sent = 0
        if sent < len(payload):
            self.unsent = memoryview(payload)[sent:]

    def go_on(self) -> None:
        """Sends more of a request that did not fit into the socket's buffer."""
        if self.unsent is not None:
            rest = self.unsent[self.socket.send(self.unsent) :]
            self.unsent = rest if rest else None

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self.done = True
        # The parser forgets it when this returns.
        self.kept_alive = self.parser.should_keep_alive()


@dataclass(frozen=True, slots=True)
class RequestEncoder:
    """:func:`encode_request` for one model; equal ones make the same of the same tensors."""

    host: str
    model: str

    def __call__(self, tensors: Mapping[str, NDArray[Any]]) -> bytes:
        return encode_request(self.host, self.model, tensors)


def encode_request(host: str, model: str, tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """A whole HTTP request with binary tensors, outputs binary as well."""
    inputs = []
    blobs = []
    for name, array in tensors.items():
        blob = array.tobytes()
        blobs.append(blob)
        inputs.append(
            {
                "name": name,
                "datatype": datatype_of(array),
                "shape": list(array.shape),
                "parameters": {"binary_data_size": len(blob)},
            }
        )
    header = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    text = json.dumps(header, separators=(",", ":")).encode()
    body = b"".join((text, *blobs))
    head = (
        f"POST /v2/models/{quote(model, safe='')}/infer HTTP/1.1\r\n"
        f"Host: {host}\r\n"
        "Content-Type: application/octet-stream\r\n"
        f"Inference-Header-Content-Length: {len(text)}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode("ascii") + body
