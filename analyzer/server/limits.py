"""Bounds on what clients can make the server hold."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on what a client can make the server hold.

    The defaults are ours, well above what load generators and ordinary clients need, so that only a
    faulty or hostile client meets them; Triton has no bound for most of these.

    Args:
        body_bytes_max: Largest request body or gRPC message, after decompression.
        json_bytes_max: Largest JSON part of an HTTP request.
        header_bytes_max: Largest HTTP request line and headers together; the metadata of gRPC has
            gRPC's own bounds, as in Triton.
        connections_max: HTTP connections at once; more are answered 503 and closed.
        requests_max: Inference requests of one protocol in the server at once; more are refused
            as unavailable.
        streams_max: gRPC calls at once on one connection.
        stream_requests_max: Requests of one gRPC stream in the server at once; the stream is read
            no further until one is answered.
        header_timeout_s: For a client to send its headers.
        body_timeout_s: For a client to send its body.
        write_timeout_s: For a client to take a part of its answer.
        keep_alive_s: For an idle HTTP connection after an answer.
    """

    body_bytes_max: int = 256 << 20
    json_bytes_max: int = 64 << 20
    header_bytes_max: int = 64 << 10
    connections_max: int = 4096
    requests_max: int = 8192
    streams_max: int = 1024
    stream_requests_max: int = 1024
    header_timeout_s: float = 15.0
    body_timeout_s: float = 60.0
    write_timeout_s: float = 60.0
    keep_alive_s: float = 600.0
