"""Pages over HTTP: what they show, what they let through, what they refuse."""

from __future__ import annotations

import html
import json
import re
import shlex
from dataclasses import replace
from typing import Any

import httpx
import jinja2
import pytest
from facts_example import example_facts, infeasible_facts
from page_example import TRIALS_EXAMPLE, Example, trial
from sqlalchemy import select

from analyzer.cli.search import search
from analyzer.report.document import build_document
from analyzer.report.entries import make_report
from analyzer.report.summary import summarize
from analyzer.service import jobs
from analyzer.service.auth import ensure_project
from analyzer.service.event_stream import EventHub
from analyzer.service.pages import render
from analyzer.service.schema import OBJECTS
from analyzer.service.states import Change

FOUND = build_document(make_report(example_facts()))
INFEASIBLE = build_document(make_report(infeasible_facts()))
EVIL = "</script><img src=x onerror=alert(1)>'\"><b>"

pytestmark = pytest.mark.sqlite_alone


@pytest.fixture
def example(service: Any) -> Example:
    return Example(service.context)


def test_the_list_shows_jobs_and_renews_only_what_changed(
    client: httpx.Client, example: Example
) -> None:
    empty = client.get("/").text
    assert "No job yet" in empty
    failed = example.ended("resnet", change=Change.FAIL, ending={"message": "It is no ONNX file."})
    example.running("whisper", phase="measuring edges")
    shown = client.get("/").text
    assert f'href="/jobs/{failed}"' in shown and "It is no ONNX file." in shown
    assert "measuring edges" in shown
    address = shown.partition('hx-get="')[2].partition('"')[0]
    part = {"HX-Request": "true"}
    assert client.get(address, headers=part).status_code == 204
    example.queued("yolo")
    renewed = client.get(address, headers=part)
    assert "yolo" in renewed.text and "<html" not in renewed.text
    assert "yolo" not in client.get("/?state=FAILED").text
    # As the filter sends it for all of them.
    everything = client.get("/?state=")
    assert everything.status_code == 200 and "yolo" in everything.text
    assert "resnet" in everything.text and "state=" not in everything.text.partition("hx-get")[2]
    assert client.get("/?state=NONE").status_code == 404


def test_the_list_goes_on_behind_a_page_of_jobs(client: httpx.Client, example: Example) -> None:
    for number in range(51):
        example.queued(f"m{number}")
    first = client.get("/").text
    assert ">m50<" in first and ">m0<" not in first
    older = first.partition('href="/?cursor=')[2].partition('"')[0]
    assert ">m0<" in client.get(f"/?cursor={older}").text


def test_a_job_shows_its_answer_first(client: httpx.Client, example: Example) -> None:
    job = example.ended(result=FOUND, target_rate="2000/s")
    shown = client.get(f"/jobs/{job}").text
    order = [
        "digits carries 556 /s", "Certified rate", "Against Triton&#39;s default", "Cost",
        "repository.tar", "<svg", "It needed 9 GiB.", "inspecting the model", "<mark>",
        "analyze search digits.onnx",
    ]  # fmt: skip
    places = [shown.find(text) for text in order]
    assert -1 not in places and places == sorted(places), dict(zip(order, places, strict=True))
    assert "--target-rate=2000/s" in shown and "budget 50 ms" in shown
    assert "hx-get" not in shown


def test_the_command_that_a_page_shows_is_one_with_the_same_seed(
    client: httpx.Client, example: Example
) -> None:
    found = FOUND | {"provenance": {"seeds": {"study": 17, "drawn": True}}}
    options = {"input_shape": ["x:3,4"], "precisions": ["fp32", "int8"], "force": True}
    job = example.ended(result=found, export="s3://bucket/models", **options)
    shown = client.get(f"/jobs/{job}").text
    command = shown.partition('<pre class="command">')[2].partition("</pre>")[0]
    words = shlex.split(html.unescape(command))
    assert words[:2] == ["analyze", "search"]
    values = search.make_context("search", words[2:]).params
    assert values["seed"] == 17 and values["force"] and values["precisions"] == ("fp32", "int8")


