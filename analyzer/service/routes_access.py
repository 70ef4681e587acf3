"""``/api/v1/session``, ``/tokens``, ``/projects`` and ``/audit``: who may do what, and who did."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, field_validator
from sqlalchemy import select

from analyzer.errors import UsageError
from analyzer.service import audit, jobs, uploads
from analyzer.service.auth import Scope, create_token, find_token, revoke_token, tokens_of
from analyzer.service.context import PROBLEMS, Admin, Context, IdempotencyKey, Reader
from analyzer.service.documents import TOKEN_ID, iso
from analyzer.service.idempotency import idempotent, request_hash
from analyzer.service.names import check_token_name
from analyzer.service.problems import Problem, conflict, not_found
from analyzer.service.schema import NUMBER_MAX, TOKENS
from analyzer.service.sessions import COOKIE, begin_session, end_session, find_session

router = APIRouter(responses=PROBLEMS, tags=["access"])

TokenId = Annotated[str, Path(pattern=TOKEN_ID)]
_YEARS_S = 10 * 365 * 86_400  # a token that is meant to be good for longer has no end


class NewSession(BaseModel):
    """A token, for a browser's session."""

    model_config = ConfigDict(extra="forbid")

    token: str = Field(min_length=1, max_length=500)


class Session(BaseModel):
    """Who asks; ``csrf`` is null where the request came without a cookie."""

    project: str
    actor: str
    scope: Scope
    csrf: str | None


class NewToken(BaseModel):
    """What a token is made of."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")
    scope: Scope = "write"
    expires_in_s: float | None = Field(default=None, gt=0, le=_YEARS_S)

    @field_validator("name")
    @classmethod
    def _shown(cls, name: str) -> str:
        try:
            check_token_name(name)
        except UsageError as error:
            raise ValueError(error.message) from error
        return name


class Token(BaseModel):
    """A token without its secret."""

    id: str
    name: str
    scope: Scope
    status: Literal["good", "expired", "revoked"]
    created_at: str | None
    expires_at: str | None
    revoked_at: str | None


class MadeToken(Token):
    """A token with its secret, which is shown this once."""

    token: str


class TokenList(BaseModel):
    """A project's tokens."""

    items: list[Token]


class Project(BaseModel):
    """A project, with what it uses and may use."""

    name: str
    stored_bytes: int
    stored_bytes_max: int
    open_jobs: int
    open_jobs_max: int


class ProjectList(BaseModel):
    """The projects that the client may see: its own."""

    items: list[Project]


class AuditEntry(BaseModel):
    """A change: ``actor`` did ``action`` to ``object``."""

    at: str | None
    actor: str
    action: str
    object: str
    details: dict[str, Any]


class AuditList(BaseModel):
    """A page of the audit, the newest first."""

    items: list[AuditEntry]
    next: str | None


@router.post("/session", status_code=201, response_model=Session)
def log_in(body: NewSession, request: Request, context: Context) -> JSONResponse:
    """Turns a token into a cookie, for browsers."""
    if not context.tokens:
        raise conflict("no_tokens", "This service needs no token.")
    with context.database.writing() as connection:
        principal = find_token(connection, body.token)
        if principal is None or principal.token_id is None:
            raise Problem(401, "unauthorized", "The token is not good (any more).")
        session = begin_session(connection, principal.token_id)
        audit.note(connection, principal.project, principal.actor, "session.begin", "session")
    document = Session(
        project=principal.project, actor=principal.actor, scope=principal.scope, csrf=session.csrf
    )
    response = JSONResponse(document.model_dump(), status_code=201)
    session.set_on(
        response,
        secure=request.headers.get("x-forwarded-proto", request.url.scheme) == "https",
    )
    return response


@router.get("/session", response_model=Session)
def who(request: Request, context: Context, principal: Reader) -> Session:
    """Who asks, and the word that a browser's changes need."""
    csrf = None
    if cookie := request.cookies.get(COOKIE):
        with context.database.reading() as connection:
            found = find_session(connection, cookie)
        csrf = found[1] if found is not None else None
    return Session(
        project=principal.project, actor=principal.actor, scope=principal.scope, csrf=csrf
    )


