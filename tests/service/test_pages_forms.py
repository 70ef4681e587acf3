"""What pages let one do: log in, hand in, ask, make tokens; and what they refuse."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from facts_example import example_facts
from page_example import Example

from analyzer.report.document import build_document
from analyzer.report.entries import make_report
from analyzer.service import auth
from analyzer.service.problems import invalid

pytestmark = pytest.mark.sqlite_alone

FOUND = build_document(make_report(example_facts()))
EVIL = "<img src=x onerror=alert(1)>"
LogIn = Callable[..., httpx.Client]


@pytest.fixture
def log_in(service: Any) -> LogIn:
    """A browser that has logged in with a new token."""

    def do(scope: auth.Scope = "admin", project: str = "default") -> httpx.Client:
        client: httpx.Client = service.client(tokens=True)
        done = client.post("/login", data={"token": service.token(project, scope)})
        assert done.status_code == 303 and done.headers["location"] == "/"
        return client

    return do


def test_a_login_of_a_proxy_s_own_is_no_token(service: Any, log_in: LogIn) -> None:
    """Behind a proxy with Basic authentication no form could be sent."""
    basic = {"Authorization": "Basic YW5uOnNlY3JldA=="}
    client = log_in("write")
    client.headers.update(basic)
    job = Example(service.context).queued()
    done = client.post(f"/jobs/{job}/cancel", data={"csrf": word_of(client)})
    assert done.status_code == 303, done.text
    assert client.post(f"/jobs/{job}/delete").status_code == 403, "a form without its word"
    assert client.get(f"/api/v1/jobs/{job}").json()["state"] == "CANCELLED"
    stranger = service.client(tokens=True)
    assert stranger.get("/", headers=basic).headers["location"].startswith("/login")
    assert stranger.get("/api/v1/jobs", headers=basic).status_code == 401
    wrong = stranger.get("/", headers={"Authorization": "Bearer tritune_wrong"})
    assert wrong.status_code == 401


def word_of(client: httpx.Client, address: str = "/") -> str:
    """The session's word, as the forms of a page have it."""
    found = re.search(r'name="csrf" value="([^"]*)"', client.get(address).text)
    assert found is not None
    return found[1]


def test_who_has_no_session_is_sent_to_log_in_and_back(service: Any) -> None:
    client = service.client(tokens=True)
    job = Example(service.context).queued()
    sent = client.get(f"/jobs/{job}")
    assert sent.status_code == 303
    assert client.get(sent.headers["location"]).text.count(f'value="/jobs/{job}"') == 1
    part = client.get("/", headers={"HX-Request": "true"})
    assert part.status_code == 401 and part.headers["HX-Redirect"] == "/login"
    wrong = client.post("/login", data={"token": "tritune_wrong", "next": f"/jobs/{job}"})
    assert wrong.status_code == 401 and "not good" in wrong.text
    assert "set-cookie" not in wrong.headers
    done = client.post("/login", data={"token": service.token("default"), "next": f"/jobs/{job}"})
    assert done.headers["location"] == f"/jobs/{job}"
    cookie = done.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie
    assert client.get(f"/jobs/{job}").status_code == 200


def test_a_login_leads_nowhere_else(service: Any) -> None:
    client = service.client(tokens=True)
    for where in ("//evil.example", "https://evil.example", "/\\evil", "x"):
        client.cookies.clear()
        done = client.post("/login", data={"token": service.token("default"), "next": where})
        assert done.headers["location"] == "/", where


def test_a_session_ends_with_log_out_and_with_its_token(log_in: LogIn) -> None:
    client = log_in()
    cookie = dict(client.cookies)
    assert client.post("/logout", data={"csrf": word_of(client)}).headers["location"] == "/login"
    client.cookies.update(cookie)
    assert client.get("/").status_code == 303
    other = log_in()
    token = re.search(r"/tokens/([0-9a-f]{16})/revoke", other.get("/tokens").text)
    assert token is not None
    other.post(f"/tokens/{token[1]}/revoke", data={"csrf": word_of(other)})
    assert other.get("/").status_code == 303


FORMS = [
    "/logout", "/tokens", f"/tokens/{'0' * 16}/revoke", "/jobs/{job}/cancel", "/jobs/{job}/pause",
    "/jobs/{job}/resume", "/jobs/{job}/clone", "/jobs/{job}/verify", "/jobs/{job}/continue",
    "/jobs/{job}/delete", "/jobs/new",
]  # fmt: skip


def test_no_form_without_the_sessions_word(service: Any, log_in: LogIn) -> None:
    client = log_in()
    job = Example(service.context).queued()
    for form in FORMS:
        address = form.format(job=job)
        for fields in ({"name": "x", "scope": "read"}, {"csrf": "another", "name": "x"}):
            if address == "/jobs/new":
                fields |= {"latency_budget": "50ms"}
                done = client.post(address, data=fields, files={"model": ("m.onnx", b"{}")})
            else:
                done = client.post(address, data=fields)
            assert done.status_code == 403, (address, done.text)
        assert client.get("/").status_code == 200, address
        assert client.get("/api/v1/models").json()["items"] == [], address
        assert [one["id"] for one in client.get("/api/v1/jobs").json()["items"]] == [job], address


