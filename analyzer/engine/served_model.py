"""A model being served: the scheduler on the real clock, one thread per instance."""

from __future__ import annotations

import itertools
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from queue import SimpleQueue

import numpy as np

from analyzer.engine.counters import Counters, ModelStatistics, ServerStatistics
from analyzer.engine.fault import REQUEST_TIMEOUT, Fault
from analyzer.engine.policy import BatchingPolicy
from analyzer.engine.requests import InferenceReply, InferenceRequest
from analyzer.engine.runtimes.base import Runtime, Tensors
from analyzer.engine.scheduler import Execution, Scheduler
from analyzer.errors import AnalyzerError

_NEVER_NS = 1 << 62  # no clock reaches it

Work = list[tuple[InferenceRequest, int]]  # requests with the times of their queueing


class ServedModel:
    """Serves one model; ends its threads and closes its runtimes as a context manager.

    Thread-safe. The scheduler decides after every single event, under one lock. A freed instance is
    given its next batch before the replies of the last one go out, so that a request caused by a
    reply cannot join a batch that was due already.

    Args:
        name: The model's name, for messages.
        policy: How requests are joined and queued.
        runtimes: One per instance; owned by this object from now on.
        batchable: Whether arrays carry a batch axis, so that requests can be joined.
        enforce_shapes: Whether only requests of equal shapes are joined (models with dynamic
            dimensions besides the batch).
        optional_inputs: Whether requests may leave inputs out; only those with the same inputs
            are joined.
        counters: What the warm-up has counted, which the model counts on; owned by this object
            from now on. None for zeros.
        after_batch: Called on the instance's thread after the replies of an execution.
        on_failure: Called with the exception of a failed execution, before its replies.
    """

    def __init__(
        self,
        name: str,
        policy: BatchingPolicy,
        runtimes: Sequence[Runtime],
        *,
        batchable: bool,
        enforce_shapes: bool = False,
        optional_inputs: bool = False,
        counters: Counters | None = None,
        after_batch: Callable[[], None] | None = None,
        on_failure: Callable[[Exception], None] | None = None,
    ) -> None:
        assert runtimes
        self.name = name
        self._batchable = batchable
        self._batch_size_max = policy.batch_limit
        self._enforce_shapes = enforce_shapes
        self._optional_inputs = optional_inputs
        self._after_batch = after_batch
        self._on_failure = on_failure
        self._scheduler = Scheduler(policy)
        self._lock = threading.Lock()
        self._tickets = itertools.count()
        self._waiting: dict[int, tuple[InferenceRequest, int]] = {}
        self._drained = threading.Condition(self._lock)  # nothing waits any more
        self._stopping = self._closed = False
        self._counters = Counters() if counters is None else counters
        self._queues: list[SimpleQueue[Work | None]] = [SimpleQueue() for _ in runtimes]
        self._armed_ns = _NEVER_NS
        self._timer_wake = threading.Lock()
        self._timer: threading.Thread | None = None
        self._threads = [
            threading.Thread(
                target=self._serve, args=(index, runtime), name=f"{name}-{index}", daemon=True
            )
            for index, runtime in enumerate(runtimes)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> ServedModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, request: InferenceRequest) -> int:
        """Queues a request and returns its ticket, for :meth:`cancel`.

        Raises:
            Fault: Invalid where the batch is larger than the model takes, unavailable where the
                queue is full or the model is being closed; ``on_done`` is not called.
        """
        with self._lock:
            ticket, rejected = self._enqueue(request)
        self._reject(rejected)
        return ticket

    def submit_many(self, requests: Iterable[InferenceRequest]) -> list[int]:
        """Queues requests in order under one lock; returns their tickets, −1 for one refused.

        A refused request is answered through its ``on_done``.
        """
        tickets = []
        refused: list[tuple[InferenceRequest, Fault]] = []
        rejected: list[InferenceRequest] = []
        with self._lock:
            for request in requests:
                try:
                    ticket, late = self._enqueue(request)
                except Fault as fault:
                    refused.append((request, fault))
                    ticket = -1
                else:
                    if late:
                        rejected += late
                tickets.append(ticket)
        for request, reason in refused:
            _tell(request.on_done, InferenceReply(None, reason))
        self._reject(rejected)
        return tickets

    def hold_members(self, held: ExitStack) -> Callable[[InferenceRequest], int]:
        """:meth:`submit`: it has no members."""
        return self.submit

    def cancel(self, ticket: int) -> bool:
        """Takes a request back; False if it runs already or is done. No reply follows a True."""
        with self._lock:
            cancelled, rejected = self._cancel([ticket] if ticket in self._waiting else [])
        self._reject(rejected)
        return cancelled == 1

    def cancel_where(self, wanted: Callable[[InferenceRequest], bool]) -> int:
        """Takes back every request that has not started and that ``wanted`` is true of.

        No reply follows. ``wanted`` runs under the lock and must be quick. Returns how many.
        """
        with self._lock:
            tickets = [t for t, (request, _) in self._waiting.items() if wanted(request)]
            cancelled, rejected = self._cancel(tickets)
        self._reject(rejected)
        return cancelled

    def statistics(self) -> ServerStatistics:
        """Triton's counters since the start; a request is counted before its reply goes out."""
        with self._lock:
            return self._counters.server()

    def details(self) -> ModelStatistics:
        """All counters since the start."""
        with self._lock:
            return self._counters.details(len(self._waiting))

    def close(self, *, drain: bool = True, timeout_s: float | None = 10.0) -> None:
        """Takes no more requests and ends the threads, which close their runtimes.

        It may be called again, with less time, while another call waits.

        Args:
            drain: Whether queued requests still run; otherwise they are answered as unavailable.
            timeout_s: For the queue to drain and running batches to end; None for no limit. An
                instance that takes longer is left to its daemon thread, which still closes it.
        """
        end_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            self._stopping = True
            if drain:
                # Not for what runs: an instance takes its end once it has answered, so that one
                # that hangs keeps no other.
                self._drained.wait_for(lambda: self._closed or not self._waiting, timeout_s)
            self._closed = True
            self._drained.notify_all()
            left = [self._waiting.pop(ticket)[0] for ticket in tuple(self._waiting)]
            if self._timer_wake.locked():
                self._timer_wake.release()
        for request in left:
            fault = Fault("unavailable", "the server is stopping")
            _tell(request.on_done, InferenceReply(None, fault))
        for queue in self._queues:
            queue.put(None)
        for thread in self._threads:
            thread.join(None if timeout_s is None else max(end_s - time.monotonic(), 0.01))
        if self._timer is not None:
            self._timer.join()

    # The lock is held in what follows, up to _serve.

    def _enqueue(self, request: InferenceRequest) -> tuple[int, list[InferenceRequest]]:
        if self._stopping:
            raise Fault("unavailable", f"model {self.name} is stopping")
        if request.batch_size > self._batch_size_max:
            raise Fault(
                "invalid",
                f"inference request batch-size must be <= {self._batch_size_max} for {self.name!r}",
            )
        ticket = next(self._tickets)
        now_ns = time.monotonic_ns()
        self._scheduler.enqueue(
            now_ns,
            ticket,
            batch_size=request.batch_size,
            priority=request.priority,
            timeout_us=request.timeout_us,
            shape_key=self._shape_key(request) if self._enforce_shapes else None,
            input_set=frozenset(request.inputs) if self._optional_inputs else None,
        )
        self._waiting[ticket] = (request, now_ns)
        return ticket, self._decide(now_ns)[1]

    def _shape_key(self, request: InferenceRequest) -> tuple[object, ...]:
        skip = 1 if self._batchable else 0
        return tuple((name, array.shape[skip:]) for name, array in sorted(request.inputs.items()))

    def _cancel(self, tickets: list[int]) -> tuple[int, list[InferenceRequest]]:
        now_ns = time.monotonic_ns()
        work = []
        for ticket in tickets:
            # One that stands in a payload already stays there; it is left out when that starts.
            self._scheduler.cancel(ticket)
            work.append(self._waiting.pop(ticket))
        self._counters.cancel(work, now_ns)
        return len(tickets), self._decide(now_ns)[1]

    def _decide(self, now_ns: int, own: int = -1) -> tuple[Work | None, list[InferenceRequest]]:
        """Hands out what is due; returns the work of instance ``own`` and the rejected requests."""
        mine: Work | None = None
        rejected: list[InferenceRequest] = []
        if self._closed:
            return mine, rejected
        again = True
        while again:
            again = False
            decisions = self._scheduler.advance(now_ns)
            for execution in decisions.executions:
                work = self._take(execution)
                if not work:  # every request was cancelled after the payload had formed
                    self._scheduler.release(now_ns, execution.instance)
                    again = True
                elif execution.instance == own:
                    mine = work
                else:
                    self._queues[execution.instance].put(work)
            if decisions.rejected:
                late = [self._waiting.pop(ticket) for ticket in decisions.rejected]
                self._counters.rejected_count += len(late)
                self._counters.fail(late, now_ns)
                rejected += [request for request, _ in late]
        if self._stopping and not self._waiting:
            self._drained.notify_all()
        due_ns = self._scheduler.next_timer_ns()
        if due_ns is not None and due_ns < self._armed_ns:
            self._armed_ns = due_ns
            self._wake_timer()
        return mine, rejected

    def _take(self, execution: Execution) -> Work:
        waiting = self._waiting
        return [waiting.pop(ticket) for ticket in execution.tickets if ticket in waiting]

    def _wake_timer(self) -> None:
        if self._timer is None:
            self._timer_wake.acquire()
            self._timer = threading.Thread(
                target=self._run_timer, name=f"{self.name}-timer", daemon=True
            )
            self._timer.start()
        elif self._timer_wake.locked():
            self._timer_wake.release()

    # What follows runs without the lock.

    def _run_timer(self) -> None:
        while True:
            rejected: list[InferenceRequest] = []
            with self._lock:
                if self._closed:
                    return
                now_ns = time.monotonic_ns()
                if self._armed_ns <= now_ns:
                    self._armed_ns = _NEVER_NS
                    _, rejected = self._decide(now_ns)
                wait_ns = self._armed_ns - now_ns
            self._reject(rejected)
            self._timer_wake.acquire(timeout=wait_ns / 1e9 if wait_ns < _NEVER_NS // 2 else -1)

    def _serve(self, index: int, runtime: Runtime) -> None:
        queue = self._queues[index]
        try:
            work = queue.get()
            while work is not None:
                work = self._execute(index, runtime, work)
                if work is None:
                    work = queue.get()
        finally:
            runtime.close()

    def _execute(self, index: int, runtime: Runtime, work: Work) -> Work | None:
        """Runs one batch and answers it; returns the instance's next work if there is any."""
        parts: list[Tensors] = []
        error: str | None = None
        start_ns = input_ns = infer_ns = time.monotonic_ns()
        try:
            inputs = _join(work)
            input_ns = time.monotonic_ns()
            outputs = runtime.run(inputs)
            infer_ns = time.monotonic_ns()
            parts = _split(outputs, work)
            end_ns = time.monotonic_ns()
        except Exception as failure:
            end_ns = time.monotonic_ns()
            known = isinstance(failure, AnalyzerError)
            error = str(failure) if known else f"{type(failure).__name__}: {failure}"
            _tell(self._on_failure, failure)
        with self._lock:
            now_ns = time.monotonic_ns()
            if error is None:
                self._counters.succeed(work, start_ns, input_ns, infer_ns, end_ns)
            else:
                self._counters.fail(work, end_ns)
            self._scheduler.release(now_ns, index)
            mine, rejected = self._decide(now_ns, own=index)
        self._reject(rejected)
        spans = (input_ns - start_ns, infer_ns - input_ns, end_ns - infer_ns)
        if error is None:
            for (request, queued_ns), part in zip(work, parts, strict=True):
                _tell(request.on_done, InferenceReply(part, None, start_ns - queued_ns, *spans))
        else:
            for request, queued_ns in work:
                fault = Fault("internal", error)
                _tell(request.on_done, InferenceReply(None, fault, start_ns - queued_ns, *spans))
        _tell(self._after_batch)
        return mine

    def _reject(self, requests: list[InferenceRequest]) -> None:
        if not requests:
            return
        for request in requests:
            fault = Fault("unavailable", REQUEST_TIMEOUT)
            _tell(request.on_done, InferenceReply(None, fault))
        _tell(self._after_batch)


def _tell(callback: Callable[..., object] | None, *arguments: object) -> None:
    """Calls a front end; its fault costs no thread and no reply, and shows in the server's log."""
    if callback is None:
        return
    try:
        callback(*arguments)
    except Exception:
        traceback.print_exc(file=sys.stderr)


def _join(work: Work) -> Tensors:
    """The inputs of a batch: those of its only request, or all concatenated along axis 0."""
    if len(work) == 1:
        return work[0][0].inputs
    return {
        name: np.concatenate([request.inputs[name] for request, _ in work])
        for name in work[0][0].inputs
    }


def _split(outputs: Tensors, work: Work) -> list[Tensors]:
    """The outputs of each request, as views of the batch's.

    Raises:
        ValueError: An output has not one row per inference.
    """
    if len(work) == 1:
        return [outputs]
    rows = sum(request.batch_size for request, _ in work)
    for name, array in outputs.items():
        if array.ndim == 0 or len(array) != rows:
            raise ValueError(f"output {name} has shape {array.shape} for a batch of {rows}")
    parts: list[Tensors] = []
    first = 0
    for request, _ in work:
        last = first + request.batch_size
        parts.append({name: array[first:last] for name, array in outputs.items()})
        first = last
    return parts
