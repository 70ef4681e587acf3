"""What a server tells its client: the outcome of a request, and its counters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from analyzer.domain.measurement import STATUS_OK


class Completion(NamedTuple):
    """One reply. Times are the server's own, in nanoseconds; −1 where the target does not tell.

    ``request`` is the number under which it was sent, ``status`` one of the STATUS codes.
    """

    request: int
    status: int = STATUS_OK
    queue_ns: int = -1
    compute_input_ns: int = -1
    compute_infer_ns: int = -1
    compute_output_ns: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatistics:
    """Cumulative counters with Triton's meaning (``triton-semantics.md``, section 4).

    Durations are totals in nanoseconds over requests; every request in a batch is charged the whole
    batch's compute times. ``batches`` maps a batch size to its number of executions.
    """

    inference_count: int = 0
    execution_count: int = 0
    success_count: int = 0
    success_ns: int = 0
    fail_count: int = 0
    queue_ns: int = 0
    compute_input_ns: int = 0
    compute_infer_ns: int = 0
    compute_output_ns: int = 0
    batches: tuple[tuple[int, int], ...] = ()
