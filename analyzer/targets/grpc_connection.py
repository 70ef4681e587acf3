"""Sends prepared ModelInfer calls over one socket, on the generator's own thread.

No thread and no lock is between the generator and the socket: what is due goes out with one system
call, and one call takes all replies that are there.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from analyzer.errors import TargetCrashError
from analyzer.targets.endpoint import ANSWER_S, authority
from analyzer.targets.http2_calls import Call, UnaryCalls, grpc_message
from analyzer.targets.http2_frames import Http2Error
from analyzer.targets.payload import Payloads, RequestPool, datatype_of
from analyzer.targets.target import Completion
from analyzer.targets.waiting import wait_for

_INFER = "/inference.GRPCInferenceService/ModelInfer"
# A server on this machine answers in milliseconds; a read takes what a socket buffer holds.
_CONNECT_S = 5.0
_RECEIVE_BYTES = 1 << 16
# Linux takes 1024 pieces in one call.
_PIECES_MAX = 512


class GrpcConnection:
    """Sends prepared messages as unary calls and collects their ends; used by one thread.

    Requests go out with the next :meth:`receive`, all that were given until then together. What the
    server has not begun when it closes a connection is sent again on a new one, once.

    Args:
        host, port: The server's.
        model: Where requests go.
        pool: Their inputs.

    Raises:
        TargetCrashError: Nothing that speaks HTTP/2 answers there.
    """

    def __init__(self, host: str, port: int, model: str, pool: RequestPool) -> None:
        self._where = (host, port)
        self._payloads = Payloads(pool, MessageEncoder(model))
        # The last takes new calls; those before it, which the server wants to close, only end.
        self._channels: list[_Channel] = []
        self._failure = ""
        self._open()

    def prepare(self, batch_sizes: Iterable[int]) -> None:
        """Encodes the requests of these sizes, which :meth:`send` would do else."""
        self._payloads.prepare(batch_sizes)

    def send(self, request: int, batch_size: int) -> None:
        """Gives a request to the connection; waits only where a new socket must be opened.

        Raises:
            TargetCrashError: The server is gone.
        """
        payload = next(self._payloads[batch_size])
        if self._channels[-1].calls.closing:
            self._open()
        self._channels[-1].calls.start(request, payload)

    def receive(self, timeout_s: float) -> Sequence[Completion]:
        """Sends what was given and returns the replies that are there.

        Waits at most ``timeout_s`` for the first.

        Raises:
            TargetCrashError: The server is gone.
        """
        for channel in self._channels:
            if channel.calls.out:
                channel.flush()
        handles = [channel.handle for channel in self._channels]
        ready: Collection[int] = handles
        if timeout_s > 0:
            unsent = [channel.handle for channel in self._channels if channel.calls.out]
            ready = wait_for(handles, timeout_s, writers=unsent)
        ended: list[Completion] = []
        closing = False
        for channel in self._channels:
            if channel.handle in ready:
                ended += channel.take()
                closing |= channel.calls.closing
        if closing:
            self._tidy()
        return ended

    @property
    def failure(self) -> str:
        """As of :class:`~analyzer.targets.target.Connection`."""
        told = (channel.calls.failure for channel in self._channels)
        return self._failure or next(filter(None, told), "")

    def close(self) -> None:
        """Closes the socket; the server drops what is in flight."""
        for channel in self._channels:
            channel.socket.close()
        self._channels.clear()

    def _tidy(self) -> None:
        """Starts on another channel what was refused; closes those on which nothing more will end.

        One is left, or opened anew.
        """
        self._failure = self.failure
        refused: list[Call] = []
        for channel in self._channels:
            refused += channel.calls.refused
            channel.calls.refused.clear()
        done = [one for one in self._channels if one.calls.closing and not one.calls.in_flight]
        if len(done) == len(self._channels) or (refused and self._channels[-1].calls.closing):
            self._open()
        for call in refused:
            self._channels[-1].calls.start(*call)
        for channel in done:
            channel.socket.close()
            self._channels.remove(channel)

    def _open(self) -> None:
        try:
            self._channels.append(_Channel(*self._where))
        except (OSError, Http2Error) as error:
            raise TargetCrashError(
                f"The server at grpc://{authority(*self._where)} does not answer: {error}.",
                hint="See whether it still runs.",
            ) from error


class _Channel:
    """One socket and the calls on it.

    Raises:
        OSError, Http2Error: Nobody answers, or not in HTTP/2.
    """

    def __init__(self, host: str, port: int) -> None:
        self.calls = UnaryCalls(authority(host, port), _INFER)
        self.lost = False
        self.socket = socket.create_connection((host, port), timeout=_CONNECT_S)
        self.handle = self.socket.fileno()
        try:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.socket.settimeout(ANSWER_S)
            self.flush()
            while not self.calls.ready and not self.lost:
                self.take()
            if self.lost or self.calls.closing:
                raise ConnectionError("it speaks no HTTP/2, or closed the connection")
            self.socket.setblocking(False)
        except OSError:
            self.socket.close()
            raise

    def flush(self) -> None:
        """Sends what the socket takes."""
        out = self.calls.out
        try:
            while out and not self.lost:
                sent = self.socket.sendmsg(out[:_PIECES_MAX])
                whole = 0
                for piece in out[:_PIECES_MAX]:
                    if sent < len(piece):
                        break
                    sent -= len(piece)
                    whole += 1
                del out[:whole]
                if sent:
                    out[0] = memoryview(out[0])[sent:]
        except BlockingIOError:
            pass
        except OSError:
            self.lost = True  # what has arrived before is still to be read

    def take(self) -> list[Completion]:
        """Reads what is there and returns the calls that ended by it."""
        ended: list[Completion] = []
        try:
            data = self.socket.recv(_RECEIVE_BYTES)
            if data:
                ended = self.calls.receive(data)
            else:
                self.lost = True
        except BlockingIOError:
            pass
        except (OSError, Http2Error):
            self.lost = True
        if self.calls.out:
            self.flush()
        if self.lost:
            ended += self.calls.abandon()
        return ended


@dataclass(frozen=True, slots=True)
class MessageEncoder:
    """:func:`encode_request` as gRPC transfers it; equal ones make the same of the same tensors."""

    model: str

    def __call__(self, tensors: Mapping[str, NDArray[Any]]) -> bytes:
        return grpc_message(encode_request(self.model, tensors))


def encode_request(model: str, tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """A ``ModelInferRequest`` for ``tensors``, serialized."""
    message = service_pb2.ModelInferRequest(model_name=model)
    for name, array in tensors.items():
        message.inputs.add(name=name, datatype=datatype_of(array), shape=array.shape)
        message.raw_input_contents.append(array.tobytes())
    return bytes(message.SerializeToString())
