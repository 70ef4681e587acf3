"""Markdown, CSV, terminal and the page as text."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace

import pytest
from facts_example import (
    BASELINE,
    OUTCOMES,
    SLA,
    WINNER,
    configuration,
    example_facts,
    infeasible_facts,
    measurement,
    undecided_facts,
)

from analyzer.domain.measurement import Edge
from analyzer.domain.study import StudyResult
from analyzer.report.csv import COLUMNS, render_csv
from analyzer.report.entries import make_report
from analyzer.report.html import render_html
from analyzer.report.markdown import render_markdown
from analyzer.report.summary import gain_sentence, summarize
from analyzer.report.terminal import LINES_MAX, render_terminal
from analyzer.report.wording import (
    configuration_sentence,
    dollars,
    interval,
    number,
    signed_percent,
)

ALL = pytest.mark.parametrize(
    "facts",
    [
        example_facts(),
        infeasible_facts(),
        undecided_facts(),
        replace(undecided_facts(), outcomes=()),
        example_facts(outcomes=OUTCOMES[3:], sla=infeasible_facts().sla),
    ],
    ids=["found", "infeasible", "undecided", "nothing", "no baseline"],
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (0, "0"), (0.000012345, "0.000012"), (0.3683, "0.368"), (9.568, "9.57"),
        (39.34, "39.3"), (556.2, "556"), (1234567.8, "1,234,568"), (2400, "2,400"),
    ],
)  # fmt: skip
def test_numbers_have_three_digits_and_no_exponent(value: float | None, text: str) -> None:
    assert number(value) == text


def test_signs_intervals_and_dollars() -> None:
    assert [signed_percent(v) for v in (0.63, -0.023)] == ["+63 %", "−2.3 %"]
    assert [interval(v) for v in ((1.0, 2.0), (None, 2.0), (1.0, None), None)] == [
        "1 to 2", "below 2", "above 1", "",
    ]  # fmt: skip
    assert [dollars(v) for v in (2.9456, 0.3683, None)] == ["$2.95", "$0.368", "–"]


def test_a_configuration_in_words() -> None:
    assert configuration_sentence(WINNER) == (
        "int8 static in ONNX Runtime on the CPU, dynamic batches of up to 16 (preferred 8, 16) "
        "that wait up to 2ms for further requests, one instance with 2 threads"
    )
    assert configuration_sentence(BASELINE) == (
        "fp32 in ONNX Runtime on the CPU, dynamic batches of up to 4, 2 instances"
    )


def test_the_answer_says_what_holds_and_what_it_gains() -> None:
    report = make_report(example_facts())
    answer = summarize(report)
    assert (
        answer.title == "As int8 static, digits carries 556 requests/s, 99 % of them within 50 ms"
    )
    assert [figure.value for figure in answer.figures] == ["556 /s", "30 ms", "2.75×", "$2.95/h"]
    assert gain_sentence(report) == "2.75× cheaper than the baseline"
    assert not answer.misses
    assert not answer.advice


def test_a_gain_between_rates_proven_unequally_is_told_with_that_of_the_edges() -> None:
    report = make_report(example_facts(sla=replace(SLA, objective="capacity")))
    assert report.recommendation is not None and report.baseline is not None
    for entry, edge_rps in ((report.recommendation, 1500.0), (report.baseline, 250.0)):
        edge = Edge(rate_rps=edge_rps, interval_rps=(None, None))
        measurement = replace(entry.measurement, edge=edge)
        name = "recommendation" if entry is report.recommendation else "baseline"
        report = replace(report, **{name: replace(entry, measurement=measurement)})
    gain = gain_sentence(replace(report, speedup=9.0))
    assert gain == "9× the capacity of the baseline (6× by their edges)"
    assert gain_sentence(replace(report, speedup=6.2)) == "6.2× the capacity of the baseline"


def test_an_undecided_answer_says_what_to_do() -> None:
    answer = summarize(make_report(undecided_facts()))
    assert "2,400 requests; a certificate needs about 7,500" in answer.misses[0]
    assert "--study digits-3 --resume" in answer.advice[0]


@ALL
def test_the_terminal_gets_a_short_plain_answer(facts: StudyResult) -> None:
    text = render_terminal(make_report(facts))
    lines = text.splitlines()
    assert len(lines) <= LINES_MAX
    assert max(map(len, lines)) <= 96
    assert "\x1b" not in text
    assert text.startswith(facts.name)


@ALL
def test_markdown_has_whole_tables(facts: StudyResult) -> None:
    text = render_markdown(make_report(facts))
    assert text.startswith("# ")
    width = 0
    for line in text.splitlines():
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert not (width and cells) or cells == width, line
        width = cells


def test_markdown_escapes_what_comes_from_outside() -> None:
    text = render_markdown(make_report(example_facts(warnings=("a|b <script>\n# no",))))
    assert "\n# no" not in text
    assert "\\<script>" in text


def test_csv_has_a_row_for_every_outcome() -> None:
    rows = list(csv.DictReader(io.StringIO(render_csv(example_facts()))))
    assert len(rows) == len(OUTCOMES)
    assert tuple(rows[0]) == COLUMNS
    assert [row["role"] for row in rows].count("recommended") == 1
    by_state = {row["state"] for row in rows}
    assert by_state == {"measured", "failed"}
    best = next(row for row in rows if row["role"] == "recommended")
    assert best["config_id"] == WINNER.config_id
    assert float(best["edge_rps"]) == 618.0
    assert best["preferred_batch_size"] == "8 16"
    assert best["gpu_memory_bytes_peak"] == ""  # not measured is empty, not 0
    failed = next(row for row in rows if row["failure_reason"] == "out_of_memory")
    assert failed["edge_rps"] == ""


@ALL
def test_the_page_is_whole_and_self_contained(facts: StudyResult) -> None:
    page = render_html(make_report(facts), config_pbtxt="max_batch_size: 16")
    assert page.startswith("<!DOCTYPE html>")
    assert page.rstrip().endswith("</html>")
    outside = page[: page.index('<script type="application/json"')]
    assert not re.search(r"(?:src|href)=\"(?!data:)", outside)
    assert "max_batch_size: 16" in outside


def test_predictions_are_marked_on_the_page() -> None:
    facts = example_facts()
    page = render_html(make_report(facts))
    assert "predicted by the twin" in page
    assert "Hatched steps are predicted" in page


def test_a_thinned_chart_says_so() -> None:
    crowd = tuple(
        measurement(configuration(instance_count=n + 3), 10.0 + n / 10, 9.0, memory_mib=400)
        for n in range(1000)
    )
    for outcomes, said in ((OUTCOMES, False), ((*OUTCOMES, *crowd), True)):
        facts = example_facts(outcomes=outcomes)
        page = render_html(make_report(facts))
        assert ("Shown are 600 of 1,010 configurations" in page) is said
