"""Tokens, sessions, projects; what strangers and other sites' pages get."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest

from analyzer.errors import UsageError
from analyzer.server.limits import Limits
from analyzer.service import api, guard, routes_uploads
from analyzer.service.metrics import Metrics
from analyzer.service.schema import AUDIT, IDEMPOTENCY, TOKENS
from analyzer.service.serve import ServiceOptions, is_loopback, serve

pytestmark = pytest.mark.sqlite_alone

Service = Any


def a_job(client: httpx.Client) -> str:
    model = client.post("/api/v1/models?name=m", content=b"{}").json()["id"]
    body = {"kind": "search", "model": model, "options": {"latency_budget": "50ms"}}
    return str(client.post("/api/v1/jobs", json=body).json()["id"])


def test_another_address_than_loopback_needs_tokens(tmp_path: Any) -> None:
    for host in ("0.0.0.0", "192.168.0.1", "::", "example.org"):
        assert not is_loopback(host)
        with pytest.raises(UsageError, match="token"):
            serve(ServiceOptions(host=host, store_url="sqlite:///x.db", data=tmp_path), say=print)
    for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        assert is_loopback(host)


def test_what_is_told_the_address_can_connect_at_once(tmp_path: Any, store_url: str) -> None:
    class Connected(Exception):
        pass

    def connect(address: str) -> None:
        host, port = address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), 5):
            raise Connected

    with pytest.raises(Connected):
        serve(ServiceOptions(port=0, store_url=store_url, data=tmp_path), say=connect)


def test_without_a_good_token_there_is_nothing(service: Service) -> None:
    stranger = service.client(tokens=True)
    expired = service.client(service.token("a", expires_in_s=-1))
    for client in (stranger, expired, service.client("tritune_" + "x" * 43)):
        for path in ("/api/v1/jobs", "/api/v1/workers", "/api/v1/models"):
            answer = client.get(path)
            assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
        assert client.post("/api/v1/models?name=m", content=b"x").status_code == 401
    assert stranger.get("/healthz").status_code == 200


def test_the_objects_of_another_project_are_not_there(service: Service) -> None:
    own, other = (service.client(service.token(name, "admin")) for name in ("own", "other"))
    job = a_job(own)
    model = own.get("/api/v1/models").json()["items"][0]["id"]
    assert own.get(f"/api/v1/jobs/{job}").status_code == 200
    path = f"/api/v1/jobs/{job}"
    for method, where in (
        ("GET", path), ("DELETE", path), ("POST", f"{path}/cancel"), ("POST", f"{path}/pause"),
        ("POST", f"{path}/resume"), ("POST", f"{path}/clone"), ("GET", f"{path}/events"),
        ("GET", f"{path}/log"), ("GET", f"{path}/trials"), ("GET", f"{path}/result"),
        ("GET", f"{path}/artifacts/report.html"), ("GET", f"/api/v1/models/{model}"),
        ("DELETE", f"/api/v1/models/{model}"),
    ):  # fmt: skip
        assert other.request(method, where).status_code == 404, where
    body = {"kind": "search", "model": model, "options": {"latency_budget": "50ms"}}
    assert other.post("/api/v1/jobs", json=body).status_code == 404
    assert other.post("/api/v1/jobs", json={**body, "job": job}).status_code == 404
    for where in ("jobs", "models", "calibration", "scenarios", "audit"):
        assert other.get(f"/api/v1/{where}").json()["items"] == []
    # Another project's data, whichever way it is named.
    trace, data = (
        own.post(f"/api/v1/{kind}?name=x", content=b"x").json()["id"]
        for kind in ("scenarios", "calibration")
    )
    theirs = {**body, "model": other.post("/api/v1/models?name=n", content=b"n").json()["id"]}
    for more in ({"arrivals": f"trace:{trace}"}, {"calibration_data": data}):
        named = {**theirs, "options": {"latency_budget": "50ms", **more}}
        assert other.post("/api/v1/jobs", json=named).status_code == 404, more
    for named in ({"kind": "verify", "job": job}, {"kind": "verify", "model": model}):
        assert other.post("/api/v1/jobs", json=named).status_code == 404, named
    assert other.get(f"/compare?job={job}").status_code == 404
    assert other.get(f"/jobs/{job}").status_code == 404
    token = own.get("/api/v1/tokens").json()["items"][0]["id"]
    assert other.delete(f"/api/v1/tokens/{token}").status_code == 404
    assert own.get(f"/api/v1/jobs/{job}").json()["state"] == "QUEUED"


def test_a_scope_allows_what_it_says(service: Service) -> None:
    reader, writer, admin = (
        service.client(service.token("p", scope)) for scope in ("read", "write", "admin")
    )
    job = a_job(writer)
    assert reader.get(f"/api/v1/jobs/{job}").status_code == 200
    for client, method, where in (
        (reader, "POST", f"/api/v1/jobs/{job}/cancel"), (reader, "DELETE", f"/api/v1/jobs/{job}"),
        (reader, "POST", "/api/v1/models?name=m"), (writer, "GET", "/api/v1/tokens"),
        (writer, "POST", "/api/v1/tokens"), (writer, "GET", "/api/v1/audit"),
    ):  # fmt: skip
        answer = client.request(method, where, json={"name": "n"} if method == "POST" else None)
        assert answer.status_code == 403, (method, where, answer.text)
    made = admin.post("/api/v1/tokens", json={"name": "ci", "scope": "read"}).json()
    new = service.client(made["token"])
    assert new.get("/api/v1/jobs").status_code == 200
    assert admin.delete(f"/api/v1/tokens/{made['id']}").status_code == 204
    assert new.get("/api/v1/jobs").status_code == 401, "a revoked token"


def test_no_secret_is_stored_or_told_again(service: Service) -> None:
    admin = service.client(service.token("p", "admin"))
    made = admin.post("/api/v1/tokens", json={"name": "ci"}).json()["token"]
    a_job(service.client(made))
    with service.context.database.reading() as connection:
        stored = [
            str(row)
            for table in (TOKENS, AUDIT, IDEMPOTENCY)
            for row in connection.execute(table.select())
        ]
    assert stored and not any(made in row for row in stored)
    for where in ("tokens", "audit", "jobs"):
        assert made not in admin.get(f"/api/v1/{where}").text
    actions = [entry["action"] for entry in admin.get("/api/v1/audit").json()["items"]]
    assert actions == ["job.create", "model.upload", "token.create"]


def test_no_secret_is_in_the_services_log(
    service: Service, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level(logging.DEBUG):
        secret = service.token("p", "admin")
        client = service.client(secret)
        made = client.post("/api/v1/tokens", json={"name": "ci"}).json()["token"]
        a_job(client)
        browser = service.client(tokens=True)
        browser.post("/api/v1/session", json={"token": secret})
        client.get("/api/v1/jobs", params={"token": secret})
        service.client(f"{secret}x").get("/api/v1/jobs")
        service.client(tokens=True).post("/login", data={"token": f"{made}x"})

        def broken(*_: Any, **__: Any) -> Any:
            raise OSError("no room")

        monkeypatch.setattr(service.context.database, "reading", broken)
        assert client.get("/api/v1/jobs").status_code == 503
    # The client's side of this test logs what it sends.
    own = [one for one in caplog.records if not one.name.startswith(("httpx", "httpcore"))]
    text = "\n".join(map(logging.Formatter().format, own))
    assert "no room" in text
    for word in (secret, made, browser.cookies["tritune_session"]):
        assert word not in text


def test_a_token_is_made_once_under_a_key_and_its_secret_kept_nowhere(service: Service) -> None:
    admin = service.client(service.token("p", "admin"))
    key = {"Idempotency-Key": "a-token"}
    made = admin.post("/api/v1/tokens", json={"name": "ci"}, headers=key)
    assert made.status_code == 201
    again = admin.post("/api/v1/tokens", json={"name": "ci"}, headers=key)
    assert again.status_code == 409 and made.json()["id"] in again.json()["detail"]
    assert made.json()["token"] not in again.text
    other = admin.post("/api/v1/tokens", json={"name": "another"}, headers=key)
    assert other.status_code == 422
    names = [token["name"] for token in admin.get("/api/v1/tokens").json()["items"]]
    assert sorted(names) == ["ci", "p's"]
    with service.context.database.reading() as connection:
        stored = [str(row) for row in connection.execute(IDEMPOTENCY.select())]
    assert stored and made.json()["token"] not in "".join(stored)


def test_a_browser_needs_its_sessions_word_to_change_something(service: Service) -> None:
    browser = service.client(tokens=True)
    secret = service.token("p", "admin")
    begun = browser.post("/api/v1/session", json={"token": secret})
    cookie = begun.headers["set-cookie"]
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
    assert secret not in cookie
    assert browser.get("/api/v1/jobs").status_code == 200
    model = "/api/v1/models?name=m"
    assert browser.post(model, content=b"x").status_code == 403
    wrong = browser.post(model, content=b"x", headers={"X-CSRF-Token": "guess"})
    assert wrong.status_code == 403
    word = {"X-CSRF-Token": browser.get("/api/v1/session").json()["csrf"]}
    assert browser.post(model, content=b"x", headers=word).status_code == 201
    assert browser.delete("/api/v1/session", headers=word).status_code == 204
    assert browser.get("/api/v1/jobs").status_code == 401
    assert browser.post("/api/v1/session", json={"token": "wrong"}).status_code == 401
    actions = [
        entry["action"]
        for entry in service.client(secret).get("/api/v1/audit").json()["items"]
        if entry["action"].startswith("session.")
    ]
    assert actions == ["session.end", "session.begin"]


def test_another_sites_page_changes_nothing(client: httpx.Client) -> None:
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ):
        done = client.post("/api/v1/models?name=m", content=b"x", headers=headers)
        assert done.status_code == 403, headers
        assert client.get("/api/v1/models").json()["items"] == [], headers


def test_a_browser_s_own_word_is_enough_behind_a_proxy_that_changes_the_host(
    service: Service,
) -> None:
    """With nginx's usual Host nobody could log in."""
    client = service.client(tokens=True)
    token = {"token": service.token("default")}
    for site, origin, status in (
        ("same-origin", "https://tritune.example", 303),
        ("none", "https://tritune.example", 403),
        (None, "https://tritune.example", 403),
        ("cross-site", "https://evil.example", 403),
        ("same-site", "https://evil.example", 403),
        ("cross-site", None, 403),
    ):
        headers = {"Sec-Fetch-Site": site, "Origin": origin}
        given = {name: value for name, value in headers.items() if value is not None}
        done = client.post("/login", data=token, headers=given)
        assert done.status_code == status, given


