"""Raw requests and load tests as compressed bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import zstandard

from analyzer.domain.load_test import LoadTest, RequestLog
from analyzer.store import codec

# The arrays of a log, one after the other. Durations keep seven digits; send times keep them all,
# since a float32 is only good to 8 µs after a minute.
_LAYOUT: tuple[tuple[str, str, type[np.generic]], ...] = (
    ("intended_s", "<f8", np.float64),
    ("send_lag_s", "<f4", np.float64),
    ("latency_s", "<f4", np.float64),
    ("batch_size", "<i4", np.int32),
    ("status", "<u1", np.uint8),
    ("queue_s", "<f4", np.float32),
    ("compute_input_s", "<f4", np.float32),
    ("compute_infer_s", "<f4", np.float32),
    ("compute_output_s", "<f4", np.float32),
)
_LEVEL = 3  # zstd's own default
LOG_REQUESTS_MAX = 20_000
"""Requests of one load test that are stored, 15 to 25 bytes each once compressed; percentiles and
verdicts are made of all before."""


def thinned(log: RequestLog) -> RequestLog:
    """At most :data:`LOG_REQUESTS_MAX` of the requests, evenly over the run; the log if that few.

    Of a server that answers thousands in a second a search would store hundreds of megabytes.
    """
    if len(log) <= LOG_REQUESTS_MAX:
        return log
    chosen = np.linspace(0, len(log) - 1, LOG_REQUESTS_MAX).astype(np.int64)
    arrays = {name: getattr(log, name)[chosen] for name, _, _ in _LAYOUT}
    return RequestLog(warmup=int(np.searchsorted(chosen, log.warmup)), **arrays)


def pack_log(log: RequestLog) -> bytes:
    """The log's arrays, compressed with zstd; its length and warm-up are stored beside it."""
    parts = [getattr(log, name).astype(stored).tobytes() for name, stored, _ in _LAYOUT]
    return zstandard.ZstdCompressor(level=_LEVEL).compress(b"".join(parts))


def unpack_log(data: bytes, *, requests: int, warmup: int) -> RequestLog:
    """The log that :func:`pack_log` wrote; arrays of length ``requests``, owned by the caller.

    Raises:
        ValueError: The bytes are damaged or of another length.
    """
    try:
        raw = zstandard.ZstdDecompressor().decompress(data)
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    expected = requests * sum(np.dtype(stored).itemsize for _, stored, _ in _LAYOUT)
    if len(raw) != expected:
        raise ValueError(f"{len(raw)} bytes instead of {expected} for {requests} requests")
    arrays = {}
    offset = 0
    for name, stored, kind in _LAYOUT:
        arrays[name] = np.frombuffer(raw, stored, count=requests, offset=offset).astype(kind)
        offset += arrays[name].size * np.dtype(stored).itemsize
    return RequestLog(warmup=warmup, **arrays)


def pack_load_tests(load_tests: Sequence[LoadTest]) -> bytes | None:
    """The load tests of a measurement as compressed JSON; None if there are none."""
    if not load_tests:
        return None
    return zstandard.ZstdCompressor(level=_LEVEL).compress(codec.dumps(load_tests).encode())


def unpack_load_tests(data: bytes | None) -> tuple[LoadTest, ...]:
    """The load tests that :func:`pack_load_tests` wrote.

    Raises:
        ValueError: The bytes are damaged.
    """
    if data is None:
        return ()
    try:
        text = zstandard.ZstdDecompressor().decompress(data).decode()
    except zstandard.ZstdError as error:
        raise ValueError(str(error)) from error
    return codec.loads_many(text, LoadTest)
