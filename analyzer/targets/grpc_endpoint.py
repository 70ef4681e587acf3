"""A KServe v2 endpoint over gRPC, and a connection that sends requests prepared beforehand."""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import grpc
from google.protobuf import json_format
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2, service_pb2_grpc

from analyzer.domain.measurement import STATUS_ERROR
from analyzer.engine.counters import ServerStatistics
from analyzer.errors import TargetCrashError, TargetError
from analyzer.targets.endpoint import EndpointModel, describe, raise_load_failure
from analyzer.targets.payload import RequestPool, datatype_of
from analyzer.targets.target import Completion

_MESSAGE_BYTES_MAX = 2**31 - 1
_ANSWER_S = 30.0
_LOAD_S = 600.0
_INFER = "/inference.GRPCInferenceService/ModelInfer"
_STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
_OPTIONS = [
    ("grpc.max_send_message_length", _MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
    # Each connection gets a TCP connection of its own.
    ("grpc.use_local_subchannel_pool", 1),
]


class GrpcEndpoint:
    """A KServe v2 endpoint with Triton's extensions over gRPC."""

    # A load request is a little larger than the files in it.
    load_bytes_max = _MESSAGE_BYTES_MAX - (1 << 20)

    def __init__(self, host: str, port: int) -> None:
        self._where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._channel = grpc.insecure_channel(self._where, options=_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    @property
    def address(self) -> str:
        """``grpc://HOST:PORT``."""
        return f"grpc://{self._where}"

    def close(self) -> None:
        """Closes the channel."""
        self._channel.close()

    def server_version(self) -> str:
        """Name and version of the server."""
        reply = self._call("ServerMetadata", service_pb2.ServerMetadataRequest())
        return f"{reply.name} {reply.version}"

    def live(self) -> bool:
        """Whether the server lives."""
        return bool(self._call("ServerLive", service_pb2.ServerLiveRequest()).live)

    def ready(self, model: str | None = None) -> bool:
        """Whether the server, or a model on it, is ready."""
        if model is None:
            return bool(self._call("ServerReady", service_pb2.ServerReadyRequest()).ready)
        try:
            request = service_pb2.ModelReadyRequest(name=model)
            return bool(self._stub.ModelReady(request, timeout=_ANSWER_S).ready)
        except grpc.RpcError as error:
            if error.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT):
                return False
            raise self._translated(error) from error

    def models(self) -> dict[str, str]:
        """Every known model and its state; READY if one of its versions is."""
        reply = self._call("RepositoryIndex", service_pb2.RepositoryIndexRequest())
        states: dict[str, str] = {}
        for entry in reply.models:
            if states.get(entry.name) != "READY":
                states[entry.name] = entry.state
        return states

    def model(self, name: str) -> EndpointModel:
        """A model's description."""
        meta = self._call("ModelMetadata", service_pb2.ModelMetadataRequest(name=name))
        try:
            maximum: int | None = self.config(name).max_batch_size
        except TargetCrashError:
            raise
        except TargetError:
            maximum = None  # a KServe endpoint without Triton's extension
        return describe(
            name,
            list(meta.versions),
            meta.platform,
            (
                [(t.name, t.datatype, list(t.shape)) for t in meta.inputs],
                [(t.name, t.datatype, list(t.shape)) for t in meta.outputs],
            ),
            maximum,
        )

    def config(self, name: str) -> Any:
        """A model's configuration after completion, a ``ModelConfig``."""
        return self._call("ModelConfig", service_pb2.ModelConfigRequest(name=name)).config

    def load(self, name: str, config: Any | None, files: Mapping[str, bytes]) -> None:
        """Loads a model, with its configuration and files if given."""
        request = service_pb2.RepositoryModelLoadRequest(model_name=name)
        if config is not None:
            text = json_format.MessageToJson(config, preserving_proto_field_name=True)
            request.parameters["config"].string_param = text
        for path, content in files.items():
            request.parameters[f"file:{path}"].bytes_param = content
        try:
            self._stub.RepositoryModelLoad(request, timeout=_LOAD_S)
        except grpc.RpcError as error:
            self._raise_if_gone(error)
            raise_load_failure(self.address, name, error.details())

    def unload(self, name: str) -> None:
        """Unloads a model; it may still be draining afterwards."""
        self._call(
            "RepositoryModelUnload", service_pb2.RepositoryModelUnloadRequest(model_name=name)
        )

    def statistics(self, name: str) -> ServerStatistics:
        """A model's counters, all its versions together."""
        reply = self._call("ModelStatistics", service_pb2.ModelStatisticsRequest(name=name))
        total = dict.fromkeys(
            (
                "inferences",
                "executions",
                "success",
                "success_ns",
                "fail",
                "queue",
                "in",
                "infer",
                "out",
            ),
            0,
        )
        batches: dict[int, int] = {}
        for entry in reply.model_stats:
            stats = entry.inference_stats
            total["inferences"] += entry.inference_count
            total["executions"] += entry.execution_count
            total["success"] += stats.success.count
            total["success_ns"] += stats.success.ns
            total["fail"] += stats.fail.count
            total["queue"] += stats.queue.ns
            total["in"] += stats.compute_input.ns
            total["infer"] += stats.compute_infer.ns
            total["out"] += stats.compute_output.ns
            for batch in entry.batch_stats:
                size, count = int(batch.batch_size), int(batch.compute_infer.count)
                batches[size] = batches.get(size, 0) + count
        return ServerStatistics(
            inference_count=total["inferences"],
            execution_count=total["executions"],
            success_count=total["success"],
            success_ns=total["success_ns"],
            fail_count=total["fail"],
            queue_ns=total["queue"],
            compute_input_ns=total["in"],
            compute_infer_ns=total["infer"],
            compute_output_ns=total["out"],
            batches=tuple(sorted(batches.items())),
        )

    @contextmanager
    def connect(self, name: str, pool: RequestPool) -> Iterator[GrpcConnection]:
        """A connection of its own whose requests go to model ``name``."""
        connection = GrpcConnection(self._where, name, pool)
        try:
            yield connection
        finally:
            connection.close()

    def _call(self, method: str, request: Any) -> Any:
        try:
            return getattr(self._stub, method)(request, timeout=_ANSWER_S)
        except grpc.RpcError as error:
            raise self._translated(error) from error

    def _raise_if_gone(self, error: Any) -> None:
        if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED) and (
            "not allowed" not in (error.details() or "")
        ):
            raise TargetCrashError(
                f"The server at {self.address} does not answer: {error.details()}",
                hint="See whether it still runs.",
            ) from error

    def _translated(self, error: Any) -> TargetError:
        try:
            self._raise_if_gone(error)
        except TargetCrashError as gone:
            return gone
        return TargetError(f"The server at {self.address}: {error.details()}")


