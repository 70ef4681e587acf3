"""``/api/v1/models``, ``/calibration``, ``/scenarios``: raw bodies, streamed to disk and hashed."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any, Protocol

from anyio import to_thread
from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse
from starlette.requests import ClientDisconnect

from analyzer.service import audit, uploads
from analyzer.service.auth import Principal
from analyzer.service.content import Incoming, Staged
from analyzer.service.context import (
    PROBLEMS,
    Context,
    IdempotencyKey,
    Reader,
    ServiceContext,
    Writer,
)
from analyzer.service.documents import UPLOAD_ID, Upload, UploadList, upload_document
from analyzer.service.idempotency import forget, idempotent
from analyzer.service.names import UPLOAD_NAME
from analyzer.service.problems import Problem

Name = Annotated[str, Query(pattern=UPLOAD_NAME, description="What it is called.")]
UploadId = Annotated[str, Path(pattern=UPLOAD_ID, description="SHA-256 of its content.")]
_PIECE_BYTES = 1 << 20  # handed to a thread at a time, so that writing blocks nobody else
_SILENCE_S = 30.0  # a client that sends nothing for so long is gone
_SLOWEST = 1000  # bytes a second: a client that drips holds a connection and a file for ever
_RAW_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


def _link(operation: str) -> dict[str, Any]:
    """How a reader of the API's document gets from an upload's answer to an operation on it."""
    return {"operationId": operation, "parameters": {"upload": "$response.body#/id"}}


def upload_router(prefix: str, kind: str, what: str) -> APIRouter:
    """The routes of one kind of upload."""
    router = APIRouter(prefix=prefix, tags=[prefix.strip("/")], responses=PROBLEMS)

    @router.post(
        "",
        status_code=201,
        response_model=Upload,
        openapi_extra=_RAW_BODY,
        responses={
            201: {"links": {name: _link(name) for name in (f"get_{kind}", f"delete_{kind}")}}
        },
        operation_id=f"upload_{kind}",
        summary=f"Uploads {what}",
    )
    async def upload(
        request: Request,
        name: Name,
        context: Context,
        principal: Writer,
        idempotency_key: IdempotencyKey = None,
    ) -> JSONResponse:
        """The body is the file itself. The same file again is the same upload."""
        document = await store_upload(kind, name, request, context, principal, idempotency_key)
        return JSONResponse(
            document, status_code=201, headers={"Location": f"/api/v1{prefix}/{document['id']}"}
        )

    @router.get("", response_model=UploadList, operation_id=f"list_{kind}")
    def list_(context: Context, principal: Reader) -> UploadList:
        """The project's, the newest first."""
        with context.database.reading() as connection:
            rows = uploads.list_uploads(connection, principal.project, kind)
        return UploadList(items=[upload_document(row) for row in rows])

    @router.get("/{upload}", response_model=Upload, operation_id=f"get_{kind}")
    def get(upload: UploadId, context: Context, principal: Reader) -> Upload:
        """One of them."""
        with context.database.reading() as connection:
            return upload_document(uploads.get_upload(connection, principal.project, kind, upload))

    @router.delete("/{upload}", status_code=204, operation_id=f"delete_{kind}")
    def delete(upload: UploadId, context: Context, principal: Writer) -> Response:
        """Removes it, unless a job that has not ended needs it."""
        with context.database.writing() as connection:
            uploads.delete_upload(connection, principal.project, kind, upload)
            forget(connection, principal.project, upload)
            audit.note(connection, principal.project, principal.actor, f"{kind}.delete", upload)
        return Response(status_code=204)

    return router


class Body(Protocol):
    """What brings a file: a request, or a part of one."""

    @property
    def headers(self) -> Mapping[str, str]:
        """``content-length``, where it is known."""

    def stream(self) -> AsyncIterator[bytes]:
        """The file."""


async def store_upload(
    kind: str,
    name: str,
    body: Body,
    context: ServiceContext,
    principal: Principal,
    key: str | None = None,
) -> dict[str, Any]:
    """Receives a file, has it inspected and keeps it; the upload's document.

    Raises:
        Problem: It is too large, too slow, or nothing that a job can use.
    """
    with context.content.incoming() as incoming:
        staged = await _receive(body, context, principal, kind, incoming)
        details = await context.inspector.inspect(kind, staged.path, staged.size_bytes, name)
        return await run_in_threadpool(_keep, context, principal, staged, kind, name, details, key)


