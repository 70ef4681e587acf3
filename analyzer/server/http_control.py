"""The routes of HTTP that control the server: repository and shared memory."""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import Any
from urllib.parse import unquote

from analyzer.engine.fault import Fault
from analyzer.server.inference_service import InferenceService
from analyzer.server.json_values import (
    as_boolean,
    as_object,
    as_string,
    as_unsigned,
    parse_json,
)
from analyzer.server.shared_memory import SharedMemory, refuse_cuda

# Status, body and headers of a response.
Answer = tuple[int, bytes, list[tuple[bytes, bytes]]]
JSON = (b"content-type", b"application/json")


def ok(document: Any) -> Answer:
    """200 with a JSON document."""
    return 200, json.dumps(document, separators=(",", ":")).encode(), [JSON]


def error_json(status: int, message: str) -> Answer:
    """An error as clients of Triton expect it."""
    return status, json.dumps({"error": message}, separators=(",", ":")).encode(), [JSON]


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body; as in Triton an empty one where another value is given.

    Raises:
        Fault: It is no JSON.
    """
    values = parse_json(body)
    return values if isinstance(values, dict) else {}


async def control(service: InferenceService, found: re.Match[str], body: bytes) -> Answer:
    """Answers ``/v2/repository/…``.

    Args:
        found: Groups: repository name, ``index``, model name, ``load`` or ``unload``.

    Raises:
        Fault: The body is malformed, or the repository refuses.
    """
    values = parse_object(body) if body else {}
    if found[2]:
        ready_only = as_boolean(values.get("ready", False), "")
        # Over HTTP Triton lists all models whatever repository is named; over gRPC it refuses.
        return ok(service.index(None, ready_only=ready_only))
    name = unquote(found[3])
    parameters = as_object(values.get("parameters", {}), "")
    if found[4] == "load":
        config, files = _load_parameters(parameters)
        await service.load(found[1], name, config_json=config, files=files)
    else:
        dependents = as_boolean(parameters.get("unload_dependents", False), "unload_dependents")
        await service.unload(found[1], name, unload_dependents=dependents)
    return 200, b"", [JSON]


def shared_memory(
    memory: SharedMemory, kind: str, region: str | None, action: str, body: bytes
) -> Answer:
    """Answers ``/v2/{system,cuda}sharedmemory/…``.

    Args:
        kind: ``system`` or ``cuda``.
        action: ``status``, ``register`` or ``unregister``.

    Raises:
        Fault: The body is malformed, or the region is refused.
    """
    if action == "status":
        if kind == "cuda":
            if region is not None:
                raise Fault("not_found", f"Unable to find cuda shared memory region: '{region}'")
            return ok([])
        return ok(
            [
                {"name": r.name, "key": r.key, "offset": r.offset, "byte_size": r.byte_size}
                for r in memory.status(region)
            ]
        )
    if action == "unregister":
        if kind == "system":
            memory.unregister(region)
        return 200, b"", [JSON]
    if region is None:
        raise Fault(
            "invalid",
            f"'region name' is necessary to register {kind} shared memory region",
        )
    if kind == "cuda":
        raise refuse_cuda()
    values = parse_object(body)
    for field in ("key", "byte_size"):
        if field not in values:
            raise Fault("invalid", f"Shared memory register request has no '{field}' field")
    key = as_string(values["key"], "")
    offset = as_unsigned(values.get("offset", 0), "")
    memory.register(region, key, offset, as_unsigned(values["byte_size"], ""))
    return 200, b"", [JSON]


def _load_parameters(parameters: dict[str, Any]) -> tuple[str | None, dict[str, bytes]]:
    config: str | None = None
    files: dict[str, bytes] = {}
    for key, text in parameters.items():
        value = as_string(text, "")
        if key == "config":
            config = value
        elif key.startswith("file:"):
            try:
                files[key.removeprefix("file:")] = base64.b64decode(value, validate=True)
            except (binascii.Error, ValueError) as error:
                raise Fault("invalid", f"'{key}' is not base64") from error
        else:
            raise Fault("internal", f"unrecognized load parameter '{key}'")
    return config, files
