"""What every request needs: the database, the files, the limits, and who asks."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Annotated, Any

from anyio import CapacityLimiter
from fastapi import Depends, Header, Request
from fastapi.concurrency import run_in_threadpool

from analyzer.service.auth import LOCAL, Principal, find_token
from analyzer.service.content import ContentStore
from analyzer.service.documents import ProblemDocument
from analyzer.service.event_stream import EventHub
from analyzer.service.inspection import Inspector
from analyzer.service.limits import ServiceLimits
from analyzer.service.problems import MEDIA_TYPE, Problem
from analyzer.service.provider import Provider
from analyzer.service.sessions import COOKIE, CSRF_HEADER, find_session
from analyzer.store.database import Database

# Hashing and writing keep a core busy each; more at a time would take them from other requests.
_WRITERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceContext:
    """The parts that requests share.

    Args:
        tokens: Whether a token is needed.
        provider: Of logins with OpenID Connect; None without.
        writers: Threads that write uploads at a time: never those that answer other requests.
    """

    database: Database
    content: ContentStore
    limits: ServiceLimits
    hub: EventHub
    inspector: Inspector
    tokens: bool
    provider: Provider | None = None
    writers: CapacityLimiter = field(default_factory=lambda: CapacityLimiter(_WRITERS))


def context_of(request: Request) -> ServiceContext:
    """The application's."""
    found: ServiceContext = request.app.state.context
    return found


def bearer_of(request: Request) -> str:
    """The token that a request brings; empty without one: a proxy's own login is no token."""
    kind, _, secret = request.headers.get("authorization", "").partition(" ")
    return secret.strip() if kind.lower() == "bearer" else ""


def principal_of(request: Request) -> Principal:
    """Who asks.

    Raises:
        Problem: 401: a token is needed, and there is none that is good.
    """
    context = context_of(request)
    if not context.tokens:
        return LOCAL
    secret = bearer_of(request)
    cookie = request.cookies.get(COOKIE)
    if secret:
        with context.database.reading() as connection:
            found = find_token(connection, secret)
        if found is not None:
            return found
    elif cookie:
        with context.database.reading() as connection:
            session = find_session(connection, cookie)
        if session is not None:
            _check_csrf(request, session[1])
            return session[0]
    raise Problem(
        401,
        "unauthorized",
        "The token is not good (any more)." if secret or cookie else "This service needs a token.",
        hint="Send it as Authorization: Bearer TOKEN.",
        headers={"WWW-Authenticate": "Bearer"},
    )


def _check_csrf(request: Request, word: str) -> None:
    """Raises Problem 403 where a browser changes something without its session's word."""
    given = request.headers.get(CSRF_HEADER, "")
    safe = request.method in ("GET", "HEAD", "OPTIONS")
    if not safe and not secrets.compare_digest(given.encode(), word.encode()):
        raise Problem(
            403,
            "csrf",
            f"A change by cookie needs the session's word in {CSRF_HEADER}.",
            hint="GET /api/v1/session tells it.",
        )


# FastAPI runs a dependency that is no coroutine in a thread of its own, and each change of threads
# may wait for the interpreter's lock: only what asks the database goes there.


async def _context(request: Request) -> ServiceContext:
    return context_of(request)


async def _principal(request: Request) -> Principal:
    if not context_of(request).tokens:
        return LOCAL
    return await run_in_threadpool(principal_of, request)


async def writer_of(principal: Annotated[Principal, Depends(_principal)]) -> Principal:
    """Who asks, and may make and change things."""
    principal.require("write")
    return principal


async def admin_of(principal: Annotated[Principal, Depends(_principal)]) -> Principal:
    """Who asks, and may do everything in the project."""
    principal.require("admin")
    return principal


Context = Annotated[ServiceContext, Depends(_context)]
Reader = Annotated[Principal, Depends(_principal)]
Writer = Annotated[Principal, Depends(writer_of)]
Admin = Annotated[Principal, Depends(admin_of)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        description="The same key and request again give the same answer.",
        min_length=1,
        max_length=255,
        # What a header can carry, apart from spaces at its ends.
        pattern=r"^[\x21-\x7e]+$",
    ),
]

# Statuses of the problems that any route may answer with.
_CODES = (400, 401, 403, 404, 405, 408, 409, 413, 421, 422, 429, 503)
#: How each route's errors look, for OpenAPI.
PROBLEMS: dict[int | str, dict[str, Any]] = {
    code: {
        "description": "A problem (RFC 9457).",
        "model": ProblemDocument,
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}},
    }
    for code in _CODES
}
