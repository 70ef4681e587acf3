"""Pages in a real headless Chromium: quiet, fast, narrow and wide, by keyboard, and with axe."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import Browser, Page, chromium_browser, find_chromium, new_page
from facts_example import example_facts
from page_example import TRIALS_EXAMPLE, Example, trial

from analyzer.report.document import build_document
from analyzer.report.entries import make_report
from analyzer.resources import tool_homes
from analyzer.service.event_stream import EventHub
from analyzer.service.states import Change

pytestmark = [pytest.mark.browser, pytest.mark.sqlite_alone]

FOUND = build_document(make_report(example_facts()))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        pytest.skip("Chromium is not installed (Debian's package: chromium)")
    with chromium_browser(program) as started:
        yield started


@pytest.fixture
def page(browser: Browser, service: Any) -> Iterator[Page]:
    """A tab that is gone before the service, which waits for its streams."""
    with new_page(browser) as opened:
        yield opened


@pytest.fixture
def example(service: Any) -> Example:
    return Example(service.context)


@pytest.fixture
def addresses(client: Any, example: Example) -> dict[str, str]:
    """Each page with something on it."""
    failing = {
        "reason": "model", "message": "It is no ONNX file.", "hint": "Export it again.",
        "failing_trial": json.dumps(TRIALS_EXAMPLE[-1]), "log_tail": "the last words",
    }  # fmt: skip
    long = "a-model-with-a-very-long-name-that-no-telephone-shows-on-one-line-" * 2
    found = example.ended(long, result=FOUND, target_rate="2000/s")
    failed = example.ended("resnet", change=Change.FAIL, ending=failing)
    running = example.running("whisper", log="x" * 300).id
    base = str(client.base_url).rstrip("/")
    paths = {
        "list": "/", "found": f"/jobs/{found}", "failed": f"/jobs/{failed}",
        "running": f"/jobs/{running}", "new": "/jobs/new", "workers": "/workers",
        "tokens": "/tokens", "compare": f"/compare?job={found}&job={failed}", "none": "/jobs/none",
        "login": "/login",
    }  # fmt: skip
    return {name: base + path for name, path in paths.items()}


def wait_for(condition: Callable[[], Any], page: Page) -> None:
    """Waits until it holds."""
    ends_at = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends_at
        page.settle(0.1)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_pages_are_quiet_and_fit(
    page: Page, addresses: dict[str, str], width: int, dark: bool
) -> None:
    for name, address in addresses.items():
        page.requests.clear()
        page.open(address, width=width, dark=dark)
        page.settle(0.1)
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, (name, wide)
        own = address.split("/", 3)[2]
        outside = [url for url in page.requests if f"//{own}/" not in url and "data:" not in url]
        assert outside == [], name
        said = [text for text in page.console if "404" not in text]
        assert said == [], name


@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing_serious(page: Page, addresses: dict[str, str], dark: bool) -> None:
    files = [folder / "axe.min.js" for folder, _ in tool_homes("axe")]
    axe = next((file for file in files if file.is_file()), None)
    if axe is None:
        pytest.skip("axe is not here (make tools fetches it)")
    for name, address in addresses.items():
        page.open(address, width=390 if dark else 1280, dark=dark)
        page.evaluate(axe.read_text())
        page.evaluate("axe.run().then(found => { window.found = found.violations })")
        wait_for(lambda: page.evaluate("window.found !== undefined"), page)
        found = page.evaluate(
            "window.found.filter(v => ['serious', 'critical'].includes(v.impact))"
            ".map(v => v.id + ': ' + v.nodes.map(n => n.html + n.failureSummary).join(' | '))"
        )
        assert found == [], name


def test_a_running_job_grows_and_keeps_the_focus(page: Page, client: Any, example: Example) -> None:
    claim = example.running("whisper", trials=[trial(1)])
    page.open(f"{client.base_url}/jobs/{claim.id}", width=1280)
    circles = "document.querySelectorAll('.front circle').length"
    assert page.evaluate(circles) == 1
    page.evaluate("document.getElementById('trials').focus()")
    example.measure(claim, [trial(2), trial(3)])
    example.queue.say(claim, [("phase", {"phase": "certifying"})])
    wait_for(lambda: page.evaluate(circles) == 3, page)
    assert "certifying" in page.evaluate("document.getElementById('state').textContent")
    assert page.evaluate("document.activeElement.id") == "trials"
    with example.queue.writing(claim) as connection:
        example.queue.finish(connection, claim, Change.SUCCEED, {"verdict": "undecided"})
    wait_for(lambda: "undecided" in page.evaluate("document.body?.textContent ?? ''"), page)
    assert page.console == []


def test_a_paused_job_offers_to_resume_without_a_reload(
    page: Page, client: Any, example: Example
) -> None:
    claim = example.running("whisper", trials=[trial(1)])
    page.open(f"{client.base_url}/jobs/{claim.id}", width=1280)
    page.evaluate("window.same = document.getElementById('ask-pause') !== null")
    assert client.post(f"/api/v1/jobs/{claim.id}/pause").status_code == 200
    with example.queue.writing(claim) as connection:
        example.queue.finish(connection, claim, Change.STOP, {})
    wait_for(lambda: page.evaluate("document.getElementById('ask-resume') !== null"), page)
    assert page.evaluate("window.same") and page.console == []
    page.evaluate("document.getElementById('ask-resume').click()")
    wait_for(lambda: client.get(f"/api/v1/jobs/{claim.id}").json()["state"] == "QUEUED", page)


def test_a_job_is_printed_whole_and_dark_on_white(
    page: Page, client: Any, example: Example
) -> None:
    job = example.ended(result=FOUND, log="a line of the log\n" * 200)
    page.open(f"{client.base_url}/jobs/{job}", width=720, dark=True)
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    page.call("Emulation.setEmulatedMedia", media="print", features=dark)
    colours = "(name => getComputedStyle(document.querySelector(name)).color)"
    for name in ("body", "h1", ".figure .value", ".log pre", ".columns pre"):
        parts = re.findall(r"\d+", page.evaluate(f"{colours}('{name}')"))
        assert max(map(int, parts)) < 190 and min(map(int, parts)) < 60, (name, parts)
    cut = "[...document.querySelectorAll('.log, .columns .scroll')].map(e => e.scrollHeight"
    assert all(0 <= hidden <= 2 for hidden in page.evaluate(f"{cut} - e.clientHeight)"))
    assert page.evaluate("document.documentElement.scrollWidth") <= 720
    shown = "getComputedStyle(document.querySelector('.actions')).display"
    assert page.evaluate(shown) == "none"
    mark = "getComputedStyle(document.querySelector('.key'), '::before').printColorAdjust"
    assert page.evaluate(mark) == "exact"


def test_wide_values_leave_room_for_the_others(page: Page, client: Any, example: Example) -> None:
    jobs = [
        example.ended(result=FOUND, calibration_data="ab" * 32, target_rate="2000/s")
        for _ in range(3)
    ]
    compared = "&".join(f"job={job}" for job in jobs)
    page.open(f"{client.base_url}/compare?{compared}", width=1400)
    over = "(e => e.scrollWidth - e.clientWidth)(document.querySelector('.scroll'))"
    assert page.evaluate(over) <= 0
    page.open(f"{client.base_url}/jobs/{jobs[0]}", width=390)
    width = "document.querySelector('#trials td.outcome').clientWidth"
    assert page.evaluate(width) >= 200


def test_an_open_stream_takes_the_place_of_asking(
    page: Page, client: Any, example: Example, service: Any
) -> None:
    claim = example.running("whisper", trials=[trial(1)])
    page.open(f"{client.base_url}/jobs/{claim.id}", width=1280)
    wait_for(lambda: [url for url in page.requests if "/events?after=" in url], page)
    page.settle(4)
    asked = [url for url in page.requests if "/live" in url]
    assert len(asked) <= 1, asked
    example.measure(claim, [trial(2)])
    wait_for(lambda: page.evaluate("document.querySelectorAll('.front circle').length") == 2, page)
    # A tab that nobody sees gives its connection back.
    streams = service.context.hub.streams
    assert streams == 1
    page.open(f"{client.base_url}/workers", width=1280)
    wait_for(lambda: [url for url in page.requests if url.endswith("/stream")], page)
    example.queue.say(claim, [("phase", {"phase": "certifying"})])
    wait_for(lambda: "certifying" in page.evaluate("document.body.textContent"), page)
    assert page.console == []


def test_without_a_stream_the_page_asks(page: Page, service: Any, example: Example) -> None:
    full = EventHub(service.context.database, 0)
    url = service.serve(hub=full)
    claim = example.running("whisper", trials=[trial(1)])
    page.open(f"{url}/jobs/{claim.id}", width=1280)
    example.measure(claim, [trial(2)])
    wait_for(lambda: page.evaluate("document.querySelectorAll('.front circle').length") == 2, page)
    assert full.streams == 0


def test_a_tick_survives_the_lists_renewal(page: Page, client: Any, example: Example) -> None:
    job = example.queued("one")
    page.open(str(client.base_url), width=1280)
    page.evaluate(f"document.getElementById('compare-{job}').click()")
    example.queued("two")
    wait_for(lambda: "two" in page.evaluate("document.body.textContent"), page)
    assert page.evaluate(f"document.getElementById('compare-{job}').checked")


def test_a_job_is_handed_in_by_keyboard(page: Page, client: Any, tmp_path: Path) -> None:
    model = tmp_path / "digits.onnx"
    model.write_bytes(b"{}")
    page.open(f"{client.base_url}/jobs/new", width=1280)
    page.call("DOM.enable")
    root = page.call("DOM.getDocument")["root"]["nodeId"]
    field = page.call("DOM.querySelector", nodeId=root, selector="#model")["nodeId"]
    page.call("DOM.setFileInputFiles", nodeId=field, files=[str(model)])
    for _ in range(40):
        press(page, "Tab")
        if page.evaluate("document.activeElement.id") == "latency_budget":
            break
    page.call("Input.insertText", text="50ms")
    press(page, "Enter")
    wait_for(lambda: "/jobs/" in page.evaluate("location.pathname + '/x'"), page)
    wait_for(lambda: page.evaluate("location.pathname") != "/jobs/new", page)
    job = client.get("/api/v1/jobs").json()["items"][0]
    assert (job["model_name"], job["options"]) == ("digits", {"latency_budget": "50ms"})


def press(page: Page, key: str) -> None:
    """A key, down and up."""
    code = {"Tab": 9, "Enter": 13}[key]
    text = {"text": "\r"} if key == "Enter" else {}
    for kind in ("keyDown", "keyUp"):
        page.call(
            "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code,
            **(text if kind == "keyDown" else {}),
        )  # fmt: skip


def test_what_users_stored_runs_nowhere(page: Page, client: Any, example: Example) -> None:
    evil = "</script><img src=x onerror='document.title=1'><b>"
    odd = [trial(1, variant=evil, config_id=evil), trial(2, state="failed", message=evil)]
    job = example.running(evil, trials=odd, log=evil, phase=evil, actor=evil).id
    for path in ("", f"jobs/{job}", f"compare?job={job}", "workers"):
        page.open(f"{client.base_url}/{path}", width=1280)
        page.settle(0.1)
        assert page.evaluate("document.images.length") == 0
        assert page.evaluate("document.title") != "1"
        assert page.console == []
