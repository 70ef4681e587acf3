"""Triton's error classes: the only vocabulary of errors between the scheduler and the wire.

The texts are Triton's own, taken from the answers of a real server (2.51). Each front end has one
table from the class to its status codes.
"""

from __future__ import annotations

from typing import Literal

from analyzer.errors import AnalyzerError

# The members of TRITONSERVER_Error_Code; "invalid" is INVALID_ARG.
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
QUEUE_FULL = "Exceeds maximum queue size"
REQUEST_TIMEOUT = "Request timeout expired"


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