@router.delete("/session", status_code=204)
def log_out(request: Request, context: Context, principal: Reader) -> Response:
    """Ends a browser's session."""
    if cookie := request.cookies.get(COOKIE):
        with context.database.writing() as connection:
            if end_session(connection, cookie):
                audit.note(connection, principal.project, principal.actor, "session.end", "session")
    response = Response(status_code=204)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response


@router.post("/tokens", status_code=201, response_model=MadeToken)
def make_token(
    body: NewToken, context: Context, principal: Admin, idempotency_key: IdempotencyKey = None
) -> MadeToken:
    """Makes a token for this project.

    Its secret is shown once and not kept: the same ``Idempotency-Key`` again makes no other token,
    and is told (409) which one it has made.
    """
    request = request_hash("POST /tokens", body.model_dump(mode="json"))
    with idempotent(context.database, principal.project, idempotency_key, request) as slot:
        if slot.stored is not None:
            raise conflict(
                "token_made",
                f"This Idempotency-Key has made the token {slot.stored[1]['id']}; its secret was "
                "shown once.",
                hint="Revoke it, and make another one under a new key.",
            )
        made = create_token(
            slot.connection,
            project=principal.project,
            name=body.name,
            scope=body.scope,
            expires_in_s=body.expires_in_s,
        )
        audit.note(
            slot.connection, principal.project, principal.actor, "token.create", made.id,
            name=made.name, scope=made.scope,
        )  # fmt: skip
        row = slot.connection.execute(select(TOKENS).where(TOKENS.c.id == made.id)).one()
        token = _token(row, "good").model_dump()
        slot.done(201, token)
    return MadeToken(**token, token=made.secret)


@router.get("/tokens", response_model=TokenList)
def list_tokens(context: Context, principal: Admin) -> TokenList:
    """The project's tokens, the newest first."""
    with context.database.reading() as connection:
        rows = tokens_of(connection, principal.project)
    return TokenList(items=[_token(row, row.status) for row in rows])


@router.delete("/tokens/{token}", status_code=204)
def revoke(token: TokenId, context: Context, principal: Admin) -> Response:
    """Ends a token now, with the sessions that began with it."""
    with context.database.writing() as connection:
        if not revoke_token(connection, principal.project, token):
            raise not_found("token with this id that is still good")
        audit.note(connection, principal.project, principal.actor, "token.revoke", token)
    return Response(status_code=204)


@router.get("/projects", response_model=ProjectList)
def projects(context: Context, principal: Reader) -> ProjectList:
    """The client's project, and what it uses."""
    with context.database.reading() as connection:
        own = Project(
            name=principal.project,
            stored_bytes=uploads.stored_bytes(connection, principal.project),
            stored_bytes_max=context.limits.stored_bytes_max,
            open_jobs=jobs.open_jobs(connection, principal.project),
            open_jobs_max=context.limits.open_jobs_max,
        )
    return ProjectList(items=[own])


@router.get("/audit", response_model=AuditList)
def list_audit(
    context: Context,
    principal: Admin,
    cursor: Annotated[int | None, Query(ge=1, le=NUMBER_MAX)] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> AuditList:
    """Who changed what in the project, the newest first."""
    with context.database.reading() as connection:
        rows = audit.entries(connection, principal.project, before=cursor, limit=limit + 1)
    page = rows[:limit]
    return AuditList(
        items=[
            AuditEntry(
                at=iso(row.at),
                actor=row.actor,
                action=row.action,
                object=row.object,
                details=json.loads(row.details),
            )
            for row in page
        ],
        next=str(page[-1].number) if len(rows) > limit else None,
    )


def _token(row: Any, status: Any) -> Token:
    return Token(
        id=row.id,
        name=row.name,
        scope=row.scope,
        status=status,
        created_at=iso(row.created_at),
        expires_at=iso(row.expires_at),
        revoked_at=iso(row.revoked_at),
    )
