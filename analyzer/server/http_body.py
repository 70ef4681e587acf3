"""Bodies over HTTP: read within the limits of size and time, and their content encodings."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable
from typing import Any

from analyzer.engine.fault import Fault
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
    # The first 19 digits are enough to see that a number is too large.
    length = headers.get(b"content-length")
    if length is not None and length.isdigit() and int(length[:19]) > limit:
        raise _too_large(limit)
    parts: list[bytes] = []
    size, more = 0, True
    try:
        async with asyncio.timeout(limits.body_timeout_s):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refusal(400, "the client went away")
                parts.append(message.get("body", b""))
                size += len(parts[-1])
                if size > limit:
                    raise _too_large(limit)
                more = message.get("more_body", False)
    except TimeoutError as error:
        raise Refusal(408, "the request body did not come in time", close=True) from error
    body = b"".join(parts)  # of one part: that part itself
    if b"content-encoding" in headers:
        body = decompress(body, headers[b"content-encoding"], limit)
    return body


def _too_large(limit: int) -> Refusal:
    return Refusal(413, f"the request body is larger than {limit} bytes", close=True)


def decompress(body: bytes, encoding: bytes, bytes_max: int) -> bytes:
    """``body`` without its content encoding.

    Raises:
        Fault: The encoding is unknown or broken, or the result would be too large.
    """
    name = encoding.strip().lower()
    if name in (b"", b"identity"):
        return body
    if name not in (b"gzip", b"deflate"):
        raise Fault("unsupported", "Unsupported compression type")
    inflater = zlib.decompressobj(wbits=47)  # recognizes gzip and zlib headers
    try:
        text = inflater.decompress(body, bytes_max + 1)
    except zlib.error as error:
        raise Fault("invalid", f"failed to decompress the request: {error}") from error
    if len(text) > bytes_max:
        raise Fault("invalid", f"the decompressed request is larger than {bytes_max} bytes")
    if not inflater.eof:
        raise Fault("invalid", "failed to decompress the request: it ends too early")
    return text


def accepted_encoding(accept: bytes) -> bytes:
    """The encoding of the answer: gzip or deflate, or nothing where that is liked better."""
    best, weight_best = b"", 0.0
    for part in accept.lower().split(b","):
        name, _, parameters = part.strip().partition(b";")
        key, _, value = parameters.strip().partition(b"=")
        try:
            weight = float(value) if key.strip() == b"q" else 1.0
        except ValueError:
            weight = 0.0
        if name.strip() in (b"gzip", b"deflate", b"identity") and weight > weight_best:
            best, weight_best = name.strip(), weight
    return b"" if best == b"identity" else best


def compress(body: bytes, encoding: bytes) -> bytes:
    """``body`` in that encoding."""
    # The fastest level, as answers are made on the event loop; 31 and 15: gzip and zlib headers.
    deflater = zlib.compressobj(1, wbits=31 if encoding == b"gzip" else 15)
    return deflater.compress(body) + deflater.flush()
