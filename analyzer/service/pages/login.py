"""``/login/oidc``: to the login provider, and back as a session."""

from __future__ import annotations

from functools import partial

from anyio import to_thread
from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from analyzer.service import audit
from analyzer.service.auth import DEFAULT_PROJECT, admit
from analyzer.service.context import Context, ServiceContext
from analyzer.service.oidc import Rule, verified_email
from analyzer.service.pages.access import Next, Project, login_page, own_address
from analyzer.service.pages.render import page
from analyzer.service.pages.told import page_router
from analyzer.service.problems import Problem, not_found
from analyzer.service.provider import Login, Provider
from analyzer.service.sessions import SESSION_S, NewSession, begin_session

router = page_router()
_PATH = "/login/oidc"
_COOKIE = "tritune_login"
_LOGIN_S = 600  # a person types a password and a second factor in this time
_SHOWN_MAX = 100  # characters of a subject that a sentence names


@router.get(_PATH)
async def begin(context: Context, next: Next = "/", project: Project = "") -> Response:
    """Sends the browser to the login provider."""
    provider = _provider(context)
    ask = partial(provider.begin, next_=own_address(next), project=project)
    try:
        address, login = await to_thread.run_sync(ask, limiter=provider.turns)
    except Problem as problem:
        return login_page(context, next_=next, project=project, problem=problem)
    response = RedirectResponse(address, status_code=303)
    # Sent along when the provider's page leads back here, which a strict cookie is not.
    response.set_cookie(
        _COOKIE,
        login.cookie(),
        max_age=_LOGIN_S,
        path=_PATH,
        httponly=True,
        samesite="lax",
        secure=_secure(provider),
    )
    return response


@router.get(_PATH + "/callback")
async def finish(request: Request, context: Context) -> Response:
    """Takes the provider's answer; a browser that is let in has a session."""
    provider = _provider(context)
    login = Login.read(request.cookies.get(_COOKIE, ""))
    try:
        if login is None:
            raise Problem(400, "state", "This login took too long, or began in another browser.")
        check = partial(_let_in, context, provider, login, dict(request.query_params))
        session = await to_thread.run_sync(check, limiter=provider.turns)
    except Problem as problem:
        response = login_page(context, next_=login.next if login else "/", problem=problem)
    else:
        # No redirect: a browser sends no strict cookie along while it still comes from elsewhere.
        response = page("login_done.html.j2", None, next=own_address(login.next))
        session.set_on(response, secure=_secure(provider))
    response.delete_cookie(_COOKIE, path=_PATH, httponly=True, samesite="lax")
    return response


def _let_in(
    context: ServiceContext, provider: Provider, login: Login, answer: dict[str, str]
) -> NewSession:
    """A session for whom a rule is about; who is refused is noted in the default project."""
    claims = provider.finish(login, answer)
    subject: str = claims["sub"]
    name = f"oidc:{verified_email(claims) or subject}"
    told = {"issuer": provider.options.issuer, "sub": subject}
    rule: Rule | None = provider.options.rule_for(claims, login.project)
    with context.database.writing() as connection:
        if rule is not None:
            principal = admit(
                connection,
                subject=f"{provider.options.issuer}\n{subject}",
                project=rule.project,
                name=name,
                scope=rule.scope,
                expires_in_s=SESSION_S,
            )
            assert principal.token_id is not None
            audit.note(
                connection, rule.project, principal.actor, "session.begin", "session", **told
            )
            return begin_session(connection, principal.token_id)
        audit.note(connection, DEFAULT_PROJECT, name[:128], "session.refuse", "session", **told)
    what = f" for the project {login.project}" if login.project else ""
    raise Problem(
        403,
        "unknown",
        f"The login provider knows {name[5 : 5 + _SHOWN_MAX]}, but this service does not{what}.",
        hint=f"Ask who runs it to add you: sub={subject[:_SHOWN_MAX]}.",
    )


def _provider(context: ServiceContext) -> Provider:
    if context.provider is None:
        raise not_found("login provider here")
    return context.provider


def _secure(provider: Provider) -> bool:
    return provider.options.public_url.startswith("https:")