async def _receive(
    request: Body, context: ServiceContext, principal: Principal, kind: str, incoming: Incoming
) -> Staged:
    """Writes the body to disk piece by piece, within the limits."""
    announced = request.headers.get("content-length", "0")
    expected = int(announced) if announced.isdecimal() and len(announced) < 19 else 0
    limit = context.limits.upload_bytes_max
    most = await run_in_threadpool(_bytes_at_most, context, principal, kind)
    if expected > most:
        await run_in_threadpool(_check_room, context, principal, expected)
    waiting = bytearray()
    stream = request.stream()
    started = time.monotonic()
    try:
        while True:
            async with asyncio.timeout(_SILENCE_S):
                piece = await anext(stream, None)
            if piece is None:
                break
            waiting += piece
            elapsed = time.monotonic() - started
            if elapsed > _SILENCE_S and incoming.size_bytes + len(waiting) < elapsed * _SLOWEST:
                raise TimeoutError
            size_bytes = max(expected, incoming.size_bytes + len(waiting))
            if size_bytes > limit:
                raise Problem(
                    413, "too_large", f"The file is larger than {limit:,} bytes.",
                    headers={"Connection": "close"},
                )  # fmt: skip
            if size_bytes > most:
                await run_in_threadpool(_check_room, context, principal, size_bytes)
                most = limit  # some has become free
            if len(waiting) >= _PIECE_BYTES:
                await to_thread.run_sync(incoming.write, waiting, limiter=context.writers)
                waiting = bytearray()
    except TimeoutError as error:
        raise Problem(
            408, "slow", "The body did not come in time.", headers={"Connection": "close"}
        ) from error
    except ClientDisconnect as error:
        raise Problem(400, "cut_off", "The body ended before its end.") from error
    if waiting:
        await to_thread.run_sync(incoming.write, waiting, limiter=context.writers)
    if incoming.size_bytes == 0:
        raise Problem(422, "empty", "The body is empty: it is the file itself.")
    staged = await to_thread.run_sync(incoming.finish, limiter=context.writers)
    await run_in_threadpool(_check_new, context, principal, kind, staged)
    return staged


def _bytes_at_most(context: ServiceContext, principal: Principal, kind: str) -> int:
    with context.database.reading() as connection:
        return uploads.bytes_at_most(connection, principal.project, kind, context.limits)


def _check_room(context: ServiceContext, principal: Principal, size_bytes: int) -> None:
    with context.database.reading() as connection:
        uploads.check_room(connection, principal.project, size_bytes, context.limits)


def _check_new(context: ServiceContext, principal: Principal, kind: str, staged: Staged) -> None:
    with context.database.reading() as connection:
        uploads.check_new(connection, principal.project, kind, staged, context.limits)


def _keep(
    context: ServiceContext,
    principal: Principal,
    staged: Staged,
    kind: str,
    name: str,
    details: dict[str, Any],
    key: str | None,
) -> dict[str, Any]:
    request = hashlib.sha256(f"upload {kind} {name} {staged.sha256}".encode()).hexdigest()
    with idempotent(context.database, principal.project, key, request) as slot:
        if slot.stored is not None:
            stored: dict[str, Any] = slot.stored[1]
            return stored
        row = uploads.add_upload(
            slot.connection,
            context.content,
            staged,
            project=principal.project,
            actor=principal.actor,
            kind=kind,
            name=name,
            details=details,
            limits=context.limits,
        )
        document = upload_document(row).model_dump(mode="json")
        audit.note(
            slot.connection, principal.project, principal.actor, f"{kind}.upload", row.sha256,
            name=name,
        )  # fmt: skip
        slot.done(201, document)
    return document


#: Where each kind of upload is sent to, and what it is; their bodies have limits of their own.
KINDS = {
    "/models": ("model", "an ONNX file, or a Triton model directory as a tar"),
    "/calibration": ("calibration", "real inputs (.npz), one array per input"),
    "/scenarios": ("scenario", "arrivals to replay, a CSV with the header arrival_ms[,batch_size]"),
}
