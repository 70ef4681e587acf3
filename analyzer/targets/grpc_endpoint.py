"""The control side of a KServe v2 endpoint over gRPC."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf import json_format
from tritonclient.grpc import service_pb2, service_pb2_grpc

from analyzer.engine.counters import ServerStatistics
from analyzer.errors import TargetCrashError, TargetError
from analyzer.targets.endpoint import (
    ANSWER_S,
    LOAD_S,
    EndpointModel,
    authority,
    describe_model,
    load_timeout,
    model_states,
    raise_load_failure,
    total_statistics,
)
from analyzer.targets.grpc_connection import GrpcConnection
from analyzer.targets.payload import RequestPool

_MESSAGE_BYTES_MAX = 2**31 - 1  # protobuf's own limit
_LATE = grpc.StatusCode.DEADLINE_EXCEEDED
_CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", _MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
    # Each endpoint gets a TCP connection of its own.
    ("grpc.use_local_subchannel_pool", 1),
    # As the load, and as over HTTP: a proxy would stand between us and what is measured.
    ("grpc.enable_http_proxy", 0),
)


class GrpcEndpoint:
    """A KServe v2 endpoint with Triton's extensions over gRPC."""

    # A load request is a little larger than the files in it.
    load_bytes_max = _MESSAGE_BYTES_MAX - (1 << 20)

    def __init__(self, host: str, port: int) -> None:
        self._where = (host, port)
        name = authority(host, port)
        self.address = f"grpc://{name}"
        self._channel = grpc.insecure_channel(name, options=_CHANNEL_OPTIONS)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def close(self) -> None:
        """Closes the channel."""
        self._channel.close()

    def live(self) -> bool:
        """Whether the server lives."""
        return bool(self._call("ServerLive", service_pb2.ServerLiveRequest()).live)

    def ready(self, model: str | None = None) -> bool:
        """Whether the server, or a model on it, is ready."""
        if model is None:
            return bool(self._call("ServerReady", service_pb2.ServerReadyRequest()).ready)
        try:
            return bool(self._call("ModelReady", service_pb2.ModelReadyRequest(name=model)).ready)
        except TargetError as error:
            cause = error.__cause__
            unknown = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT)
            if isinstance(cause, grpc.RpcError) and cause.code() in unknown:
                return False
            raise

    def models(self) -> dict[str, str]:
        """Every known model and its state; READY if one of its versions is."""
        return model_states(self.index())

    def index(self) -> Sequence[Mapping[str, Any]]:
        """The repository's index: name, version, state and reason of each model."""
        request = service_pb2.RepositoryIndexRequest()
        entries: list[dict[str, Any]] = self._json("RepositoryIndex", request)["models"]
        return entries

    def model(self, name: str) -> EndpointModel:
        """A model's description."""
        request = service_pb2.ModelMetadataRequest(name=name)
        return describe_model(self, name, self._json("ModelMetadata", request))

    def config(self, name: str) -> Any:
        """A model's configuration after completion, a ``ModelConfig``."""
        return self._call("ModelConfig", service_pb2.ModelConfigRequest(name=name)).config

    def load(
        self,
        name: str,
        config: Any | None,
        files: Mapping[str, bytes],
        *,
        timeout_s: float = LOAD_S,
    ) -> None:
        """Loads a model, with its configuration and files if given."""
        request = service_pb2.RepositoryModelLoadRequest(model_name=name)
        if config is not None:
            text = json_format.MessageToJson(config, preserving_proto_field_name=True)
            request.parameters["config"].string_param = text
        for path, content in files.items():
            request.parameters[f"file:{path}"].bytes_param = content
        try:
            self._call("RepositoryModelLoad", request, timeout_s=timeout_s)
        except TargetError as error:
            cause: Any = error.__cause__
            if isinstance(error, TargetCrashError):
                if isinstance(cause, grpc.RpcError) and cause.code() == _LATE:
                    raise load_timeout(self.address, name, timeout_s) from error
                raise
            raise_load_failure(self.address, name, cause.details())

    def unload(self, name: str) -> None:
        """Unloads a model; it may still be draining afterwards."""
        request = service_pb2.RepositoryModelUnloadRequest(model_name=name)
        self._call("RepositoryModelUnload", request)

    def statistics(self, name: str) -> ServerStatistics:
        """A model's counters, all its versions together."""
        request = service_pb2.ModelStatisticsRequest(name=name)
        return total_statistics(self._json("ModelStatistics", request)["model_stats"])

    @contextmanager
    def connect(self, name: str, pool: RequestPool) -> Iterator[GrpcConnection]:
        """A connection of its own whose requests go to model ``name``."""
        connection = GrpcConnection(*self._where, name, pool)
        try:
            yield connection
        finally:
            connection.close()

    def _json(self, method: str, request: Any) -> Any:
        """The reply in the form that it has over HTTP (integers of 64 bits as strings)."""
        return json_format.MessageToDict(
            self._call(method, request),
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
        )

    def _call(self, method: str, request: Any, *, timeout_s: float = ANSWER_S) -> Any:
        """The reply.

        Raises:
            TargetCrashError: The server does not answer, or the channel is closed.
            TargetError: It refuses; the cause is gRPC's own error.
        """
        try:
            return getattr(self._stub, method)(request, timeout=timeout_s)
        except ValueError as error:  # the channel is closed
            raise TargetCrashError(f"The connection to {self.address} is closed.") from error
        except grpc.RpcError as error:
            said = error.details() or ""
            lost = (grpc.StatusCode.UNAVAILABLE, _LATE)
            # Triton refuses model control with UNAVAILABLE.
            if error.code() in lost and "not allowed" not in said:
                raise TargetCrashError(
                    f"The server at {self.address} does not answer: {said}",
                    hint="See whether it still runs.",
                ) from error
            raise TargetError(f"The server at {self.address}: {said}") from error
