"""Frames and calls of HTTP/2, byte by byte and without a socket."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hpack import Decoder, Encoder
from hypothesis import given
from hypothesis import strategies as st

from analyzer.domain.load_test import STATUS_ERROR, STATUS_OK
from analyzer.targets import http2_frames as h2
from analyzer.targets.http2_calls import UnaryCalls, grpc_message
from analyzer.targets.http2_frames import Frame, FrameReader, Http2Error, frame

PATH = "/inference.GRPCInferenceService/ModelInfer"
# grpc-status: 0 as a literal without indexing, behind a change of the table's size to 0.
TRAILERS = b"\x20\x00\x0bgrpc-status\x010"
REFUSED = b"\x00\x0bgrpc-status\x0214"


def reply(stream: int, trailers: bytes = TRAILERS) -> bytes:
    """What a gRPC server answers: HEADERS, DATA, HEADERS with the trailers."""
    ended = h2.END_HEADERS | h2.END_STREAM
    return (
        frame(h2.HEADERS, h2.END_HEADERS, stream, b"\x88")
        + frame(h2.DATA, 0, stream, b"\0\0\0\0\x03abc")
        + frame(h2.HEADERS, ended, stream, trailers)
    )


def connected(settings: dict[int, int] | None = None) -> UnaryCalls:
    """Calls whose server has sent its settings, with nothing left to be sent."""
    calls = UnaryCalls("host:1", PATH)
    calls.receive(h2.settings(settings or {}))
    calls.out.clear()
    return calls


def sent(calls: UnaryCalls) -> list[tuple[int, int, int, bytes]]:
    """Kind, flags, stream and payload of what is to be sent, which is taken."""
    data = b"".join(calls.out)
    calls.out.clear()
    frames = []
    while data:
        length = int.from_bytes(data[:3], "big")
        stream = int.from_bytes(data[5:9], "big")
        frames.append((data[3], data[4], stream, data[9 : 9 + length]))
        data = data[9 + length :]
    return frames


def uploaded(frames: Iterable[tuple[int, int, int, bytes]]) -> dict[int, int]:
    """Bytes of DATA by stream."""
    total: dict[int, int] = {}
    for kind, _, stream, payload in frames:
        if kind == h2.DATA:
            total[stream] = total.get(stream, 0) + len(payload)
    return total


def test_known_bytes_of_frames() -> None:
    assert frame(h2.PING, h2.ACK, 0, b"12345678") == bytes.fromhex(
        "000008 06 01 00000000 3132333435363738"
    )
    assert h2.settings({h2.ENABLE_PUSH: 0}) == bytes.fromhex("000006 04 00 00000000 0002 00000000")
    assert h2.window_update(5, 1000) == bytes.fromhex("000004 08 00 00000005 000003e8")
    data = bytes.fromhex("000003 00 01 80000007 616263")  # the reserved bit does not count
    assert FrameReader().feed(data) == [(h2.DATA, h2.END_STREAM, 7, 3, b"")]


def test_a_header_block_loses_padding_and_priority_and_is_joined() -> None:
    reader = FrameReader()
    padded = frame(h2.HEADERS, 0x8 | 0x20, 1, b"\x02" + b"prior" + b"abc" + b"\0\0")
    assert reader.feed(padded) == []
    assert reader.feed(frame(h2.CONTINUATION, 0, 1, b"def")) == []
    [whole] = reader.feed(frame(h2.CONTINUATION, h2.END_HEADERS, 1, b"ghi"))
    assert (whole[0], whole[2], whole[4]) == (h2.HEADERS, 1, b"abcdefghi")
    assert whole[1] & h2.END_HEADERS


@pytest.mark.parametrize(
    "data",
    [
        frame(h2.CONTINUATION, 0, 1, b""),
        frame(h2.HEADERS, 0, 1, b"a") + frame(h2.CONTINUATION, 0, 3, b""),
        frame(h2.HEADERS, 0, 1, b"a") + frame(h2.PING, 0, 0, b"12345678"),
        frame(h2.HEADERS, 0x8 | h2.END_HEADERS, 1, b"\x09a"),
        h2.frame_head(1 << 20, h2.SETTINGS, 0, 0),
        frame(h2.HEADERS, 0, 1, b"x" * 40_000) + frame(h2.CONTINUATION, 0, 1, b"x" * 40_000),
    ],
)
def test_what_breaks_the_framing_is_an_error(data: bytes) -> None:
    with pytest.raises(Http2Error):
        FrameReader().feed(data)


@given(
    st.lists(
        st.builds(
            frame,
            st.sampled_from([0, 1, 3, 4, 6, 7, 8, 99]),
            st.sampled_from([h2.END_HEADERS, h2.END_HEADERS | h2.END_STREAM]),
            st.integers(0, 2**31 - 1),
            st.binary(max_size=50),
        ),
        max_size=6,
    ),
    st.lists(st.integers(1, 40), min_size=1),
)
def test_frames_do_not_depend_on_how_the_bytes_are_cut(
    frames: list[bytes], sizes: list[int]
) -> None:
    data = b"".join(frames)
    whole = FrameReader().feed(data)
    reader = FrameReader()
    pieces: list[Frame] = []
    start = number = 0
    while start < len(data):
        end = start + sizes[number % len(sizes)]
        pieces += reader.feed(data[start:end])
        start, number = end, number + 1
    assert pieces == whole
    assert len(whole) == len(frames)


@given(st.lists(st.binary(max_size=80), max_size=5), st.booleans())
def test_any_bytes_are_taken_or_refused(pieces: list[bytes], framed: bool) -> None:
    calls = connected()
    for number in range(3):
        calls.start(number, grpc_message(b"x" * 30_000))
    ended = []
    try:
        for piece in pieces:
            # With a head before them they reach what lies behind the framing.
            kind = piece[0] % 11 if piece else 0
            ended += calls.receive(frame(kind, h2.END_HEADERS, 3, piece) if framed else piece)
    except Http2Error:
        pass
    ended += calls.abandon()
    found = [one.request for one in ended] + [request for request, _, _ in calls.refused]
    assert sorted(found) == [0, 1, 2]


def test_a_call_is_headers_and_data_and_its_reply_a_completion() -> None:
    calls = UnaryCalls("host:1", PATH)
    opening = bytes(calls.out[0])
    assert opening.startswith(h2.PREFACE)
    assert not calls.ready
    assert calls.receive(h2.settings({})) == []
    assert calls.ready
    calls.out.clear()
    decoder = Decoder()
    for number in range(3):
        calls.start(number, grpc_message(b"abc"))
        headers, data = sent(calls)
        assert headers[:3] == (h2.HEADERS, h2.END_HEADERS, 1 + 2 * number)
        fields = dict(decoder.decode(headers[3]))
        assert fields[":path"] == PATH
        assert fields["te"] == "trailers"
        assert (len(headers[3]) < 10) == (number > 0), "later blocks refer to the table"
        assert data == (h2.DATA, h2.END_STREAM, 1 + 2 * number, b"\0\0\0\0\x03abc")
    ended = calls.receive(reply(5) + reply(1) + reply(3, REFUSED))
    assert ended == [(2, STATUS_OK, -1, -1, -1, -1), (0, STATUS_OK, -1, -1, -1, -1),
                     (1, STATUS_ERROR, -1, -1, -1, -1)]  # fmt: skip
    assert calls.in_flight == 0
    assert calls.receive(reply(1)) == [], "a second answer is none"


def test_a_server_without_a_header_table_gets_literals() -> None:
    calls = connected({h2.HEADER_TABLE_SIZE: 0})
    decoder = Decoder()
    decoder.max_allowed_table_size = 0
    decoder.header_table_size = 0
    for number in range(2):
        calls.start(number, grpc_message(b""))
        headers, _ = sent(calls)
        assert dict(decoder.decode(headers[3]))[":path"] == PATH


@pytest.mark.parametrize("sizes", [(4096,), (1024,), (65_536,), (100,), (0, 4096), (1024, 1024)])
def test_the_first_headers_refer_to_nothing_that_the_server_never_had(
    sizes: tuple[int, ...],
) -> None:
    """A server that named the size of its table (Envoy: 4096) got a block of bare references."""
    calls = UnaryCalls("host:1", PATH)
    for size in sizes:
        calls.receive(h2.settings({h2.HEADER_TABLE_SIZE: size}))
    calls.out.clear()
    decoder = Decoder()
    for number in range(4):
        calls.start(number, grpc_message(b""))
        headers, _ = sent(calls)
        fields = dict(decoder.decode(headers[3]))
        assert (fields[":path"], fields[":authority"]) == (PATH, "host:1")
        assert fields["user-agent"] == "tritune"


def test_a_table_that_changes_in_the_middle_stays_the_servers() -> None:
    calls = connected()
    decoder = Decoder()
    for number, size in enumerate((4096, 1024, 1024, 0, 4096, 4096)):
        calls.receive(h2.settings({h2.HEADER_TABLE_SIZE: size}))
        sent(calls)
        decoder.max_allowed_table_size = size
        for again in range(2):
            calls.start(2 * number + again, grpc_message(b""))
            headers, _ = sent(calls)
            assert dict(decoder.decode(headers[3]))[":path"] == PATH


def test_uploads_keep_to_the_windows_of_the_server() -> None:
    calls = connected()
    message = grpc_message(bytes(100_000))
    calls.start(0, message)
    calls.start(1, message)
    first = sent(calls)
    assert uploaded(first) == {1: h2.WINDOW_INITIAL}, "the window of the connection"
    assert max(len(one[3]) for one in first) <= h2.FRAME_BYTES_INITIAL
    calls.receive(h2.window_update(0, 50_000))
    assert uploaded(sent(calls)) == {3: 50_000}, "the window of stream 1 is empty"
    calls.receive(h2.settings({h2.INITIAL_WINDOW_SIZE: 65_535 + 10_000}))
    assert uploaded(sent(calls)) == {}
    calls.receive(h2.window_update(0, 1 << 20))
    assert uploaded(sent(calls)) == {1: 10_000, 3: 25_535}
    calls.receive(h2.window_update(1, 1 << 20) + h2.window_update(3, 1 << 20))
    last = sent(calls)
    assert uploaded(last) == {1: len(message) - 75_535, 3: len(message) - 75_535}
    assert [one[2] for one in last if one[1] & h2.END_STREAM] == [1, 3]
    calls.start(2, grpc_message(b"abc"))
    assert uploaded(sent(calls)) == {5: 8}


def test_a_smaller_window_in_the_middle_may_be_below_zero() -> None:
    calls = connected()
    calls.start(0, grpc_message(bytes(200_000)))
    sent(calls)
    calls.receive(h2.settings({h2.INITIAL_WINDOW_SIZE: 0}) + h2.window_update(0, 1 << 20))
    calls.receive(h2.window_update(1, h2.WINDOW_INITIAL))
    assert uploaded(sent(calls)) == {}
    calls.receive(h2.window_update(1, 100))
    assert uploaded(sent(calls)) == {1: 100}


def test_the_window_of_replies_is_given_back_in_bulk() -> None:
    calls = connected()
    calls.start(0, grpc_message(b""))
    sent(calls)
    size = h2.FRAME_BYTES_MAX
    for _ in range((1 << 30) // size + 1):
        calls.receive(h2.frame_head(size, h2.DATA, 0, 1))
        calls.receive(bytes(size))
    [(kind, _, stream, payload)] = sent(calls)
    assert (kind, stream) == (h2.WINDOW_UPDATE, 0)
    assert int.from_bytes(payload, "big") >= 1 << 30


def test_no_more_streams_than_the_server_allows() -> None:
    calls = connected({h2.MAX_CONCURRENT_STREAMS: 2})
    for number in range(4):
        calls.start(number, grpc_message(b""))
    assert [one[2] for one in sent(calls) if one[0] == h2.HEADERS] == [1, 3]
    assert calls.in_flight == 4
    assert [one.request for one in calls.receive(reply(3))] == [1]
    assert [one[2] for one in sent(calls) if one[0] == h2.HEADERS] == [5]
    calls.receive(h2.settings({h2.MAX_CONCURRENT_STREAMS: 100}))
    assert [one[2] for one in sent(calls) if one[0] == h2.HEADERS] == [7]


def test_pings_and_settings_are_acknowledged_and_acknowledgements_are_not() -> None:
    calls = connected()
    calls.receive(frame(h2.PING, 0, 0, b"12345678") + h2.settings({}))
    assert sent(calls) == [(h2.PING, h2.ACK, 0, b"12345678"), (h2.SETTINGS, h2.ACK, 0, b"")]
    calls.receive(frame(h2.PING, h2.ACK, 0, b"12345678") + frame(h2.SETTINGS, h2.ACK, 0, b""))
    calls.receive(frame(99, 0xFF, 0, b"unknown"))
    assert sent(calls) == []


def test_why_the_first_call_failed_is_told() -> None:
    calls = connected()
    for number in range(4):
        calls.start(number, grpc_message(b""))
    calls.receive(reply(1))
    assert calls.failure == ""
    said = Encoder().encode([("grpc-status", "3"), ("grpc-message", "batch 9%3A too large")])
    calls.receive(reply(3, said) + reply(5, REFUSED))
    assert calls.failure == "batch 9: too large"

    silent = connected()
    silent.start(0, grpc_message(b""))
    silent.receive(reply(1, REFUSED))
    assert silent.failure == "gRPC status 14"

    closed = connected()
    assert closed.abandon() == [] and closed.failure == ""
    closed.start(0, grpc_message(b""))
    closed.abandon()
    assert closed.failure == "the connection was closed"


def goodbye(last: int) -> bytes:
    """GOAWAY: streams above ``last`` were not begun."""
    return frame(h2.GOAWAY, 0, 0, last.to_bytes(4, "big") + bytes(4))


def test_reset_streams_are_failures() -> None:
    calls = connected()
    for number in range(2):
        calls.start(number, grpc_message(bytes(30_000)))
    sent(calls)
    ended = calls.receive(frame(h2.RST_STREAM, 0, 1, bytes(4)))
    assert [one[:2] for one in ended] == [(0, STATUS_ERROR)]
    assert not calls.closing and calls.refused == []


def test_what_a_goodbye_leaves_unbegun_is_given_back() -> None:
    calls = connected({h2.MAX_CONCURRENT_STREAMS: 3})
    messages = [grpc_message(bytes(30_000 + number)) for number in range(5)]
    for number, message in enumerate(messages):
        calls.start(number, message)
    sent(calls)
    assert calls.receive(goodbye(3)) == []
    assert calls.closing
    refused_before = {2: True, 3: False, 4: False}
    assert calls.refused == [(n, messages[n], before) for n, before in refused_before.items()]
    assert calls.in_flight == 2
    ended = calls.receive(reply(3) + reply(1))
    assert [one[:2] for one in ended] == [(1, STATUS_OK), (0, STATUS_OK)]
    assert calls.in_flight == 0 and calls.failure == ""


def test_a_call_that_is_refused_again_has_failed() -> None:
    calls = connected({h2.MAX_CONCURRENT_STREAMS: 1})
    calls.start(0, grpc_message(b""), True)
    calls.start(1, grpc_message(b""), True)
    assert [one[:2] for one in calls.receive(goodbye(0))] == [(0, STATUS_ERROR)]
    assert calls.failure == "two connections were closed before the call began"
    assert calls.refused == [(1, grpc_message(b""), True)], "it was never sent here"


def test_a_reply_before_the_end_of_the_request_ends_the_request() -> None:
    calls = connected()
    calls.start(0, grpc_message(bytes(200_000)))
    sent(calls)
    assert [one[:2] for one in calls.receive(reply(1, REFUSED))] == [(0, STATUS_ERROR)]
    assert sent(calls) == [(h2.RST_STREAM, 0, 1, (h2.CANCEL).to_bytes(4, "big"))]
    calls.receive(h2.window_update(1, 1 << 20) + h2.window_update(0, 1 << 20))
    assert sent(calls) == []


def test_a_reply_without_trailers_failed() -> None:
    calls = connected()
    calls.start(0, grpc_message(b""))
    headers = frame(h2.HEADERS, h2.END_HEADERS, 1, Encoder().encode([(":status", "503")]))
    [ended] = calls.receive(headers + frame(h2.DATA, h2.END_STREAM, 1, b"busy"))
    assert ended.status == STATUS_ERROR


def test_used_up_streams_close_the_connection_to_new_calls() -> None:
    calls = connected({h2.MAX_CONCURRENT_STREAMS: 1})
    calls._next_stream = h2.STREAM_MAX
    calls.start(0, grpc_message(b""))
    assert calls.closing
    calls.start(1, grpc_message(b""))
    ended = calls.receive(reply(h2.STREAM_MAX))
    assert [one[:2] for one in ended] == [(0, STATUS_OK)]
    assert calls.refused == [(1, grpc_message(b""), False)]


@pytest.mark.parametrize(
    "data",
    [
        h2.settings({h2.INITIAL_WINDOW_SIZE: 2**31}),
        h2.settings({h2.MAX_FRAME_SIZE: 100}),
        frame(h2.SETTINGS, 0, 0, b"12345"),
        frame(h2.PING, 0, 0, b"1"),
        frame(h2.GOAWAY, 0, 0, b"1"),
        h2.window_update(0, 0),
        h2.window_update(0, h2.WINDOW_MAX),
        frame(h2.PUSH_PROMISE, 0, 1, b""),
        frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 1, b"\xff"),
        # A header that is put into the table, which has no room, and then taken from there.
        frame(h2.HEADERS, h2.END_HEADERS | h2.END_STREAM, 1, b"\x40\x01a\x01b\xbe"),
    ],
)
def test_a_server_that_breaks_the_protocol_is_refused(data: bytes) -> None:
    calls = connected()
    calls.start(0, grpc_message(b""))
    with pytest.raises(Http2Error):
        calls.receive(data)
    assert [one[:2] for one in calls.abandon()] == [(0, STATUS_ERROR)]