def test_a_name_that_only_leads_to_loopback_is_not_answered(client: httpx.Client) -> None:
    for host in ("evil.example", "evil.example:8040", "[", "127.0.0.1.evil.example"):
        assert client.get("/api/v1/jobs", headers={"Host": host}).status_code == 421
    assert client.get("/api/v1/jobs", headers={"Host": "localhost:1"}).status_code == 200
    for host in ("127.0.0.2:8040", "127.0.0.1", "[::1]:8040"):
        assert client.get("/api/v1/jobs", headers={"Host": host}).status_code == 200, host


def test_limits_are_told_and_kept(service: Service, client: httpx.Client) -> None:
    small = service.client(upload_bytes_max=1000)
    assert small.post("/api/v1/models?name=m", content=b"x" * 1001).status_code == 413

    def pieces() -> Any:
        yield from [b"x" * 600] * 3

    assert small.post("/api/v1/models?name=m", content=pieces()).status_code == 413
    tight = service.client(stored_bytes_max=1500)
    assert tight.post("/api/v1/models?name=a", content=b"a" * 1000).status_code == 201
    full = tight.post("/api/v1/models?name=b", content=b"b" * 1000)
    assert full.status_code == 413 and full.json()["type"].endswith("project_full")
    busy = service.client(open_jobs_max=1)
    job = a_job(busy)
    model = busy.get(f"/api/v1/jobs/{job}").json()["model"]
    body = {"kind": "search", "model": model, "options": {"latency_budget": "50ms"}}
    assert busy.post("/api/v1/jobs", json=body).status_code == 429
    wordy = service.client(body_bytes_max=2000)
    long = {"kind": "search", "options": {"x": "y" * 3000}}
    assert wordy.post("/api/v1/jobs", json=long).status_code == 413
    assert wordy.post("/api/v1/jobs", content=iter([b" " * 900] * 4)).status_code == 413
    folder = service.context.content._incoming
    assert not list(folder.iterdir()), "what was refused is not kept"


