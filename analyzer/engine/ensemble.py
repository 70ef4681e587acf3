"""Ensembles: a DAG of models, each with its own scheduler; a step runs as soon as it can."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray
from tritonclient.grpc.model_config_pb2 import DataType

from analyzer.engine.counters import Counters, ModelStatistics
from analyzer.engine.fault import Fault
from analyzer.engine.loaded_model import LoadedModel
from analyzer.engine.requests import InferCall, InferenceReply, InferenceRequest, InputTensor
from analyzer.engine.served_model import DRAIN_POLL_S
from analyzer.engine.signature import listed
from analyzer.engine.tensors import DATATYPE_OF
from analyzer.errors import RepositoryError

Resolve = Callable[[str, int], LoadedModel]
NEWEST = -1  # as a step's version


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A member and how its tensors are called in the ensemble."""

    model: str
    version: int
    inputs: tuple[tuple[str, str], ...]  # (the member's name, the ensemble's)
    outputs: tuple[tuple[str, str], ...]


def steps_of(config: Any) -> tuple[Step, ...]:
    """The steps of an ensemble's configuration, in its order."""
    return tuple(
        Step(
            model=step.model_name,
            version=step.model_version,
            inputs=tuple(sorted(step.input_map.items())),
            outputs=tuple(sorted(step.output_map.items())),
        )
        for step in config.ensemble_scheduling.step
    )


