"""Frames of HTTP/2 (RFC 9113): written, and cut out of the bytes that arrive.

Only what a client of unary gRPC calls needs: the content of DATA is counted and thrown away, a
header block is handed on in one piece whether it came in CONTINUATION frames or not.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

# RFC 9113: types of frames (6), their flags, settings (6.5.2) and an error code (7).
DATA, HEADERS, RST_STREAM, SETTINGS, PUSH_PROMISE = 0, 1, 3, 4, 5
PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 6, 7, 8, 9
ACK = END_STREAM = 0x1
END_HEADERS = 0x4
_PADDED, _PRIORITY = 0x8, 0x20
_BARE = _PADDED | _PRIORITY | END_HEADERS
HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS = 1, 2, 3
INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE = 4, 5
CANCEL = 0x8

# Limits and defaults of RFC 9113.
STREAM_MAX = WINDOW_MAX = 2**31 - 1
FRAME_BYTES_MAX = 2**24 - 1
WINDOW_INITIAL = 65_535
FRAME_BYTES_INITIAL = 16_384

# More than any header block or other control frame of a sane server.
_CONTROL_BYTES_MAX = 1 << 16
_HEAD_BYTES = 9  # RFC 9113, 4.1
_HEAD = struct.Struct(">HBBBL")
_SETTING = struct.Struct(">HL")


#: A frame that arrived: its kind (DATA, HEADERS, … or one that has no name here), its flags, its
#: stream (0 for the connection), the bytes that count for flow control, and its payload (a whole
#: header block without padding and priority; empty for DATA).
Frame = tuple[int, int, int, int, bytes]


class Http2Error(Exception):
    """The peer broke the protocol; the connection is of no more use."""


def frame_head(length: int, kind: int, flags: int, stream: int) -> bytes:
    """The nine bytes before a frame's payload of ``length`` bytes."""
    return _HEAD.pack(length >> 8, length & 0xFF, kind, flags, stream)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A whole frame."""
    return frame_head(len(payload), kind, flags, stream) + payload


def settings(values: Mapping[int, int]) -> bytes:
    """A SETTINGS frame."""
    packed = (_SETTING.pack(*pair) for pair in values.items())
    return frame(SETTINGS, 0, 0, b"".join(packed))


def window_update(stream: int, increment: int) -> bytes:
    """A WINDOW_UPDATE frame; stream 0 is the whole connection."""
    return frame(WINDOW_UPDATE, 0, stream, increment.to_bytes(4, "big"))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """The pairs of a SETTINGS frame, in their order.

    Raises:
        Http2Error: Its length or a value is none that RFC 9113, section 6.5, allows.
    """
    if len(payload) % _SETTING.size:
        raise Http2Error(f"SETTINGS of {len(payload)} bytes")
    pairs = list(_SETTING.iter_unpack(payload))
    for key, value in pairs:
        window_wrong = key == INITIAL_WINDOW_SIZE and value > WINDOW_MAX
        frame_wrong = key == MAX_FRAME_SIZE and not FRAME_BYTES_INITIAL <= value <= FRAME_BYTES_MAX
        if window_wrong or frame_wrong:
            raise Http2Error(f"setting {key} is {value}")
    return pairs


def read_number(payload: bytes) -> int:
    """The 31 bits of a window's increment or of a stream's number, which it begins with.

    Raises:
        Http2Error: The payload is too short.
    """
    if len(payload) < 4:
        raise Http2Error(f"a frame of {len(payload)} bytes is too short")
    return int.from_bytes(payload[:4], "big") & STREAM_MAX


class FrameReader:
    """Cuts a stream of bytes, which comes in pieces of any size, into frames."""

    def __init__(self) -> None:
        self._rest = b""
        # Bytes of a DATA frame that are still to come, and what is told then.
        self._data_missing = 0
        self._data: Frame = (DATA, 0, 0, 0, b"")
        # The begun header block of HEADERS whose CONTINUATION is still to come.
        self._begun: Frame | None = None

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that ``data`` completes, in their order.

        Raises:
            Http2Error: A frame is longer than any that is reasonable, or malformed.
        """
        frames: list[Frame] = []
        position = 0
        if self._data_missing:
            position = min(self._data_missing, len(data))
            self._data_missing -= position
            if self._data_missing:
                return frames
            frames.append(self._data)
        elif self._rest:
            data = self._rest + data
            self._rest = b""
        end = len(data)
        while end - position >= _HEAD_BYTES:
            high, low, kind, flags, stream = _HEAD.unpack_from(data, position)
            length = high << 8 | low
            start = position + _HEAD_BYTES
            after = start + length
            if self._begun is not None and kind != CONTINUATION:
                raise Http2Error(f"a frame of kind {kind} within a header block")
            if kind == DATA:
                one = (DATA, flags, stream & STREAM_MAX, length, b"")
                if after > end:
                    self._data, self._data_missing = one, after - end
                    return frames
                frames.append(one)
            else:
                if length > _CONTROL_BYTES_MAX:
                    raise Http2Error(f"a frame of kind {kind} and {length} bytes")
                if after > end:
                    break
                one = (kind, flags, stream & STREAM_MAX, length, data[start:after])
                if kind == CONTINUATION or (kind == HEADERS and flags & _BARE != END_HEADERS):
                    self._join(one, frames)
                else:
                    frames.append(one)
            position = after
        self._rest = data[position:]
        return frames

    def _join(self, one: Frame, frames: list[Frame]) -> None:
        """Takes a part of a header block; with its last part the whole goes to ``frames``."""
        kind, flags, stream, length, payload = one
        if kind == HEADERS:
            payload = _without_padding(flags, payload)
        else:
            if self._begun is None or self._begun[2] != stream:
                raise Http2Error("a CONTINUATION of no header block")
            _, begun_flags, _, begun_length, begun = self._begun
            flags = begun_flags | flags & END_HEADERS
            length += begun_length
            payload = begun + payload
            if length > _CONTROL_BYTES_MAX:
                raise Http2Error(f"a header block of {length} bytes")
        whole = (HEADERS, flags, stream, length, payload)
        if flags & END_HEADERS:
            self._begun = None
            frames.append(whole)
        else:
            self._begun = whole


def _without_padding(flags: int, payload: bytes) -> bytes:
    """The header block of a HEADERS frame."""
    start, end = 0, len(payload)
    if flags & _PADDED:
        start = 1
        end -= payload[0] if payload else 0
    if flags & _PRIORITY:
        start += 5
    if start > end:
        raise Http2Error("a HEADERS frame that is shorter than its padding")
    return payload[start:end]
