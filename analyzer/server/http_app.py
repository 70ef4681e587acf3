"""The HTTP front end: KServe v2 with Triton's extensions, as an ASGI application."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote

from analyzer.engine.loaded_model import LoadedModel
from analyzer.engine.model_statistics import statistics_json
from analyzer.engine.protocol import Fault, FaultKind, InferCall, InferResult, Limits
from analyzer.errors import AnalyzerError
from analyzer.modelconfig.text import config_to_json
from analyzer.server import describe
from analyzer.server.bridge import ReplyBridge
from analyzer.server.generate import generate_call, generate_json
from analyzer.server.http_codec import (
    accepted_encoding,
    build_infer,
    compress,
    decompress,
    parse_infer,
    parse_json,
)
from analyzer.server.http_control import JSON, Answer, control, ok, shared_memory
from analyzer.server.repository import Repository
from analyzer.server.settings import Settings
from analyzer.server.shared_memory import SharedMemory

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

# What the protocol puts into a request's scope: an object with ``on_lost``, called without
# arguments when the client goes away.
CONNECTION_KEY = "tritune.connection"

_STATUS: dict[FaultKind, int] = {
    "internal": 500,
    "not_found": 404,
    "unavailable": 503,
    "unsupported": 501,
}
_MODEL = re.compile(
    r"/v2/models/([^/]+)(?:/versions/([0-9]+))?"
    r"(?:/(infer|generate|generate_stream|ready|config|stats|trace/setting))?"
)
_CONTROL = re.compile(r"/v2/repository(?:/([^/]+))?/(?:(index)|models/([^/]+)/(load|unload))")
_MEMORY = re.compile(
    r"/v2/(system|cuda)sharedmemory(?:/region/([^/]+))?/(status|register|unregister)"
)
_TEXT = (b"content-type", b"text/plain")
_BINARY = (b"content-type", b"application/octet-stream")
_EVENTS = (b"content-type", b"text/event-stream; charset=utf-8")


class _Refusal(Exception):
    """An HTTP error that is none of Triton's error classes."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class HttpApp:
    """The application. Runs on one event loop.

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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        try:
            answer = await self._answer(scope, headers, receive)
        except Fault as fault:
            answer = _error(_STATUS.get(fault.kind, 400), fault.message)
        except AnalyzerError as error:
            answer = _error(400, error.message)
        except _Refusal as refusal:
            answer = _error(refusal.status, refusal.message)
            if refusal.status in (408, 413):
                # The rest of the body is still coming; the connection cannot be used again.
                answer = (*answer[:2], [*answer[2], (b"connection", b"close")])
        except Exception as error:
            self._log(f"HTTP {scope['method']} {scope['path']}: {type(error).__name__}: {error}")
            answer = _error(500, f"{type(error).__name__}: {error}")
        if answer is None:
            return
        status, body, extra = answer
        extra.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": extra})
        await send({"type": "http.response.body", "body": body})

    async def _answer(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive
    ) -> Answer | None:
        path: str = scope["raw_path"].decode("latin-1")
        method: str = scope["method"]
        found = _MODEL.fullmatch(path)
        if found is not None:
            name, version, action = found[1], found[2] or "", found[3] or ""
            if "%" in name:
                name = unquote(name)
            if not (name == "stats" and not version and not action):
                return await self._model(scope, method, name, version, action, headers, receive)
            _require(method, "GET")
            return ok(self._statistics(self._repository.models()))
        if path == "/v2":
            _require(method, "GET")
            return ok(describe.server_metadata())
        if path in ("/v2/health/live", "/v2/health/ready"):
            _require(method, "GET")
            ready = path.endswith("live") or self._repository.server_ready()
            return (200 if ready else 400), b"", [_TEXT]
        found = _CONTROL.fullmatch(path)
        if found is not None:
            _require(method, "POST")
            body = await self._body(headers, receive)
            return await control(self._repository, found, body)
        found = _MEMORY.fullmatch(path)
        if found is not None:
            _require(method, "GET" if found[3] == "status" else "POST")
            body = await self._body(headers, receive)
            region = unquote(found[2]) if found[2] else None
            return shared_memory(self._memory, found[1], region, found[3], body)
        if path == "/v2/logging":
            _require(method, "GET", "POST")
            if method == "GET":
                return ok(self._settings.log())
            return ok(self._settings.update_log(await self._object(headers, receive)))
        if path == "/v2/trace/setting":
            _require(method, "GET", "POST")
            return await self._trace("", method, headers, receive)
        raise _Refusal(404, "Not Found")

    async def _model(
        self,
        scope: Scope,
        method: str,
        name: str,
        version: str,
        action: str,
        headers: dict[bytes, bytes],
        receive: Receive,
    ) -> Answer | None:
        if action == "infer":
            _require(method, "POST")
            return await self._infer(scope, self._get(name, version), headers, receive)
        if action in ("generate", "generate_stream"):
            _require(method, "POST")
            return await self._generate(scope, self._get(name, version), action, headers, receive)
        if action == "trace/setting":
            _require(method, "GET", "POST")
            if not self._repository.ready(name):
                raise Fault("invalid", f"Request for unknown model : {name}")
            return await self._trace(name, method, headers, receive)
        _require(method, "GET")
        if action == "ready":
            if self._repository.ready(name, version):
                return 200, b"", [_TEXT]
            try:
                self._repository.get(name, version)
            except Fault as fault:
                if fault.kind == "not_found":
                    raise
            raise Fault("invalid", "Model version not ready")
        if action == "stats":
            return ok(self._statistics(self._models(name, version)))
        model = self._get(name, version)
        if action == "config":
            return ok(config_to_json(model.config))
        return ok(describe.model_metadata(model, self._repository))

    def _get(self, name: str, version: str) -> LoadedModel:
        if len(version) > 18:
            raise Fault(
                "invalid",
                f"failed to get model version from specified version string '{version[:100]}' "
                "(details: stol), version should be an integral value > 0",
            )
        return self._repository.get(name, version)

    def _models(self, name: str, version: str) -> list[LoadedModel]:
        models = [
            model
            for model in self._repository.models()
            if model.name == name and version in ("", model.version_text)
        ]
        if not models:
            if self._repository.ready(name):
                raise Fault(
                    "invalid", f"requested model version is not available for model '{name}'"
                )
            raise Fault("invalid", f"requested model '{name}' is not available")
        return models

    def _statistics(self, models: list[LoadedModel]) -> dict[str, Any]:
        return {"model_stats": [statistics_json(model) for model in models]}

    async def _infer(
        self, scope: Scope, model: LoadedModel, headers: dict[bytes, bytes], receive: Receive
    ) -> Answer | None:
        body = await self._body(headers, receive)
        call = parse_infer(
            body,
            headers.get(b"inference-header-content-length"),
            model,
            self._memory,
            self._limits.json_bytes_max,
        )
        result = await self._run(scope, model, call)
        if result is None:
            return None
        answer, json_size = build_infer(model, call, result, self._memory)
        if json_size is None:
            extra = [JSON]
        else:
            size = str(json_size).encode()
            extra = [_BINARY, (b"inference-header-content-length", size)]
        if b"accept-encoding" in headers:
            encoding = accepted_encoding(headers[b"accept-encoding"])
            if encoding:
                answer = compress(answer, encoding)
                extra.append((b"content-encoding", encoding))
        return 200, answer, extra

    async def _generate(
        self,
        scope: Scope,
        model: LoadedModel,
        action: str,
        headers: dict[bytes, bytes],
        receive: Receive,
    ) -> Answer | None:
        call = generate_call(model, parse_json(await self._body(headers, receive)))
        stream = action == "generate_stream"
        try:
            result = await self._run(scope, model, call)
            if result is None:
                return None
            text = json.dumps(generate_json(model, call, result), separators=(",", ":")).encode()
            status = 200
        except Fault as fault:
            if not stream:
                raise
            text = json.dumps({"error": fault.message}, separators=(",", ":")).encode()
            status = _STATUS.get(fault.kind, 400)
        if stream:
            return status, b"data: " + text + b"\n\n", [_EVENTS]
        return status, text, [JSON]

    async def _run(self, scope: Scope, model: LoadedModel, call: InferCall) -> InferResult | None:
        """The result of a call; None if the client went away meanwhile.

        Raises:
            Fault: The call failed.
        """
        if self._in_flight >= self._limits.requests_max:
            raise Fault("unavailable", "too many requests are in the server")
        future: asyncio.Future[InferResult | None] = asyncio.get_running_loop().create_future()
        post = self._bridge.post
        self._in_flight += 1
        try:
            ticket = model.infer(call, lambda result: post(future, result))
            connection = scope.get(CONNECTION_KEY)
            if connection is None:
                result = await future
            else:

                def cancel() -> None:
                    if model.cancel(ticket) and not future.done():
                        future.set_result(None)

                connection.on_lost = cancel
                result = await future
                connection.on_lost = None
        finally:
            self._in_flight -= 1
        if result is not None and result.fault is not None:
            raise result.fault
        return result

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """The whole body, without its content encoding.

        Raises:
            Fault: The encoding is wrong.
            _Refusal: It is too large or comes too slowly.
        """
        limit = self._limits.body_bytes_max
        length = headers.get(b"content-length")
        if length is not None and length.isdigit() and int(length[:19]) > limit:
            raise _Refusal(413, f"the request body is larger than {limit} bytes")
        message = await receive()
        body: bytes = message.get("body", b"")
        if message.get("more_body"):
            body = await self._rest(body, limit, receive)
        elif message["type"] == "http.disconnect":
            raise _Refusal(400, "the client went away")
        if b"content-encoding" in headers:
            body = decompress(body, headers[b"content-encoding"], limit)
        return body

    async def _rest(self, first: bytes, limit: int, receive: Receive) -> bytes:
        parts, size = [first], len(first)
        try:
            async with asyncio.timeout(self._limits.body_timeout_s):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Refusal(400, "the client went away")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > limit:
                        raise _Refusal(413, f"the request body is larger than {limit} bytes")
                    more = message.get("more_body", False)
        except TimeoutError as error:
            raise _Refusal(408, "the request body did not come in time") from error
        return b"".join(parts)

    async def _object(self, headers: dict[bytes, bytes], receive: Receive) -> dict[str, Any]:
        """The JSON object in the body; an empty one for an empty body."""
        body = await self._body(headers, receive)
        values = parse_json(body) if body else {}
        if not isinstance(values, dict):
            raise Fault("internal", "attempt to get members for non-object")
        return values

    async def _trace(
        self, model: str, method: str, headers: dict[bytes, bytes], receive: Receive
    ) -> Answer:
        if method == "GET":
            return ok(self._settings.trace(model))
        return ok(self._settings.update_trace(await self._object(headers, receive), model))


def _require(method: str, *allowed: str) -> None:
    if method not in allowed:
        raise _Refusal(405, "Method Not Allowed")


def _error(status: int, message: str) -> Answer:
    body = json.dumps({"error": message}, separators=(",", ":")).encode()
    return status, body, [JSON]
