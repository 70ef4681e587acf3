"""The inference service asked directly, over HTTP and over gRPC, with one interface for tests."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc
import numpy as np
from google.protobuf import json_format
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2, service_pb2_grpc

from analyzer.engine.fault import Fault, FaultKind
from analyzer.engine.requests import InferCall, InputTensor
from analyzer.engine.tensors import DATATYPE_OF
from analyzer.server.app import Addresses, ServeOptions, serving
from analyzer.server.bridge import ReplyBridge
from analyzer.server.inference_service import Admission, InferenceService
from analyzer.server.limits import Limits
from analyzer.server.repository import Repository
from analyzer.server.settings import Settings
from analyzer.server.shared_memory import SharedMemory

Arrays = dict[str, NDArray[Any]]
WAIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One inference request."""

    model: str
    inputs: Arrays
    version: str = ""
    outputs: tuple[str, ...] = ()
    timeout_us: int = 0


class Driver(Protocol):
    """A client. Its methods raise the Fault that the service answered with."""

    repository: Repository

    def infer(self, ask: Ask) -> Arrays:
        """The outputs of one request."""

    def metadata(self, model: str) -> dict[str, Any]:
        """Name, versions, inputs and outputs."""

    def statistics(self, model: str) -> dict[str, Any]:
        """``inference_stats`` of the model's only version, and its other counters."""

    def index(self) -> dict[str, str]:
        """The state of each model."""

    def load(self, model: str) -> None:
        """Loads a model."""

    def unload(self, model: str) -> None:
        """Unloads a model."""


class Direct:
    """Calls the service on its loop."""

    def __init__(self, service: InferenceService, loop: asyncio.AbstractEventLoop) -> None:
        self.repository = service.repository
        self._service = service
        self._loop = loop
        self._admission = Admission()

    def _wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(WAIT_S)

    def infer(self, ask: Ask) -> Arrays:
        tensors = [InputTensor(n, DATATYPE_OF[a.dtype], a.shape, a) for n, a in ask.inputs.items()]
        call = InferCall(tensors, outputs=ask.outputs, timeout_us=ask.timeout_us)
        loaded = self._service.model(ask.model, ask.version)
        running = self._service.infer(loaded, ask.version, call, self._admission)
        return dict(self._wait(running)[1])

    def metadata(self, model: str) -> dict[str, Any]:
        return self._service.metadata(model)

    def statistics(self, model: str) -> dict[str, Any]:
        (entry,) = self._service.statistics(model)
        return entry

    def index(self) -> dict[str, str]:
        entries = self._service.index(None, ready_only=False)
        return {entry["name"]: entry["state"] for entry in entries}

    def load(self, model: str) -> None:
        self._wait(self._service.load(None, model, config_json=None, files={}))

    def unload(self, model: str) -> None:
        self._wait(self._service.unload(None, model, unload_dependents=False))


# HTTP has one status for several classes of errors; these tests meet none of the others.
_KIND_OF_STATUS: dict[int, FaultKind] = {
    400: "invalid",
    404: "not_found",
    500: "internal",
    501: "unsupported",
    503: "unavailable",
}


class Http:
    """Sends JSON, each request on a connection of its own."""

    def __init__(self, address: str, repository: Repository) -> None:
        self._address = address
        self.repository = repository

    def _ask(self, method: str, path: str, document: Any = None) -> Any:
        connection = http.client.HTTPConnection(self._address, timeout=WAIT_S)
        try:
            body = None if document is None else json.dumps(document)
            connection.request(method, f"/v2/{path}", body)
            response = connection.getresponse()
            text = response.read()
        finally:
            connection.close()
        answer = json.loads(text) if text else {}
        if response.status != 200:
            raise Fault(_KIND_OF_STATUS[response.status], answer["error"])
        return answer

    def infer(self, ask: Ask) -> Arrays:
        document: dict[str, Any] = {
            "inputs": [
                {
                    "name": name,
                    "shape": array.shape,
                    "datatype": DATATYPE_OF[array.dtype],
                    "data": array.reshape(-1).tolist(),
                }
                for name, array in ask.inputs.items()
            ]
        }
        if ask.outputs:
            document["outputs"] = [{"name": name} for name in ask.outputs]
        if ask.timeout_us:
            document["parameters"] = {"timeout": ask.timeout_us}
        place = f"models/{ask.model}" + (f"/versions/{ask.version}" if ask.version else "")
        answer = self._ask("POST", f"{place}/infer", document)
        return {
            entry["name"]: np.array(entry["data"], np.float32).reshape(entry["shape"])
            for entry in answer["outputs"]
        }

    def metadata(self, model: str) -> dict[str, Any]:
        found: dict[str, Any] = self._ask("GET", f"models/{model}")
        return found

    def statistics(self, model: str) -> dict[str, Any]:
        (entry,) = self._ask("GET", f"models/{model}/stats")["model_stats"]
        return dict(entry)

    def index(self) -> dict[str, str]:
        entries = self._ask("POST", "repository/index", {})
        return {entry["name"]: entry["state"] for entry in entries}

    def load(self, model: str) -> None:
        self._ask("POST", f"repository/models/{model}/load", {})

    def unload(self, model: str) -> None:
        self._ask("POST", f"repository/models/{model}/unload", {})


