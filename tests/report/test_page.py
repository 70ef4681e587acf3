"""What the page says beside its charts and above its tables."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from facts_example import (
    BASELINE,
    OUTCOMES,
    WINNER,
    configuration,
    example_facts,
    infeasible_facts,
    undecided_facts,
)

from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import Failure, Measurement
from analyzer.domain.study import Explanation, StudyResult, WhatIf
from analyzer.report.document import build_document
from analyzer.report.entries import make_report
from analyzer.report.gain_text import gain_sentence
from analyzer.report.html import render_html
from analyzer.report.markdown import render_markdown
from analyzer.report.summary import summarize
from analyzer.search.explain import contributions, limited_by


def page_of(facts: StudyResult) -> str:
    """The page without its scripts, numbers and units apart by a plain space."""
    page = render_html(make_report(facts))
    return page[: page.index('<script type="application/json"')].replace("\u00a0", " ")


def certified_so_far() -> StudyResult:
    return replace(example_facts(), status="interrupted", verdict="undecided", recommended_id=None)


def test_without_javascript_the_charts_are_told_in_words() -> None:
    """``the tables on this page hold their numbers`` was said of charts that no table repeats."""
    page = page_of(example_facts())
    told = re.findall(r'<noscript><p class="caption">(.*?)</p></noscript>', page)
    labels = re.findall(r'<div class="chart"[^>]* aria-label="([^"]*)"', page)
    assert len(told) == len(labels) == page.count("<noscript>") == 5
    for words, label in zip(told, labels, strict=True):
        assert len(words) > 40 and label.endswith(f". {words}")
    assert "<noscript>" not in page_of(replace(undecided_facts(), outcomes=()))


def test_the_table_tells_of_how_many_it_shows_the_best() -> None:
    """Those without an edge, which are in it, were not counted: of 40 it told no total."""
    late = infeasible_facts().outcomes[0]
    crowd = tuple(
        replace(late, configuration=configuration(instance_count=n + 3)) for n in range(40)
    )
    page = page_of(replace(infeasible_facts(), outcomes=crowd))
    assert page.count("the first 25 of 40.") == 1
    assert "the first" not in page_of(example_facts())
    assert "Predicted is the edge that the simulation (the twin) expected before" in page


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        (undecided_facts(), "closest"),
        (infeasible_facts(), "closest"),
        (certified_so_far(), "certified so far"),
    ],
    ids=["undecided", "infeasible", "interrupted"],
)
def test_the_table_marks_what_came_closest(facts: StudyResult, name: str) -> None:
    closest = make_report(facts).closest
    assert closest is not None
    rows = re.findall(r'<tr class="closest">.*', page_of(facts))
    assert len(rows) == 1
    assert f" ({name})</td>" in rows[0] and closest.entry.configuration.config_id in rows[0]
    assert '<tr class="closest">' not in page_of(example_facts())


def test_every_heading_of_a_table_says_of_what() -> None:
    headings = re.findall(r"<th(?: [^>]*)?>", page_of(example_facts()))
    assert headings.count('<th scope="col">') > 10
    assert all(re.search(r' scope="(?:row|col)"', heading) for heading in headings)


def test_a_baseline_that_failed_is_what_has_no_gain() -> None:
    """``it has no gain to tell: It died`` read as if the recommendation had."""
    failed = Failure(configuration=BASELINE, stage="start", reason="crash", message="It died.")
    report = make_report(example_facts(outcomes=(failed, *OUTCOMES[1:])))
    said = "no gain to tell, since the baseline failed: It died"
    assert gain_sentence(report) == said
    assert summarize(report).figures[2].note == f"{said}; baseline: not measured"


@pytest.mark.parametrize(
    ("cpu", "queue_ms", "starts"),
    [(0.93, 1.0, "Threads: "), (0.4, 9.0, "Queue: "), (0.4, 1.0, "Compute: ")],
)
def test_what_limits_the_winner_is_a_sentence(cpu: float, queue_ms: float, starts: str) -> None:
    """``What limits it: Threads: the server keeps 93% …`` was."""
    winner = next(o for o in OUTCOMES if o.configuration == WINNER)
    assert isinstance(winner, Measurement) and winner.headline is not None
    headline = replace(
        winner.headline,
        breakdown_ms=replace(winner.headline.breakdown_ms, queue=queue_ms, compute_infer=4.0),
        resources=replace(winner.headline.resources, cpu_utilization=cpu),
    )
    limit = limited_by(replace(winner, headline=headline), cores=2)
    assert limit.startswith(starts) and limit.endswith(".")
    explanation = replace(example_facts().explanation, limited_by=limit)
    page = page_of(example_facts(explanation=explanation))
    assert f"corrected by what was measured. {limit}</p>" in page


@pytest.mark.parametrize(
    ("winner", "phrase"),
    [
        (BASELINE, "0 threads"),
        (configuration(instance_count=2), "as many threads as the runtime takes"),
    ],
    ids=["0", "none"],
)
def test_threads_that_are_not_given_are_one_per_core(winner: Configuration, phrase: str) -> None:
    """``0 threads`` was a step; the rows of the same configuration told ``one per core``."""
    explanation = Explanation(
        contributions=contributions(winner, (), lambda _: 100.0),
        what_if=(
            WhatIf(setting="intra_op_threads", from_value="0", to_value="2"),
            WhatIf(setting="max_queue_delay_us", from_value="0", to_value="500"),
        ),
    )
    report = make_report(example_facts(explanation=explanation))
    for text in (page_of(report.result), render_markdown(report)):
        assert phrase not in text and "one thread per core" in text
        assert "one per core → 2" in text and "0 → 500" in text
    told: dict[str, Any] = build_document(report)["explanation"]
    told_steps = [step["setting"] for step in told["contributions"]]
    assert "one thread per core" in told_steps and phrase not in told_steps
    assert told["what_if"][0]["from_value"] == "0", "the JSON has the setting's own value"


def test_one_thread_between_operators_is_one() -> None:
    winner = configuration(intra_op_threads=1, execution_mode="parallel", inter_op_threads=1)
    explanation = Explanation(contributions=contributions(winner, (), lambda _: 100.0))
    text = render_markdown(make_report(example_facts(explanation=explanation)))
    assert "| 1 inter-op thread |" in text
