"""What both front ends share: a request as it came in, an answer, an error, and the limits.

The error texts are Triton's own, taken from the answers of a real server (2.51).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from analyzer.errors import AnalyzerError

FaultKind = Literal[
    "unknown",
    "internal",
    "not_found",
    "invalid",
    "unavailable",
    "unsupported",
    "already_exists",
    "cancelled",
]
SERVER_NAME = "triton"
# The release whose behaviour is reproduced (triton-semantics.md); clients parse it as a version.
SERVER_VERSION = "2.73.0"
EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)


class Fault(AnalyzerError):
    """A request that is answered with an error.

    Args:
        kind: Triton's error class, which decides the status code.
        message: What the client is told.
    """

    code = "request"

    def __init__(self, kind: FaultKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on what a client can make the server hold.

    Args:
        body_bytes_max: Largest request body or gRPC message, after decompression.
        json_bytes_max: Largest JSON part of an HTTP request.
        header_bytes_max: Largest HTTP request line and headers together.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A part of a registered shared-memory region."""

    name: str
    offset: int
    byte_size: int


@dataclass(slots=True)
class WireInput:
    """An input as it came in: an array from JSON, or the bytes of a binary tensor."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: NDArray[Any] | memoryview | bytes


@dataclass(slots=True)
class WireOutput:
    """An output that the client asked for."""

    name: str
    binary: bool = False
    classification: int = 0
    region: Region | None = None


@dataclass(slots=True)
class InferCall:
    """An inference request, whichever protocol it came over.

    Args:
        inputs: In the order in which they came.
        outputs: Those asked for; empty for all.
        request_id: The client's, returned to it; empty if it sent none.
        priority: Triton's; 0 for the default level.
        timeout_us: Triton's request time-out in microseconds; 0 for none.
        raw: Whether the body is the bytes of the model's only input (no JSON header).
        binary_default: Whether outputs that are not listed come as binary (HTTP).
    """

    inputs: list[WireInput]
    outputs: list[WireOutput] = field(default_factory=list)
    request_id: str = ""
    priority: int = 0
    timeout_us: int = 0
    raw: bool = False
    binary_default: bool = False


@dataclass(slots=True)
class InferResult:
    """The answer to a call: arrays by name, or a fault.

    ``compute_ns`` are the times of input, inference and output of its batch, nanoseconds.
    """

    outputs: dict[str, NDArray[np.generic]]
    fault: Fault | None = None
    compute_ns: tuple[int, int, int] = (0, 0, 0)
