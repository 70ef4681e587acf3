"""The API: errors, idempotency, options, pages, the event stream."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import numpy as np
import pytest
from page_example import Example
from sqlalchemy import update

from analyzer.cli.search import search
from analyzer.cli.verify import verify
from analyzer.errors import StoreError
from analyzer.service import jobs
from analyzer.service.limits import ServiceLimits
from analyzer.service.options import TABLES, WHY_NOT, check_options
from analyzer.service.problems import Problem
from analyzer.service.schema import IDEMPOTENCY

Upload = Callable[..., str]
Submit = Callable[..., str]
BUDGET = {"latency_budget": "50ms"}


def test_every_option_of_the_commands_is_taken_or_refused_with_a_reason() -> None:
    # What a client does by itself, or what is not about the search.
    own = {"json", "verbose", "quiet", "help", "service"}
    for kind, command in (("search", search), ("verify", verify)):
        there = {
            option.lstrip("-").replace("-", "_")
            for parameter in command.params
            for option in parameter.opts
            if option.startswith("--")
        }
        assert set(TABLES[kind]) <= there
        assert there - set(TABLES[kind]) - own <= set(WHY_NOT), "say why it is not taken"


WRONG_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({}, "/options"),
    ({"latency_budget": "50"}, "/options/latency_budget"),
    ({"latency_budget": 50}, "/options/latency_budget"),
    ({**BUDGET, "budget": "100h"}, "/options/budget"),
    ({**BUDGET, "store": "sqlite:////etc/passwd"}, "/options/store"),
    ({**BUDGET, "space": "/etc/passwd"}, "/options/space"),
    ({**BUDGET, "arrivals": "trace:/etc/passwd"}, "/options/arrivals"),
    ({**BUDGET, "server": "http://169.254.169.254/"}, "/options/server"),
    ({**BUDGET, "server": "grpc://localhost:1"}, "/options/server"),
    ({**BUDGET, "ray_address": "10.0.0.1:6379"}, "/options/ray_address"),
    ({**BUDGET, "calibration_data": "../x.npz"}, "/options/calibration_data"),
    ({**BUDGET, "study": "../../x"}, "/options/study"),
    ({**BUDGET, "seed": True}, "/options/seed"),
    ({**BUDGET, "price": {"a": 1}}, "/options/price"),
    ({**BUDGET, "max_trials": 10**9}, "/options/max_trials"),
    ({**BUDGET, "--export": "/tmp"}, "/options/--export"),
    ({**BUDGET, "a/b~c": 1}, "/options/a~1b~0c"),
    ({**BUDGET, "seed": "9" * 400}, "/options/seed"),
    ({**BUDGET, "max_trials": "9" * 400}, "/options/max_trials"),
    ({**BUDGET, "percentile": "nan"}, "/options/percentile"),
    ({**BUDGET, "percentile": "0.99"}, "/options/percentile"),
    ({**BUDGET, "percentile": "99.99999999999"}, "/options/percentile"),
    ({**BUDGET, "workers": 2, "device": "cpu"}, "/options/workers"),
    ({**BUDGET, "space": "gpu", "device": "cpu"}, "/options/space"),
    ({**BUDGET, "precisions": "fp8,bf16", "device": "cpu"}, "/options/precisions"),
    ({**BUDGET, "input_shape": "x:0"}, "/options/input_shape"),
    ({**BUDGET, "max_memory": "0MiB"}, "/options/max_memory"),
    ({"latency_budget": "0ms"}, "/options/latency_budget"),
    ({**BUDGET, "input_shape": ["x:8", "x:9"]}, "/options/input_shape"),
    ({**BUDGET, "objective": "latency"}, "/options/objective"),
    ({**BUDGET, "instance_type": "nowhere.large"}, "/options/instance_type"),
    ({**BUDGET, "executor": "in-process", "workers": 2}, "/options/workers"),
]


@pytest.mark.sqlite_alone
def test_a_wrong_option_is_named(client: httpx.Client, upload: Upload) -> None:
    model = upload()
    for options, pointer in WRONG_OPTIONS:
        body = {"kind": "search", "model": model, "options": options}
        done = client.post("/api/v1/jobs", json=body)
        assert done.status_code == 422, (options, done.text)
        assert done.headers["content-type"] == "application/problem+json"
        assert done.json()["pointer"] == pointer and done.json()["status"] == 422, options
        assert client.get("/api/v1/jobs").json()["items"] == [], options


@pytest.mark.parametrize(
    ("value", "detail"),
    [
        ({"budget": None}, "The option budget is null; leave it out for its default."),
        ({"price": {"a": 1}}, "The option price is neither text nor a number."),
        ({"export": "/tmp"}, "The option export: '/tmp' is in no store that is known here."),
    ],
)
def test_what_is_wrong_with_an_option_is_said_once(value: Any, detail: str) -> None:
    with pytest.raises(Problem) as caught:
        check_options("search", BUDGET | value, ServiceLimits())
    assert caught.value.detail == detail


def test_a_body_that_is_no_object_is_meant_as_a_whole(client: httpx.Client) -> None:
    """The JSON pointer to a whole document is empty: "/" is its member with the empty name."""
    told = client.post("/api/v1/jobs", json=[1]).json()
    assert told["pointer"] == "" and told["detail"].startswith("The body: Input should be")
    told = client.post("/api/v1/jobs", json={"kind": "other"}).json()
    assert told["pointer"] == "/kind" and told["detail"].startswith("body kind: ")


def test_errors_are_problems(client: httpx.Client) -> None:
    for response, status in (
        (client.get("/api/v1/jobs/" + "0" * 32), 404),
        (client.get("/api/v1/jobs/no-such-id"), 404),
        (client.get(f"/api/v1/jobs/{'0' * 32}/artifacts/foo"), 404),
        (client.get("/api/v1/jobs/../../etc/passwd"), 404),
        (client.get("/nowhere"), 404),
        (client.put("/api/v1/jobs"), 405),
        (client.post("/api/v1/jobs", content=b"{"), 422),
        (client.post("/api/v1/jobs", json={"kind": "other"}), 422),
        (client.get("/api/v1/jobs?limit=0"), 422),
        (client.get("/api/v1/jobs?cursor=" + "9" * 30), 422),
    ):
        assert response.status_code == status, response.text
        assert response.headers["content-type"] == "application/problem+json"
        assert {"type", "title", "status", "detail"} <= response.json().keys()


def test_a_key_makes_one_job_however_often_it_is_sent(client: httpx.Client, upload: Upload) -> None:
    body = {"kind": "search", "model": upload(), "options": BUDGET}
    answers: list[httpx.Response] = []
    key = {"Idempotency-Key": "a-key"}

    def send() -> None:
        answers.append(client.post("/api/v1/jobs", json=body, headers=key))

    threads = [threading.Thread(target=send) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Those that came while the first was being done are told so.
    assert {answer.status_code for answer in answers} <= {201, 409}
    send()
    made = {answer.json()["id"] for answer in answers if answer.status_code == 201}
    assert len(made) == 1 and answers[-1].headers["location"].endswith(made.pop())
    assert len(client.get("/api/v1/jobs").json()["items"]) == 1
    other = client.post("/api/v1/jobs", json={**body, "kind": "verify"}, headers=key)
    assert other.status_code == 422 and other.json()["type"].endswith("idempotency_key_reused")


def test_the_key_of_a_creation_that_failed_is_free(
    client: httpx.Client, upload: Upload, database: Any
) -> None:
    key = {"Idempotency-Key": "k"}
    body = {"kind": "search", "model": "0" * 64, "options": BUDGET}
    assert client.post("/api/v1/jobs", json=body, headers=key).status_code == 404
    body["model"] = upload()
    assert client.post("/api/v1/jobs", json=body, headers=key).status_code == 201
    # So versions before this one left a key whose process was killed.
    with database.writing() as connection:
        connection.execute(update(IDEMPOTENCY).values(status=None, response=None))
    made = client.post("/api/v1/jobs", json=body, headers=key)
    assert made.status_code == 201
    assert client.post("/api/v1/jobs", json=body, headers=key).json() == made.json()


def test_jobs_are_listed_page_by_page(client: httpx.Client, submit: Submit) -> None:
    made = [submit() for _ in range(5)]
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = client.get("/api/v1/jobs", params={"limit": 2, **cursor}).json()
        found += [job["id"] for job in page["items"]]
        if page["next"] is None:
            break
        cursor = {"cursor": page["next"]}
    assert found == made[::-1]
    assert len(client.get("/api/v1/jobs?state=QUEUED").json()["items"]) == 5
    assert client.get("/api/v1/jobs?state=FAILED").json()["items"] == []


def test_a_stream_goes_on_behind_the_last_event(
    client: httpx.Client, submit: Submit, database: Any
) -> None:
    job = submit()
    path = f"/api/v1/jobs/{job}/events"
    with database.writing() as connection:
        row = jobs.get_job(connection, "default", job)
        jobs.add_events(connection, row.number, 1, [("log", {"text": f"{n}"}) for n in range(600)])
    numbers = []
    with client.stream("GET", path, headers={"Last-Event-ID": "7"}) as stream:
        for line in stream.iter_lines():
            if line.startswith("id: "):
                numbers.append(int(line[4:]))
            if len(numbers) == 594:
                break
    assert numbers == list(range(8, 602))
    assert client.post(f"/api/v1/jobs/{job}/cancel").json()["state"] == "CANCELLED"
    text = client.get(path, headers={"Last-Event-ID": "601"}).text
    assert "id: 602" in text and "CANCELLED" in text and text.count("event: ") == 1
    assert client.get(path, headers={"Last-Event-ID": "602"}).status_code == 204
    assert client.get(path, headers={"Last-Event-ID": "x"}).status_code == 422


def test_a_terminal_job_is_final_and_can_be_deleted(client: httpx.Client, submit: Submit) -> None:
    job = submit()
    path = f"/api/v1/jobs/{job}"
    assert client.delete(path).status_code == 409
    assert client.post(f"{path}/pause").json()["state"] == "PAUSED"
    assert client.post(f"{path}/resume").json()["state"] == "QUEUED"
    assert client.post(f"{path}/cancel").json()["state"] == "CANCELLED"
    assert client.post(f"{path}/cancel").json()["state"] == "CANCELLED", "asked for already"
    for word in ("pause", "resume"):
        assert client.post(f"{path}/{word}").status_code == 409
    clone = client.post(f"{path}/clone").json()
    assert clone["state"] == "QUEUED" and clone["id"] != job
    assert client.delete(path).status_code == 204
    for way in ("", "/trials", "/log", "/events", "/result", "/artifacts/report.html"):
        assert client.get(path + way).status_code == 404


def test_health_metrics_and_the_document(client: httpx.Client, submit: Submit) -> None:
    submit()
    assert client.get("/healthz").text == "ok\n"
    assert client.get("/readyz").json() == {"ready": True}
    text = client.get("/metrics").text
    assert 'tritune_service_jobs{state="QUEUED"} 1.0' in text
    assert 'route="/api/v1/jobs",status="201"' in text
    document = client.get("/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    assert "/api/v1/jobs/{job}/artifacts/{name}" in document["paths"]
    names = [one["operationId"] for path in document["paths"].values() for one in path.values()]
    assert len(names) == len(set(names)) and {"upload_model", "job_create", "workers"} <= {*names}
    assert max(map(len, names)) < 25, "a generated client calls them so"
    assert client.get("/").status_code == 200


def test_a_service_without_its_database_says_so_and_no_more(
    service: Any, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def away() -> Iterator[None]:
        raise StoreError("The database postgresql://inside:5432/x does not answer.")
        yield

    monkeypatch.setattr(service.context.database, "reading", away)
    for path in ("/readyz", "/metrics", "/api/v1/jobs"):
        answer = client.get(path)
        assert answer.status_code == 503, path
        assert answer.headers["content-type"] == "application/problem+json"
        assert "inside" not in answer.text
    assert client.get("/healthz").status_code == 200


def test_a_process_answers_while_its_database_does_not(
    service: Any, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its health waited for a thread like everything else, and it was started anew."""
    asking, go_on = threading.Semaphore(0), threading.Event()
    reading = service.context.database.reading

    @contextmanager
    def stuck() -> Iterator[Any]:
        asking.release()
        assert go_on.wait(60)
        with reading() as connection:
            yield connection

    monkeypatch.setattr(service.context.database, "reading", stuck)
    with ThreadPoolExecutor(60) as pool:  # more than there are threads for requests
        asked = [pool.submit(client.get, "/readyz", timeout=60) for _ in range(60)]
        try:
            for _ in range(40):
                assert asking.acquire(timeout=30)
            assert client.get("/healthz", timeout=5).text == "ok\n"
        finally:
            go_on.set()
        assert {one.result().status_code for one in asked} == {200}