def test_what_a_page_could_not_read_is_in_the_log(
    client: httpx.Client, example: Example, caplog: pytest.LogCaptureFixture
) -> None:
    job = example.ended(result=FOUND)
    with example.context.database.reading() as connection:
        for sha256 in connection.execute(select(OBJECTS.c.sha256)).scalars():
            example.context.content.remove(sha256)
    assert client.get(f"/jobs/{job}").status_code == 503
    assert "has lost the content" in caplog.text


def test_a_job_that_found_nothing_shows_what_came_closest(
    client: httpx.Client, example: Example
) -> None:
    answer = summarize(make_report(infeasible_facts()))
    told = {"message": f"{answer.title}.\n{answer.subtitle}"}
    shown = client.get(f"/jobs/{example.ended(result=INFEASIBLE, ending=told)}").text
    assert "<h1>No configuration of digits keeps 99 % of requests within" in shown
    assert shown.count("No configuration of digits keeps") == 1  # not said twice
    assert "Closest" in shown


def test_a_promise_that_something_keeps_is_not_denied(
    client: httpx.Client, example: Example
) -> None:
    """With int8 alone allowed, and left out for its accuracy, the verdict is "infeasible" too."""
    answer = summarize(make_report(replace(infeasible_facts(), recommendable=())))
    assert answer.title.startswith("No variant of digits that is allowed may be recommended: ")
    told = {"message": f"{answer.title}.\n{answer.subtitle}"}
    shown = client.get(f"/jobs/{example.ended(result=INFEASIBLE, ending=told)}").text
    assert f"<h1>{answer.title}</h1>" in shown and "No configuration" not in shown
    # Where the study's words are not there, no reason is made up.
    untold = client.get(f"/jobs/{example.ended(result=INFEASIBLE)}").text
    assert "<h1>digits: infeasible</h1>" in untold and "No configuration" not in untold


def test_why_nothing_is_proven_and_what_helps_is_shown(
    client: httpx.Client, example: Example
) -> None:
    told = {"message": "Undecided: it needs more.", "hint": "Give it more time:"}
    job = example.ended(result=INFEASIBLE | {"verdict": "undecided"}, ending=told)
    shown = client.get(f"/jobs/{job}").text
    assert "<p>Undecided: it needs more.</p>" in shown and "<p>Give it more time:</p>" in shown
    assert "edge when measured" in shown and "over all the speeds" in shown


def test_why_it_failed_is_the_first_thing_seen(client: httpx.Client, example: Example) -> None:
    ending = {
        "reason": "model", "message": "It is no ONNX file.", "hint": "Export it again.",
        "failing_trial": json.dumps(TRIALS_EXAMPLE[-1]), "log_tail": "the last words",
    }  # fmt: skip
    shown = client.get(f"/jobs/{example.ended(change=Change.FAIL, ending=ending)}").text
    places = [
        shown.find(text) for text in ("It is no ONNX", "Export it", "It needed", "last words")
    ]
    assert -1 not in places and places == sorted(places)
    assert places[-1] < shown.find("<h2>")


def test_a_running_job_is_renewed_when_something_happened(
    client: httpx.Client, example: Example
) -> None:
    claim = example.running(trials=())
    shown = client.get(f"/jobs/{claim.id}").text
    address = shown.partition('hx-get="')[2].partition('"')[0]
    assert "<svg" not in shown
    assert client.get(address).status_code == 204
    example.measure(claim, [trial(1)])
    renewed = client.get(address)
    assert "<svg" in renewed.text and "<html" not in renewed.text
    assert 'id="ask-pause"' in renewed.text and 'id="ask-resume"' not in renewed.text
    with example.context.database.writing() as connection:
        jobs.ask(connection, "default", claim.id, Change.PAUSE, actor="ann")
    with example.queue.writing(claim) as connection:
        example.queue.finish(connection, claim, Change.STOP, {})
    renewed = client.get(address)
    assert 'id="ask-resume"' in renewed.text and 'id="ask-pause"' not in renewed.text
    with example.context.database.writing() as connection:
        jobs.ask(connection, "default", claim.id, Change.RESUME, actor="ann")
    claim = example.queue.claim() or claim
    with example.queue.writing(claim) as connection:
        example.queue.finish(connection, claim, Change.SUCCEED, {"verdict": "found"})
    assert client.get(address).headers["HX-Refresh"] == "true"


