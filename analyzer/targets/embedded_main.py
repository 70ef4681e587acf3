"""The process of one embedded server (started by :mod:`analyzer.targets.embedded`).

Arguments: the number of the inherited control socket and the parent's process id. It loads the
model, warms every instance up, says that it is ready and answers until it is told to close, its
parent goes away, or it runs out of memory. It imports as little as it can, since a search starts
hundreds.
"""

from __future__ import annotations

import gc
import os
import select
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from analyzer.domain.load_test import (
    STATUS_ERROR,
    STATUS_OK,
    STATUS_TIMEOUT,
)
from analyzer.engine.fault import REQUEST_TIMEOUT
from analyzer.engine.policy import BatchingPolicy
from analyzer.engine.requests import InferenceReply, InferenceRequest
from analyzer.engine.runtimes.base import Runtime, Tensors
from analyzer.engine.served_model import ServedModel
from analyzer.engine.tensor_file import read_tensors
from analyzer.errors import AnalyzerError, TargetCrashError, TargetMemoryError
from analyzer.hardware.lifetime import die_with_parent
from analyzer.hardware.processes import resident_bytes
from analyzer.hardware.timing import give_way, set_timer_slack_ns
from analyzer.targets.embedded_runtimes import open_embedded_runtimes
from analyzer.targets.embedded_spec import EmbeddedSpec
from analyzer.targets.embedded_wire import (
    CONTROL_BYTES,
    RECEIVE_BYTES,
    REPLY,
    REQUEST,
    REQUEST_FAILED,
    decode_message,
    send_message,
)

# A fifth of Python's own: a thread that has run a batch soon lets the one that reads requests run.
_SWITCH_INTERVAL_S = 0.001
_MEMORY_CHECK_S = 0.05  # an instance takes longer to load
# Per instance and size: the first runs choose kernels and claim memory, the third is as any other.
_WARMUP_RUNS = 3
_WARMUP_SECONDS_MAX = 2.0  # all sizes together, for slow models


class InputPool:
    """Rows that requests are made of; a request's tensors are views, made once and kept.

    Args:
        arrays: An array per input; the first axis counts rows.
        batchable: Whether a request of n inferences takes n rows, or one row without its axis.
    """

    def __init__(self, arrays: Tensors, *, batchable: bool) -> None:
        self._arrays = dict(arrays)
        self._batchable = batchable
        self._rows = min((len(array) for array in arrays.values()), default=1)
        self._views: dict[tuple[int, int], Tensors] = {}

    def take(self, row: int, batch_size: int) -> Tensors:
        """The tensors of a request that starts at ``row``, modulo what there is."""
        first = row % max(self._rows - batch_size + 1, 1)
        view = self._views.get((first, batch_size))
        if view is None:
            view = self._views[first, batch_size] = self._view(first, batch_size)
        return view

    def _view(self, first: int, batch_size: int) -> Tensors:
        if not self._batchable:
            return {name: array[first, ...] for name, array in self._arrays.items()}
        if batch_size <= self._rows:
            return {name: rows[first : first + batch_size] for name, rows in self._arrays.items()}
        return {
            name: np.resize(rows, (batch_size, *rows.shape[1:]))
            for name, rows in self._arrays.items()
        }


class _ReplyTo:
    """Where the reply of one request goes."""

    __slots__ = ("client", "number")

    def __init__(self, client: _Client, number: int) -> None:
        self.client = client
        self.number = number

    def __call__(self, reply: InferenceReply) -> None:
        status = STATUS_OK
        if reply.fault is not None:
            message = reply.fault.message
            status = STATUS_TIMEOUT if message == REQUEST_TIMEOUT else STATUS_ERROR
            self.client.note_error(message)
        self.client.replies.append(
            REPLY.pack(
                self.number,
                status,
                reply.queue_ns,
                reply.compute_input_ns,
                reply.compute_infer_ns,
                reply.compute_output_ns,
            )
        )


class _Client:
    """One connection. Reading belongs to the main thread; any thread may reply."""

    def __init__(self, connection: socket.socket, poller: select.epoll, pool: InputPool) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.replies: list[bytes] = []
        self._poller = poller
        self._pool = pool
        self._lock = threading.Lock()
        self._unsent = b""
        self._rest = b""
        self._errors_noted = 0
        poller.register(connection, select.EPOLLIN)

    def note_error(self, error: str) -> None:
        """Writes the first few errors to the log, which the parent quotes when we fail."""
        if self._errors_noted < 5:
            self._errors_noted += 1
            print(f"{REQUEST_FAILED}{error}", file=sys.stderr, flush=True)

    def read(self) -> list[InferenceRequest] | None:
        """The requests that have come; None if the client is gone."""
        try:
            data = self.connection.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        data = self._rest + data
        whole = len(data) - len(data) % REQUEST.size
        self._rest = data[whole:]
        take = self._pool.take
        return [
            InferenceRequest(size, take(row, size), _ReplyTo(self, number))
            for number, size, row in REQUEST.iter_unpack(data[:whole])
        ]

    def flush(self) -> None:
        """Sends the replies that wait; what the socket does not take follows when it can."""
        with self._lock:
            waited = bool(self._unsent)
            count = len(self.replies)
            data = self._unsent + b"".join(self.replies[:count])
            del self.replies[:count]
            if not data:
                return
            try:
                sent = self.connection.send(data)
            except BlockingIOError:
                sent = 0
            except OSError:
                return  # the client is gone, which the main thread notices as it reads
            self._unsent = data[sent:]
            if bool(self._unsent) != waited:
                events = select.EPOLLIN | (select.EPOLLOUT if self._unsent else 0)
                self._poller.modify(self.connection, events)

    def close(self) -> None:
        with self._lock:
            self._poller.unregister(self.connection)
            self.connection.close()


