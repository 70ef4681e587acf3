"""The gRPC front end: Triton's ``GRPCInferenceService``."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import grpc
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2, service_pb2_grpc

from analyzer.engine.fault import Fault, FaultKind
from analyzer.engine.loaded_model import LoadedModel
from analyzer.server import describe
from analyzer.server.grpc_codec import (
    FINAL_RESPONSE,
    build_response,
    parameter_value,
    parse_request,
    set_parameter,
)
from analyzer.server.inference_service import Admission, InferenceService
from analyzer.server.settings import LOG_FORMATS, TRACE_BOUNDS
from analyzer.server.shared_memory import refuse_cuda
from analyzer.server.wire_call import (
    WireCall,
)

_CODES: dict[FaultKind, grpc.StatusCode] = {
    "unknown": grpc.StatusCode.UNKNOWN,
    "internal": grpc.StatusCode.INTERNAL,
    "not_found": grpc.StatusCode.NOT_FOUND,
    "invalid": grpc.StatusCode.INVALID_ARGUMENT,
    "unavailable": grpc.StatusCode.UNAVAILABLE,
    "unsupported": grpc.StatusCode.UNIMPLEMENTED,
    "already_exists": grpc.StatusCode.ALREADY_EXISTS,
    "cancelled": grpc.StatusCode.CANCELLED,
}
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"  # grpc.health.v1.HealthCheckResponse


Handler = Callable[[Any, Any], Coroutine[Any, Any, Any]]


def _unary(handler: Handler) -> Callable[[Any, Any, Any], Coroutine[Any, Any, Any]]:
    """A method of the service out of ``handler(self, request)``; errors become status codes."""

    @functools.wraps(handler)
    async def method(self: GrpcService, request: Any, context: Any) -> Any:
        try:
            if request is None:
                raise _unreadable()
            return await handler(self, request)
        except Exception as error:
            await self.abort(context, error)

    return method


class GrpcService(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """The methods on the service's event loop (``grpc.aio``)."""

    def __init__(self, service: InferenceService) -> None:
        self._service = service
        self._admission = Admission()

    async def abort(self, context: Any, error: Exception) -> None:
        """Ends a call with the status of ``error``."""
        fault = self._service.as_fault(error, "gRPC")
        await context.abort(_CODES[fault.kind], fault.message)

    def _parse(self, request: Any) -> tuple[LoadedModel, WireCall]:
        if request is None:
            raise _unreadable()
        model = self._service.model(request.model_name, request.model_version)
        return model, parse_request(request, model, self._service.memory)

    # Without _unary, which costs a coroutine for each call.
    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Runs one inference request."""
        try:
            model, call = self._parse(request)
            model, outputs = await self._service.infer(
                model, request.model_version, call, self._admission
            )
            return build_response(model, call, outputs, self._service.memory)
        except Exception as error:
            await self.abort(context, error)

    async def ModelStreamInfer(  # noqa: N802
        self, requests: AsyncIterator[Any], context: Any
    ) -> AsyncIterator[Any]:
        """Runs the requests of a stream, all at once; responses come in the requests' order."""
        queue: asyncio.Queue[tuple[Any, asyncio.Task[Any]] | None] = asyncio.Queue(
            self._service.limits.stream_requests_max
        )

        async def read() -> None:
            try:
                async for request in requests:
                    await queue.put((request, asyncio.create_task(self._stream_one(request))))
            finally:
                await queue.put(None)

        reader = asyncio.create_task(read())
        try:
            while (entry := await queue.get()) is not None:
                yield await entry[1]
        finally:
            reader.cancel()
            while not queue.empty():
                left = queue.get_nowait()
                if left is not None:
                    left[1].cancel()

    async def _stream_one(self, request: Any) -> Any:
        try:
            model, call = self._parse(request)
            model, outputs = await self._service.infer(
                model, request.model_version, call, self._admission
            )
            response = build_response(model, call, outputs, self._service.memory)
            # No model here is decoupled, so each response is the last of its request.
            response.parameters[FINAL_RESPONSE].bool_param = True
            return service_pb2.ModelStreamInferResponse(infer_response=response)
        except Exception as error:
            return service_pb2.ModelStreamInferResponse(
                error_message=self._service.as_fault(error, "gRPC").message,
                infer_response=service_pb2.ModelInferResponse(id=request.id),
            )

    @_unary
    async def ServerLive(self, request: Any) -> Any:  # noqa: N802
        """Whether the server can still answer."""
        return service_pb2.ServerLiveResponse(live=self._service.repository.live())

    @_unary
    async def ServerReady(self, request: Any) -> Any:  # noqa: N802
        """Whether every model is ready."""
        return service_pb2.ServerReadyResponse(ready=self._service.repository.server_ready())

    @_unary
    async def ModelReady(self, request: Any) -> Any:  # noqa: N802
        """Whether one model is ready."""
        ready = self._service.ready(request.name, request.version)
        return service_pb2.ModelReadyResponse(ready=ready)

    @_unary
    async def ServerMetadata(self, request: Any) -> Any:  # noqa: N802
        """Name, version and extensions."""
        return service_pb2.ServerMetadataResponse(**describe.server_metadata())

    @_unary
    async def ModelMetadata(self, request: Any) -> Any:  # noqa: N802
        """A model's inputs and outputs."""
        metadata = self._service.metadata(request.name, request.version)
        return service_pb2.ModelMetadataResponse(**metadata)

    @_unary
    async def ModelConfig(self, request: Any) -> Any:  # noqa: N802
        """A model's complete configuration."""
        config = self._service.model(request.name, request.version).config
        return service_pb2.ModelConfigResponse(config=config)

    @_unary
    async def ModelStatistics(self, request: Any) -> Any:  # noqa: N802
        """Counters of one model or of all."""
        response = service_pb2.ModelStatisticsResponse()
        for entry in self._service.statistics(request.name, request.version):
            json_format.ParseDict(entry, response.model_stats.add())
        return response

    @_unary
    async def RepositoryIndex(self, request: Any) -> Any:  # noqa: N802
        """Every model and its state."""
        response = service_pb2.RepositoryIndexResponse()
        for entry in self._service.index(request.repository_name, ready_only=request.ready):
            response.models.add(**entry)
        return response

    @_unary
    async def RepositoryModelLoad(self, request: Any) -> Any:  # noqa: N802
        """Loads or reloads a model."""
        config: str | None = None
        files: dict[str, bytes] = {}
        for key, value in request.parameters.items():
            kind = value.WhichOneof("parameter_choice")
            if key == "config":
                if kind != "string_param":
                    raise Fault("invalid", _wrong_type(key, "string_param"))
                config = value.string_param
            elif key.startswith("file:"):
                if kind != "bytes_param":
                    raise Fault("invalid", _wrong_type(key, "bytes_param"))
                files[key.removeprefix("file:")] = value.bytes_param
            else:
                raise Fault("invalid", f"unrecognized load parameter '{key}'.")
        await self._service.load(
            request.repository_name, request.model_name, config_json=config, files=files
        )
        return service_pb2.RepositoryModelLoadResponse()

    @_unary
    async def RepositoryModelUnload(self, request: Any) -> Any:  # noqa: N802
        """Unloads a model."""
        dependents = False
        if "unload_dependents" in request.parameters:
            value = request.parameters["unload_dependents"]
            dependents = parameter_value(value, "unload_dependents", "bool_param")
        await self._service.unload(
            request.repository_name, request.model_name, unload_dependents=dependents
        )
        return service_pb2.RepositoryModelUnloadResponse()

    @_unary
    async def SystemSharedMemoryStatus(self, request: Any) -> Any:  # noqa: N802
        """The registered regions."""
        response = service_pb2.SystemSharedMemoryStatusResponse()
        for region in self._service.memory.status(request.name or None):
            entry = response.regions[region.name]
            entry.name, entry.key = region.name, region.key
            entry.offset, entry.byte_size = region.offset, region.byte_size
        return response

    @_unary
    async def SystemSharedMemoryRegister(self, request: Any) -> Any:  # noqa: N802
        """Registers a region."""
        self._service.memory.register(request.name, request.key, request.offset, request.byte_size)
        return service_pb2.SystemSharedMemoryRegisterResponse()

    @_unary
    async def SystemSharedMemoryUnregister(self, request: Any) -> Any:  # noqa: N802
        """Forgets a region, or all."""
        self._service.memory.unregister(request.name or None)
        return service_pb2.SystemSharedMemoryUnregisterResponse()

    @_unary
    async def CudaSharedMemoryStatus(self, request: Any) -> Any:  # noqa: N802
        """No region: there is no CUDA shared memory."""
        if request.name:
            raise Fault("not_found", f"Unable to find cuda shared memory region: '{request.name}'")
        return service_pb2.CudaSharedMemoryStatusResponse()

    @_unary
    async def CudaSharedMemoryRegister(self, request: Any) -> Any:  # noqa: N802
        """Refuses."""
        raise refuse_cuda()

    @_unary
    async def CudaSharedMemoryUnregister(self, request: Any) -> Any:  # noqa: N802
        """Has nothing to forget."""
        return service_pb2.CudaSharedMemoryUnregisterResponse()

    @_unary
    async def TraceSetting(self, request: Any) -> Any:  # noqa: N802
        """Reads and changes trace settings."""
        name = self._service.trace_model(request.model_name)
        values: dict[str, Any] = {}
        for key, setting in request.settings.items():
            given = list(setting.value)
            if key in TRACE_BOUNDS and len(given) > 1:
                raise Fault("invalid", f"expect only 1 value for '{key}'")
            values[key] = given if key == "trace_level" and given else (given or [None])[0]
        response = service_pb2.TraceSettingResponse()
        for key, value in self._service.settings.update_trace(values, name).items():
            response.settings[key].value.extend(value if isinstance(value, list) else [value])
        return response

    @_unary
    async def LogSettings(self, request: Any) -> Any:  # noqa: N802
        """Reads and changes logging settings."""
        values: dict[str, Any] = {}
        for key, setting in request.settings.items():
            kind = setting.WhichOneof("parameter_choice") or "string_param"
            expected, what = _LOG_TYPES.get(key, (kind, ""))
            if kind != expected:
                raise Fault("invalid", f"expect {what} for '{key}'")
            values[key] = getattr(setting, kind)
            if key == "log_format" and values[key] not in LOG_FORMATS:
                # Another code and text than over HTTP, in Triton, too.
                raise Fault("invalid", f"invalid argument for log_format, got: {values[key]}")
        response = service_pb2.LogSettingsResponse()
        for key, value in self._service.settings.update_log(values).items():
            set_parameter(response.settings[key], value, integer="uint32_param")
        return response