def test_what_jobs_leave_counts_among_what_a_project_stores(
    service: Service, client: httpx.Client, working: Any, wait_for: Any, submit: Callable[..., str]
) -> None:
    tight = service.client(stored_bytes_max=20_000)
    job = submit(outcomes=1)
    body = {"kind": "search", "model": tight.get(f"/api/v1/jobs/{job}").json()["model"]}
    body["options"] = {"latency_budget": "50ms"}
    other = tight.post("/api/v1/jobs", json=body)
    assert other.status_code == 201
    # So that the worker does not run it, too, before it ends.
    assert tight.post(f"/api/v1/jobs/{other.json()['id']}/cancel").status_code == 200
    with working():
        assert wait_for(job, "SUCCEEDED")["reason"] is None, "what it left is kept in any case"
    kept = sum(path.stat().st_size for path in service.context.content.root.glob("objects/*/*"))
    stored = tight.get("/api/v1/projects").json()["items"][0]["stored_bytes"]
    assert stored == kept > 20_000
    full = tight.post("/api/v1/jobs", json=body)
    assert full.status_code == 413 and full.json()["type"].endswith("project_full")
    assert tight.post("/api/v1/models?name=b", content=b"b").status_code == 413
    assert tight.delete(f"/api/v1/jobs/{job}").status_code == 204
    assert tight.post("/api/v1/jobs", json=body).status_code == 201


