"""The application: routes, errors as RFC 9457, and the checks that every request passes."""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match

from analyzer import __version__
from analyzer.errors import DataError, StoreError
from analyzer.server.http_server import HttpServer, http_server
from analyzer.server.limits import Limits
from analyzer.service import routes_access, routes_jobs, routes_service
from analyzer.service.context import ServiceContext
from analyzer.service.guard import Guard
from analyzer.service.metrics import Metrics
from analyzer.service.pages import routes as pages
from analyzer.service.pages import submit
from analyzer.service.problems import Problem, answer, fault, not_found, refusal, store_away
from analyzer.service.routes_uploads import KINDS, upload_router

PREFIX = "/api/v1"


@cache
def _routes() -> list[BaseRoute]:
    """Of every application: preparing them takes FastAPI most of a start."""
    routes = APIRouter(generate_unique_id_function=_operation_id)
    for router in (
        *(upload_router(prefix, *what) for prefix, what in KINDS.items()),
        routes_jobs.router,
        routes_access.router,
        routes_service.router,
    ):
        routes.include_router(router, prefix=PREFIX)
    routes.include_router(routes_service.outside)
    routes.include_router(pages.router)
    return routes.routes


def create_app(context: ServiceContext) -> FastAPI:
    """The API over ``context``."""
    app = FastAPI(
        title="Tritune",
        version=__version__,
        description="Finds the Triton configuration that keeps a latency SLA, and proves it.",
        # Their pages load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        routes=_routes(),
    )
    metrics = Metrics(context.database, context.hub)
    app.state.context = context
    app.state.metrics = metrics
    app.add_exception_handler(Problem, _problem)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(HTTPException, _http)
    for unusable in (StoreError, DataError, OSError):
        app.add_exception_handler(unusable, _store)
    app.add_exception_handler(Exception, _fault)
    app.add_middleware(
        Guard,
        loopback_only=not context.tokens,
        uploads=frozenset({submit.UPLOAD, *(PREFIX + path for path in KINDS)}),
        body_bytes_max=context.limits.body_bytes_max,
        metrics=metrics,
    )
    return app


def service_server(context: ServiceContext, *, drain_timeout_s: int) -> HttpServer:
    """A server for the API over ``context``, whose own refusals are problems, too."""
    return http_server(
        create_app(context), Limits(), drain_timeout_s=drain_timeout_s, refusal=refusal
    )


def _operation_id(route: APIRoute) -> str:
    """What a generated client calls the operation: ``job_create``, not its whole path."""
    name = route.name.strip("_")
    return f"job_{name}" if "jobs" in route.tags else name


def _problem(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Problem)
    return answer(error)


def _validation(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first: dict[str, Any] = error.errors()[0]
    where, *parts = first["loc"]
    if where == "path":  # an id that cannot be one is nobody's
        if parts[-1] == "name":
            return answer(not_found("file of that name"))
        return answer(not_found(f"{parts[-1]} with this id"))
    if first["type"] == "json_invalid":
        return answer(Problem(422, "invalid", "The body is no JSON."))
    named = f"{where} {'.'.join(map(str, parts))}" if parts else f"The {where}"
    pointer = "".join(f"/{part}" for part in parts) if where == "body" else None
    return answer(Problem(422, "invalid", f"{named}: {first['msg']}."[:500], pointer=pointer))


def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    codes = {404: "not_found", 405: "method_not_allowed"}
    headers = dict(error.headers or {})
    if error.status_code == 405:
        # The router names the methods of one of the path's routes alone.
        headers["Allow"] = ", ".join(_methods(request))
    return answer(
        Problem(
            error.status_code,
            codes.get(error.status_code, "request"),
            str(error.detail),
            headers=headers,
        )
    )


def _methods(request: Request) -> list[str]:
    """What the path of a request can be asked for."""
    # Of the routes, not of the document: that has no pages.
    found = {
        method
        for method in ("DELETE", "GET", "POST", "PUT")
        if any(
            route.matches({**request.scope, "method": method})[0] is Match.FULL
            for route in request.app.routes
        )
    }
    return sorted(found | ({"HEAD"} if "GET" in found else set()))


def _fault(request: Request, error: Exception) -> JSONResponse:
    return answer(fault(error))


def _store(request: Request, error: Exception) -> JSONResponse:
    return answer(store_away(error))
