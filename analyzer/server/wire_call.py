"""An inference request as a client sent it, whatever the protocol, and what is wrong with some."""

from __future__ import annotations

from dataclasses import dataclass, field

from analyzer.engine.fault import Fault
from analyzer.engine.requests import InferCall
from analyzer.server.shared_memory import Region

_SEQUENCE_ID_MAX = 128  # bytes: Triton's own limit, as its error names it


@dataclass(slots=True)
class RequestedOutput:
    """An output that the client listed.

    Args:
        binary: Whether it comes as bytes behind the JSON (HTTP; gRPC has nothing else).
        classification: How many of the highest elements to name instead; 0 for the tensor itself.
        region: Where to put it; None for the response.
    """

    name: str
    binary: bool = False
    classification: int = 0
    region: Region | None = None


@dataclass(slots=True)
class WireCall(InferCall):
    """A call, and how its client wants the outputs.

    Args:
        requested: The outputs listed; empty for all. Set together with ``outputs``.
        binary_default: Whether outputs that are not listed come as binary (HTTP).
        sequence_id: With its two flags: what an ensemble tells in its response; no model here has
            sequences.
    """

    requested: list[RequestedOutput] = field(default_factory=list)
    binary_default: bool = False
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False

    def request(self, outputs: list[RequestedOutput]) -> None:
        """Lists outputs."""
        self.requested = outputs
        self.outputs = tuple(output.name for output in outputs)


def reserved_parameter(rule: str = " and should not be specified.") -> Fault:
    """The error for a parameter that only Triton itself may set.

    Args:
        rule: How the sentence ends.
    """
    return Fault(
        "invalid", f"parameter keys starting with 'triton_' are reserved for Triton usage{rule}"
    )


def check_sequence_id(text: str) -> None:
    """Checks the length of a sequence's name.

    Raises:
        Fault: It is too long.
    """
    if len(text.encode("utf-8", "surrogatepass")) > _SEQUENCE_ID_MAX:
        raise Fault(
            "unsupported",
            f"string correlation ID cannot be longer than {_SEQUENCE_ID_MAX} characters",
        )


def wrong_parameter(key: str) -> Fault:
    """The error for a parameter of a type that no parameter has."""
    return Fault(
        "invalid",
        f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'.",
    )


def region_without_size(name: str) -> Fault:
    """The error for a tensor in shared memory whose size is not given."""
    return Fault(
        "invalid",
        "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter "
        f"for tensor '{name}'",
    )
