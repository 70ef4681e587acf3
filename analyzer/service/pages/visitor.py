"""Who looks at a page, and whether a form that comes is one of ours."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool

from analyzer.service.auth import LOCAL, Principal, Scope
from analyzer.service.context import bearer_of, context_of, principal_of
from analyzer.service.pages.multipart import unreadable
from analyzer.service.problems import Problem
from analyzer.service.sessions import COOKIE, find_session

_FIELDS_MAX = 100  # of a form; ours have a fifth of that


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who looks at a page.

    Args:
        csrf: The word of the session, which every form sends; empty without a session.
    """

    principal: Principal
    csrf: str = ""

    def may(self, scope: Scope) -> bool:
        """Whether it may do what needs ``scope``."""
        return self.principal.may(scope)

    def check(self, word: str) -> None:
        """Raises Problem 403 where a form does not bring the session's word."""
        if not secrets.compare_digest(word.encode(), self.csrf.encode()):
            raise Problem(
                403,
                "csrf",
                "This form is not of your session.",
                hint="Load the page again, and send its form.",
            )


def visitor_of(request: Request) -> Visitor:
    """Who asks for a page.

    Raises:
        Problem: 401: nobody who may.
    """
    context = context_of(request)
    cookie = request.cookies.get(COOKIE)
    if context.tokens and cookie and not bearer_of(request):
        with context.database.reading() as connection:
            session = find_session(connection, cookie)
        if session is None:
            raise Problem(401, "unauthorized", "Your session has ended.")
        return Visitor(*session)
    return Visitor(principal_of(request))


async def _visitor(request: Request) -> Visitor:
    if not context_of(request).tokens:
        return Visitor(LOCAL)
    return await run_in_threadpool(visitor_of, request)  # it asks the database


AnyVisitor = Annotated[Visitor, Depends(_visitor)]


@dataclass(frozen=True, slots=True)
class Posted:
    """A form of ours, and who sent it."""

    visitor: Visitor
    fields: Mapping[str, str]


async def fields_of(request: Request) -> dict[str, str]:
    """The fields of a form without files; those that are left empty are not there."""
    try:
        pairs = parse_qsl((await request.body()).decode(), max_num_fields=_FIELDS_MAX)
    except ValueError as error:
        raise unreadable() from error
    return dict(pairs)


async def _posted(request: Request, visitor: AnyVisitor) -> Posted:
    fields = await fields_of(request)
    visitor.check(fields.pop("csrf", ""))
    return Posted(visitor, fields)


AForm = Annotated[Posted, Depends(_posted)]