class EmbeddedServer:
    """Answers the connections that come over the control socket."""

    def __init__(self, spec: EmbeddedSpec, control: socket.socket) -> None:
        self._spec = spec
        self._control = control
        self._poller = select.epoll()
        self._clients: dict[int, _Client] = {}

    def serve(self) -> None:
        """Loads, warms up, says that it is ready and serves until told to close."""
        arrays: dict[str, Any] = {}
        if self._spec.inputs_path is not None:
            arrays = read_tensors(Path(self._spec.inputs_path))
        else:
            # A scripted model tells the size of a batch by the rows of its input.
            arrays = {"rows": np.zeros((256, 1), np.uint8)}
        pool = InputPool(arrays, batchable=self._spec.batchable)
        runtimes = open_embedded_runtimes(self._spec)
        for runtime in runtimes:
            _warm_up(runtime, pool, self._spec.warmup_sizes())
        gc.collect()
        gc.freeze()
        model = ServedModel(
            self._spec.name,
            BatchingPolicy.from_configuration(self._spec.configuration),
            runtimes,
            batchable=self._spec.batchable,
            after_batch=self._flush,
            on_failure=self._note_failure,
        )
        send_message(self._control, ready=True)
        self._poller.register(self._control, select.EPOLLIN)
        while True:
            for number, events in self._poller.poll():
                if number == self._control.fileno():
                    self._answer_control(model, pool)
                elif number in self._clients:
                    self._serve_client(model, self._clients[number], events)

    def _serve_client(self, model: ServedModel, client: _Client, events: int) -> None:
        if events & select.EPOLLOUT:
            client.flush()
        if not events & ~select.EPOLLOUT:
            return
        requests = client.read()
        if requests:
            if -1 in model.submit_many(requests):
                client.flush()
        elif requests is None:
            del self._clients[client.connection.fileno()]
            client.close()
            model.cancel_where(
                lambda request: (
                    isinstance(request.on_done, _ReplyTo) and request.on_done.client is client
                )
            )

    def _answer_control(self, model: ServedModel, pool: InputPool) -> None:
        data, fds, _, _ = socket.recv_fds(self._control, CONTROL_BYTES, 1)
        operation = decode_message(data).get("operation")
        if operation == "connect":
            client = _Client(socket.socket(fileno=fds[0]), self._poller, pool)
            self._clients[client.connection.fileno()] = client
            send_message(self._control, connected=True)
        elif operation == "statistics":
            send_message(self._control, statistics=asdict(model.statistics()))
        else:  # told to close, or the parent is gone
            os._exit(0)

    def _flush(self) -> None:
        for client in tuple(self._clients.values()):
            if client.replies:
                client.flush()

    def _note_failure(self, failure: Exception) -> None:
        if isinstance(failure, MemoryError | TargetMemoryError):
            _give_up(self._control, "memory", failure)
        if isinstance(failure, TargetCrashError):  # the process has lost its GPU
            _give_up(self._control, "error", failure)


def _warm_up(runtime: Runtime, pool: InputPool, sizes: tuple[int, ...]) -> None:
    """Runs each size at least once, and again while that is quick."""
    for size in sizes:
        deadline = time.monotonic() + _WARMUP_SECONDS_MAX / len(sizes)
        for _ in range(_WARMUP_RUNS):
            runtime.run(pool.take(0, size))
            if time.monotonic() > deadline:
                break


def _give_up(control: socket.socket, kind: str, failure: BaseException) -> NoReturn:
    """Tells the parent why, and ends the process whatever its other threads are doing."""
    if not isinstance(failure, AnalyzerError):
        failure = AnalyzerError(f"{type(failure).__name__}: {failure}")
    control.setblocking(True)
    # A message must fit into CONTROL_BYTES.
    send_message(control, fatal=kind, message=failure.message[:8000], hint=failure.hint)
    sys.stderr.flush()
    os._exit(1)


def _watch_memory(control: socket.socket, limit_bytes: int) -> None:
    while (resident := resident_bytes(os.getpid())) <= limit_bytes:
        time.sleep(_MEMORY_CHECK_S)
    sentence = f"the server holds {resident} bytes, its limit is {limit_bytes}"
    _give_up(control, "memory", TargetMemoryError(sentence))


def _offer_to_oom_killer() -> None:
    """Makes the kernel choose this process, not the analyzer, when the machine is out of memory."""
    with suppress(OSError):  # not allowed here: the kernel's own choice stands
        Path("/proc/self/oom_score_adj").write_text("800")  # of at most 1000


def main(arguments: list[str]) -> None:
    """Serves on the control socket whose number is the first argument."""
    die_with_parent(parent_pid=int(arguments[1]))
    control = socket.socket(fileno=int(arguments[0]))
    data = control.recv(CONTROL_BYTES)
    if not data:
        return
    spec = EmbeddedSpec.from_json(data.decode())
    _offer_to_oom_killer()
    set_timer_slack_ns(1)
    give_way()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    if spec.memory_limit_bytes is not None:
        threading.Thread(
            target=_watch_memory, args=(control, spec.memory_limit_bytes), daemon=True
        ).start()
    try:
        EmbeddedServer(spec, control).serve()
    except (MemoryError, TargetMemoryError) as error:
        _give_up(control, "memory", error)
    except Exception as error:
        _give_up(control, "error", error)


if __name__ == "__main__":
    main(sys.argv[1:])