# The type of each logging setting, and what Triton calls it.
_LOG_TYPES = {
    "log_info": ("bool_param", "boolean"),
    "log_warning": ("bool_param", "boolean"),
    "log_error": ("bool_param", "boolean"),
    "log_verbose_level": ("uint32_param", "int32"),
    "log_format": ("string_param", "string"),
}


def _wrong_type(key: str, expected: str) -> str:
    return f"invalid value type for load parameter '{key}', expected {expected}."


def _unreadable() -> Fault:
    return Fault("internal", "Unable to parse request")


def _none_if_unreadable(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """``parse``, but None for what is no such message: methods then answer as Triton does."""

    def read(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError:
            return None

    return read


class _GenericOnly:
    """Registers a service by its names alone.

    ``grpc.aio`` waits anew for each registered method with every call; with our twenty methods that
    was a quarter of the CPU time of a call.
    """

    def __init__(self, server: Any) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Leaves it to the next method, which gets the same handlers by name."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        """Registers them generically."""
        own = {
            # A stream ends without a word at such a message, here as there.
            name: handler
            if handler.request_streaming
            else handler._replace(
                request_deserializer=_none_if_unreadable(handler.request_deserializer)
            )
            for name, handler in handlers.items()
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, own),))


def grpc_server(service: InferenceService) -> Any:
    """A ``grpc.aio`` server for ``service``, without a port; made on the loop that runs it."""
    limits = service.limits
    options = [
        ("grpc.max_receive_message_length", limits.body_bytes_max),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", limits.streams_max),
        # Metadata has gRPC's own bounds, as Triton's: some beyond 8 KiB is refused, all beyond 16.
        # Two servers on one port would share its connections without an error.
        ("grpc.so_reuseport", 0),
    ]
    server = grpc.aio.server(options=options)
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(
        GrpcService(service), _GenericOnly(server)
    )

    async def check(request: bytes, context: Any) -> bytes:
        return _SERVING if service.repository.server_ready() else _NOT_SERVING

    handler = grpc.unary_unary_rpc_method_handler(check)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": handler}),)
    )
    return server
