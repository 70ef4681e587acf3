"""Ensembles: a DAG of models, each with its own scheduler; a step runs as soon as it can."""

from __future__ import annotations

import itertools
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from numpy.typing import NDArray

from analyzer.engine.counters import Counters, ModelStatistics
from analyzer.engine.ensemble_steps import Resolve, fits, needed_steps, steps_of
from analyzer.engine.fault import Fault
from analyzer.engine.loaded_model import LoadedModel, Submit
from analyzer.engine.requests import InferCall, InferenceReply, InferenceRequest, InputTensor
from analyzer.engine.runtimes.base import Tensors
from analyzer.engine.signature import Signature, signature_of
from analyzer.engine.tensors import DATATYPE_OF


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tensor:
    """A tensor on its way, with the batch size of the request that brought it; 0 without one."""

    array: NDArray[Any]
    batch_size: int


def _shaped(tensor: _Tensor, dims: tuple[int, ...], batches: bool) -> NDArray[Any]:
    """A tensor as a model with ``dims`` (without a batch axis) takes it, if that batches or not.

    Triton's ``ReshapeTensorDims``: a model that batches gets a batch of 1 where a tensor without a
    batch fits ``dims`` as it is; one that does not gets the only row of a batch of 1 that does not
    fit. All else stays what it is, for the model to check.
    """
    array = tensor.array
    if batches and not tensor.batch_size and fits(dims, array.shape):
        return array.reshape((1, *array.shape))
    if not batches and tensor.batch_size == 1 and not fits(dims, array.shape):
        return array.reshape(array.shape[1:])
    return array


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """The model of a step, which is kept open, and how a request is put to it."""

    model: LoadedModel
    submit: Submit


@dataclass(slots=True, kw_only=True)
class _Run:
    """One request on its way through the steps; guarded by its lock.

    Args:
        tensors: Those that are there; None for an optional input that was not sent.
        outputs: Those that the request wants.
        pending: Numbers of the steps that have not started.
        members: The model of each step.
        held: Lets go of those that the request holds itself.
        in_flight: The member and its ticket by the number of the step; None while it starts.
    """

    request: InferenceRequest
    started_ns: int
    tensors: dict[str, _Tensor | None]
    outputs: tuple[str, ...]
    pending: list[int]
    members: Sequence[_Member] = ()
    held: ExitStack = field(default_factory=ExitStack)
    in_flight: dict[int, tuple[LoadedModel, int] | None] = field(default_factory=dict)
    compute_ns: list[int] = field(default_factory=lambda: [0, 0, 0])
    ended: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)


