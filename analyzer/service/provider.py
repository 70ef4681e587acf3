"""The OpenID Connect provider: where a browser is sent, and who came back.

Authorization code flow with PKCE (RFC 7636, OpenID Connect Core 1.0 section 3.1). Each login has a
state, a nonce and a verifier of its own, which the browser keeps in a cookie until it is back: an
answer is taken only from the browser that asked.
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any
from urllib.parse import quote_plus, urlsplit

import anyio
import httpx

from analyzer.service.oidc import OidcOptions, is_private_address
from analyzer.service.problems import Problem

# Every signature that needs the provider's own key: none that the client's secret could make.
_ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
    "Ed25519",
)  # fmt: skip
_KEY_KINDS = {"RSA", "EC", "OKP"}
_TIMEOUT_S = 10.0  # of one request to the provider, which a person waits for
_ANSWER_MAX = 1 << 20  # bytes; a discovery document has a few thousand
_KEPT_S = 3600.0  # that the provider's addresses and keys are used without asking again
_LEEWAY_S = 60  # between its clock and ours
_AT_A_TIME = 3  # logins that wait for the provider, each on a thread of its own
_SUBJECT_MAX = 255  # OpenID Connect Core 1.0, section 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """A login that has begun; the browser keeps it.

    Args:
        next: Where it goes on afterwards.
        project: Which one was asked for; empty for any.
    """

    state: str
    nonce: str
    verifier: str
    next: str
    project: str

    def cookie(self) -> str:
        """As a cookie holds it."""
        return base64.urlsafe_b64encode(json.dumps(asdict(self)).encode()).decode()

    @classmethod
    def read(cls, cookie: str) -> Login | None:
        """The login that :meth:`cookie` has written; None for anything else."""
        try:
            found = json.loads(base64.urlsafe_b64decode(cookie))
            values = {field.name: found[field.name] for field in fields(cls)}
        except (ValueError, KeyError, TypeError):
            return None
        if not all(isinstance(value, str) and value.isprintable() for value in values.values()):
            return None
        return cls(**values)


class ProviderError(Problem):
    """The provider does not answer, or not as it must."""

    def __init__(self, detail: str) -> None:
        super().__init__(
            502,
            "provider",
            f"The login provider {detail}.",
            hint="Try again; log in with a token if you have one.",
        )


class Provider:
    """One provider.

    Args:
        transport: Of its requests; tests replace it.
    """

    def __init__(
        self, options: OidcOptions, *, transport: httpx.BaseTransport | None = None
    ) -> None:
        self.options = options
        self._transport = transport
        #: What its callers' threads come from: a slow provider keeps no other request waiting.
        self.turns = anyio.CapacityLimiter(_AT_A_TIME)
        self._documents: dict[str, tuple[float, dict[str, Any]]] = {}

    @property
    def name(self) -> str:
        """For people: the provider's host."""
        return urlsplit(self.options.issuer).netloc

    def begin(self, *, next_: str, project: str) -> tuple[str, Login]:
        """Where to send a browser, and what it keeps until it is back.

        Raises:
            Problem: The provider does not answer.
        """
        from authlib.oauth2.rfc6749.parameters import prepare_grant_uri
        from authlib.oauth2.rfc7636 import create_s256_code_challenge

        login = Login(
            state=secrets.token_urlsafe(32),
            nonce=secrets.token_urlsafe(32),
            verifier=secrets.token_urlsafe(48),
            next=next_,
            project=project,
        )
        address: str = prepare_grant_uri(
            self._endpoint("authorization_endpoint"),
            client_id=self.options.client_id,
            response_type="code",
            redirect_uri=self.options.callback,
            scope=["openid", *self.options.scopes],
            state=login.state,
            nonce=login.nonce,
            code_challenge=create_s256_code_challenge(login.verifier),
            code_challenge_method="S256",
        )
        return address, login

    def finish(self, login: Login, answer: Mapping[str, str]) -> dict[str, Any]:
        """Who has logged in: the claims of the ID token, and of the provider beside it.

        Args:
            answer: The parameters with which the browser came back.

        Raises:
            Problem: It is no answer to this login, it was refused, or cannot be verified.
        """
        if not secrets.compare_digest(answer.get("state", "").encode(), login.state.encode()):
            raise Problem(400, "state", "This is no answer to a login of this browser.")
        # RFC 9207: another provider's answer is none to this login.
        if answer.get("iss", self.options.issuer) != self.options.issuer:
            raise Problem(400, "state", "This answer is another provider's.")
        if "error" in answer or not answer.get("code"):
            said = answer.get("error", "")[:100]
            raise Problem(403, "login", f"The login provider let nobody in ({said or 'no code'}).")
        token = self._token(login, answer["code"])
        claims = self._verified(token, login.nonce)
        subject = claims["sub"]
        if not isinstance(subject, str) or not 0 < len(subject) <= _SUBJECT_MAX:
            raise ProviderError("names no subject")
        if not self._more_is_needed(claims):
            return claims
        more = self._about(token)
        if more.get("sub") != subject:  # section 5.3.2
            raise ProviderError("speaks of two subjects")
        return more | claims

    def _token(self, login: Login, code: str) -> dict[str, Any]:
        options = self.options
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": options.callback,
            "code_verifier": login.verifier,
        }
        auth = None
        if options.client_secret is None:
            form["client_id"] = options.client_id
        elif "client_secret_basic" in self._discovered().get(
            "token_endpoint_auth_methods_supported", ["client_secret_basic"]
        ):
            auth = (quote_plus(options.client_id), quote_plus(options.client_secret))
        else:
            form |= {"client_id": options.client_id, "client_secret": options.client_secret}
        found = self._ask("POST", self._endpoint("token_endpoint"), data=form, auth=auth)
        if not isinstance(found.get("id_token"), str):
            raise ProviderError("sent no ID token")
        return found

    def _verified(self, token: Mapping[str, Any], nonce: str) -> dict[str, Any]:
        """The claims of the ID token, whose signature and every condition hold."""
        from authlib.oidc.core import CodeIDToken
        from joserfc import jwt
        from joserfc.errors import InvalidKeyIdError, JoseError

        own = self.options
        allowed = self._discovered().get("id_token_signing_alg_values_supported", ["RS256"])
        algorithms = [name for name in _ALGORITHMS if name in allowed]
        try:
            try:
                found = jwt.decode(token["id_token"], self._keys(), algorithms=algorithms)
            except InvalidKeyIdError:
                # It has a new key.
                fresh = self._keys(again=True)
                found = jwt.decode(token["id_token"], fresh, algorithms=algorithms)
            claims = CodeIDToken(
                found.claims,
                found.header,
                options={
                    "iss": {"essential": True, "value": own.issuer},
                    "aud": {"essential": True, "value": own.client_id},
                },
                params={
                    "nonce": nonce,
                    "client_id": own.client_id,
                    "access_token": token.get("access_token"),
                },
            )
            claims.validate(now=int(time.time()), leeway=_LEEWAY_S)
        except (JoseError, ValueError, TypeError, KeyError) as error:
            raise ProviderError(f"sent an ID token that is not good ({error})"[:300]) from error
        return dict(claims)

    def _more_is_needed(self, claims: Mapping[str, Any]) -> bool:
        """Whether the rules speak of claims that the ID token leaves to the userinfo endpoint."""
        named = {"email" if rule.claim == "domain" else rule.claim for rule in self.options.rules}
        return "userinfo_endpoint" in self._discovered() and not named <= set(claims)

    def _about(self, token: Mapping[str, Any]) -> dict[str, Any]:
        """What the provider says of the user, beside the ID token."""
        bearer = {"Authorization": f"Bearer {token.get('access_token')}"}
        return self._ask("GET", self._endpoint("userinfo_endpoint"), headers=bearer)

    # --- the provider's documents ----------------------------------------------------------------

    def _discovered(self) -> dict[str, Any]:
        place = self.options.issuer.rstrip("/") + "/.well-known/openid-configuration"
        found = self._document(place)
        if found.get("issuer") != self.options.issuer:
            raise ProviderError(f"calls itself {str(found.get('issuer'))[:200]!r}")
        return found

    def _endpoint(self, name: str) -> str:
        found = self._discovered().get(name)
        if not isinstance(found, str) or not is_private_address(found):
            raise ProviderError(f"has no {name} with https")
        return found

    def _keys(self, *, again: bool = False) -> Any:
        from joserfc.jwk import KeySet

        found = self._document(self._endpoint("jwks_uri"), again=again).get("keys")
        usable = [
            key
            for key in (found if isinstance(found, list) else [])
            if key.get("kty") in _KEY_KINDS and key.get("use", "sig") == "sig"
        ]
        return KeySet.import_key_set({"keys": usable})

    def _document(self, place: str, *, again: bool = False) -> dict[str, Any]:
        known = self._documents.get(place)
        if known is not None and not again and time.monotonic() - known[0] < _KEPT_S:
            return known[1]
        found = self._ask("GET", place)
        self._documents[place] = (time.monotonic(), found)
        return found

    def _ask(self, method: str, address: str, **more: Any) -> dict[str, Any]:
        try:
            # One for each request: no cookie of the provider's goes from one login to another.
            with (
                httpx.Client(
                    timeout=_TIMEOUT_S, trust_env=False, transport=self._transport
                ) as client,
                client.stream(method, address, **more) as response,
            ):
                body = bytearray()
                for piece in response.iter_bytes():
                    body += piece
                    if len(body) > _ANSWER_MAX:
                        raise ProviderError("says too much")
            found = json.loads(body)
        except httpx.HTTPError as error:
            raise ProviderError(f"does not answer ({type(error).__name__})") from error
        except ValueError as error:
            raise ProviderError(f"answers {response.status_code} without JSON") from error
        if response.status_code != 200 or not isinstance(found, dict):
            said = found.get("error") if isinstance(found, dict) else None
            raise ProviderError(f"answers {response.status_code} ({str(said)[:100]})")
        return found
