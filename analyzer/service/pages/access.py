"""``/login``, ``/logout``, ``/tokens``: sessions of browsers, and the project's tokens."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import ValidationError

from analyzer.domain.units import parse_kept_s
from analyzer.errors import UsageError
from analyzer.service import routes_access
from analyzer.service.auth import SCOPES
from analyzer.service.context import Context, ServiceContext
from analyzer.service.pages.render import page
from analyzer.service.pages.told import go_to, page_router
from analyzer.service.pages.visitor import AForm, AnyVisitor, Visitor, fields_of
from analyzer.service.problems import Problem, invalid
from analyzer.service.routes_access import MadeToken, NewSession, NewToken, TokenId

router = page_router()
Next = Annotated[str, Query(max_length=500)]
Project = Annotated[str, Query(max_length=64)]


@router.get("/login")
def login_form(context: Context, next: Next = "/", project: Project = "") -> Response:
    """Where a token becomes a session, or the login provider is asked."""
    return login_page(context, next_=next, project=project)


@router.post("/login")
async def login(request: Request, context: Context) -> Response:
    """Begins a session."""
    fields = await fields_of(request)
    address = own_address(fields.get("next", "/"))
    try:
        body = NewSession(token=fields.get("token", "").strip())
        begun = await run_in_threadpool(routes_access.log_in, body, request, context)
    except (ValidationError, Problem) as error:
        problem = error if isinstance(error, Problem) else invalid("This is no token.")
        return login_page(context, next_=address, problem=problem)
    response = go_to(address)
    response.headers["Set-Cookie"] = begun.headers["Set-Cookie"]
    return response


@router.post("/logout")
def logout(request: Request, context: Context, form: AForm) -> Response:
    """Ends the session."""
    ended = routes_access.log_out(request, context, form.visitor.principal)
    response = go_to("/login")
    response.headers["Set-Cookie"] = ended.headers["Set-Cookie"]
    return response


@router.get("/tokens")
def tokens(context: Context, visitor: AnyVisitor) -> Response:
    """The project's tokens."""
    return _tokens(context, visitor)


@router.post("/tokens")
def make_token(context: Context, form: AForm) -> Response:
    """A new token, which this page alone shows."""
    form.visitor.principal.require("admin")
    expires = form.fields.get("expires", "").strip()
    try:
        body = NewToken(
            name=form.fields.get("name", "").strip(),
            scope=form.fields.get("scope", ""),  # type: ignore[arg-type]
            expires_in_s=parse_kept_s(expires) if expires else None,
        )
        made = routes_access.make_token(body, context, form.visitor.principal)
    except UsageError as error:
        return _tokens(context, form.visitor, problem=invalid(error.message, hint=error.hint))
    except ValidationError as error:
        first = error.errors()[0]
        problem = invalid(f"{first['loc'][0]}: {first['msg']}.")
        return _tokens(context, form.visitor, problem=problem)
    return _tokens(context, form.visitor, made=made)


@router.post("/tokens/{token}/revoke")
def revoke(token: TokenId, context: Context, form: AForm) -> Response:
    """Ends a token."""
    form.visitor.principal.require("admin")
    routes_access.revoke(token, context, form.visitor.principal)
    return go_to("/tokens")


def _tokens(
    context: Any,
    visitor: Visitor,
    *,
    made: MadeToken | None = None,
    problem: Problem | None = None,
) -> Response:
    visitor.principal.require("admin")
    found = routes_access.list_tokens(context, visitor.principal).items
    return page(
        "tokens.html.j2",
        visitor,
        status=problem.status if problem else 200,
        tokens=found,
        scopes=SCOPES,
        made=made,
        problem=problem,
        needed=context.tokens,
    )


def login_page(
    context: ServiceContext,
    *,
    next_: str = "/",
    project: str = "",
    problem: Problem | None = None,
) -> Response:
    """The page where one logs in.

    Args:
        next_: Where to go on afterwards.
        project: For which project the login provider is asked; empty for the first that fits.
    """
    return page(
        "login.html.j2",
        None,
        status=problem.status if problem else 200,
        next=own_address(next_),
        project=project,
        provider=context.provider.name if context.provider else None,
        problem=problem,
    )


def own_address(text: str) -> str:
    """A path of this service; its first page for what leads elsewhere."""
    own = text.startswith("/") and not text.startswith(("//", "/\\"))
    return text if own and text.isprintable() else "/"