class Ensemble:
    """Runs an ensemble's requests over its members. Thread-safe.

    Members are looked up for every request, so that one that was loaded anew is used at once; they
    stay open until the request has its answer.
    """

    def __init__(self, config: Any, resolve: Resolve) -> None:
        self._name = config.name
        self._steps = steps_of(config)
        self._signature = signature_of(config)
        self._resolve = resolve
        self._counters = Counters()
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._tickets = itertools.count()
        self._runs: dict[int, _Run] = {}
        self._stopping = False

    def submit(self, request: InferenceRequest) -> int:
        """Starts a request on the members that are loaded now; see :meth:`ServedModel.submit`.

        One whose members are not loaded any more is answered with that fault.

        Raises:
            Fault: The ensemble is being closed.
        """
        return self._submit(request, None)

    def hold_members(self, held: ExitStack) -> Submit:
        """Keeps the members open, and theirs, until ``held`` is closed.

        Returns:
            :meth:`submit` on these members.

        Raises:
            Fault: A member is not loaded.
        """
        return partial(self._submit, members=self._hold(held))

    def cancel(self, ticket: int) -> bool:
        """Ends a request: steps that wait are taken back, steps that run are not followed up."""
        with self._lock:
            run = self._runs.get(ticket)
        if run is None:
            return False
        with run.lock:
            if not self._end(run):
                return False
            started = [entry for entry in run.in_flight.values() if entry is not None]
        with self._lock:
            self._counters.cancel([(run.request, run.started_ns)], time.monotonic_ns())
        for model, member_ticket in started:
            model.cancel(member_ticket)
        self._forget(ticket, run)
        return True

    def details(self) -> ModelStatistics:
        """Counters of the ensemble's own requests; compute times are sums over the members."""
        with self._lock:
            return self._counters.details(0)

    def close(self, *, timeout_s: float | None) -> None:
        """Takes no more requests and waits for those under way.

        Args:
            timeout_s: For these; None for no limit.
        """
        with self._lock:
            self._stopping = True
            self._idle.wait_for(lambda: not self._runs, timeout_s)

    def _submit(self, request: InferenceRequest, members: Sequence[_Member] | None) -> int:
        """Starts a request on ``members``; None to look them up and hold them.

        Given ones are held by the request that this one is a step of. Once that has ended, nobody
        follows up what becomes of its steps.
        """
        outputs = request.outputs or tuple(self._signature.outputs)
        batch_size = request.batch_size if self._signature.batch_size_max else 0
        tensors: dict[str, _Tensor | None] = dict.fromkeys(self._signature.inputs)
        for name, array in request.inputs.items():
            tensors[name] = _Tensor(array=array, batch_size=batch_size)
        run = _Run(
            request=request,
            started_ns=time.monotonic_ns(),
            tensors=tensors,
            outputs=outputs,
            pending=needed_steps(self._steps, outputs),
        )
        with self._lock:
            if self._stopping:
                raise Fault("unavailable", f"model {self._name} is stopping")
            ticket = next(self._tickets)
            self._runs[ticket] = run
        with self._answering(ticket, run):
            run.members = self._hold(run.held) if members is None else members
            self._advance(ticket, run)
        return ticket

    def _hold(self, held: ExitStack) -> list[_Member]:
        """The model of each step, which stays open until ``held`` is closed.

        Raises:
            Fault: One is not loaded.
        """
        members = []
        for step in self._steps:
            submit = None
            # One that is closed is not to be found any more: another look gives what followed it.
            while submit is None:
                model = self._resolve(step.model, step.version)
                submit = model.hold(held)
            members.append(_Member(model=model, submit=submit))
        return members

    @contextmanager
    def _answering(self, ticket: int, run: _Run) -> Iterator[None]:
        """Answers the request with a fault where the block raises, so that it never hangs."""
        try:
            yield
        except Fault as fault:
            self._finish(ticket, run, fault)
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            self._finish(ticket, run, Fault("internal", f"{type(error).__name__}: {error}"))

    def _advance(self, ticket: int, run: _Run) -> None:
        """Starts every step whose inputs exist; answers when none is left."""
        with run.lock:
            if run.ended:
                return
            starts = [
                number
                for number in run.pending
                if all(outer in run.tensors for _, outer in self._steps[number].inputs)
            ]
            for number in starts:
                run.pending.remove(number)
                run.in_flight[number] = None
            done = not run.in_flight
        if done:
            self._finish(ticket, run, self._outputs(run))
        for number in starts:
            self._start(ticket, run, number)

    def _start(self, ticket: int, run: _Run, number: int) -> None:
        step = self._steps[number]
        member, submit = run.members[number].model, run.members[number].submit
        inputs = [
            _input(member.signature, inner, tensor)
            for inner, tensor in ((inner, run.tensors[outer]) for inner, outer in step.inputs)
            if tensor is not None
        ]
        call = InferCall(
            inputs=inputs,
            outputs=tuple(inner for inner, _ in step.outputs),
            priority=run.request.priority,
            timeout_us=run.request.timeout_us,
        )
        batch_size = 0
        if member.signature.batch_size_max:
            batch_size = next((tensor.shape[0] for tensor in inputs if tensor.shape), 0)

        def on_done(reply: InferenceReply) -> None:
            with self._answering(ticket, run):
                self._on_step(ticket, run, number, batch_size, reply)

        member_ticket = member.infer(call, on_done, submit=submit)
        with run.lock:
            if number in run.in_flight:
                run.in_flight[number] = (member, member_ticket)
            cancelled = run.ended
        if cancelled:
            member.cancel(member_ticket)

    def _on_step(
        self, ticket: int, run: _Run, number: int, batch_size: int, reply: InferenceReply
    ) -> None:
        """Takes a step's outputs over, which have ``batch_size``, and goes on."""
        if reply.outputs is None:
            assert reply.fault is not None
            raise reply.fault
        with run.lock:
            run.in_flight.pop(number, None)
            for inner, outer in self._steps[number].outputs:
                run.tensors[outer] = _Tensor(array=reply.outputs[inner], batch_size=batch_size)
            run.compute_ns[0] += reply.compute_input_ns
            run.compute_ns[1] += reply.compute_infer_ns
            run.compute_ns[2] += reply.compute_output_ns
        self._advance(ticket, run)

    def _outputs(self, run: _Run) -> Tensors:
        """What the request wants, once its steps have run.

        Raises:
            Fault: Something of it is not there.
        """
        outputs: dict[str, NDArray[Any]] = {}
        for name in run.outputs:
            tensor, port = run.tensors.get(name), self._signature.outputs[name]
            if tensor is None:
                raise Fault(
                    "invalid",
                    "unexpected deadlock, at least one output is not set while no more ensemble "
                    "steps can be made",
                )
            dims = port.dims if port.reshape is None else port.reshape
            outputs[name] = _shaped(tensor, dims, self._signature.batch_size_max > 0)
        return outputs

    def _finish(self, ticket: int, run: _Run, outcome: Tensors | Fault) -> None:
        """Counts the request and gives the answer, if it has none."""
        if not self._end(run):
            return
        compute = run.compute_ns
        end_ns = time.monotonic_ns()
        work = [(run.request, run.started_ns)]
        with self._lock:
            if isinstance(outcome, Fault):
                self._counters.fail(work, end_ns)
            else:
                start_ns = run.started_ns
                input_ns = start_ns + compute[0]
                infer_ns = input_ns + compute[1]
                self._counters.succeed(work, start_ns, input_ns, infer_ns, infer_ns + compute[2])
                # Its requests take longer than its members compute: they wait in their queues.
                self._counters.success_ns += end_ns - (infer_ns + compute[2])
        if isinstance(outcome, Fault):
            kind = outcome.kind if outcome.kind in ("invalid", "unavailable") else "internal"
            fault = Fault(kind, f"in ensemble '{self._name}', {outcome.message}")
            reply = InferenceReply(None, fault)
        else:
            reply = InferenceReply(outcome, None, 0, *compute)
        try:
            run.request.on_done(reply)
        except Exception:
            traceback.print_exc(file=sys.stderr)
        self._forget(ticket, run)

    def _end(self, run: _Run) -> bool:
        """Ends a request; False if it has ended before."""
        with run.lock:
            ended, run.ended = run.ended, True
        return not ended

    def _forget(self, ticket: int, run: _Run) -> None:
        """Lets go of a request that has ended, and of its members."""
        with self._lock:
            del self._runs[ticket]
            self._idle.notify_all()
        run.held.close()


def _input(signature: Signature, name: str, tensor: _Tensor) -> InputTensor:
    """A tensor as an input of the model with that signature."""
    array = tensor.array
    port = signature.inputs.get(name)
    if port is not None:  # the model is the one to say that it has none of that name
        array = _shaped(tensor, port.dims, signature.batch_size_max > 0)
    return InputTensor(name, DATATYPE_OF[array.dtype], array.shape, array)
