"""The page in a real headless Chromium: it draws, it is quiet, it asks the network for nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from chromium import Browser, Page, chromium_browser, find_chromium, new_page
from facts_example import MODEL, example_facts, infeasible_facts, undecided_facts

from analyzer.domain.study import StudyResult
from analyzer.report.entries import make_report
from analyzer.report.html import render_html
from analyzer.resources import tool_homes

pytestmark = pytest.mark.browser

PBTXT = 'name: "digits"\nmax_batch_size: 16\n'


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    program = find_chromium()
    if program is None:
        pytest.skip("Chromium is not installed (Debian's package: chromium)")
    with chromium_browser(program) as started:
        yield started


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with new_page(browser) as opened:
        yield opened


def write(facts: StudyResult, folder: Path) -> Path:
    path = folder / "report.html"
    page = render_html(make_report(facts), config_pbtxt=PBTXT)
    path.write_text(page, encoding="utf-8")
    return path


def assert_quiet(page: Page, path: Path) -> None:
    page.settle()
    assert page.console == []
    outside = [
        url for url in page.requests if not url.startswith(("data:", "blob:", path.as_uri()))
    ]
    assert outside == []


@pytest.mark.parametrize(
    ("facts", "charts"),
    [(example_facts(), 5), (infeasible_facts(), 2), (undecided_facts(), 3)],
    ids=["found", "infeasible", "undecided"],
)
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_it_draws_quietly_and_fits(
    facts: StudyResult, charts: int, width: int, dark: bool, page: Page, tmp_path: Path
) -> None:
    path = write(facts, tmp_path)
    page.open(path, width=width, dark=dark)
    assert page.evaluate("document.querySelectorAll('.chart .main-svg').length > 0")
    assert page.evaluate("document.querySelectorAll('.chart.js-plotly-plot').length") == charts
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert_quiet(page, path)


@pytest.mark.parametrize("width", [1400, 390])
def test_a_long_name_breaks_and_the_page_fits(width: int, page: Page, tmp_path: Path) -> None:
    """The page was 6,285 pixels wide, and its headline ran off it."""
    name = "l" + "o" * 400 + "ng"
    facts = example_facts(name=f"{name}-1", model=replace(MODEL, name=name))
    page.open(write(facts, tmp_path), width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.querySelector('h1').scrollWidth") <= width


@pytest.mark.parametrize("width", [1400, 390])
def test_axe_finds_nothing(width: int, page: Page, tmp_path: Path) -> None:
    files = [folder / "axe.min.js" for folder, _ in tool_homes("axe")]
    axe = next((file for file in files if file.is_file()), None)
    if axe is None:
        pytest.skip("axe is not here (make tools fetches it)")
    page.open(write(example_facts(), tmp_path), width=width)
    page.evaluate(axe.read_text())
    page.evaluate("axe.run().then(found => { window.found = found.violations })")
    end = time.monotonic() + 30
    while not page.evaluate("window.found !== undefined") and time.monotonic() < end:
        page.settle()
    assert page.evaluate("window.found.map(v => v.id + ': ' + v.nodes[0].html)") == []


def test_the_labels_of_bars_fit_a_phone(page: Page, tmp_path: Path) -> None:
    """They were cut at ``… 2 thr,``, before the rate."""
    page.open(write(example_facts(), tmp_path), width=390)
    ends = page.evaluate(
        "[...document.querySelectorAll('#chart-stages .annotation, #chart-steps .annotation')]"
        ".map(label => label.getBoundingClientRect().right)"
    )
    assert len(ends) == 10 and max(ends) <= 390


def test_the_axis_switches_and_colours_follow_the_theme(page: Page, tmp_path: Path) -> None:
    path = write(example_facts(), tmp_path)
    page.open(path, width=1280)
    title = "document.querySelector('#chart-front .xtitle').textContent"
    assert "latency" in page.evaluate(title)
    page.evaluate("document.querySelector('button[data-axis=memory]').click()")
    page.settle()
    assert "memory" in page.evaluate(title)
    colour = "document.querySelector('#chart-load .ytitle').style.fill"
    light = page.evaluate(colour)
    page.call(
        "Emulation.setEmulatedMedia",
        features=[{"name": "prefers-color-scheme", "value": "dark"}],
    )
    page.settle()
    assert page.evaluate(colour) != light
    assert_quiet(page, path)


def test_a_point_shows_its_configuration_on_hover(page: Page, tmp_path: Path) -> None:
    path = write(example_facts(), tmp_path)
    page.open(path, width=1280, height=2600)
    page.evaluate("Plotly.Fx.hover('chart-front', [{curveNumber: 3, pointNumber: 0}])")
    page.settle()
    text = page.evaluate("document.querySelector('#chart-front .hoverlayer').textContent")
    assert "int8 static" in text
    assert "certified 556 /s" in text
    assert_quiet(page, path)


def test_names_from_outside_cannot_become_markup(page: Page, tmp_path: Path) -> None:
    evil = "</script><img src=x onerror=alert(1)>"
    facts = example_facts(name=evil, warnings=(evil,))
    path = write(facts, tmp_path)
    page.open(path, width=1280)
    assert page.evaluate("document.images.length") == 0
    assert evil in page.evaluate("document.body.textContent")
    assert_quiet(page, path)
