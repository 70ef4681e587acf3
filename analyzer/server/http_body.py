"""The body of an HTTP request: read within the limits of size and time, without its encoding."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from analyzer.server.http_codec import decompress
from analyzer.server.limits import Limits

Receive = Callable[[], Awaitable[dict[str, Any]]]


class Refusal(Exception):
    """An HTTP error that is none of Triton's error classes.

    Args:
        status: HTTP's status code.
        message: What the client is told.
        close: Whether the rest of the body is still coming, so that the connection cannot be used
            again.
    """

    def __init__(self, status: int, message: str, *, close: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.close = close


async def read_body(headers: dict[bytes, bytes], receive: Receive, limits: Limits) -> bytes:
    """The whole body, decompressed.

    Raises:
        Fault: The encoding is wrong.
        Refusal: It is too large or comes too slowly, or the client went away.
    """
    limit = limits.body_bytes_max
    length = headers.get(b"content-length")
    if length is not None and length.isdigit() and int(length[:19]) > limit:
        raise _too_large(limit)
    message = await receive()
    body: bytes = message.get("body", b"")
    if message.get("more_body"):
        body = await _rest(body, receive, limits)
    elif message["type"] == "http.disconnect":
        raise Refusal(400, "the client went away")
    if b"content-encoding" in headers:
        body = decompress(body, headers[b"content-encoding"], limit)
    return body


async def _rest(first: bytes, receive: Receive, limits: Limits) -> bytes:
    parts, size = [first], len(first)
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refusal(400, "the client went away")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > limits.body_bytes_max:
                    raise _too_large(limits.body_bytes_max)
                more = message.get("more_body", False)
    except TimeoutError as error:
        raise Refusal(408, "the request body did not come in time", close=True) from error
    return b"".join(parts)


def _too_large(limit: int) -> Refusal:
    return Refusal(413, f"the request body is larger than {limit} bytes", close=True)
