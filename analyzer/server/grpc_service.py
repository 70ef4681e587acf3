"""The gRPC front end: Triton's ``GRPCInferenceService``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from google.protobuf import json_format
from tritonclient.grpc import service_pb2, service_pb2_grpc

from analyzer.engine.loaded_model import LoadedModel
from analyzer.engine.model_statistics import statistics_json
from analyzer.engine.protocol import Fault, FaultKind, InferCall, InferResult, Limits
from analyzer.errors import AnalyzerError
from analyzer.server import describe
from analyzer.server.bridge import ReplyBridge
from analyzer.server.grpc_codec import (
    FINAL_RESPONSE,
    build_response,
    parse_request,
    wants_final_flag,
)
from analyzer.server.repository import Repository
from analyzer.server.settings import Settings
from analyzer.server.shared_memory import SharedMemory, refuse_cuda

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


class GrpcService(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """The service on one event loop (``grpc.aio``).

    Args:
        bridge: Of that loop.
        log: Takes a line about a fault of the server.
    """

    def __init__(
        self,
        repository: Repository,
        memory: SharedMemory,
        settings: Settings,
        bridge: ReplyBridge,
        limits: Limits,
        log: Callable[[str], None],
    ) -> None:
        self._repository = repository
        self._memory = memory
        self._settings = settings
        self._bridge = bridge
        self._limits = limits
        self._log = log
        self._in_flight = 0

    async def ModelInfer(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Runs one inference request."""
        try:
            model = self._get(request)
            call = parse_request(request, model, self._memory)
            return build_response(model, call, await self._run(model, call), self._memory)
        except Exception as error:
            await self._abort(context, error)

    async def ModelStreamInfer(  # noqa: N802
        self, requests: AsyncIterator[Any], context: Any
    ) -> AsyncIterator[Any]:
        """Runs the requests of a stream, all at once; responses come in the requests' order."""
        queue: asyncio.Queue[tuple[Any, asyncio.Task[Any]] | None] = asyncio.Queue(
            self._limits.stream_requests_max
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
            model = self._get(request)
            call = parse_request(request, model, self._memory)
            result = await self._run(model, call)
            response = build_response(model, call, result, self._memory)
            if wants_final_flag(request):
                response.parameters[FINAL_RESPONSE].bool_param = True
            return service_pb2.ModelStreamInferResponse(infer_response=response)
        except Exception as error:
            fault = self._as_fault(error)
            return service_pb2.ModelStreamInferResponse(
                error_message=fault.message,
                infer_response=service_pb2.ModelInferResponse(id=request.id),
            )

    async def _run(self, model: LoadedModel, call: InferCall) -> InferResult:
        """The result of a call.

        Raises:
            Fault: The call failed.
        """
        if self._in_flight >= self._limits.requests_max:
            raise Fault("unavailable", "too many requests are in the server")
        future: asyncio.Future[InferResult] = asyncio.get_running_loop().create_future()
        post = self._bridge.post
        self._in_flight += 1
        try:
            ticket = model.infer(call, lambda result: post(future, result))
            try:
                result = await future
            except asyncio.CancelledError:
                # The client went away: what has not begun is taken back.
                model.cancel(ticket)
                raise
        finally:
            self._in_flight -= 1
        if result.fault is not None:
            raise result.fault
        return result

    def _get(self, request: Any) -> LoadedModel:
        version = request.model_version
        if version and not version.isdecimal():
            raise Fault(
                "invalid",
                f"failed to get model version from specified version string '{version[:100]}' "
                "(details: stol), version should be an integral value > 0",
            )
        return self._repository.get(request.model_name, version)

    def _as_fault(self, error: Exception) -> Fault:
        if isinstance(error, Fault):
            return error
        if isinstance(error, AnalyzerError):
            return Fault("invalid", error.message)
        self._log(f"gRPC: {type(error).__name__}: {error}")
        return Fault("internal", f"{type(error).__name__}: {error}")

    async def _abort(self, context: Any, error: Exception) -> None:
        fault = self._as_fault(error)
        await context.abort(_CODES[fault.kind], fault.message)

    # What follows answers at once.

    async def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Whether the server lives."""
        return service_pb2.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Whether every model is ready."""
        return service_pb2.ServerReadyResponse(ready=self._repository.server_ready())

    async def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Whether one model is ready."""
        return service_pb2.ModelReadyResponse(
            ready=self._repository.ready(request.name, request.version)
        )

    async def ServerMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Name, version and extensions."""
        return service_pb2.ServerMetadataResponse(**describe.server_metadata())

    async def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        """A model's inputs and outputs."""
        try:
            model = self._repository.get(request.name, request.version)
            metadata = describe.model_metadata(model, self._repository)
            return service_pb2.ModelMetadataResponse(**metadata)
        except Exception as error:
            await self._abort(context, error)

    async def ModelConfig(self, request: Any, context: Any) -> Any:  # noqa: N802
        """A model's complete configuration."""
        try:
            model = self._repository.get(request.name, request.version)
            return service_pb2.ModelConfigResponse(config=model.config)
        except Exception as error:
            await self._abort(context, error)

    async def ModelStatistics(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Counters of one model or of all."""
        try:
            models = self._repository.models()
            if request.name:
                models = [
                    model
                    for model in models
                    if model.name == request.name and request.version in ("", model.version_text)
                ]
                if not models and self._repository.ready(request.name):
                    raise Fault(
                        "invalid",
                        f"requested model version is not available for model '{request.name}'",
                    )
                if not models:
                    raise Fault("invalid", f"requested model '{request.name}' is not available")
            response = service_pb2.ModelStatisticsResponse()
            for model in models:
                json_format.ParseDict(statistics_json(model), response.model_stats.add())
            return response
        except Exception as error:
            await self._abort(context, error)

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Every model and its state."""
        try:
            if request.repository_name:
                raise Fault("unsupported", "'repository_name' specification is not supported")
            response = service_pb2.RepositoryIndexResponse()
            for entry in self._repository.index(ready_only=request.ready):
                response.models.add(**describe.index_entry(entry))
            return response
        except Exception as error:
            await self._abort(context, error)

    async def RepositoryModelLoad(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Loads or reloads a model."""
        try:
            if request.repository_name:
                raise Fault("unsupported", "'repository_name' specification is not supported")
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
                    raise Fault("invalid", f"unrecognized load parameter '{key}'")
            await asyncio.get_running_loop().run_in_executor(
                None,
                lambda: self._repository.load(request.model_name, config_json=config, files=files),
            )
            return service_pb2.RepositoryModelLoadResponse()
        except Exception as error:
            await self._abort(context, error)

    async def RepositoryModelUnload(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Unloads a model."""
        try:
            if request.repository_name:
                raise Fault("unsupported", "'repository_name' specification is not supported")
            dependents = request.parameters["unload_dependents"].bool_param
            await asyncio.get_running_loop().run_in_executor(
                None,
                lambda: self._repository.unload(request.model_name, unload_dependents=dependents),
            )
            return service_pb2.RepositoryModelUnloadResponse()
        except Exception as error:
            await self._abort(context, error)

    async def SystemSharedMemoryStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        """The registered regions."""
        try:
            response = service_pb2.SystemSharedMemoryStatusResponse()
            for region in self._memory.status(request.name or None):
                entry = response.regions[region.name]
                entry.name, entry.key = region.name, region.key
                entry.offset, entry.byte_size = region.offset, region.byte_size
            return response
        except Exception as error:
            await self._abort(context, error)

    async def SystemSharedMemoryRegister(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Registers a region."""
        try:
            self._memory.register(request.name, request.key, request.offset, request.byte_size)
            return service_pb2.SystemSharedMemoryRegisterResponse()
        except Exception as error:
            await self._abort(context, error)

    async def SystemSharedMemoryUnregister(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Forgets a region, or all."""
        try:
            self._memory.unregister(request.name or None)
            return service_pb2.SystemSharedMemoryUnregisterResponse()
        except Exception as error:
            await self._abort(context, error)

    async def CudaSharedMemoryStatus(self, request: Any, context: Any) -> Any:  # noqa: N802
        """No region: there is no CUDA shared memory."""
        if request.name:
            fault = f"Unable to find cuda shared memory region: '{request.name}'"
            await self._abort(context, Fault("not_found", fault))
        return service_pb2.CudaSharedMemoryStatusResponse()

    async def CudaSharedMemoryRegister(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Refuses."""
        await self._abort(context, refuse_cuda())

    async def CudaSharedMemoryUnregister(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Has nothing to forget."""
        return service_pb2.CudaSharedMemoryUnregisterResponse()

    async def TraceSetting(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Reads and changes trace settings."""
        try:
            name = request.model_name
            if name and not self._repository.ready(name):
                raise Fault("invalid", f"Request for unknown model : {name}")
            values: dict[str, Any] = {
                key: list(setting.value) or None for key, setting in request.settings.items()
            }
            response = service_pb2.TraceSettingResponse()
            for key, value in self._settings.update_trace(values, name).items():
                response.settings[key].value.extend(value if isinstance(value, list) else [value])
            return response
        except Exception as error:
            await self._abort(context, error)

    async def LogSettings(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Reads and changes logging settings."""
        try:
            values = {
                key: getattr(setting, setting.WhichOneof("parameter_choice") or "string_param")
                for key, setting in request.settings.items()
            }
            response = service_pb2.LogSettingsResponse()
            for key, value in self._settings.update_log(values).items():
                entry = response.settings[key]
                if isinstance(value, bool):
                    entry.bool_param = value
                elif isinstance(value, int):
                    entry.uint32_param = value
                else:
                    entry.string_param = value
            return response
        except Exception as error:
            await self._abort(context, error)


def _wrong_type(key: str, expected: str) -> str:
    return f"invalid value type for load parameter '{key}', expected {expected}."


class _GenericOnly:
    """Registers a service by its names alone.

    ``grpc.aio`` waits anew for each registered method with every call; with our twenty methods that
    was a quarter of the CPU time of a call.
    """

    def __init__(self, server: Any) -> None:
        self.add_generic_rpc_handlers = server.add_generic_rpc_handlers

    def add_registered_method_handlers(self, service: str, handlers: object) -> None:
        """Leaves it at the generic handlers."""


def grpc_server(service: GrpcService, repository: Repository, limits: Limits) -> Any:
    """A ``grpc.aio`` server for ``service``, without a port; made on the loop that runs it."""
    options = [
        ("grpc.max_receive_message_length", limits.body_bytes_max),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", limits.streams_max),
        ("grpc.max_metadata_size", limits.header_bytes_max),
        # Two servers on one port would share its connections without an error.
        ("grpc.so_reuseport", 0),
    ]
    server = grpc.aio.server(options=options)
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(service, _GenericOnly(server))

    async def check(request: bytes, context: Any) -> bytes:
        return _SERVING if repository.server_ready() else _NOT_SERVING

    handler = grpc.unary_unary_rpc_method_handler(check)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": handler}),)
    )
    return server
