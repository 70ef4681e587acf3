"""uvicorn with bounds: header size and time, connections, slow readers, clients that vanish."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus
from typing import Any

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from analyzer.errors import UsageError
from analyzer.server.http_app import CONNECTION_KEY
from analyzer.server.limits import Limits

_BACKLOG = 2048  # connections that wait to be accepted: uvicorn's default

Refusal = Callable[[HTTPStatus, str], tuple[str, bytes]]
"""Media type and body of an answer that no application has given, by its status and why."""


def plain_refusal(status: HTTPStatus, why: str) -> tuple[str, bytes]:
    """As Triton has its errors: ``{"error": WHY}``."""
    return "application/json", b'{"error":"%s"}' % why.encode()


def listen(host: str, port: int) -> socket.socket:
    """A bound socket; it listens once the server runs.

    Raises:
        UsageError: The address is taken or not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise UsageError(
            f"Cannot listen on {host}:{port}: {error.strerror or error}.",
            hint="Choose another port (0 is a free one) or end what uses it.",
        ) from error
    listener.setblocking(False)
    return listener


class BoundedProtocol(HttpToolsProtocol):
    """One connection, closed when its client oversteps a limit that uvicorn has no setting for.

    An upgrade to another protocol is ignored, as in Triton and as HTTP allows: the request is
    answered. The parser takes its body for the other protocol; so such a request is parsed a second
    time, from a head without ``Upgrade``.

    Beside the methods of :class:`asyncio.Protocol` this overrides four parser callbacks,
    ``on_response_complete`` and ``send_400_response``, and uses ``connections``, ``cycle``,
    ``headers``, ``loop``, ``parser``, ``pipeline``, ``scope``, ``transport`` and ``url``;
    pyproject.toml caps uvicorn at the release that this was tested with.
    """

    def __init__(self, limits: Limits, refusal: Refusal, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.on_lost: Callable[[], object] | None = None  # see inference_service.Connection
        self._limits = limits
        self._refusal = refusal
        self._header_bytes = 0
        self._in_headers = False
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        # The end of the connection; it may wait for answers to requests before what is refused.
        self._refused: tuple[HTTPStatus, str] | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self._limits.connections_max:
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections")

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._header_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()

    def data_received(self, data: bytes) -> None:
        if self._refused is not None:
            return  # where the next request would begin is not known
        before = self._header_bytes if self._in_headers else 0
        self._unset_keepalive_if_required()
        self._parse(data)
        if self._refused is not None or not self._in_headers:
            return
        self._header_bytes = before + len(data)
        self._check_header_size(self._header_bytes)
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(
                self._limits.header_timeout_s,
                self._refuse,
                HTTPStatus.REQUEST_TIMEOUT,
                "the request's headers did not come in time",
            )

    def _parse(self, data: bytes) -> None:
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                if self.parser.get_method() == b"CONNECT":  # a tunnel: what follows is no HTTP
                    self.send_400_response("")
                    return
                data = self._head_without_upgrade() + data[upgrade.args[0] :]
            except httptools.HttpParserError:
                self.send_400_response("")
                return

    def _head_without_upgrade(self) -> bytes:
        """The head of the last request as a new parser shall see it."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (method, self.url, version)]
        lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        # The old one stays in the state of a message whose body it has skipped.
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope: dict[str, Any] = self.scope  # type: ignore[assignment]
        scope[CONNECTION_KEY] = self
        self._in_headers = True

    def on_headers_complete(self) -> None:
        self._in_headers = False
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
        # Those that came in one piece were not counted.
        self._check_header_size(sum(len(name) + len(value) for name, value in self.headers))
        if self._refused is None and not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._refused is None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._refused is None and not self.parser.should_upgrade():
            super().on_message_complete()

    def on_response_complete(self) -> None:
        last = not self.pipeline
        super().on_response_complete()
        if self._refused is not None and last:
            self._end(*self._refused)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(self._limits.write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _check_header_size(self, size: int) -> None:
        limit = self._limits.header_bytes_max
        if size > limit:
            self._refuse(
                HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
                f"the request's headers are larger than {limit} bytes",
            )

    def send_400_response(self, msg: str) -> None:
        self._refuse(HTTPStatus.BAD_REQUEST, "the request is no HTTP")

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        """Takes nothing more; ends the connection after the answers to whole requests."""
        if self._refused is not None or self.transport.is_closing():
            return
        self._refused = status, why
        newest = self.cycle
        if newest is not None and newest.more_body:
            # Something is wrong in its body: it gets no other answer, but those before it do.
            waits = bool(self.pipeline)
            if waits:
                self.pipeline.popleft()
        else:
            waits = newest is not None and not newest.response_complete
        if not waits:
            self._end(status, why)

    def _end(self, status: HTTPStatus, why: str) -> None:
        if self.transport.is_closing():
            return
        media_type, body = self._refusal(status, why)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: {media_type}\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


class HttpServer(uvicorn.Server):
    """uvicorn's server for a socket that listens already; signals are left to the caller."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def http_server(
    app: Any, limits: Limits, *, drain_timeout_s: int, refusal: Refusal = plain_refusal
) -> HttpServer:
    """A server for ``app``; ``serve(sockets=[…])`` runs it, ``should_exit`` ends it."""
    config = uvicorn.Config(
        app,
        http=partial(BoundedProtocol, limits, refusal),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        interface="asgi3",
        loop="none",
        log_config=None,
        log_level="critical",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_keep_alive=int(limits.keep_alive_s),
        timeout_graceful_shutdown=drain_timeout_s,
    )
    return HttpServer(config)
