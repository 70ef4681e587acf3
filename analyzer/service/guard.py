"""What every request passes before a route sees it, and what every answer carries.

A page that a user's browser shows can make it send requests to any address, loopback included. So
where no token is needed, only requests to a loopback name are answered (another name that leads
here belongs to somebody else's page); and what changes something is refused where the browser says
that another site's page asked for it.

``HEAD`` reaches the routes as ``GET``; its answer ends behind the headers, a stream's too.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from analyzer.service.metrics import Metrics
from analyzer.service.problems import Problem, answer
from analyzer.targets.address import is_loopback

_SAFE = {"GET", "HEAD", "OPTIONS"}
_BODY_S = 30.0  # for the whole of a body that is no upload: a thousandth of that is usual
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; object-src 'none'; base-uri 'none'; frame-ancestors 'none'; "
    "form-action 'self'",
}


class Guard:
    """Middleware around the application.

    Args:
        loopback_only: Whether only loopback's names are answered.
        uploads: Paths whose bodies are uploads, which have limits of their own.
        body_bytes_max: Of any other body.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        loopback_only: bool,
        uploads: frozenset[str],
        body_bytes_max: int,
        metrics: Metrics,
    ) -> None:
        self._app = app
        self._loopback_only = loopback_only
        self._uploads = uploads
        self._body_bytes_max = body_bytes_max
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 500
        head = scope["method"] == "HEAD"
        asked = {**scope, "method": "GET"} if head else scope
        ended = False

        async def noted(message: Message) -> None:
            nonlocal status, ended
            if ended:
                return
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            elif head:
                # The server tells the route that its client has gone, which ends what streams.
                message, ended = {"type": "http.response.body", "body": b""}, True
            await send(message)

        try:
            self._check(scope)
            if scope["path"] not in self._uploads and scope["method"] not in _SAFE:
                receive = await self._whole_body(scope, receive)
        except Problem as problem:
            await answer(problem)(scope, receive, noted)
        else:
            await self._app(asked, receive, noted)
        finally:
            elapsed = time.perf_counter() - started
            self._metrics.answered(scope["method"], _pattern(asked), status, elapsed)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if self._loopback_only and not is_loopback(_host_name(host) or ""):
            raise Problem(
                421,
                "host",
                "This service answers to localhost alone.",
                hint="Its operator gives it another address with --host and --auth tokens.",
            )
        if scope["method"] in _SAFE:
            return
        site = headers.get("sec-fetch-site", "none")
        origin = headers.get("origin")
        # A browser's own word, which no page can write; a proxy may change the name in "host".
        if site == "same-origin":
            return
        if site != "none" or (origin is not None and origin.partition("://")[2] != host):
            raise Problem(403, "cross_site", "Another site's page asked for this.")

    async def _whole_body(self, scope: Scope, receive: Receive) -> Receive:
        """Reads a body within its limits, and hands it on in one piece."""
        announced = Headers(scope=scope).get("content-length", "0")
        too_large = Problem(
            413,
            "too_large",
            f"The body is larger than {self._body_bytes_max:,} bytes.",
            headers={"Connection": "close"},
        )
        if len(announced) > 15 or int(announced) > self._body_bytes_max:
            raise too_large
        body = bytearray()
        ended = False
        try:
            async with asyncio.timeout(_BODY_S):
                while not ended:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Problem(400, "cut_off", "The body ended before its end.")
                    body += message.get("body", b"")
                    ended = not message.get("more_body", False)
                    if len(body) > self._body_bytes_max:
                        raise too_large
        except TimeoutError as error:
            raise Problem(
                408, "slow", "The body did not come in time.", headers={"Connection": "close"}
            ) from error
        given = False

        async def whole() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": bytes(body), "more_body": False}

        return whole


def _pattern(scope: Scope) -> str:
    """The path with its parameters' names in the place of their values; empty without a route."""
    if "route" not in scope:
        return ""
    path: str = scope["path"]
    for name, value in scope.get("path_params", {}).items():
        path = path.replace(f"/{value}", f"/{{{name}}}", 1)
    return path


def _host_name(text: str) -> str | None:
    with contextlib.suppress(ValueError):  # the brackets of an address are wrong
        return urlsplit(f"//{text}").hostname
    return None