def test_pages_are_of_use_without_scripts(client: httpx.Client, example: Example) -> None:
    ended, running = example.ended(result=FOUND), example.running().id
    renewed = '<noscript><meta http-equiv="refresh"'
    for address in ("/", f"/jobs/{running}", "/workers"):
        assert renewed in client.get(address).text, address
    assert renewed not in client.get(f"/jobs/{ended}").text
    for address in (f"/jobs/{running}", f"/jobs/{ended}", "/jobs/new"):
        page = client.get(address).text
        forms = re.findall(r"<form[^>]*>", page)
        assert forms and all("action=" in form or "/new" in address for form in forms), forms
        assert "onclick" not in page and 'href="#"' not in page
    # Scripts are loaded beside the page, not before it.
    assert all("defer" in tag for tag in re.findall(r"<script[^>]*>", client.get("/").text))


@pytest.mark.parametrize(
    "document",
    [
        {"verdict": "found"},
        {"verdict": "found", "recommendation": {"config": {"precision": EVIL}}},
        {"verdict": "found", "recommendation": {"config": 3}},
        {"verdict": EVIL, "pareto": "x"},
        FOUND | {"model": {"name": "m", "inputs": [{"name": "", "datatype": "FP32", "shape": []}]}},
        FOUND | {"provenance": {"seeds": 5}, "sla": {"percentile": 0}},
    ],
)
def test_a_result_of_another_shape_is_no_error(
    client: httpx.Client, example: Example, document: Any
) -> None:
    done = client.get(f"/jobs/{example.ended(result=document)}")
    assert done.status_code == 200
    assert EVIL not in done.text


def test_a_trial_of_another_shape_is_left_out(client: httpx.Client, example: Example) -> None:
    odd = [trial(1, edge_rps="<b>"), trial(2, variant=None), trial(3, edge_rps=1e-320), trial(4)]
    done = client.get(f"/jobs/{example.running(trials=odd).id}")
    assert done.status_code == 200
    assert f"{4:012x}" in done.text and f"{1:012x}" not in done.text


def evil_result() -> Any:
    """A result whose every text is markup."""

    def poisoned(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: poisoned(item) for key, item in value.items()}
        if isinstance(value, list):
            return [poisoned(item) for item in value]
        return EVIL if isinstance(value, str) else value

    found = poisoned(FOUND)
    found["warnings"] = [EVIL]
    return found


def test_stored_markup_stays_text_on_every_page(client: httpx.Client, example: Example) -> None:
    evil_trial = trial(
        1, variant=EVIL, state="failed", reason=EVIL, message=EVIL, config_id=EVIL, role=EVIL,
        certificate=EVIL,
    )  # fmt: skip
    trials = [evil_trial, trial(2, variant=EVIL, config_id=EVIL)]
    columns = {
        "reason": EVIL, "message": EVIL, "hint": EVIL, "log_tail": EVIL,
        "failing_trial": json.dumps(evil_trial),
    }  # fmt: skip
    stored = {"trials": trials, "log": EVIL, "phase": EVIL, "actor": EVIL, "study": EVIL}
    made = [
        example.ended(EVIL, change=Change.FAIL, ending=columns, **stored),
        example.ended(EVIL, result=evil_result(), ending={"verdict": EVIL[:16]}, **stored),
        example.running(EVIL, **stored).id,
    ]
    for address in ("/", *(f"/jobs/{job}" for job in made), f"/jobs/{made[-1]}/live?seen=0"):
        done = client.get(address)
        assert done.status_code == 200
        assert "onerror" in done.text
        assert (
            "<img" not in done.text
            and "<b>" not in done.text
            and "</script><" not in (done.text.replace("></script>", ""))
        ), address


