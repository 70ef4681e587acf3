"""A command that a report names finds the study: it can be typed as it stands."""

from __future__ import annotations

from dataclasses import replace

import pytest
from facts_example import estimated_facts, example_facts, undecided_facts

from analyzer.domain.study import StudyResult
from analyzer.report.commands import DEFAULT_STORE
from analyzer.report.entries import make_report
from analyzer.report.html import render_html
from analyzer.report.markdown import render_markdown
from analyzer.report.summary import summarize
from analyzer.report.terminal import LINES_MAX, render_terminal

ELSEWHERE = "sqlite:///sub.db"


def interrupted() -> StudyResult:
    return replace(example_facts(), verdict="undecided", recommended_id=None, status="interrupted")


def begun_with(facts: StudyResult, options: str) -> StudyResult:
    command = f"analyze digits.onnx --latency-budget 50ms{options}"
    return replace(facts, provenance={"command": command})


@pytest.mark.parametrize(
    ("options", "read_from", "told"),
    [
        ("", None, ""),
        ("", DEFAULT_STORE, ""),
        ("", ELSEWHERE, f"--store {ELSEWHERE} "),
        (f" --store {ELSEWHERE}", None, f"--store {ELSEWHERE} "),
        (f" --store={ELSEWHERE}", None, f"--store {ELSEWHERE} "),
        (" --store sqlite:///gone.db", ELSEWHERE, f"--store {ELSEWHERE} "),
        (" --store sqlite:///gone.db", DEFAULT_STORE, ""),
    ],
)
@pytest.mark.parametrize("facts", [undecided_facts(), interrupted()], ids=["undecided", "stopped"])
def test_a_hint_names_the_store_of_the_study(
    facts: StudyResult, options: str, read_from: str | None, told: str
) -> None:
    """``analyze export found2 …`` of a study in another database found none."""
    report = make_report(begun_with(facts, options), store_url=read_from)
    answer = summarize(report)
    assert report.shown is not None
    config_id = report.shown.configuration.config_id
    export = f"analyze export {facts.name} {told}--config {config_id} --repository models"
    assert any(export in sentence for sentence in answer.advice)
    assert answer.command is not None
    assert f"--latency-budget 50ms {told}--study {facts.name} --resume" in answer.command


def test_the_lines_that_do_not_fit_are_told_by_a_command_that_prints_them() -> None:
    """``analyze report`` alone wrote a page, and of the newest study."""
    facts = replace(estimated_facts(), warnings=tuple(f"Note {n}." for n in range(LINES_MAX)))
    text = render_terminal(make_report(facts, store_url=ELSEWHERE))
    assert f" more lines: analyze report {facts.name} --store {ELSEWHERE} --format md" in text


def test_what_a_page_leaves_out_is_told_by_a_whole_command() -> None:
    search = replace(example_facts().search, failed=900)
    report = make_report(example_facts(search=search), store_url=ELSEWHERE)
    assert f"analyze studies show digits-1 --store {ELSEWHERE}." in render_html(report)
    report = replace(report, front=report.front * 20)
    assert f"`analyze report digits-1 --store {ELSEWHERE} --format csv`" in render_markdown(report)