def test_who_may_only_read_changes_nothing(service: Any, log_in: LogIn) -> None:
    client = log_in("read")
    job = Example(service.context).queued()
    fields = {"csrf": word_of(client), "name": "x", "scope": "read"}
    for form in FORMS:
        address = form.format(job=job)
        if address == "/logout":
            continue
        if address == "/jobs/new":
            done = client.post(address, data=fields, files={"model": ("m.onnx", b"{}")})
        else:
            done = client.post(address, data=fields)
        assert done.status_code == 403, address
    assert "New search" not in client.get("/").text and "Tokens" not in client.get("/").text
    assert client.get("/tokens").status_code == client.get("/jobs/new").status_code == 403


def key_of(client: httpx.Client) -> dict[str, str]:
    """The hidden fields of the form for a new job."""
    return dict(
        re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', client.get("/jobs/new").text)
    )


def test_a_model_and_a_promise_become_a_job_once(log_in: LogIn) -> None:
    client = log_in("write")
    hidden = key_of(client)
    fields = {
        "latency_budget": "50ms",
        "target_rate": "2000/s",
        "percentile": "",
        "more": "sampler=random\n",
    }
    made = []
    for _ in range(2):
        files = {"model": ("C:\\my models\\ré sumé.onnx", b"{}" * 700_000), "data": ("", b"")}
        done = client.post("/jobs/new", data=hidden | fields, files=files)
        assert done.status_code == 303, done.text
        made.append(done.headers["location"])
    assert made[0] == made[1]
    job = client.get(f"/api/v1{made[0]}").json()
    assert job["options"] == {
        "latency_budget": "50ms",
        "target_rate": "2000/s",
        "sampler": "random",
    }
    assert re.fullmatch(r"[A-Za-z0-9._-]+", job["model_name"])
    upload = client.get("/api/v1/models").json()["items"][0]
    assert upload["size_bytes"] == 1_400_000 and upload["id"] == job["model"]
    again = {"uploaded": upload["id"], "latency_budget": "20ms"}
    assert client.post("/jobs/new", data=key_of(client) | again, files={"model": ("", b"")})


def test_a_form_that_is_refused_keeps_what_was_filled_in(log_in: LogIn) -> None:
    client = log_in("write")
    files = {"model": ("digits.onnx", b"{}")}
    refused: tuple[tuple[dict[str, str], str], ...] = (
        ({}, "latency_budget is missing"),
        ({"latency_budget": EVIL}, "latency_budget"),
        (
            {"latency_budget": "50ms", "more": "store=sqlite:///x"},
            "the service has its own database",
        ),
        ({"latency_budget": "50ms", "more": "nonsense"}, "name=value"),
        ({"latency_budget": "50ms", "more": "latency-budget=60ms"}, "given twice"),
        ({"latency_budget": "50ms", "more": "seed=1\nseed=2"}, "given twice"),
        ({"latency_budget": "50ms", "budget": "99h"}, "this service allows"),
    )
    for fields, said in refused:
        sent = key_of(client) | {"price": "1/h"} | fields
        done = client.post("/jobs/new", data=sent, files=files)
        assert done.status_code == 422 and said in done.text, fields
        assert 'value="1/h"' in done.text and "selected>digits" in done.text, fields
        assert done.text.count("autofocus") == 1, "the wrong field, or what is wrong"
        assert "<img" not in done.text, fields


def test_a_file_that_no_job_can_use_is_refused_in_the_form(service: Any, log_in: LogIn) -> None:
    class Refusing(type(service.context.inspector)):  # type: ignore[misc]
        async def inspect(self, *_: Any) -> dict[str, Any]:
            raise invalid("It is no ONNX model.", hint=EVIL)

    client = service.client(inspector=Refusing(), tokens=False)
    parts = [("model", ("m.onnx", b"x")), ("latency_budget", (None, "50ms"))]
    done = client.post("/jobs/new", files=parts)
    assert done.status_code == 422 and "It is no ONNX model." in done.text
    assert "<img" not in done.text
    assert 'value="50ms"' in done.text, "what came behind the file"
    marked = re.search(r'<input id="model"[^>]*>', done.text)
    assert marked is not None and 'autofocus aria-invalid="true"' in marked[0]


def test_a_form_that_is_none_is_refused(client: httpx.Client) -> None:
    headers = {"content-type": "multipart/form-data; boundary=b"}
    for body in (
        b"", b"nothing", b"--b\r\n", b"--b\r\nContent-Disposition: form-data; name=latency",
        b'--b\r\nContent-Disposition: form-data; name="model"; filename="m"\r\n\r\nhalf of it',
        b'--b\r\nContent-Disposition: form-data; name="seed"\r\n\r\n' + b"9" * 70_000,
        b"--b\r\nX: " + b"y" * 9000 + b"\r\n\r\n\r\n--b--\r\n",
        b'--b\r\nContent-Disposition: form-data; name="seed"\r\n\r\n\xff\r\n--b--\r\n',
        b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n' * 200 + b"--b--\r\n",
    ):  # fmt: skip
        done = client.post("/jobs/new", content=body, headers=headers)
        assert done.status_code in (400, 422), (body[:100], done.text)
        assert client.get("/api/v1/models").json()["items"] == [], body[:100]