def test_uploads_at_once_keep_the_projects_room(service: Service) -> None:
    tight = service.client(stored_bytes_max=2500)
    everybody = threading.Barrier(8)

    def send(number: int) -> httpx.Response:
        def pieces() -> Iterator[bytes]:
            yield b"%d" % number * 500
            everybody.wait(30)  # each has been told that there is room
            yield b"%d" % number * 500

        return tight.post(f"/api/v1/models?name=m{number}", content=pieces())

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(send, range(8)))
    assert sorted(answer.status_code for answer in answers) == [201] * 2 + [413] * 6
    assert tight.get("/api/v1/projects").json()["items"][0]["stored_bytes"] == 2000
    assert not list(service.context.content._incoming.iterdir())


def slow(client: httpx.Client, path: str, *, drip: bool) -> bytes:
    """What a client is answered that sends a body's beginning, and then nothing or a drip."""
    url = httpx.URL(str(client.base_url))
    with socket.create_connection((str(url.host), int(url.port or 0)), timeout=60) as peer:
        peer.sendall(
            b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n"
            b"Content-Type: application/json\r\n\r\n{" % path.encode()
        )
        peer.settimeout(0.1)
        ends_at = time.monotonic() + 60
        answer = b""
        while b"\r\n\r\n" not in answer:
            assert time.monotonic() < ends_at
            try:
                if not (part := peer.recv(4096)):
                    break
                answer += part
            except TimeoutError:
                if drip:
                    peer.sendall(b" ")
        return answer