def test_every_page_forbids_what_is_not_its_own(client: httpx.Client, example: Example) -> None:
    for address in ("/", f"/jobs/{example.running().id}", "/jobs/nothing"):
        done = client.get(address)
        policy = done.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert done.headers["Cache-Control"] == "no-store"
        assert "<script>" not in done.text and " style=" not in done.text
        assert "http://" not in done.text and "https://" not in done.text


def test_what_is_not_there_is_told_as_a_page(client: httpx.Client) -> None:
    done = client.get(f"/jobs/{'0' * 32}")
    assert done.status_code == 404 and "<h1>There is no job" in done.text
    assert client.get("/jobs/nothing").status_code == 404


def test_another_projects_job_is_not_there(service: Any, client: httpx.Client) -> None:
    other = service.context
    with other.database.writing() as connection:
        ensure_project(connection, "other")
    job = Example(other, project="other").running("secret").id
    for address in (f"/jobs/{job}", f"/jobs/{job}/live?seen=0"):
        assert client.get(address).status_code == 404
    assert "secret" not in client.get("/").text


def test_files_beside_pages_are_kept_by_their_hash(client: httpx.Client) -> None:
    shown = client.get("/").text
    address = shown.partition('src="')[2].partition('"')[0]
    done = client.get(address)
    assert done.status_code == 200 and "immutable" in done.headers["Cache-Control"]
    assert client.get(address.replace("htmx.js", "page.css")).status_code == 404
    assert client.get("/static/0/..%2f..%2freport.css").status_code == 404


def test_a_stream_tells_that_something_of_the_project_changed(
    service: Any, client: httpx.Client, example: Example
) -> None:
    with service.context.database.writing() as connection:
        ensure_project(connection, "other")
    elsewhere = Example(service.context, project="other")
    claim = example.running("whisper")
    with client.stream("GET", "/stream") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        lines = filter(None, stream.iter_lines())
        assert next(lines).startswith("retry:")
        assert next(lines) == "event: news"  # what is there when it begins
        assert next(lines) == "data: {}"
        with client.stream("GET", "/stream") as another:
            begins = filter(None, another.iter_lines())
            assert next(begins).startswith("retry:") and next(begins) == "event: news"
        hub = service.context.hub
        before = hub._look(["default"], ())
        elsewhere.queued("theirs")
        assert hub._look(["default"], ()) == before, "another project's job is no news"
        example.queue.say(claim, [("phase", {"phase": "certifying"})])
        assert (next(lines), next(lines)) == ("event: news", "data: {}")
    assert "theirs" not in client.get("/").text
    url = service.serve(hub=EventHub(service.context.database, 0))
    assert httpx.get(f"{url}/stream").status_code == 503


def test_events_begin_where_a_browser_was_told(client: httpx.Client, example: Example) -> None:
    job = example.ended("digits", result=FOUND)
    path = f"/api/v1/jobs/{job}/events"
    numbers = [line for line in client.get(path).text.splitlines() if line.startswith("id: ")]
    told = client.get(f"{path}?after=1").text
    assert [line for line in told.splitlines() if line.startswith("id: ")] == numbers[1:]
    assert client.get(f"{path}?after={len(numbers)}").status_code == 204
    assert client.get(f"{path}?after=-1").status_code == 422


def test_templates_that_were_loaded_are_not_compiled_for_a_visitor(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    render.load_templates()

    def compile_(*_: Any, **__: Any) -> Any:
        raise AssertionError("a template is compiled")

    monkeypatch.setattr(jinja2.Environment, "compile", compile_)
    for page in ("/", "/jobs/new", "/workers", "/tokens"):
        assert client.get(page).status_code == 200