def member_names(config: Any) -> tuple[str, ...]:
    """Names of the models that an ensemble needs; empty for other models."""
    return tuple(dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    """A tensor as the model that names it first in an ensemble has it."""

    model: str
    datatype: int
    dims: tuple[int, ...]
    shape: tuple[int, ...]  # with the batch axis of a model that batches


def _node(model: str, config: Any, datatype: int, dims: Sequence[int]) -> _Node:
    axis = (-1,) if config.max_batch_size else ()
    return _Node(model=model, datatype=datatype, dims=tuple(dims), shape=(*axis, *dims))


def labels_of_member(config: Any, resolve: Resolve, output: str) -> tuple[str, ...]:
    """Names of the classes of a tensor of an ensemble: those of the member that makes it."""
    for step in steps_of(config):
        for inner, outer in step.outputs:
            if outer == output:
                with contextlib.suppress(Fault):  # it has just been unloaded
                    return resolve(step.model, step.version).labels_of(inner)
    return ()


def validate_ensemble(config: Any, resolve: Resolve) -> None:
    """Checks that the members of an ensemble fit it and each other.

    Texts and order are those of ``ValidateEnsembleConfig`` in Triton's ``ensemble_utils.cc``; that
    its steps can run has been checked with the rest of the configuration.

    Raises:
        RepositoryError: They do not.
        Fault: A member is not loaded.
    """
    nodes: dict[str, _Node] = {}
    for tensor in (*config.input, *config.output):
        dims = tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
        nodes.setdefault(tensor.name, _node(config.name, config, tensor.data_type, dims))
    for step in steps_of(config):
        member = _member(config, step, resolve).config
        limit = member.max_batch_size
        if limit and limit < config.max_batch_size:
            raise RepositoryError(
                f"ensemble {config.name} allows maximum batch size {config.max_batch_size}, but it "
                f"contains model {step.model} which only allows maximum batch size to be {limit}"
            )
        _check_step(config.name, step, member, nodes)


def _member(config: Any, step: Step, resolve: Resolve) -> LoadedModel:
    try:
        return resolve(step.model, step.version)
    except Fault as fault:
        if step.version == NEWEST:
            raise
        raise RepositoryError(
            f"ensemble '{config.name}' depends on '{step.model}' whose required version "
            f"{step.version} is not loaded.",
            hint="A model_version of -1 is the newest; one that is left out is 0.",
        ) from fault


def _check_step(ensemble: str, step: Step, member: Any, nodes: dict[str, _Node]) -> None:
    """Checks a step against the tensors that are known, and adds those that it names first."""
    where = f"in ensemble {ensemble}, "
    for inner, outer in step.inputs:
        if all(tensor.name != inner for tensor in member.input):
            raise RepositoryError(
                f"{where}ensemble tensor {outer} is mapping to non-existing input {inner} in model "
                f"{step.model}"
            )
    mapped = {inner for inner, _ in step.inputs}
    for tensor in member.input:
        if not tensor.optional and tensor.name not in mapped:
            raise RepositoryError(
                f"{where}input {tensor.name} in model {step.model} is not mapped to any ensemble "
                "tensors"
            )
    for inner, outer in step.outputs:
        if all(tensor.name != inner for tensor in member.output):
            raise RepositoryError(
                f"{where}ensemble tensor {outer} is mapped from non-existing output {inner} in "
                f"model {step.model}"
            )
    for tensors, pairs in ((member.input, step.inputs), (member.output, step.outputs)):
        known = {tensor.name: tensor for tensor in tensors}
        for inner, outer in pairs:
            tensor = known[inner]
            node = _node(step.model, member, tensor.data_type, tensor.dims)
            _check_consistent(
                nodes.setdefault(outer, node), node, f"{where}ensemble tensor {outer}"
            )


def _check_consistent(first: _Node, second: _Node, where: str) -> None:
    """Checks that a tensor can be both; a variable dimension is left to the requests."""
    if first.datatype != second.datatype:
        name = DataType.Name
        raise RepositoryError(
            f"{where}: inconsistent data type: {name(first.datatype)} is inferred from model "
            f"{first.model} while {name(second.datatype)} is inferred from model {second.model}"
        )
    # A model without a batch axis may have that axis in its dimensions.
    if not (_fit(first.dims, second.dims) or _fit(first.shape, second.shape)):
        raise RepositoryError(
            f"{where}: inconsistent shape: {listed(first.shape)} is inferred from model "
            f"{first.model} while {listed(second.shape)} is inferred from model {second.model}"
        )


def _fit(first: tuple[int, ...], second: tuple[int, ...]) -> bool:
    return len(first) == len(second) and all(
        one == other or -1 in (one, other) for one, other in zip(first, second, strict=True)
    )


@dataclass(slots=True)
class _Run:
    """One request on its way through the steps; guarded by its lock.

    ``in_flight`` has the member and its ticket by the number of the step; None while it starts.
    """

    request: InferenceRequest
    started_ns: int
    tensors: dict[str, NDArray[Any]]
    pending: list[Step]
    in_flight: dict[int, tuple[LoadedModel, int] | None] = field(default_factory=dict)
    compute_ns: list[int] = field(default_factory=lambda: [0, 0, 0])
    ended: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)