@pytest.mark.parametrize("drip", [False, True])
@pytest.mark.parametrize("path", ["/api/v1/models?name=m", "/api/v1/jobs"])
def test_a_body_that_does_not_come_is_not_waited_for(
    service: Service, client: httpx.Client, monkeypatch: pytest.MonkeyPatch, path: str, drip: bool
) -> None:
    monkeypatch.setattr(routes_uploads, "_SILENCE_S", 0.5)
    monkeypatch.setattr(guard, "_BODY_S", 0.5)
    assert slow(client, path, drip=drip).startswith(b"HTTP/1.1 408")
    assert not list(service.context.content._incoming.iterdir())
    assert client.get("/api/v1/models").json()["items"] == []


def test_names_that_lead_elsewhere_are_refused(client: httpx.Client) -> None:
    for name in ("../x", "/etc/passwd", "a/b", ".", "..", "", "-x", "a\x00b", "x" * 200, "ü"):
        answer = client.post("/api/v1/models", params={"name": name}, content=b"x")
        assert answer.status_code == 422, name


def said_to(client: httpx.Client, request: bytes) -> tuple[int, str, dict[str, Any]]:
    """Status, media type and document of the answer to these bytes."""
    url = httpx.URL(str(client.base_url))
    with socket.create_connection((str(url.host), int(url.port or 0)), timeout=30) as peer:
        # What is left unread at the end of a connection may cost the answer: little at a time.
        peer.sendall(request[:-400])
        time.sleep(0.1)
        peer.sendall(request[-400:])
        answer = b""
        while part := peer.recv(4096):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.decode().lower().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines[1:])
    assert int(headers["content-length"]) == len(body)
    return int(lines[0].split()[1]), headers["content-type"], json.loads(body)


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"what is this?\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX:", 408),
        (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: %s\r\n\r\n" % (b"a" * 65_700), 431),
        (b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", 500),
    ],
)
def test_what_the_server_itself_refuses_is_a_problem_document(
    service: Service, monkeypatch: pytest.MonkeyPatch, request_: bytes, status: int
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(api, "Limits", partial(Limits, header_timeout_s=0.5))
    monkeypatch.setattr(Metrics, "text", broken)
    found, media_type, document = said_to(service.client(), request_)
    assert (found, media_type) == (status, "application/problem+json")
    assert document["status"] == status and document["title"] and document["detail"]
    assert "secret" not in str(document)


def test_a_flood_of_headers_is_cut_off(client: httpx.Client) -> None:
    url = httpx.URL(str(client.base_url))
    with socket.create_connection((str(url.host), int(url.port or 0)), timeout=20) as flood:
        flood.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
        answer = b""
        try:
            for number in range(4000):
                flood.sendall(b"X-%d: %s\r\n" % (number, b"y" * 50))
        except (BrokenPipeError, ConnectionResetError):
            pass
        else:
            answer = flood.recv(100)
        assert not answer or b"431" in answer or b"400" in answer
    assert client.get("/healthz").status_code == 200


def test_stored_html_is_not_served_as_html(
    service: Service, client: httpx.Client, wait_for: Any, working: Any, submit: Callable[..., str]
) -> None:
    hostile = "<script>alert(1)</script>"
    job = submit(exit=2, error={"code": "x", "message": hostile, "hint": hostile}, say=hostile)
    with working():
        wait_for(job, "FAILED")
    for way in ("", "/log", "/trials"):
        answer = client.get(f"/api/v1/jobs/{job}{way}")
        assert not answer.headers["content-type"].startswith("text/html")
        assert answer.headers["x-content-type-options"] == "nosniff"
    for way in ("/", f"/jobs/{job}"):
        page = client.get(way)
        assert page.status_code == 200 and hostile not in page.text
        assert "script-src 'self';" in page.headers["content-security-policy"]
    assert json.loads(client.get(f"/api/v1/jobs/{job}").text)["message"] == hostile
