"""Who may log in with OpenID Connect, and as what: the operator's options, without the protocol.

Nobody signs up: a subject that no rule is about is refused, whatever the provider knows of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from analyzer.errors import UsageError
from analyzer.service.auth import PROJECT_NAME, SCOPES, Scope
from analyzer.targets.address import is_loopback

_RULE = re.compile(
    r"(?P<claim>[^=\s]{1,200})=(?P<value>.{1,500}):(?P<project>[^:]*):(?P<scope>\w+)"
)
_RULE_HINT = "Write CLAIM=VALUE:PROJECT:SCOPE, like domain=example.org:default:read."
# Claims that a provider's users may have typed in: they count once the provider has checked them.
_EMAIL, _DOMAIN = "email", "domain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Whose claim has the value may use the project with the scope.

    Args:
        claim: Its name in the ID token or in the provider's answer about a user; ``domain`` is the
            part of ``email`` behind the @.
        value: What it is, or has among its values.
    """

    claim: str
    value: str
    project: str
    scope: Scope

    def matches(self, claims: Mapping[str, Any]) -> bool:
        """Whether these are the claims of somebody it is about."""
        if self.claim in (_EMAIL, _DOMAIN):
            email = verified_email(claims)
            found = email.rpartition("@")[2] if self.claim == _DOMAIN else email
            return bool(found) and found == self.value.lower()
        value: object = claims.get(self.claim)
        return self.value in value if isinstance(value, list) else self.value == value


def parse_rule(text: str) -> Rule:
    """A rule from ``CLAIM=VALUE:PROJECT:SCOPE``.

    Raises:
        UsageError: It is none.
    """
    found = _RULE.fullmatch(text)
    if found is None:
        raise UsageError(f"{text!r} is no rule for logins.", hint=_RULE_HINT)
    if not PROJECT_NAME.fullmatch(found["project"]):
        raise UsageError(f"{text!r}: {found['project']!r} is no name of a project.")
    scope = next((scope for scope in SCOPES if scope == found["scope"]), None)
    if scope is None:
        raise UsageError(
            f"{text!r}: {found['scope']!r} is none of {', '.join(SCOPES)}.", hint=_RULE_HINT
        )
    return Rule(claim=found["claim"], value=found["value"], project=found["project"], scope=scope)


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcOptions:
    """What the operator says about the provider.

    Args:
        issuer: Its address, as its discovery document and its ID tokens spell it.
        client_id: What the provider calls this service.
        public_url: Where browsers reach this service.
        rules: Who may log in; the first that matches counts.
        client_secret: None for a public client, which PKCE alone protects.
        scopes: What is asked for beside ``openid``.

    Raises:
        UsageError: An address is none, or could be read on its way; no rule is given.
    """

    issuer: str
    client_id: str
    public_url: str
    rules: Sequence[Rule]
    client_secret: str | None = field(default=None, repr=False)
    scopes: Sequence[str] = ("email", "profile")

    def __post_init__(self) -> None:
        for name, url in (("issuer", self.issuer), ("public URL", self.public_url)):
            if not is_private_address(url):
                raise UsageError(
                    f"The {name} {url!r} is no address with https.",
                    hint="Only addresses of loopback may be http.",
                )
        if not self.rules:
            raise UsageError("Nobody may log in: no rule is given.", hint=_RULE_HINT)

    @property
    def callback(self) -> str:
        """Where the provider sends browsers back to; it must be registered there."""
        return self.public_url.rstrip("/") + "/login/oidc/callback"

    def rule_for(self, claims: Mapping[str, Any], project: str = "") -> Rule | None:
        """The first rule about somebody with these claims; None if there is none.

        Args:
            project: Only rules for this one; empty for any.
        """
        return next(
            (rule for rule in self.rules if project in ("", rule.project) and rule.matches(claims)),
            None,
        )


def is_private_address(url: str) -> bool:
    """Whether nobody on the way reads what is sent there: https, or loopback."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        if parts.scheme == "https":
            return bool(host)
        return parts.scheme == "http" and is_loopback(host)
    except ValueError:
        return False


def verified_email(claims: Mapping[str, Any]) -> str:
    """The email address that the provider has checked, in lower case; empty if it has none."""
    email = claims.get(_EMAIL)
    return email.lower() if isinstance(email, str) and claims.get("email_verified") is True else ""