class Ensemble:
    """Runs an ensemble's requests over its members. Thread-safe.

    Members are looked up for every step, so that one that was loaded anew is used at once.
    """

    def __init__(self, config: Any, resolve: Resolve) -> None:
        self._name = config.name
        self._steps = steps_of(config)
        self._outputs = tuple(tensor.name for tensor in config.output)
        self._resolve = resolve
        self._counters = Counters()
        self._lock = threading.Lock()
        self._tickets = itertools.count()
        self._runs: dict[int, _Run] = {}
        self._stopping = False

    def submit(self, request: InferenceRequest) -> int:
        """Starts a request; see :meth:`ServedModel.submit`."""
        run = _Run(request, time.monotonic_ns(), dict(request.inputs), list(self._steps))
        with self._lock:
            if self._stopping:
                raise Fault("unavailable", f"model {self._name} is stopping")
            ticket = next(self._tickets)
            self._runs[ticket] = run
        self._advance(ticket, run)
        return ticket

    def cancel(self, ticket: int) -> bool:
        """Ends a request: steps that wait are taken back, steps that run are not followed up."""
        with self._lock:
            run = self._runs.get(ticket)
        if run is None:
            return False
        with run.lock:
            if run.ended:
                return False
            run.ended = True
            started = [entry for entry in run.in_flight.values() if entry is not None]
        with self._lock:
            del self._runs[ticket]
            self._counters.cancel([(run.request, run.started_ns)], time.monotonic_ns())
        for model, member_ticket in started:
            model.cancel(member_ticket)
        return True

    def details(self) -> ModelStatistics:
        """Counters of the ensemble's own requests; compute times are sums over the members."""
        with self._lock:
            return self._counters.details(0)

    def close(self, *, timeout_s: float = 10.0) -> None:
        """Takes no more requests and waits for those under way."""
        with self._lock:
            self._stopping = True
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            with self._lock:
                if not self._runs:
                    return
            time.sleep(DRAIN_POLL_S)

    def _advance(self, ticket: int, run: _Run) -> None:
        """Starts every step whose inputs exist; answers when none is left."""
        with run.lock:
            if run.ended:
                return
            ready = [
                step
                for step in run.pending
                if all(outer in run.tensors for _, outer in step.inputs)
            ]
            for step in ready:
                run.pending.remove(step)
            starts = [(self._steps.index(step), step) for step in ready]
            for number, _ in starts:
                run.in_flight[number] = None
            done = not run.in_flight
        if done:
            self._finish(ticket, run, None)
            return
        for number, step in starts:
            self._start(ticket, run, number, step)

    def _start(self, ticket: int, run: _Run, number: int, step: Step) -> None:
        try:
            member = self._resolve(step.model, step.version)
            call = InferCall(
                inputs=[_input(inner, run.tensors[outer]) for inner, outer in step.inputs],
                outputs=tuple(inner for inner, _ in step.outputs),
                priority=run.request.priority,
                timeout_us=run.request.timeout_us,
            )

            def on_done(reply: InferenceReply) -> None:
                self._on_step(ticket, run, number, step, reply)

            member_ticket = member.infer(call, on_done)
        except Fault as fault:
            self._finish(ticket, run, fault)
            return
        with run.lock:
            if number in run.in_flight:
                run.in_flight[number] = (member, member_ticket)
            cancelled = run.ended
        if cancelled:
            member.cancel(member_ticket)

    def _on_step(
        self, ticket: int, run: _Run, number: int, step: Step, reply: InferenceReply
    ) -> None:
        if reply.outputs is None:
            self._finish(ticket, run, reply.fault)
            return
        with run.lock:
            run.in_flight.pop(number, None)
            for inner, outer in step.outputs:
                run.tensors[outer] = reply.outputs[inner]
            run.compute_ns[0] += reply.compute_input_ns
            run.compute_ns[1] += reply.compute_infer_ns
            run.compute_ns[2] += reply.compute_output_ns
        self._advance(ticket, run)

    def _finish(self, ticket: int, run: _Run, fault: Fault | None) -> None:
        with run.lock:
            if run.ended:
                return
            run.ended = True
        end_ns = time.monotonic_ns()
        work = [(run.request, run.started_ns)]
        compute = run.compute_ns
        with self._lock:
            self._runs.pop(ticket, None)
            if fault is None:
                start_ns = run.started_ns
                input_ns = start_ns + compute[0]
                infer_ns = input_ns + compute[1]
                self._counters.succeed(work, start_ns, input_ns, infer_ns, infer_ns + compute[2])
                # Its requests take longer than its members compute: they wait in their queues.
                self._counters.success_ns += end_ns - (infer_ns + compute[2])
            else:
                self._counters.fail(work, end_ns)
        if fault is not None:
            if fault.kind not in ("invalid", "unavailable"):
                fault = Fault("internal", fault.message)
            run.request.on_done(InferenceReply(None, fault))
            return
        outputs = {name: run.tensors[name] for name in self._outputs}
        run.request.on_done(InferenceReply(outputs, None, 0, *compute))


def _input(name: str, array: NDArray[Any]) -> InputTensor:
    return InputTensor(name, DATATYPE_OF[array.dtype], array.shape, array)