def test_a_file_beyond_the_limit_is_refused(service: Any) -> None:
    client = service.client(upload_bytes_max=1000)
    fields = {"latency_budget": "50ms"}
    done = client.post("/jobs/new", data=fields, files={"model": ("m.onnx", b"x" * 2000)})
    assert done.status_code == 413 and client.get("/api/v1/models").json()["items"] == []


def test_a_job_is_asked_from_its_page(client: httpx.Client, service: Any) -> None:
    job = Example(service.context).queued()
    assert 'action="/jobs/' + job + '/cancel"' in client.get(f"/jobs/{job}").text
    for change, state in (("pause", "PAUSED"), ("resume", "QUEUED"), ("cancel", "CANCELLED")):
        assert client.post(f"/jobs/{job}/{change}").headers["location"] == f"/jobs/{job}"
        assert client.get(f"/api/v1/jobs/{job}").json()["state"] == state
    refused = client.post(f"/jobs/{job}/pause")
    assert refused.status_code == 409 and "<h1>A job that is CANCELLED cannot pause" in refused.text
    assert client.post(f"/jobs/{job}/delete").headers["location"] == "/"
    assert client.get(f"/jobs/{job}").status_code == 404


def test_a_form_of_another_site_is_refused(client: httpx.Client, service: Any) -> None:
    job = Example(service.context).queued()
    for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        assert client.post(f"/jobs/{job}/cancel", headers=headers).status_code == 403
    assert client.get(f"/api/v1/jobs/{job}").json()["state"] == "QUEUED"


def test_jobs_are_compared(client: httpx.Client, service: Any) -> None:
    example = Example(service.context)
    found, open_one = example.ended(result=FOUND), example.running("other", target_rate="9/s").id
    shown = client.get(f"/compare?job={found}&job={open_one}").text
    assert "556 /s" in shown and "target_rate (asked)" in shown and ">other<" in shown
    assert "Tick jobs" in client.get("/compare").text
    assert client.get(f"/compare?job={'0' * 32}").status_code == 404


def test_workers_and_what_they_measure(client: httpx.Client, service: Any) -> None:
    assert "No worker answers" in client.get("/workers").text
    example = Example(service.context)
    job = example.running("whisper", phase="measuring edges").id
    shown = client.get("/workers").text
    assert f'href="/jobs/{job}"' in shown and "measuring edges" in shown
    other = Example(service.context)
    assert other.queue is not None
    with service.context.database.writing() as connection:
        auth.ensure_project(connection, "other")
    elsewhere = service.client(service.token("other")).get("/workers").text
    assert "2 cores" in elsewhere and "whisper" not in elsewhere and job not in elsewhere


def test_the_job_of_a_device_is_the_workers_that_runs_it(
    client: httpx.Client, service: Any
) -> None:
    Example(service.context, worker="here-0")
    job = Example(service.context, worker="here-1").running("whisper").id
    shown = {
        item["id"]: item["device"]["job"] for item in client.get("/api/v1/workers").json()["items"]
    }
    assert shown == {"here-0": None, "here-1": job}
    assert client.get("/workers").text.count(f'href="/jobs/{job}"') == 1


def test_a_token_is_shown_once(log_in: LogIn) -> None:
    client = log_in()
    word = word_of(client)
    made = client.post(
        "/tokens", data={"csrf": word, "name": EVIL, "scope": "read", "expires": "24h"}
    )
    secret = re.search(r"tritune_[\w-]{43}", made.text)
    assert secret is not None and "<img" not in made.text
    assert secret[0] not in client.get("/tokens").text
    headers = {"Authorization": f"Bearer {secret[0]}"}
    assert client.get("/api/v1/session", headers=headers).json()["scope"] == "read"
    for fields in ({"name": "", "scope": "read"}, {"name": "x", "scope": "all"}):
        assert client.post("/tokens", data={"csrf": word} | fields).status_code == 422
    wrong = client.post(
        "/tokens", data={"csrf": word, "name": "x", "scope": "read", "expires": "?"}
    )
    assert wrong.status_code == 422
    hidden = client.post("/tokens", data={"csrf": word, "name": "ab\u202ecd", "scope": "read"})
    assert hidden.status_code == 422 and "not shown" in hidden.text


def test_a_token_that_has_expired_is_marked(service: Any, log_in: LogIn) -> None:
    client = log_in()
    service.token("default", "read", expires_in_s=1e-6)
    assert "<td>expired</td>" in client.get("/tokens").text
    found = client.get("/api/v1/tokens").json()["items"]
    assert sorted(token["status"] for token in found) == ["expired", "good"]
