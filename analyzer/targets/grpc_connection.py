"""Sends prepared requests over gRPC: the hot path."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import grpc
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from analyzer.domain.measurement import STATUS_ERROR
from analyzer.errors import TargetCrashError
from analyzer.targets.endpoint import ANSWER_S
from analyzer.targets.payload import RequestPool, datatype_of
from analyzer.targets.target import Completion

MESSAGE_BYTES_MAX = 2**31 - 1  # protobuf's own limit
CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # Each connection gets a TCP connection of its own.
    ("grpc.use_local_subchannel_pool", 1),
)
_INFER = "/inference.GRPCInferenceService/ModelInfer"
_STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
# Between two looks whether a server that refuses requests still listens: a full queue refuses too,
# and then many a second.
_LOOK_S = 0.5
_CONNECT_S = 1.0


class GrpcConnection:
    """Sends prepared messages as unary calls and collects their ends; used by one thread.

    gRPC's own thread notes each end and writes to an eventfd, on which :meth:`receive` waits. It
    would end whenever nothing is in flight and be started anew by the next request, which costs a
    closed loop of few requests several percent; an idle stream keeps it.
    """

    def __init__(self, where: str, model: str, pool: RequestPool) -> None:
        self._model = model
        self._pool = pool
        self._where = where
        self._payloads: dict[int, Iterator[bytes]] = {}
        self._channel = grpc.insecure_channel(where, options=CHANNEL_OPTIONS)
        self._infer = self._channel.unary_unary(
            _INFER, request_serializer=_as_is, response_deserializer=_as_is
        )
        self._ended: deque[Completion] = deque()
        self._in_flight: dict[int, Any] = {}
        self._idle_stream: Any = None
        self._released = threading.Event()
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._wakeup_lock = threading.Lock()
        self._refused = False
        self._next_look_s = 0.0
        self._closed = False
        try:
            grpc.channel_ready_future(self._channel).result(timeout=ANSWER_S)
        except grpc.FutureTimeoutError as error:
            self.close()
            raise TargetCrashError(f"The server at grpc://{where} does not answer.") from error

    def send(self, request: int, batch_size: int) -> None:
        """Sends a request; never waits."""
        if self._idle_stream is None:
            stream = self._channel.stream_stream(
                _STREAM, request_serializer=_as_is, response_deserializer=_as_is
            )
            # A server without streams ends it at once; then all is as without it.
            self._idle_stream = stream(self._nothing_until_the_end())
        payloads = self._payloads.get(batch_size)
        if payloads is None:
            payloads = self._pool.payloads(batch_size, self._encode)
            self._payloads[batch_size] = payloads
        call = self._infer.future(next(payloads))
        self._in_flight[request] = call
        call.add_done_callback(lambda done: self._end(request, done))

    def receive(self, timeout_s: float) -> Sequence[Completion]:
        """Replies that are there, waiting at most ``timeout_s`` for the first.

        Raises:
            TargetCrashError: The server is gone.
        """
        if self._refused:
            self._raise_if_gone()
        if not self._ended and timeout_s > 0:
            select.select((self._wakeup,), (), (), timeout_s)
        # A wake-up for what is taken below may still come; then the next wait is a short one.
        with suppress(BlockingIOError):
            os.eventfd_read(self._wakeup)
        ended = self._ended
        return [ended.popleft() for _ in range(len(ended))]

    def close(self) -> None:
        """Takes back what is in flight and closes the channel."""
        if self._closed:
            return
        with self._wakeup_lock:
            # After this no thread of gRPC's touches the handle, whose number may be used anew.
            self._closed = True
            os.close(self._wakeup)
        self._released.set()
        if self._idle_stream is not None:
            self._idle_stream.cancel()
        for call in list(self._in_flight.values()):
            call.cancel()
        self._channel.close()

    def _nothing_until_the_end(self) -> Iterator[bytes]:
        self._released.wait()
        yield from ()

    def _raise_if_gone(self) -> None:
        """Looks whether the server still listens, since it refused a request as unavailable."""
        if time.monotonic() < self._next_look_s:
            return
        self._refused = False
        self._next_look_s = time.monotonic() + _LOOK_S
        host, _, port = self._where.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
        except OSError as error:
            raise TargetCrashError(
                f"The server at grpc://{self._where} went away: {error}.",
                hint="Its own log may say why.",
            ) from error

    def _end(self, request: int, call: Any) -> None:
        self._in_flight.pop(request, None)
        if self._closed:
            return
        code = call.code()
        if code is grpc.StatusCode.OK:
            self._ended.append(Completion(request))
        else:
            self._refused |= code is grpc.StatusCode.UNAVAILABLE
            self._ended.append(Completion(request, STATUS_ERROR))
        with self._wakeup_lock:
            if not self._closed:
                os.eventfd_write(self._wakeup, 1)

    def _encode(self, tensors: dict[str, NDArray[Any]]) -> bytes:
        return encode_request(self._model, tensors)


def encode_request(model: str, tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """A ``ModelInferRequest`` for ``tensors``, serialized."""
    message = service_pb2.ModelInferRequest(model_name=model)
    for name, array in tensors.items():
        message.inputs.add(name=name, datatype=datatype_of(array), shape=array.shape)
        message.raw_input_contents.append(array.tobytes())
    return bytes(message.SerializeToString())


def _as_is(message: bytes) -> bytes:
    return message
