"""Who asks: tokens, and what each may do.

A token is 256 bits from the system's generator, shown once and stored as its SHA-256: it cannot be
guessed, so no slow hash is needed. It belongs to a project and has a scope; another project's
objects are not there for it.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from sqlalchemy import ColumnElement, Connection, Row, case, delete, insert, or_, select, update

from analyzer.errors import UsageError
from analyzer.service.names import check_token_name
from analyzer.service.problems import Problem
from analyzer.service.rows import upsert
from analyzer.service.schema import PROJECTS, SESSIONS, TOKENS, DatabaseTime

Scope = Literal["read", "write", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
DEFAULT_PROJECT = "default"
_PREFIX = "tritune_"  # secret scanners and people recognise it
_NAME_MAX = 128  # characters, of the column
#: What a project may be called.
PROJECT_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks.

    Args:
        project: Whose objects there are.
        actor: For the audit: the token's name, or ``local`` where none is needed.
        scope: ``read``; ``write`` may make and change; ``admin`` also tokens.
        token_id: None where none is needed.
        session: What is stored of the browser's session; None where there is none.
    """

    project: str
    actor: str
    scope: Scope
    token_id: str | None = None
    session: str | None = None

    def may(self, scope: Scope) -> bool:
        """Whether it may do what needs ``scope``."""
        return SCOPES.index(self.scope) >= SCOPES.index(scope)

    def require(self, scope: Scope) -> None:
        """Raises Problem 403 where it may not."""
        if not self.may(scope):
            raise Problem(
                403,
                "scope",
                f"This token may only {self.scope}; this needs the scope {scope}.",
                hint=f"analyze service token create --name N --scope {scope}",
            )


#: Everybody who reaches a service on loopback without authentication.
LOCAL = Principal(project=DEFAULT_PROJECT, actor="local", scope="admin")


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token when it is made: the only time that its secret is known."""

    id: str
    secret: str
    project: str
    name: str
    scope: Scope


#: Of a token that was not revoked and has not expired.
GOOD: tuple[ColumnElement[bool], ...] = (
    TOKENS.c.revoked_at.is_(None),
    or_(TOKENS.c.expires_at.is_(None), TOKENS.c.expires_at > DatabaseTime()),
)


def hash_of(secret: str) -> str:
    """What is stored of a secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def ensure_project(connection: Connection, name: str) -> None:
    """Makes the project if it is not there.

    Raises:
        UsageError: It is no name of a project.
    """
    if not PROJECT_NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is no name of a project.",
            hint="Use lower-case letters, digits and dashes, 63 at most.",
        )
    upsert(connection, PROJECTS, {"name": name, "created_at": DatabaseTime()})


def create_token(
    connection: Connection,
    *,
    project: str,
    name: str,
    scope: Scope,
    expires_in_s: float | None = None,
) -> NewToken:
    """A new token; makes its project if need be.

    Raises:
        UsageError: Its name or its project cannot be had.
    """
    check_token_name(name)
    ensure_project(connection, project)
    token = NewToken(
        id=secrets.token_hex(8),
        secret=_PREFIX + secrets.token_urlsafe(32),
        project=project,
        name=name,
        scope=scope,
    )
    connection.execute(
        insert(TOKENS).values(
            id=token.id,
            project=project,
            name=name,
            scope=scope,
            hash=hash_of(token.secret),
            created_at=DatabaseTime(),
            expires_at=None if expires_in_s is None else DatabaseTime() + expires_in_s,
        )
    )
    return token


def admit(
    connection: Connection,
    *,
    subject: str,
    project: str,
    name: str,
    scope: Scope,
    expires_in_s: float,
) -> Principal:
    """Lets somebody in whom a login provider vouches for; makes the project if need be.

    It is a token like any other, whose secret nobody knows: listed, expiring, revocable. The same
    subject has one in each project; a new login renews it.

    Args:
        subject: Unique among all providers' subjects.
        name: For the audit.
    """
    ensure_project(connection, project)
    own = hash_of(f"{subject}\n{project}")[:16]
    upsert(
        connection,
        TOKENS,
        {
            "id": own,
            "project": project,
            "name": name[:_NAME_MAX],
            "scope": scope,
            "hash": hash_of(secrets.token_urlsafe(32)),
            "created_at": DatabaseTime(),
            "expires_at": DatabaseTime() + expires_in_s,
            "revoked_at": None,
        },
        update=("name", "scope", "expires_at", "revoked_at"),
    )
    return Principal(project=project, actor=name[:_NAME_MAX], scope=scope, token_id=own)


def find_token(connection: Connection, secret: str) -> Principal | None:
    """Whose token it is; None if it is nobody's, has expired or was revoked."""
    row = connection.execute(
        select(TOKENS).where(TOKENS.c.hash == hash_of(secret), *GOOD)
    ).one_or_none()
    if row is None:
        return None
    return Principal(project=row.project, actor=row.name, scope=row.scope, token_id=row.id)


def revoke_token(connection: Connection, project: str, token: str) -> bool:
    """Ends a token and its sessions now; False if the project has no good one with this id."""
    done = connection.execute(
        update(TOKENS)
        .where(TOKENS.c.id == token, TOKENS.c.project == project, TOKENS.c.revoked_at.is_(None))
        .values(revoked_at=DatabaseTime())
    )
    if done.rowcount != 1:
        return False
    connection.execute(delete(SESSIONS).where(SESSIONS.c.token_id == token))
    return True


def tokens_of(connection: Connection, project: str) -> Sequence[Row[Any]]:
    """A project's tokens, the newest first; ``status`` is ``good``, ``expired`` or ``revoked``."""
    status = case(
        (TOKENS.c.revoked_at.is_not(None), "revoked"),
        (TOKENS.c.expires_at <= DatabaseTime(), "expired"),
        else_="good",
    )
    return connection.execute(
        select(TOKENS, status.label("status"))
        .where(TOKENS.c.project == project)
        .order_by(TOKENS.c.created_at.desc(), TOKENS.c.id)
    ).all()
