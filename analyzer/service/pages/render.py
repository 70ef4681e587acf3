"""Templates to responses, and the files beside them."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import jinja2
import markupsafe
from fastapi.responses import HTMLResponse, Response

from analyzer import __version__
from analyzer.report.wording import milliseconds, number, proven_rate, rate, size
from analyzer.resources import templates_dir
from analyzer.service.pages.visitor import Visitor
from analyzer.service.problems import not_found

#: Nothing from elsewhere, nothing inline: text that a user stored cannot become a program.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
# Beside those that every answer carries (``guard``).
_HEADERS = {"Content-Security-Policy": POLICY, "Referrer-Policy": "same-origin"}
# A file's address carries the hash of its content, so a browser may keep it for ever.
_STATIC_HEADERS = {"Cache-Control": "public, max-age=31536000, immutable"}
# Each file of an address, with what it is made of: the report's colours and type are the page's.
_STATIC: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "page.css": ("text/css", ("report.css", "service/static/page.css")),
    "page.js": ("text/javascript", ("service/static/page.js",)),
    "htmx.js": ("text/javascript", ("service/static/htmx.min.js",)),
}


def page(
    template: str, visitor: Visitor | None, *, status: int = 200, **values: Any
) -> HTMLResponse:
    """A page (or a part of one) filled with ``values``; an unknown name raises.

    Args:
        visitor: Who asks; None on the page where one logs in.
    """
    text = _environment().get_template(f"service/{template}").render(visitor=visitor, **values)
    return HTMLResponse(text, status_code=status, headers=dict(_HEADERS))


def load_templates() -> None:
    """Makes programs of all templates, which would take the first visitors' time otherwise."""
    environment = _environment()
    for name in environment.list_templates(filter_func=lambda name: name.startswith("service/")):
        if name.endswith(".j2"):
            environment.get_template(name)


def static_file(digest: str, name: str) -> Response:
    """A file that pages load.

    Raises:
        Problem: 404: there is none, or its content is another by now.
    """
    if name not in _STATIC or digest != _static(name)[0]:
        raise not_found("file of that name")
    return Response(_static(name)[1], media_type=_STATIC[name][0], headers=dict(_STATIC_HEADERS))


@functools.cache
def _static(name: str) -> tuple[str, bytes]:
    parts = [(templates_dir() / part).read_bytes() for part in _STATIC[name][1]]
    content = b"\n".join(parts)
    return hashlib.sha256(content).hexdigest()[:16], content


def _address(name: str) -> str:
    return f"/static/{_static(name)[0]}/{name}"


@functools.cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates_dir()),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(static=_address, version=__version__, pages=_pages, csrf=_csrf)
    environment.filters.update(
        when=when,
        stamp=stamp,
        rate=rate,
        proven_rate=proven_rate,
        milliseconds=milliseconds,
        size=size,
        number=number,
    )
    return environment


def _pages(visitor: Visitor) -> list[tuple[str, str]]:
    """The pages that a visitor may see: address and name."""
    found = [("/", "Jobs")]
    if visitor.may("write"):
        found.append(("/jobs/new", "New search"))
    found.append(("/workers", "Workers"))
    if visitor.may("admin"):
        found.append(("/tokens", "Tokens"))
    return found


def _csrf(visitor: Visitor) -> markupsafe.Markup:
    """The field with which a form says that it is one of ours."""
    return markupsafe.Markup('<input type="hidden" name="csrf" value="{}">').format(visitor.csrf)


def when(seconds: float | None) -> str:
    """A stored time: ``2026-11-22 08:12:15``, UTC; a dash for none."""
    if seconds is None:
        return "–"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def stamp(text: str | None) -> str:
    """A time of the API's documents, as :func:`when` writes it."""
    return "–" if text is None else text[:19].replace("T", " ")
