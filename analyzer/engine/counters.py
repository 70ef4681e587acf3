"""Counters of a served model, with Triton's meaning (``docs/triton-semantics.md``, section 4)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from analyzer.engine.requests import InferenceRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatistics:
    """Cumulative counters with Triton's meaning (``docs/triton-semantics.md``, section 4).

    Durations are totals in nanoseconds over requests; every request in a batch is charged the whole
    batch's compute times. ``batches`` maps a batch size to its number of executions, and
    ``batches_ns`` to their total time, from the first input to the last output; empty where the
    server does not tell.
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
    batches_ns: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStatistics:
    """Executions of one batch size: how many, and their total times in nanoseconds."""

    batch_size: int
    count: int
    compute_input_ns: int
    compute_infer_ns: int
    compute_output_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelStatistics:
    """All counters since the start.

    Args:
        server: Those with Triton's meaning.
        batches: By batch size, ascending.
        rejected_count: Requests whose time-out expired in the queue.
        cancelled_count: Requests cancelled before they ran.
        fail_ns: Total time of failed requests, nanoseconds; these and the rejected and cancelled
            ones are the server's ``fail_count``.
        waiting_count: Requests in the queue now.
        last_inference_ms: Milliseconds since the epoch of the last execution; 0 before the first.
    """

    server: ServerStatistics
    batches: tuple[BatchStatistics, ...]
    rejected_count: int
    cancelled_count: int
    fail_ns: int
    waiting_count: int
    last_inference_ms: int


class Counters:
    """Totals with Triton's meaning; guarded by the model's lock."""

    def __init__(self) -> None:
        self.inference_count = self.execution_count = self.last_inference_ms = 0
        self.success_count = self.success_ns = self.queue_ns = 0
        self.compute_input_ns = self.compute_infer_ns = self.compute_output_ns = 0
        self.fail_count = self.fail_ns = self.rejected_count = self.cancelled_count = 0
        self.batches: dict[int, list[int]] = {}

    def succeed(
        self,
        work: list[tuple[InferenceRequest, int]],
        start_ns: int,
        input_ns: int,
        infer_ns: int,
        end_ns: int,
    ) -> None:
        """Counts an execution: each request is charged the whole batch's compute times."""
        count = len(work)
        rows = 0
        queued_ns = 0
        for request, at_ns in work:
            rows += max(request.batch_size, 1)
            queued_ns += at_ns
        spans = (input_ns - start_ns, infer_ns - input_ns, end_ns - infer_ns)
        self.execution_count += 1
        self.inference_count += rows
        self.success_count += count
        self.success_ns += count * end_ns - queued_ns
        self.queue_ns += count * start_ns - queued_ns
        self.compute_input_ns += count * spans[0]
        self.compute_infer_ns += count * spans[1]
        self.compute_output_ns += count * spans[2]
        self.last_inference_ms = time.time_ns() // 1_000_000
        totals = self.batches.get(rows)
        if totals is None:
            totals = self.batches[rows] = [0, 0, 0, 0]
        totals[0] += 1
        totals[1] += spans[0]
        totals[2] += spans[1]
        totals[3] += spans[2]

    def fail(self, work: Sequence[tuple[InferenceRequest, int]], end_ns: int) -> None:
        """Counts requests that ran and failed, whose time-out expired, or that were cancelled."""
        self.fail_count += len(work)
        self.fail_ns += sum(end_ns - at_ns for _, at_ns in work)

    def cancel(self, work: Sequence[tuple[InferenceRequest, int]], end_ns: int) -> None:
        """Counts requests that were taken back: failures, too, as Triton's statistics have it."""
        self.cancelled_count += len(work)
        self.fail(work, end_ns)

    def server(self) -> ServerStatistics:
        """The counters that every target reports."""
        return ServerStatistics(
            inference_count=self.inference_count,
            execution_count=self.execution_count,
            success_count=self.success_count,
            success_ns=self.success_ns,
            fail_count=self.fail_count,
            queue_ns=self.queue_ns,
            compute_input_ns=self.compute_input_ns,
            compute_infer_ns=self.compute_infer_ns,
            compute_output_ns=self.compute_output_ns,
            batches=tuple((size, totals[0]) for size, totals in sorted(self.batches.items())),
            batches_ns=tuple((size, sum(t[1:])) for size, t in sorted(self.batches.items())),
        )

    def details(self, waiting_count: int) -> ModelStatistics:
        """All counters; ``waiting_count`` requests are queued now."""
        return ModelStatistics(
            server=self.server(),
            batches=tuple(
                BatchStatistics(
                    batch_size=size,
                    count=totals[0],
                    compute_input_ns=totals[1],
                    compute_infer_ns=totals[2],
                    compute_output_ns=totals[3],
                )
                for size, totals in sorted(self.batches.items())
            ),
            rejected_count=self.rejected_count,
            cancelled_count=self.cancelled_count,
            fail_ns=self.fail_ns,
            waiting_count=waiting_count,
            last_inference_ms=self.last_inference_ms,
        )