_KIND_OF_CODE: dict[grpc.StatusCode, FaultKind] = {
    grpc.StatusCode.INVALID_ARGUMENT: "invalid",
    grpc.StatusCode.NOT_FOUND: "not_found",
    grpc.StatusCode.INTERNAL: "internal",
    grpc.StatusCode.UNIMPLEMENTED: "unsupported",
    grpc.StatusCode.UNAVAILABLE: "unavailable",
}


class Grpc:
    """Sends raw contents over one channel."""

    def __init__(self, address: str, repository: Repository) -> None:
        self._channel = grpc.insecure_channel(address)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self.repository = repository

    def close(self) -> None:
        self._channel.close()

    def _ask(self, method: str, request: Any) -> Any:
        try:
            return getattr(self._stub, method)(request, timeout=WAIT_S)
        except grpc.RpcError as error:
            raise Fault(_KIND_OF_CODE[error.code()], error.details()) from error

    def infer(self, ask: Ask) -> Arrays:
        request = service_pb2.ModelInferRequest(model_name=ask.model, model_version=ask.version)
        for name, array in ask.inputs.items():
            request.inputs.add(name=name, datatype=DATATYPE_OF[array.dtype], shape=array.shape)
            request.raw_input_contents.append(array.tobytes())
        for name in ask.outputs:
            request.outputs.add(name=name)
        if ask.timeout_us:
            request.parameters["timeout"].int64_param = ask.timeout_us
        response = self._ask("ModelInfer", request)
        return {
            entry.name: np.frombuffer(raw, np.float32).reshape(entry.shape)
            for entry, raw in zip(response.outputs, response.raw_output_contents, strict=True)
        }

    def metadata(self, model: str) -> dict[str, Any]:
        response = self._ask("ModelMetadata", service_pb2.ModelMetadataRequest(name=model))
        return _document(response)

    def statistics(self, model: str) -> dict[str, Any]:
        response = self._ask("ModelStatistics", service_pb2.ModelStatisticsRequest(name=model))
        (entry,) = response.model_stats
        return _document(entry)

    def index(self) -> dict[str, str]:
        response = self._ask("RepositoryIndex", service_pb2.RepositoryIndexRequest())
        return {entry.name: entry.state for entry in response.models}

    def load(self, model: str) -> None:
        self._ask("RepositoryModelLoad", service_pb2.RepositoryModelLoadRequest(model_name=model))

    def unload(self, model: str) -> None:
        self._ask(
            "RepositoryModelUnload", service_pb2.RepositoryModelUnloadRequest(model_name=model)
        )


def _document(message: Any) -> dict[str, Any]:
    """A message with Triton's field names and numbers as numbers (protobuf's JSON quotes them)."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [plain(inner) for inner in value]
        return int(value) if isinstance(value, str) and value.lstrip("-").isdecimal() else value

    document: dict[str, Any] = plain(
        json_format.MessageToDict(message, preserving_proto_field_name=True)
    )
    return document


@contextmanager
def direct(root: Path, limits: Limits) -> Iterator[Driver]:
    """The service alone, on a loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    repository = Repository(root, mode="explicit", log=lambda line: None)
    try:
        repository.start(("*",))
        yield Direct(
            InferenceService(
                repository,
                SharedMemory(allowed=False),
                Settings(),
                limits,
                ReplyBridge(loop),
                lambda line: None,
            ),
            loop,
        )
    finally:
        repository.close()
        asyncio.run_coroutine_threadsafe(loop.shutdown_default_executor(), loop).result(WAIT_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def over_http(root: Path, limits: Limits) -> Iterator[Driver]:
    """A server, asked over HTTP."""
    with _server(root, limits) as (addresses, repository):
        yield Http(addresses.http, repository)


@contextmanager
def over_grpc(root: Path, limits: Limits) -> Iterator[Driver]:
    """A server, asked over gRPC."""
    with _server(root, limits) as (addresses, repository):
        driver = Grpc(addresses.grpc, repository)
        try:
            yield driver
        finally:
            driver.close()


@contextmanager
def _server(root: Path, limits: Limits) -> Iterator[tuple[Addresses, Repository]]:
    options = ServeOptions(
        repository=root,
        http_port=0,
        grpc_port=0,
        metrics_port=0,
        mode="explicit",
        load_models=("*",),
        limits=limits,
        drain_timeout_s=5,
    )
    with serving(options, log=lambda line: None) as (addresses, app):
        yield addresses, app.repository
