"""Routes of pages: their problems are told as pages, and who must log in is sent there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute

from analyzer.errors import DataError, StoreError
from analyzer.service.context import bearer_of
from analyzer.service.pages.render import page
from analyzer.service.problems import Problem, store_away


class PageRoute(APIRoute):
    """A route whose problems are told as pages."""

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        handler = super().get_route_handler()

        async def told(request: Request) -> Response:
            try:
                return await handler(request)
            except Problem as problem:
                return _told(request, problem)
            except RequestValidationError:
                return _told(request, Problem(404, "not_found", "There is no such page."))
            except (StoreError, DataError, OSError) as error:
                return _told(request, store_away(error))

        return told


def page_router() -> APIRouter:
    """A router for pages, which the API's document leaves out."""
    return APIRouter(include_in_schema=False, route_class=PageRoute)


def go_to(address: str) -> Response:
    """Another page, after something was done."""
    return RedirectResponse(address, status_code=303)


def _told(request: Request, problem: Problem) -> Response:
    if problem.status == 401 and not bearer_of(request):
        if "hx-request" in request.headers:
            return Response(status_code=401, headers={"HX-Redirect": "/login"})
        if request.method == "GET":
            return go_to(f"/login?next={quote(request.url.path)}")
    response = page("problem.html.j2", None, status=problem.status, problem=problem)
    response.headers.update(problem.headers)
    return response
