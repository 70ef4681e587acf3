"""Errors of the API, as RFC 9457 has them: ``application/problem+json``."""

from __future__ import annotations

import json
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastapi.responses import JSONResponse

_LOG = logging.getLogger(__name__)
MEDIA_TYPE = "application/problem+json"


class Problem(Exception):
    """A request that is refused.

    Args:
        status: HTTP status.
        code: Which problem it is, in snake case; part of its ``type``.
        detail: What is wrong and where, as a sentence.
        hint: What to do next; empty if nothing helps.
        pointer: JSON pointer to the part of the body that is meant.
        headers: To send with it.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        hint: str = "",
        pointer: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.hint = hint
        self.pointer = pointer
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """The members of the document."""
        found: dict[str, Any] = {
            "type": f"urn:tritune:problem:{self.code}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
        }
        if self.hint:
            found["hint"] = self.hint
        if self.pointer is not None:
            found["pointer"] = self.pointer
        # A client may have sent halves of characters, which no answer can carry.
        return {
            name: value.encode("utf-8", "backslashreplace").decode()
            if isinstance(value, str)
            else value
            for name, value in found.items()
        }


def not_found(what: str) -> Problem:
    """404: it is not there, or belongs to another project."""
    return Problem(404, "not_found", f"There is no {what}.")


def invalid(detail: str, *, pointer: str | None = None, hint: str = "") -> Problem:
    """422: the request is understood and cannot be done."""
    return Problem(422, "invalid", detail, pointer=pointer, hint=hint)


def conflict(code: str, detail: str, *, hint: str = "") -> Problem:
    """409: not in the state that things are in."""
    return Problem(409, code, detail, hint=hint)


def store_away(error: Exception) -> Problem:
    """503: the database or the files cannot be used; only the service's log says which and why."""
    _LOG.error("%s", getattr(error, "message", None) or error)
    return Problem(
        503,
        "store",
        "The service cannot use its database or its files now.",
        hint="Try again in a moment; the operator finds the reason in the service's log.",
        headers={"Retry-After": "5"},
    )


def refusal(status: HTTPStatus, why: str) -> tuple[str, bytes]:
    """What the server itself refuses, for
    :func:`~analyzer.server.http_server.http_server`."""
    found = Problem(status, "request", f"{why[0].upper()}{why[1:]}.")
    return MEDIA_TYPE, json.dumps(found.body()).encode()


def fault(error: Exception) -> Problem:
    """500: a fault of the program; only the service's log says which."""
    _LOG.error("A request ended with a fault of the program.", exc_info=error)
    return Problem(
        500,
        "internal",
        "The service could not answer this.",
        hint="The operator finds the reason in the service's log.",
    )


def answer(problem: Problem) -> JSONResponse:
    """The problem as a response."""
    from fastapi.responses import JSONResponse  # workers check options, and answer nobody

    return JSONResponse(
        problem.body(), status_code=problem.status, media_type=MEDIA_TYPE, headers=problem.headers
    )
