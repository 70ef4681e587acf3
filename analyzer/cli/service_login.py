"""Options for logins with OpenID Connect; the secret never stands on the command line."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from analyzer.errors import MissingPartError, UsageError

if TYPE_CHECKING:
    from analyzer.service.oidc import OidcOptions

_F = TypeVar("_F", bound=Callable[..., Any])
SECRET_VARIABLE = "TRITUNE_OIDC_CLIENT_SECRET"
_SECRET_MAX = 10_000  # characters; what is longer is another file
# Option, parameter, environment variable, help; the first three are needed.
_OPTIONS: tuple[tuple[str, str, str, str], ...] = (
    ("--oidc-issuer", "oidc_issuer", "TRITUNE_OIDC_ISSUER", "Address of the login provider."),
    ("--oidc-client-id", "oidc_client", "TRITUNE_OIDC_CLIENT_ID", "This service's name there."),
    ("--public-url", "public_url", "TRITUNE_PUBLIC_URL", "Where browsers reach this service."),
    (
        "--oidc-scopes",
        "oidc_scopes",
        "TRITUNE_OIDC_SCOPES",
        "Scopes that are asked for beside openid.  [default: email,profile]",
    ),
)


def login_options(command: _F) -> _F:
    """Adds the options; the command gets ``oidc``, None where ``--auth`` does not ask for it."""

    @wraps(command)
    def with_login(**values: Any) -> Any:
        given = {name: values.pop(name) for _, name, *_ in _OPTIONS}
        rules, secret = values.pop("oidc_allow"), values.pop("oidc_secret_file")
        wanted = values["auth"] == "oidc"
        if not wanted:
            _require_none_given()
        return command(oidc=_oidc(given, rules, secret) if wanted else None, **values)

    found: Any = with_login
    found = click.option(
        "--oidc-client-secret-file", "oidc_secret_file",
        type=click.Path(path_type=Path), envvar="TRITUNE_OIDC_CLIENT_SECRET_FILE", metavar="FILE",
        help=f"Its secret there; or {SECRET_VARIABLE} in the environment; or none (PKCE).",
    )(found)  # fmt: skip
    found = click.option(
        "--oidc-allow", multiple=True, metavar="CLAIM=VALUE:PROJECT:SCOPE",
        envvar="TRITUNE_OIDC_ALLOW",
        help="Who may log in, and as what; the first that matches counts (repeatable).",
    )(found)  # fmt: skip
    for option, name, variable, help_text in reversed(_OPTIONS):
        found = click.option(option, name, envvar=variable, help=help_text)(found)
    return found  # type: ignore[no-any-return]


def _require_none_given() -> None:
    """Raises UsageError where the command line gives what would be dropped; a variable may stay."""
    names = {*(name for _, name, *_ in _OPTIONS), "oidc_allow", "oidc_secret_file"}
    context = click.get_current_context()
    for parameter in context.command.params:
        name = str(parameter.name)
        if name in names and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise UsageError(
                f"{parameter.opts[0]} is for logins with OpenID Connect.", hint="Add --auth oidc."
            )


def _oidc(given: dict[str, str | None], rules: tuple[str, ...], secret: Path | None) -> OidcOptions:
    """Raises UsageError where something is missing or wrong."""
    from importlib.util import find_spec

    if find_spec("authlib") is None:
        raise MissingPartError(
            "Logins with OpenID Connect need Authlib, which is not installed.",
            hint="pip install 'tritune[oidc]'",
        )
    from analyzer.service.oidc import OidcOptions, parse_rule

    missing = [option for option, name, *_ in _OPTIONS[:3] if not given[name]]
    if missing:
        raise UsageError(
            f"--auth oidc needs {', '.join(missing)}.",
            hint="docs/service.md shows a whole command.",
        )
    scopes = given["oidc_scopes"]
    return OidcOptions(
        issuer=given["oidc_issuer"] or "",
        client_id=given["oidc_client"] or "",
        public_url=given["public_url"] or "",
        rules=[parse_rule(rule) for rule in rules],
        client_secret=_secret(secret),
        **({} if scopes is None else {"scopes": [s.strip() for s in scopes.split(",") if s]}),
    )


def _secret(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get(SECRET_VARIABLE) or None
    try:
        with file.open(encoding="utf-8-sig") as stream:
            found = stream.read(_SECRET_MAX).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"--oidc-client-secret-file: {file} cannot be read ({error}).",
            hint="Give the file with the secret alone.",
        ) from error
    if not found:
        raise UsageError(f"--oidc-client-secret-file: {file} is empty.")
    return found
