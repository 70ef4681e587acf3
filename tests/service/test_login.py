"""Logins with OpenID Connect: a real provider (npm's oidc-provider), and what a wrong one sends."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import click
import httpx
import pytest
from click.testing import CliRunner

pytest.importorskip("authlib", reason="Authlib is not installed (pip install 'tritune[oidc]')")

from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

from analyzer.cli.service_login import login_options
from analyzer.errors import UsageError
from analyzer.resources import tool_homes
from analyzer.service.oidc import OidcOptions, Rule, parse_rule
from analyzer.service.problems import Problem
from analyzer.service.provider import Login, Provider
from analyzer.targets.ports import free_ports

pytestmark = pytest.mark.sqlite_alone

RULES = ("groups=vision:vision:admin", "domain=example.org:default:read", "sub=bob:default:write")


def options(issuer: str, public: str, *rules: str, **more: Any) -> OidcOptions:
    return OidcOptions(
        issuer=issuer, client_id="tritune", public_url=public,
        rules=[parse_rule(rule) for rule in rules or RULES], **more,
    )  # fmt: skip


# --- rules ---------------------------------------------------------------------------------------


def test_the_first_rule_that_matches_counts() -> None:
    found = options("https://id.example", "https://t.example")
    alice = {"sub": "1", "email": "Alice@Example.org", "email_verified": True, "groups": ["vision"]}
    assert found.rule_for(alice) == Rule(
        claim="groups", value="vision", project="vision", scope="admin"
    )
    other = found.rule_for(alice, "default")
    assert other is not None and other.scope == "read"
    assert found.rule_for(alice, "elsewhere") is None
    for claims in (
        {"sub": "1", "email": "alice@example.org"},  # nobody has checked it
        {"sub": "1", "email": "alice@example.org", "email_verified": "true"},
        {"sub": "1", "email": "alice@evil-example.org", "email_verified": True},
        {"sub": "1", "email": "example.org", "groups": "visions"},
        {"sub": "1", "groups": [{"vision": 1}]},
        {"sub": "bobby"},
        {},
    ):
        assert found.rule_for(claims) is None, claims


def test_a_rule_may_hold_colons_and_equal_signs() -> None:
    rule = parse_rule("sub=https://x=y:443/z:vision:write")
    assert (rule.claim, rule.value) == ("sub", "https://x=y:443/z")
    for text in (
        "sub",
        "sub=x",
        "sub=x:default",
        "sub=x:Default:read",
        "sub=x:p:root",
        "=x:p:read",
    ):
        with pytest.raises(UsageError):
            parse_rule(text)


def test_addresses_that_others_read_are_refused() -> None:
    for issuer in ("http://id.example", "id.example", "ftp://127.0.0.1", "http://localhost.evil"):
        with pytest.raises(UsageError, match="https"):
            options(issuer, "https://t.example")
    with pytest.raises(UsageError, match="https"):
        options("https://id.example", "http://t.example")
    with pytest.raises(UsageError, match="Nobody"):
        OidcOptions(issuer="https://i", client_id="c", public_url="https://p", rules=())


@click.command()
@click.option("--auth", default="oidc")
@login_options
def told(*, auth: str, oidc: OidcOptions | None) -> None:
    click.echo(f"{auth} {oidc and (oidc.client_secret, oidc.rules[0].value, list(oidc.scopes))}")


def test_options_come_from_the_command_line_the_environment_and_a_file(tmp_path: Path) -> None:
    given = [
        "--oidc-issuer=https://id.example", "--oidc-client-id=t", "--oidc-allow=sub=x:default:read"
    ]  # fmt: skip
    run = CliRunner().invoke
    environment = {
        "TRITUNE_PUBLIC_URL": "https://t.example", "TRITUNE_OIDC_CLIENT_SECRET": "secret"
    }  # fmt: skip
    done = run(told, given, env=environment)
    assert "('secret', 'x', ['email', 'profile'])" in done.output, done.exception
    file = tmp_path / "secret"
    more = [f"--oidc-client-secret-file={file}", "--oidc-scopes=groups"]
    for encoding in ("utf-8", "utf-8-sig"):  # the second with a byte order mark
        file.write_text("of a file\n", encoding=encoding)
        assert "('of a file', 'x', ['groups'])" in run(told, given + more, env=environment).output
    assert run(told, ["--auth=none"]).output == "none None\n"
    missing = run(told, given).exception
    assert isinstance(missing, UsageError) and "--public-url" in missing.message
    assert "secret" not in repr(options("https://i", "https://p", client_secret="secret"))
    assert not [p.opts for p in told.params if "--oidc-client-secret" in p.opts]


# --- a provider of which we make every answer -----------------------------------------------------

KEY = RSAKey.generate_key(2048, {"kid": "1", "use": "sig"})
OTHER = RSAKey.generate_key(2048, {"kid": "1", "use": "sig"})
ISSUER = "https://id.example"


class Fake(httpx.BaseTransport):
    """Answers as a provider; ``claims`` and ``key`` make its ID token."""

    def __init__(self) -> None:
        self.claims: dict[str, Any] = {}
        self.key = self.published = KEY
        self.header = {"alg": "RS256", "kid": "1"}
        self.about: dict[str, Any] = {"sub": "alice", "groups": ["vision"]}
        self.metadata: dict[str, Any] = {
            "issuer": ISSUER, "authorization_endpoint": f"{ISSUER}/auth",
            "token_endpoint": f"{ISSUER}/token", "jwks_uri": f"{ISSUER}/keys",
            "userinfo_endpoint": f"{ISSUER}/me",
            "id_token_signing_alg_values_supported": ["RS256", "HS256", "none"],
        }  # fmt: skip
        self.asked: list[str] = []
        self.form: dict[str, list[str]] = {}
        self.id_token: str | None = None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request.url.path)
        if request.url.path == "/token":
            self.form = parse_qs(request.read().decode())
            token = self.id_token or jwt.encode(self.header, self.claims, self.key)
            return httpx.Response(200, json={"access_token": "a", "id_token": token})
        documents: Mapping[str, Any] = {
            "/.well-known/openid-configuration": self.metadata,
            "/keys": KeySet([self.published]).as_dict(private=False),
            "/me": self.about,
        }
        return httpx.Response(200, json=documents[request.url.path])


@pytest.fixture
def fake() -> Fake:
    return Fake()


def come_back(fake: Fake, *, answer: dict[str, str] | None = None, **claims: Any) -> dict[str, Any]:
    """Logs in at the fake provider, whose token has these claims beside the right ones."""
    provider = Provider(options(ISSUER, "https://t.example"), transport=fake)
    address, login = provider.begin(next_="/", project="")
    asked = parse_qs(urlsplit(address).query)
    now = int(time.time())
    right = {
        "iss": ISSUER, "aud": "tritune", "sub": "alice", "iat": now, "exp": now + 60,
        "nonce": asked["nonce"][0],
    }  # fmt: skip
    fake.claims = {k: v for k, v in (right | claims).items() if v is not None}
    again = Login.read(login.cookie())
    assert again == login
    return provider.finish(login, answer or {"state": asked["state"][0], "code": "c"})


def test_a_good_answer_is_taken_and_completed_by_the_userinfo(fake: Fake) -> None:
    found = come_back(fake)
    assert (found["sub"], found["groups"]) == ("alice", ["vision"])
    assert fake.form["code_verifier"] and fake.form["grant_type"] == ["authorization_code"]
    fake.about = {"sub": "mallory", "groups": ["vision"]}
    with pytest.raises(Problem, match="two subjects"):
        come_back(fake)


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://evil.example"}, {"aud": "another"}, {"aud": None}, {"nonce": "old"},
        {"nonce": None}, {"exp": 1_000_000_000}, {"exp": None}, {"sub": None}, {"sub": ""},
        {"sub": 7}, {"aud": ["tritune", "b"], "azp": "b"}, {"iat": 4_000_000_000},
    ],
)  # fmt: skip
def test_an_id_token_that_breaks_a_condition_is_refused(fake: Fake, claims: dict[str, Any]) -> None:
    with pytest.raises(Problem) as refused:
        come_back(fake, **claims)
    assert refused.value.status == 502, claims


def test_an_id_token_of_somebody_elses_key_is_refused(fake: Fake) -> None:
    fake.key = OTHER
    with pytest.raises(Problem, match="not good"):
        come_back(fake)
    for header in ("eyJhbGciOiJub25lIn0", "eyJhbGciOiJIUzI1NiJ9"):  # none, HS256
        body = "eyJzdWIiOiJhbGljZSJ9"
        fake.id_token = f"{header}.{body}."
        with pytest.raises(Problem, match="not good"):
            come_back(fake)


def test_a_provider_may_change_its_key(fake: Fake) -> None:
    provider = Provider(options(ISSUER, "https://t.example"), transport=fake)
    provider._keys()
    fake.key = fake.published = RSAKey.generate_key(2048, {"kid": "2", "use": "sig"})
    fake.header["kid"] = "2"
    _, login = provider.begin(next_="/", project="")
    now = int(time.time())
    fake.claims = {
        "iss": ISSUER, "aud": "tritune", "sub": "alice", "iat": now, "exp": now + 60,
        "nonce": login.nonce,
    }  # fmt: skip
    assert provider.finish(login, {"state": login.state, "code": "c"})["sub"] == "alice"
    assert fake.asked.count("/keys") == 2


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        ({"code": "c"}, 400), ({"state": "guess", "code": "c"}, 400), ({}, 400),
        ({"state": "ü", "code": "c"}, 400),
    ],
)  # fmt: skip
def test_an_answer_to_another_login_is_refused(
    fake: Fake, answer: dict[str, str], status: int
) -> None:
    with pytest.raises(Problem) as refused:
        come_back(fake, answer=answer or {"x": "y"})
    assert refused.value.status == status
    assert "/token" not in fake.asked


def test_another_issuer_or_a_place_without_tls_is_refused(fake: Fake) -> None:
    fake.metadata["token_endpoint"] = "http://id.example/token"
    with pytest.raises(Problem, match="https"):
        come_back(fake)
    fake.metadata["issuer"] = "https://evil.example"
    with pytest.raises(Problem, match="calls itself"):
        come_back(fake)


def test_a_cookie_that_is_none_is_no_login() -> None:
    for text in ("", "x", "e30=", "bnVsbA==", "é", "eyJzdGF0ZSI6IDF9"):
        assert Login.read(text) is None


# --- a real provider ------------------------------------------------------------------------------


@pytest.fixture
def place(service: Any, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Starts a service whose logins a real provider checks; its address."""
    homes = [home for home, _ in tool_homes("oidc") if (home / "node_modules").is_dir()]
    node = shutil.which("node")
    if node is None or not homes:
        pytest.skip("oidc-provider is not here (make tools fetches it, where Node.js is installed)")
    with ExitStack() as ends:

        def start(*rules: str) -> str:
            [port] = free_ports(1)
            issuer = f"http://127.0.0.1:{port}"
            public = "http://127.0.0.1:1"  # changed below, once the port is known
            own = options(
                issuer, public, *rules, client_secret="a secret / of ours",
                scopes=("email", "groups"),
            )  # fmt: skip
            provider = Provider(own)
            url = str(service.serve(tokens=True, provider=provider))
            provider.options = replace(own, public_url=url)
            script = Path(__file__).parent / "oidc_provider.mjs"
            log = ends.enter_context((tmp_path / "provider.log").open("w"))
            process = subprocess.Popen(
                [node, str(script), str(homes[0]), str(port), provider.options.callback],
                stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
            ends.callback(process.wait, 10)
            ends.callback(process.terminate)
            assert process.stdout is not None
            ends.callback(process.stdout.close)
            for line in process.stdout:
                if line.strip() == "ready":
                    break
            else:
                pytest.fail((tmp_path / "provider.log").read_text())
            return url

        yield start


def log_in(browser: httpx.Client, url: str, name: str, **more: str) -> httpx.Response:
    """A browser that goes the whole way; the page that it ends on."""
    where: str = url + "/login/oidc"
    answer = browser.get(where, params=more)
    for _ in range(20):
        if answer.is_redirect:
            answer = browser.send(answer.next_request)  # type: ignore[arg-type]
        elif "/interaction/" in str(answer.url):
            prompt = re.search(r'name="prompt" value="(\w+)"', answer.text)
            assert prompt is not None, answer.text
            action = re.search(r'<form[^>]*action="([^"]+)"', answer.text)
            assert action is not None, answer.text
            form = {"prompt": prompt[1], "login": name, "password": "x"}
            answer = browser.post(answer.url.join(action[1]), data=form)
        else:
            break
    return answer


@pytest.fixture
def browsers() -> Iterator[Callable[[], httpx.Client]]:
    """Makes browsers, each with cookies of its own."""
    with ExitStack() as ends:
        yield lambda: ends.enter_context(httpx.Client(timeout=20))


@pytest.mark.slow
def test_somebody_on_the_list_logs_in_works_and_logs_out(
    place: Any, service: Any, browsers: Callable[[], httpx.Client]
) -> None:
    url = place()
    page = httpx.get(url + "/login?next=/workers").text
    assert "/login/oidc?next=" in page
    browser = browsers()
    done = log_in(browser, url, "alice", next="/workers")
    assert done.status_code == 200 and 'content="0;url=/workers"' in done.text
    cookie = next(c for c in done.headers.get_list("set-cookie") if "tritune_session" in c)
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
    who = browser.get(url + "/api/v1/session").json()
    assert (who["project"], who["scope"]) == ("vision", "admin")
    assert who["actor"] == "oidc:alice@example.org"
    assert browser.get(url + "/workers").status_code == 200
    # Its login is listed as a token, and the audit names whom.
    listed = browser.get(url + "/api/v1/tokens").json()["items"]
    assert [token["name"] for token in listed] == ["oidc:alice@example.org"]
    audit = browser.get(url + "/api/v1/audit").json()["items"][0]
    assert audit["action"] == "session.begin" and audit["details"]["sub"] == "alice"
    out = browser.post(url + "/logout", data={"csrf": who["csrf"]})
    assert out.status_code == 303
    assert browser.get(url + "/api/v1/jobs").status_code == 401
    # Another project that is allowed, by its name; revoking the login ends its sessions.
    other = browsers()
    log_in(other, url, "alice", project="default")
    assert other.get(url + "/api/v1/session").json()["scope"] == "read"
    admin = service.client(service.token("default", "admin"))
    mine = next(t for t in admin.get("/api/v1/tokens").json()["items"] if "alice" in t["name"])
    assert admin.delete(f"/api/v1/tokens/{mine['id']}").status_code == 204
    assert other.get(url + "/api/v1/jobs").status_code == 401
    again = browsers()
    log_in(again, url, "alice", project="default")
    assert again.get(url + "/api/v1/jobs").status_code == 200
    assert other.get(url + "/api/v1/jobs").status_code == 401, "a session that was ended"


@pytest.mark.slow
def test_whom_nobody_allowed_is_refused_and_noted(
    place: Any, service: Any, browsers: Callable[[], httpx.Client]
) -> None:
    url = place("domain=example.org:default:write")
    for name, said in (("eve", "eve@elsewhere.example"), ("bob", "bob")):
        browser = browsers()
        done = log_in(browser, url, name)
        assert done.status_code == 403 and "but this service does not" in done.text
        assert f"sub={name}" in done.text and said in done.text
        assert "tritune_session" not in done.headers.get("set-cookie", "")
        assert browser.get(url + "/api/v1/jobs").status_code == 401
    admin = service.client(service.token("default", "admin"))
    noted = [e for e in admin.get("/api/v1/audit").json()["items"] if "refuse" in e["action"]]
    assert [entry["details"]["sub"] for entry in noted] == ["bob", "eve"]
    assert admin.get("/api/v1/projects").json()["items"][0]["name"] == "default"


def test_without_a_provider_there_is_no_such_login(service: Any) -> None:
    client = service.client(tokens=True)
    assert client.get("/login/oidc").status_code == 404
    assert "/login/oidc" not in client.get("/login").text


def test_a_provider_that_is_away_is_said(service: Any) -> None:
    gone = Provider(options(f"http://127.0.0.1:{free_ports(1)[0]}", "http://127.0.0.1:1"))
    url = service.serve(tokens=True, provider=gone)
    answer = httpx.get(url + "/login/oidc")
    assert answer.status_code == 502 and "does not answer" in answer.text
    stray = httpx.get(url + "/login/oidc/callback?state=x&code=y")
    assert stray.status_code == 400 and "another browser" in stray.text
    assert httpx.get(url + "/api/v1/jobs").status_code == 401
