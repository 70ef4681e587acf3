"""Unary gRPC calls over one HTTP/2 connection, the client's side; without a socket.

Made for a generator of load, whose own processor time is taken from the server that it measures:
a request is bytes that were prepared before, a reply is not decoded, and all that is read of it is
whether its ``grpc-status`` is 0. The header table for replies has size 0, so that the same block of
bytes always means the same and is decoded once. Windows for replies are as large as they can be.

Sources: RFC 9113 (HTTP/2), RFC 7541 (HPACK), the page PROTOCOL-HTTP2 in grpc's doc folder; what is
sent again: "transparent retries" of gRFC A6 (client retries).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote

from hpack import Decoder, Encoder, HeaderTuple
from hpack.exceptions import HPACKError

from analyzer.domain.load_test import STATUS_ERROR, STATUS_OK
from analyzer.targets import http2_frames as h2
from analyzer.targets.http2_frames import Frame, FrameReader, Http2Error, frame, frame_head
from analyzer.targets.target import Completion

# RFC 7541's default, and what an entry takes beside its name and value; then: windows are returned
# in bulk, and reply headers hardly differ, so that few decoded blocks are kept.
_TABLE_BYTES_INITIAL = 4096
_ENTRY_BYTES = 32
_RETURN_WINDOW_AFTER = 1 << 30
_KNOWN_BLOCKS_MAX = 1024
_SUCCEEDED = HeaderTuple(b"grpc-status", b"0")

#: A call: the number of its request, its :func:`grpc_message`, and whether a server has refused it
#: before.
Call = tuple[int, bytes, bool]


def grpc_message(serialized: bytes) -> bytes:
    """A protobuf message as gRPC transfers it: uncompressed, its length before it."""
    return b"\0" + len(serialized).to_bytes(4, "big") + serialized


def _failure_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """What the trailers of a call that failed say."""
    told = {bytes(name): bytes(value).decode(errors="replace") for name, value in headers}
    message = unquote(told.get(b"grpc-message", ""))
    return message or f"gRPC status {told.get(b'grpc-status', 'unknown')}"


@dataclass(slots=True)
class _Upload:
    """What of a request is still to be sent, and how much of it the server takes now."""

    rest: memoryview
    window: int


class UnaryCalls:
    """The calls of one connection: told what to send and what has arrived, says what has ended.

    Args:
        authority: ``HOST:PORT`` of the server.
        path: The method, ``/package.Service/Method``.

    Attributes:
        out: Bytes to be sent, in order; whoever has sent them takes them out.
        ready: The server's SETTINGS have arrived.
        closing: No further call can be started here: the server says so (GOAWAY), or the numbers
            of streams are used up.
        failure: What the server said of the first call that failed; empty without one.
        refused: Calls that the server has not begun and will not begin (GOAWAY), or that were never
            sent: to be started on another connection, as gRPC's clients do; whoever does so takes
            them out.
    """

    def __init__(self, authority: str, path: str) -> None:
        self.out: list[bytes | memoryview] = [
            h2.PREFACE
            + h2.settings(
                {
                    h2.HEADER_TABLE_SIZE: 0,
                    h2.ENABLE_PUSH: 0,
                    h2.INITIAL_WINDOW_SIZE: h2.WINDOW_MAX,
                    h2.MAX_FRAME_SIZE: h2.FRAME_BYTES_MAX,
                }
            )
            + h2.window_update(0, h2.WINDOW_MAX - h2.WINDOW_INITIAL)
        ]
        self.ready = False
        self.closing = False
        self.failure = ""
        self.refused: list[Call] = []
        self._headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", authority),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", "tritune"),
        ]
        self._encoder = Encoder()
        self._encoder.header_table_size = _TABLE_BYTES_INITIAL
        # The headers as they refer to the server's table; None until a call has filled that.
        self._block: bytes | None = None
        self._decoder = Decoder()
        self._decoder.max_allowed_table_size = self._decoder.header_table_size = 0
        self._known_blocks: dict[bytes, int] = {}
        self._reader = FrameReader()
        self._received = 0
        self._next_stream = 1
        self._streams_max = h2.STREAM_MAX
        self._frame_bytes_max = h2.FRAME_BYTES_INITIAL
        self._window = self._stream_window = h2.WINDOW_INITIAL
        self._calls: dict[int, Call] = {}
        self._uploads: dict[int, _Upload] = {}
        self._waiting: deque[Call] = deque()
        self._ended: list[Completion] = []

    @property
    def in_flight(self) -> int:
        """Calls that have neither ended nor been refused."""
        return len(self._calls) + len(self._waiting)

    def start(self, request: int, message: bytes, refused_before: bool = False) -> None:
        """Starts call ``request`` with a :func:`grpc_message`; for one that is not ``closing``.

        It waits its turn where the server allows no more streams at once, or its windows are full.

        Args:
            refused_before: Whether it was refused already, and another time is a failure.
        """
        call = (request, message, refused_before)
        if self._waiting or len(self._calls) >= self._streams_max:
            self._waiting.append(call)
        else:
            self._open(call)

    def receive(self, data: bytes) -> list[Completion]:
        """The calls that ended by ``data``, which has arrived.

        Raises:
            Http2Error: The server broke the protocol; then :meth:`abandon`.
        """
        for one in self._reader.feed(data):
            self._take(one)
        if self._received >= _RETURN_WINDOW_AFTER:
            self.out.append(h2.window_update(0, self._received))
            self._received = 0
        if self._waiting:
            self._open_waiting()
        ended, self._ended = self._ended, []
        return ended

    def abandon(self) -> list[Completion]:
        """All that had not ended, as failed: the connection is gone."""
        self.closing = True
        requests = [call[0] for call in (*self._calls.values(), *self._waiting)]
        self._calls.clear()
        self._uploads.clear()
        self._waiting.clear()
        if requests:
            self.failure = self.failure or "the connection was closed"
        ended, self._ended = self._ended, []
        return ended + [Completion(request, STATUS_ERROR) for request in requests]

    def _open(self, call: Call) -> None:
        stream = self._next_stream
        self._next_stream = stream + 2
        self.closing = self.closing or self._next_stream > h2.STREAM_MAX
        self._calls[stream] = call
        block = self._block
        if block is None:
            # Only now: what the encoder has given out once must be sent, as it refers to it next.
            block = self._encoder.encode(self._headers)
            self._block = self._encoder.encode(self._headers)
        head = frame_head(len(block), h2.HEADERS, h2.END_HEADERS, stream)
        message = call[1]
        size = len(message)
        most = min(self._window, self._stream_window, self._frame_bytes_max)
        if size <= most and not self._uploads:
            self._window -= size
            data = frame_head(size, h2.DATA, h2.END_STREAM, stream)
            self.out.append(b"".join((head, block, data, message)))
        else:
            self.out.append(head + block)
            self._uploads[stream] = _Upload(memoryview(message), self._stream_window)
            self._upload()

    def _open_waiting(self) -> None:
        while self._waiting and not self.closing and len(self._calls) < self._streams_max:
            self._open(self._waiting.popleft())
        if self.closing:
            self.refused += self._waiting
            self._waiting.clear()

    def _upload(self) -> None:
        """Sends as much of the requests as the windows allow, the oldest first."""
        for stream, upload in list(self._uploads.items()):
            while upload.rest and (most := min(self._window, upload.window)) > 0:
                size = min(len(upload.rest), most, self._frame_bytes_max)
                part, upload.rest = upload.rest[:size], upload.rest[size:]
                flags = 0 if upload.rest else h2.END_STREAM
                self.out += (frame_head(size, h2.DATA, flags, stream), part)
                self._window -= size
                upload.window -= size
            if not upload.rest:
                del self._uploads[stream]

    def _take(self, one: Frame) -> None:
        kind, flags, stream, length, payload = one
        if kind == h2.HEADERS:
            if flags & h2.END_STREAM:
                self._end(stream, self._status(payload))
        elif kind == h2.DATA:
            self._received += length
            if flags & h2.END_STREAM:  # without the trailers that carry the status
                self._end(stream, STATUS_ERROR)
        elif kind == h2.WINDOW_UPDATE:
            self._widen(stream, h2.read_number(payload))
        elif kind == h2.PING:
            if len(payload) != 8:
                raise Http2Error(f"PING of {len(payload)} bytes")
            if not flags & h2.ACK:
                self.out.append(frame(h2.PING, h2.ACK, 0, payload))
        elif kind == h2.SETTINGS:
            if not flags & h2.ACK:
                self._set(payload)
        elif kind == h2.RST_STREAM:
            self._uploads.pop(stream, None)
            self._end(stream, STATUS_ERROR)
        elif kind == h2.GOAWAY:
            self.closing = True
            last = h2.read_number(payload)
            for refused in [number for number in self._calls if number > last]:
                self._refuse(refused)
        elif kind == h2.PUSH_PROMISE:
            raise Http2Error("a push that was not allowed")

    def _refuse(self, stream: int) -> None:
        """Gives back a call that the server has not begun; the second time it has failed."""
        request, message, refused_before = self._calls.pop(stream)
        self._uploads.pop(stream, None)
        if refused_before:
            self.failure = self.failure or "two connections were closed before the call began"
            self._ended.append(Completion(request, STATUS_ERROR))
        else:
            self.refused.append((request, message, True))

    def _end(self, stream: int, status: int) -> None:
        call = self._calls.pop(stream, None)
        if call is None:
            return  # ended before
        if self._uploads and self._uploads.pop(stream, None) is not None:
            # The server does not want the rest of the request.
            self.out.append(frame(h2.RST_STREAM, 0, stream, h2.CANCEL.to_bytes(4, "big")))
        self._ended.append(Completion(call[0], status))

    def _status(self, block: bytes) -> int:
        status = self._known_blocks.get(block)
        if status is None:
            try:
                headers = self._decoder.decode(block, raw=True)
            except HPACKError as error:
                raise Http2Error(f"a header block that cannot be read: {error}") from error
            succeeded = _SUCCEEDED in headers
            status = STATUS_OK if succeeded else STATUS_ERROR
            if not succeeded:
                self.failure = self.failure or _failure_of(headers)
            if len(self._known_blocks) < _KNOWN_BLOCKS_MAX:
                self._known_blocks[block] = status
        return status

    def _widen(self, stream: int, increment: int) -> None:
        if stream == 0:
            self._window += increment
            wrong = self._window > h2.WINDOW_MAX
        elif (upload := self._uploads.get(stream)) is not None:
            upload.window += increment
            wrong = upload.window > h2.WINDOW_MAX
        else:
            return
        if wrong or increment == 0:
            raise Http2Error(f"a window that grows by {increment}")
        self._upload()

    def _set(self, payload: bytes) -> None:
        for key, value in h2.read_settings(payload):
            if key == h2.INITIAL_WINDOW_SIZE:
                for upload in self._uploads.values():
                    upload.window += value - self._stream_window
                self._stream_window = value
            elif key == h2.MAX_FRAME_SIZE:
                self._frame_bytes_max = value
            elif key == h2.MAX_CONCURRENT_STREAMS:
                self._streams_max = value
            elif key == h2.HEADER_TABLE_SIZE:
                self._resize_table(min(value, _TABLE_BYTES_INITIAL))
        self.ready = True
        self.out.append(frame(h2.SETTINGS, h2.ACK, 0, b""))
        self._upload()

    def _resize_table(self, table_bytes: int) -> None:
        if table_bytes < sum(_ENTRY_BYTES + len(name + value) for name, value in self._headers):
            table_bytes = 0  # entries would push each other out, and no block mean the same twice
        # The encoder forgets to tell a change where the same size is set once more.
        if table_bytes != self._encoder.header_table_size:
            self._encoder.header_table_size = table_bytes
            self._block = None
