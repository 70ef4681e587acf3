"""The HTTP front end: KServe v2 with Triton's extensions, as an ASGI application."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote

from analyzer.engine.fault import Fault, FaultKind
from analyzer.modelconfig.text import config_to_json
from analyzer.server import describe
from analyzer.server.generate import generate_call, generate_json
from analyzer.server.http_body import (
    Receive,
    Refusal,
    accepted_encoding,
    compress,
    read_body,
)
from analyzer.server.http_codec import build_infer, parse_infer
from analyzer.server.http_control import (
    JSON,
    Answer,
    control,
    error_json,
    ok,
    parse_object,
    shared_memory,
)
from analyzer.server.inference_service import Admission, InferenceService
from analyzer.server.json_values import parse_json

Scope = dict[str, Any]
Send = Callable[[dict[str, Any]], Awaitable[None]]

# What the protocol puts into a request's scope: its Connection (inference_service.py).
CONNECTION_KEY = "tritune.connection"

# Triton's HTTP status for each of its error codes (docs/triton-semantics.md, errors).
_STATUS: dict[FaultKind, int] = {
    "unknown": 400,
    "internal": 500,
    "not_found": 404,
    "invalid": 400,
    "unavailable": 503,
    "unsupported": 501,
    "already_exists": 400,
    "cancelled": 400,
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


class HttpApp:
    """The application. Runs on the service's event loop."""

    def __init__(self, service: InferenceService) -> None:
        self._service = service
        self._admission = Admission()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            return
        # Of a header that is given twice the first counts, as in Triton.
        headers: dict[bytes, bytes] = dict(reversed(scope["headers"]))
        try:
            status, body, extra = await self._answer(scope, headers, receive)
        except Refusal as refusal:
            status, body, extra = error_json(refusal.status, refusal.message)
            if refusal.close:
                extra.append((b"connection", b"close"))
        except asyncio.CancelledError:
            return  # the client went away
        except Exception as error:
            fault = self._service.as_fault(error, f"HTTP {scope['method']} {scope['path']}")
            status, body, extra = error_json(_STATUS[fault.kind], fault.message)
        extra.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": status, "headers": extra})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, headers: dict[bytes, bytes], receive: Receive) -> Answer:
        path: str = scope["raw_path"].decode("latin-1")
        method: str = scope["method"]
        service = self._service
        found = _MODEL.fullmatch(path)
        if found is not None:
            name, version, action = found[1], found[2] or "", found[3] or ""
            if "%" in name:
                name = unquote(name)
            if action in ("infer", "generate", "generate_stream"):
                _require(method, "POST")
                # An unknown one is refused before the body has come. It is looked up again when
                # it has: the copy that serves now may be closed by then.
                service.model(name, version)
                body = await self._body(headers, receive)
                if action == "infer":
                    return await self._infer(scope, headers, name, version, body)
                return await self._generate(scope, action, name, version, body)
            if action == "trace/setting":
                if version:
                    raise Refusal(404, "Not Found")
                return await self._trace(service.trace_model(name), method, headers, receive)
            _require(method, "GET")
            if name == "stats" and not version and not action:
                return ok({"model_stats": service.statistics()})
            return self._model(name, version, action)
        if path == "/v2":
            _require(method, "GET")
            return ok(describe.server_metadata())
        if path in ("/v2/health/live", "/v2/health/ready"):
            _require(method, "GET")
            repository = service.repository
            well = repository.live() if path.endswith("live") else repository.server_ready()
            return (200 if well else 400), b"", [_TEXT]
        found = _CONTROL.fullmatch(path)
        if found is not None:
            _require(method, "POST")
            return await control(service, found, await self._body(headers, receive))
        found = _MEMORY.fullmatch(path)
        if found is not None:
            _require(method, "GET" if found[3] == "status" else "POST")
            body = await self._body(headers, receive)
            region = unquote(found[2]) if found[2] else None
            return shared_memory(service.memory, found[1], region, found[3], body)
        if path == "/v2/logging":
            _require(method, "GET", "POST")
            if method == "GET":
                return ok(service.settings.log())
            values = parse_object(await self._body(headers, receive))
            return ok(service.settings.update_log(values))
        if path == "/v2/trace/setting":
            return await self._trace("", method, headers, receive)
        raise Refusal(404, "Not Found")

    def _model(self, name: str, version: str, action: str) -> Answer:
        """What is known about a model."""
        service = self._service
        if action == "stats":
            return ok({"model_stats": service.statistics(name, version)})
        if action == "config":
            return ok(config_to_json(service.model(name, version).config))
        if not action:
            return ok(service.metadata(name, version))
        if service.ready(name, version):
            return 200, b"", [_TEXT]
        try:
            service.model(name, version)
        except Fault as fault:
            if fault.kind == "not_found":
                raise
        raise Fault("invalid", "Model version not ready")

    async def _infer(
        self, scope: Scope, headers: dict[bytes, bytes], name: str, version: str, body: bytes
    ) -> Answer:
        service = self._service
        model = service.model(name, version)
        call = parse_infer(
            body,
            headers.get(b"inference-header-content-length"),
            model,
            service.memory,
            service.limits.json_bytes_max,
        )
        connection = scope.get(CONNECTION_KEY)
        model, outputs = await service.infer(model, version, call, self._admission, connection)
        answer, json_size = build_infer(model, call, outputs, service.memory)
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
        self, scope: Scope, action: str, name: str, version: str, body: bytes
    ) -> Answer:
        service = self._service
        model = service.model(name, version)
        call = generate_call(model, parse_json(body))
        connection = scope.get(CONNECTION_KEY)
        try:
            model, outputs = await service.infer(model, version, call, self._admission, connection)
            status, text, extra = ok(generate_json(model, call, outputs))
        except Fault as fault:
            if action == "generate" or fault.kind == "invalid":
                raise  # what does not fit the model is refused before a stream begins
            status, text, extra = error_json(_STATUS[fault.kind], fault.message)
        if action == "generate":
            return status, text, extra
        return status, b"data: " + text + b"\n\n", [_EVENTS]

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        return await read_body(headers, receive, self._service.limits)

    async def _trace(
        self, model: str, method: str, headers: dict[bytes, bytes], receive: Receive
    ) -> Answer:
        _require(method, "GET", "POST")
        settings = self._service.settings
        if method == "GET":
            return ok(settings.trace(model))
        return ok(settings.update_trace(parse_object(await self._body(headers, receive)), model))


def _require(method: str, *allowed: str) -> None:
    if method not in allowed:
        raise Refusal(405, "Method Not Allowed")