@pytest.mark.parametrize("option", [{"latency_budget": "0ms"}, {"max_memory": "0B"}])
def test_limits_of_nothing_are_refused_as_on_the_command_line(option: dict[str, str]) -> None:
    with pytest.raises(Problem, match="It must be above 0"):
        check_options("search", {**BUDGET, **option}, ServiceLimits())


def test_a_search_has_a_bound_on_its_trials_whatever_is_asked() -> None:
    limits = ServiceLimits(trials_max=7)
    assert "--max-trials=7" in check_options("search", BUDGET, limits).arguments
    asked = check_options("search", {**BUDGET, "max_trials": 3}, limits).arguments
    assert [word for word in asked if "trials" in word] == ["--max-trials=3"]
    assert not [word for word in check_options("verify", {}, limits).arguments if "trials" in word]


def test_a_deleted_upload_can_come_again_under_the_same_key(client: httpx.Client) -> None:
    data = io.BytesIO()
    np.savez(data, x=np.zeros((4, 3), np.float32))
    key = {"Idempotency-Key": "an-upload"}

    def send() -> httpx.Response:
        return client.post("/api/v1/calibration?name=x", content=data.getvalue(), headers=key)

    first = send()
    assert first.status_code == 201 and send().json() == first.json()
    path = f"/api/v1/calibration/{first.json()['id']}"
    assert client.delete(path).status_code == 204
    assert client.get(path).status_code == 404
    assert send().status_code == 201
    assert client.get(path).status_code == 200


