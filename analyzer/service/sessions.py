"""Browsers: a token, typed in once, becomes a cookie that scripts cannot read.

Whoever changes something by cookie also sends the session's word in ``X-CSRF-Token``: another
site's page can make a browser send the cookie, but cannot read the word.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import Connection, delete, insert, select
from starlette.responses import Response

from analyzer.service.auth import GOOD, Principal, hash_of
from analyzer.service.schema import SESSIONS, TOKENS, DatabaseTime

COOKIE = "tritune_session"
CSRF_HEADER = "X-CSRF-Token"
#: How long a session lasts: a working day (a choice).
SESSION_S = 43_200.0


@dataclass(frozen=True, slots=True)
class NewSession:
    """A session when it begins: ``cookie`` is known to the browser alone."""

    cookie: str
    csrf: str

    def set_on(self, response: Response, *, secure: bool) -> None:
        """Gives the browser its cookie.

        Args:
            secure: Whether it is sent over TLS alone.
        """
        response.set_cookie(
            COOKIE,
            self.cookie,
            max_age=int(SESSION_S),
            httponly=True,
            samesite="strict",
            secure=secure,
        )


def begin_session(connection: Connection, token_id: str) -> NewSession:
    """A session that may do what the token may, for as long as both are good."""
    session = NewSession(secrets.token_urlsafe(32), secrets.token_urlsafe(32))
    connection.execute(
        insert(SESSIONS).values(
            hash=hash_of(session.cookie),
            token_id=token_id,
            csrf=session.csrf,
            expires_at=DatabaseTime() + SESSION_S,
        )
    )
    return session


def find_session(connection: Connection, cookie: str) -> tuple[Principal, str] | None:
    """Whose session it is, and its word; None if it has ended, or its token has."""
    row = connection.execute(
        select(SESSIONS.c.csrf, TOKENS.c.project, TOKENS.c.name, TOKENS.c.scope, TOKENS.c.id)
        .join(TOKENS, TOKENS.c.id == SESSIONS.c.token_id)
        .where(
            SESSIONS.c.hash == hash_of(cookie),
            SESSIONS.c.expires_at > DatabaseTime(),
            *GOOD,
        )
    ).one_or_none()
    if row is None:
        return None
    principal = Principal(row.project, row.name, row.scope, row.id, session=hash_of(cookie))
    return principal, row.csrf


def still_good(connection: Connection, principals: Collection[Principal]) -> set[Principal]:
    """Those of them whose token, and session where they have one, have not ended since."""
    tokens = connection.execute(
        select(TOKENS.c.id).where(TOKENS.c.id.in_({one.token_id for one in principals}), *GOOD)
    )
    sessions = connection.execute(
        select(SESSIONS.c.hash).where(
            SESSIONS.c.hash.in_({one.session for one in principals}),
            SESSIONS.c.expires_at > DatabaseTime(),
        )
    )
    good = {None, *tokens.scalars(), *sessions.scalars()}
    return {one for one in principals if {one.token_id, one.session} <= good}


def end_session(connection: Connection, cookie: str) -> bool:
    """Ends a session; False if there is none."""
    done = connection.execute(delete(SESSIONS).where(SESSIONS.c.hash == hash_of(cookie)))
    return done.rowcount == 1