class GrpcConnection:
    """Sends prepared messages as unary calls and collects their ends; used by one thread.

    gRPC's own thread notes each end and rings an eventfd, on which :meth:`receive` waits. It would
    end whenever nothing is in flight and be started anew by the next request, which costs a closed
    loop of few requests several percent; an idle stream keeps it.
    """

    def __init__(self, where: str, model: str, pool: RequestPool) -> None:
        self._model = model
        self._pool = pool
        self._where = where
        self._payloads: dict[int, Iterator[bytes]] = {}
        self._channel = grpc.insecure_channel(where, options=_OPTIONS)
        self._infer = self._channel.unary_unary(
            _INFER, request_serializer=_as_is, response_deserializer=_as_is
        )
        self._ended: deque[Completion] = deque()
        self._in_flight: dict[int, Any] = {}
        self._keeper: Any = None
        self._released = threading.Event()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._bell_lock = threading.Lock()
        self._closed = False
        try:
            grpc.channel_ready_future(self._channel).result(timeout=_ANSWER_S)
        except grpc.FutureTimeoutError as error:
            self.close()
            raise TargetCrashError(f"The server at grpc://{where} does not answer.") from error

    def send(self, request: int, batch_size: int) -> None:
        """Sends a request; never waits."""
        if self._keeper is None:
            stream = self._channel.stream_stream(
                _STREAM, request_serializer=_as_is, response_deserializer=_as_is
            )
            # A server without streams ends it at once; then all is as without it.
            self._keeper = stream(self._nothing_until_the_end())
        payloads = self._payloads.get(batch_size)
        if payloads is None:
            payloads = self._pool.payloads(batch_size, self._encode)
            self._payloads[batch_size] = payloads
        call = self._infer.future(next(payloads))
        self._in_flight[request] = call
        call.add_done_callback(lambda done: self._end(request, done))

    def receive(self, timeout_s: float) -> Sequence[Completion]:
        """Replies that are there, waiting at most ``timeout_s`` for the first."""
        if not self._ended and timeout_s > 0:
            select.select((self._bell,), (), (), timeout_s)
        # A ring for what is taken below may still come; then the next wait is a short one.
        with suppress(BlockingIOError):
            os.eventfd_read(self._bell)
        ended = self._ended
        return [ended.popleft() for _ in range(len(ended))]

    def close(self) -> None:
        """Takes back what is in flight and closes the channel."""
        if self._closed:
            return
        with self._bell_lock:
            # After this no thread of gRPC's touches the handle, whose number may be used anew.
            self._closed = True
            os.close(self._bell)
        self._released.set()
        if self._keeper is not None:
            self._keeper.cancel()
        for call in list(self._in_flight.values()):
            call.cancel()
        self._channel.close()

    def _nothing_until_the_end(self) -> Iterator[bytes]:
        self._released.wait()
        yield from ()

    def _end(self, request: int, call: Any) -> None:
        self._in_flight.pop(request, None)
        if self._closed:
            return
        if call.code() is grpc.StatusCode.OK:
            self._ended.append(Completion(request))
        else:
            self._ended.append(Completion(request, STATUS_ERROR))
        with self._bell_lock:
            if not self._closed:
                os.eventfd_write(self._bell, 1)

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