def test_a_method_that_a_path_does_not_take_is_answered_with_those_that_it_takes(
    client: httpx.Client,
) -> None:
    for path, allowed in (
        ("/", "GET, HEAD"), ("/jobs/new", "GET, HEAD, POST"),
        ("/api/v1/models", "GET, HEAD, POST"), ("/api/v1/jobs/x/cancel", "POST"),
        (f"/api/v1/jobs/{'0' * 32}", "DELETE, GET, HEAD"), ("/healthz", "GET, HEAD"),
    ):  # fmt: skip
        done = client.put(path)
        assert (done.status_code, done.headers["allow"]) == (405, allowed), path


def test_head_is_answered_as_get_without_the_body(client: httpx.Client, service: Any) -> None:
    job = Example(service.context).ended(result={"verdict": "found"})
    paths = (
        "/", "/healthz", "/readyz", "/openapi.json", "/nowhere", f"/jobs/{job}", "/jobs/new",
        "/api/v1/jobs", f"/api/v1/jobs/{job}", f"/api/v1/jobs/{'0' * 32}", "/api/v1/jobs?limit=0",
        f"/api/v1/jobs/{job}/log", f"/api/v1/jobs/{job}/artifacts/report.html",
        f"/api/v1/jobs/{job}/artifacts/manifest.json",
    )  # fmt: skip
    for path in paths:
        got, asked = client.get(path), client.head(path)
        told = [
            {name: value for name, value in answer.headers.items() if name != "date"}
            for answer in (got, asked)
        ]
        assert (asked.status_code, asked.content) == (got.status_code, b""), path
        assert told[0] == told[1] and int(told[1]["content-length"]) == len(got.content), path
    scraped = client.head("/metrics")
    assert (scraped.status_code, scraped.content) == (200, b"")
    counted = 'requests_total{method="HEAD",route="/api/v1/jobs/{job}",status="200"} 1.0'
    assert counted in client.get("/metrics").text
    assert client.head("/api/v1/jobs/x/cancel").status_code == 405


def test_head_of_a_stream_ends_at_once(client: httpx.Client, service: Any) -> None:
    job = Example(service.context).running().id
    for path in (f"/api/v1/jobs/{job}/events", "/stream"):
        asked = client.head(path, timeout=5)
        assert asked.status_code == 200 and asked.content == b"", path
        assert asked.headers["content-type"].startswith("text/event-stream"), path
    assert client.get("/healthz").text == "ok\n"  # over the same connection
    deadline = time.monotonic() + 5
    while service.context.hub.streams and time.monotonic() < deadline:
        time.sleep(0.02)
    assert service.context.hub.streams == 0


def test_there_is_no_file_of_another_name(client: httpx.Client) -> None:
    told = client.get(f"/api/v1/jobs/{'0' * 32}/artifacts/foo").json()["detail"]
    assert told == "There is no file of that name."
