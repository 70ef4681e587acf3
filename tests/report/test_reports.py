"""Markdown, CSV, terminal and the page as text."""

from __future__ import annotations

import csv
import io
import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from facts_example import (
    BASELINE,
    MODEL,
    OUTCOMES,
    SLA,
    WINNER,
    configuration,
    estimated_facts,
    example_facts,
    infeasible_facts,
    measurement,
    undecided_facts,
)

from analyzer.domain.answer import Miss
from analyzer.domain.configuration import Configuration
from analyzer.domain.gain import Gain
from analyzer.domain.load_test import Conditions, ExecutionTimes
from analyzer.domain.measurement import (
    Accuracy,
    Edge,
    Failure,
    HigherRuns,
    Measurement,
)
from analyzer.domain.study import StudyResult
from analyzer.errors import UsageError
from analyzer.report.advice import advice, miss_sentence, next_budget_s
from analyzer.report.csv import COLUMNS, render_csv
from analyzer.report.entries import StudyReport, make_report
from analyzer.report.files import write_report
from analyzer.report.gain_text import edge_text, gain_note, gain_sentence, ratio_text
from analyzer.report.html import render_html
from analyzer.report.markdown import render_markdown
from analyzer.report.search_facts import sla_rows
from analyzer.report.summary import requirement, summarize
from analyzer.report.terminal import LINES_MAX, render_terminal
from analyzer.report.wording import (
    configuration_sentence,
    dollars,
    floored,
    interval,
    number,
    percent,
    price_per_hour,
    signed_percent,
    size,
    times,
)

ALL = pytest.mark.parametrize(
    "facts",
    [
        example_facts(),
        infeasible_facts(),
        undecided_facts(),
        estimated_facts(),
        replace(undecided_facts(), outcomes=()),
        example_facts(outcomes=OUTCOMES[3:], sla=infeasible_facts().sla),
    ],
    ids=["found", "infeasible", "undecided", "estimated", "nothing", "no baseline"],
)


def of(configuration: Configuration) -> Measurement:
    found = next(o for o in OUTCOMES if o.configuration == configuration)
    assert isinstance(found, Measurement)
    return found


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (0, "0"), (0.000012345, "0.0000123"), (1e-7, "0.0000001"),
        (0.3683, "0.368"), (9.568, "9.57"),
        (39.34, "39.3"), (556.2, "556"), (1234567.8, "1,234,568"), (2400, "2,400"),
    ],
)  # fmt: skip
def test_numbers_have_three_digits_and_no_exponent(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (0.0, "0"), (100.6, "100"), (556.9, "556"), (12345.6, "12,345"),
        (99.96, "99.9"), (5.678, "5.67"), (0.57, "0.57"), (0.05678, "0.0567"), (400.0, "400"),
    ],
)  # fmt: skip
def test_a_proven_rate_is_told_as_no_higher_one(value: float | None, text: str) -> None:
    assert number(floored(value)) == text


def test_signs_intervals_and_dollars() -> None:
    assert [signed_percent(v) for v in (0.63, -0.023)] == ["+63 %", "−2.3 %"]
    assert [interval(v) for v in ((1.0, 2.0), (None, 2.0), (1.0, None), None)] == [
        "1 to 2", "below 2", "above 1", "",
    ]  # fmt: skip
    assert [dollars(v) for v in (2.9456, 0.3683, 4.988e-6, 0.5, None)] == [
        "$2.95", "$0.3683", "$0.000004988", "$0.50", "–",
    ]  # fmt: skip
    assert [times(v) for v in (2.914, 1512.0, 0.00002)] == ["2.91×", "1,512×", "0.00002×"]
    assert [size(v) for v in (131 << 20, 1010 << 20)] == ["131MiB", "1,010MiB"]
    assert [percent(v) for v in (0.967, 0.9996, 0.999996, 1.0)] == [
        "96.7 %", "99.96 %", "99.9996 %", "100 %",
    ]  # fmt: skip


def test_a_price_is_told_as_it_was_given() -> None:
    """``$0.736/h`` was: 39 machines of that are $28.70, not the $28.72 beside it."""
    cost = dict(summarize(make_report(example_facts())).cost)
    assert cost["price of a machine"].startswith("$0.7364/h, ")
    assert [price_per_hour(v) for v in (12, 1.2345, 0.05, 0)] == [
        "$12.00/h", "$1.2345/h", "$0.05/h", "$0.00/h",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("limit", "required", "observed", "told"),
    [
        ("latency_budget_ms", 200.0, 200.4, "200.4 ms where 200 ms"),
        ("latency_budget_ms", 50.0, 180.26, "180 ms where 50 ms"),
        ("target_rate_rps", 500.0, 499.7, "499.7 /s where 500 /s"),
        ("max_memory_bytes", 100 << 20, 100.2 * (1 << 20), "100.2MiB where 100MiB"),
        ("max_accuracy_drop", 0.01, 0.010004, "1.0004 % where 1 %"),
    ],
)
def test_a_miss_and_its_limit_never_read_the_same(
    limit: str, required: float, observed: float, told: str
) -> None:
    miss = Miss(limit=limit, required=required, observed=observed)
    assert told in miss_sentence(miss, SLA)


def test_the_limits_are_told_as_they_were_given() -> None:
    """``12.345ms`` was told as 12.3 ms, ``1234.5ms`` as 1,234 ms."""
    for budget_ms, told in ((12.345, "within 12.345 ms"), (1234.5, "within 1,234.5 ms")):
        sla = replace(SLA, latency_budget_ms=budget_ms, target_rate_rps=1234.5)
        report = make_report(example_facts(sla=sla))
        for text in (render_terminal(report), render_markdown(report), render_html(report)):
            assert told in " ".join(text.split())
        assert dict(sla_rows(report.result))["target rate"] == "1,234.5 /s"
    assert requirement(replace(SLA, percentile=99.99999)).startswith("99.99999 % of")


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
    assert gain_sentence(report) == (
        "2.75× cheaper than the baseline, by certified rates (2.5× to 2.75×)"
    )
    assert not answer.misses
    assert not answer.advice
    assert answer.command is None


@pytest.mark.parametrize(
    ("percentile", "told"), [(99.0, ["p50", "p99"]), (95.5, ["p50", "p95.5"]), (50.0, ["p50"])]
)
def test_each_percentile_is_told_once(percentile: float, told: list[str]) -> None:
    """``latency p50 2.67 ms, p50 2.67 ms`` was said of the median."""
    facts = example_facts()
    report = make_report(replace(facts, sla=replace(facts.sla, percentile=percentile)))
    latency = dict(summarize(report).measured)["latency"]
    assert [part.split()[0] for part in latency.split(", ")] == told


def test_a_baseline_without_a_certificate_is_told_by_the_edges() -> None:
    bare = replace(of(BASELINE), capacity_rps=None, certificate=None, headline=None)
    facts = example_facts(
        outcomes=(bare, *OUTCOMES[1:]), sla=replace(SLA, objective="capacity", target_rate_rps=None)
    )
    report = make_report(facts)
    assert gain_sentence(report) == (
        "2.91× the capacity of the baseline, by estimated edges (2.71× to 3.12×)"
    )
    text = render_terminal(report)
    assert "edge 212 /s (204 to 219), not certified (fp32" in text


def late_baseline(**changes: Any) -> Measurement:
    """The baseline after two short runs, both late at more than half of their requests."""
    first = of(BASELINE).load_tests[0]
    late = replace(first.latency_ms, p50=900.0, p99=1800.0, sla=1800.0)
    tests = tuple(
        replace(first, offered_rps=rps, requests=n, over_budget=bad, latency_ms=late, **changes)
        for rps, n, bad in ((170.0, 61, 58), (85.0, 52, 43))
    )
    return replace(
        of(BASELINE),
        edge=Edge(interval_rps=(0.0, 85.0)),
        capacity_rps=None,
        certificate=None,
        headline=None,
        load_tests=tests,
    )


def with_baseline(baseline: Measurement, *, objective: Any = "capacity") -> StudyReport:
    target_rps = None if objective == "capacity" else 400.0
    sla = replace(SLA, objective=objective, target_rate_rps=target_rps)
    return make_report(example_facts(outcomes=(baseline, *OUTCOMES[1:]), sla=sla))


def test_a_baseline_that_was_late_twice_is_not_said_to_be_late_always() -> None:
    """Two short runs at two rates do not show that no rate is kept."""
    late = "the baseline was late at 85 /s already, the lowest rate tried (43 of 52 requests)"
    report = with_baseline(late_baseline())
    assert gain_sentence(report) == (
        f"≥ 6.98× the capacity of the baseline, by estimated edges; {late}"
    )
    for text in (render_terminal(report), render_markdown(report), render_html(report)):
        said = " ".join(text.split())
        assert late in said and "never keeps" not in said
    by_latency = with_baseline(late_baseline(), objective="latency")
    assert gain_sentence(by_latency) == f"no gain to tell, since {late}"


def test_a_baseline_never_keeps_the_sla_where_its_executions_alone_are_too_long() -> None:
    slow = (ExecutionTimes(batch_size=1, count=60, mean_ms=120.0),)
    report = with_baseline(late_baseline(executions=slow))
    assert report.gain is None
    assert gain_sentence(report) == "no gain to tell, since the baseline never keeps the SLA"


def test_a_fleet_by_the_edges_says_so_beside_the_certified_one() -> None:
    halved = replace(of(WINNER), capacity_rps=300.0)
    outcomes = tuple(halved if o.configuration == WINNER else o for o in OUTCOMES)
    report = make_report(example_facts(outcomes=outcomes))
    cost = dict(summarize(report).cost)
    assert cost["machines"] == "4 by the estimated edge, 7 at the certified rate"
    assert cost["rests on"] == "the estimated edge, not on a certified rate"


@pytest.mark.parametrize(
    ("edge", "text"),
    [
        (Edge(rate_rps=618.0, interval_rps=(593.0, 637.0)), "618 /s (593 to 637)"),
        (Edge(interval_rps=(120.0, None)), "at least 120 /s"),
        (Edge(interval_rps=(0.0, 80.0)), "below 80 /s"),
        (Edge(interval_rps=(None, None)), "–"),
    ],
)
def test_an_edge_that_was_not_bracketed_is_open(edge: Edge, text: str) -> None:
    assert edge_text(edge) == text


def test_a_cost_by_the_edge_is_not_said_to_be_at_the_capacity() -> None:
    """``every device at its capacity, by its estimated edge``: a capacity is certified."""
    free = replace(SLA, objective="capacity", target_rate_rps=None)
    certified, estimated = example_facts(sla=free), replace(estimated_facts(), sla=free)
    for facts, at in ((certified, "certified capacity"), (estimated, "estimated edge")):
        figure = summarize(make_report(facts)).figures[-1]
        assert figure.label == "Cost of a million"
        assert figure.note == f"inferences, every device at its {at}"


def test_an_estimate_says_that_nothing_was_proven_everywhere() -> None:
    report = make_report(estimated_facts())
    answer = summarize(report)
    assert answer.title.startswith(
        "As int8 static, digits is estimated to carry about 618 requests/s"
    )
    said = "Nothing was proven: the rate is an estimate from"
    for text in (render_terminal(report), render_markdown(report), render_html(report)):
        assert said in text
        assert "certified" in text
        assert "carries" not in text
    assert answer.figures[0].label == "Estimated edge, not proven"


def test_an_overrun_is_said_beside_the_budget() -> None:
    facts = example_facts()
    for wall_s, said in ((68.0, "failed in 68 s of 60 s"), (60.3, "failed in 60.3 s;")):
        search = replace(facts.search, wall_seconds=wall_s, budget_s=60.0)
        text = " ".join(render_terminal(make_report(replace(facts, search=search))).split())
        assert said in text


LEFT_OUT = Failure(
    configuration=configuration(precision="fp16"),
    stage="build",
    reason="build",
    message="fp16 is not considered, since it gains nothing here.",
)
NO_TURN = Failure(
    configuration=BASELINE, stage="search", reason="budget", message="The search ended before."
)
CRASHED = replace(LEFT_OUT, configuration=WINNER, stage="load", reason="crash", message="Gone.")


def test_a_variant_that_is_left_out_has_not_failed() -> None:
    """Three precisions that gained nothing were told as three failed configurations."""
    facts = replace(undecided_facts(), outcomes=(LEFT_OUT, NO_TURN))
    facts = replace(facts, search=replace(facts.search, failed=1))
    report = make_report(facts)
    terminal = " ".join(render_terminal(report).split())
    assert "1 variant left out in" in terminal and "failed" not in terminal
    late = replace(facts, outcomes=(replace(LEFT_OUT, reason="budget"), CRASHED))
    told = " ".join(render_terminal(make_report(late)).split())
    assert "1 variant left out, 1 failed in" in told, "what had no time is not counted as failed"
    said = "Nothing was measured: 1m did not suffice for a first load test."
    assert terminal.count(said) == 1
    for text in (render_markdown(report), render_html(report)):
        assert "What was left out or failed, and why" in text
        assert "no batching" not in text, "the variant is left out, not one way to serve it"
    facts = replace(facts, outcomes=(LEFT_OUT, CRASHED), search=replace(facts.search, failed=2))
    crashed = make_report(facts)
    assert "1 variant left out, 1 failed in" in " ".join(render_terminal(crashed).split())
    said = "All that was tried failed, the first with: Gone. Once that is mended, go on:"
    assert advice(crashed)[0] == said, "no budget mends that"
    assert "is expected" not in render_terminal(crashed)
    command = summarize(crashed).command
    assert command is not None and "--resume" in command
    assert command.endswith("--budget 60s"), "as it was given: 2m were advised"


def test_an_accuracy_limit_that_is_missed_is_no_lack_of_time() -> None:
    lossy = Accuracy(metric="top1_agreement", value=0.95, drop=0.05, interval=(0.04, 0.06))
    facts = undecided_facts()
    outcomes = tuple(
        replace(o, accuracy=lossy) if isinstance(o, Measurement) else o for o in facts.outcomes
    )
    report = make_report(replace(facts, outcomes=outcomes))
    assert summarize(report).command is None
    (said,) = advice(report)
    assert said.startswith("It may lose 6 %: raise --max-accuracy-drop to that")


def test_an_infeasible_answer_names_the_memory_that_nothing_keeps() -> None:
    """Not a latency that was kept, for which a faster machine would help."""
    facts = undecided_facts()
    sla = replace(facts.sla, max_memory_bytes=1 << 20)
    answer = summarize(make_report(replace(facts, verdict="infeasible", sla=sla)))
    assert answer.title.endswith("keeps 99 % of requests within 50 ms and 1MiB of memory")
    assert any("raise --max-memory" in text for text in answer.advice)
    assert not any("faster machine" in text for text in answer.advice)


def test_an_infeasible_answer_does_not_blame_the_budget() -> None:
    facts = infeasible_facts()
    others = tuple(o for o in facts.outcomes if o.configuration != BASELINE)
    report = make_report(replace(facts, outcomes=(*others, NO_TURN)))
    assert gain_sentence(report) == "no gain to tell, since no configuration keeps the SLA"
    assert any(sentence.startswith("A latency budget of about") for sentence in advice(report)), (
        "not the search's budget"
    )


def test_more_time_is_for_another_configuration_where_this_one_is_too_slow() -> None:
    """``Give it more time`` stood beside the latency budget that is within reach."""
    answer = advice(make_report(replace(infeasible_facts(), verdict="undecided")))
    assert answer[0].startswith("Whether another configuration keeps it takes more time to tell (")
    assert any(sentence.startswith("A latency budget of about") for sentence in answer)


def test_a_baseline_that_keeps_the_promise_is_not_denied() -> None:
    """With int8 alone allowed, and left out for its accuracy, fp32 "kept no rate"."""
    facts = undecided_facts()
    assert facts.recommendable is not None
    kept = tuple(o for o in facts.outcomes if o.configuration.config_id in facts.recommendable)
    report = make_report(replace(facts, verdict="infeasible", outcomes=kept[:1], recommendable=()))
    answer = summarize(report)
    assert "No variant of digits that is allowed may be recommended" in answer.title
    precision = kept[0].configuration.precision
    assert answer.advice[0] == f"It is kept as {precision}: add that to --precisions."
    assert not any("faster machine" in text for text in answer.advice)


def test_a_proof_out_of_reach_is_not_told_as_a_budget() -> None:
    """188 million requests and a budget of 1663m were."""
    facts = undecided_facts()
    far = replace(facts, search=replace(facts.search, budget_needed_s=1663 * 60.0))
    assert next_budget_s(far) == (120.0, False)
    assert next_budget_s(facts) == (175.0, True)
    measured = tuple(
        replace(o, certificate=replace(o.certificate, requests_missing=188_000_000))
        for o in facts.outcomes
        if isinstance(o, Measurement) and o.certificate is not None
    )
    report = make_report(replace(far, outcomes=measured))
    text = " ".join(render_terminal(report).split())
    assert "188," not in text and "and that did not decide" in text
    assert "More than a day is expected" in text and "1663m" not in text


def test_an_untrusted_twins_predictions_are_marked() -> None:
    explanation = replace(
        example_facts().explanation, trusted=False, trust_reason="It is off by 739%."
    )
    report = make_report(example_facts(explanation=explanation))
    page = render_html(report)
    assert "these edges may be far off" in page and "739%." in page and "739%.." not in page
    assert "these edges may be far off" in render_markdown(report)
    assert "may be far off" not in render_html(make_report(example_facts()))


def test_a_twin_that_is_far_off_is_not_simply_called_trusted() -> None:
    """``The twin was trusted. The twin is off by 232% …`` was."""
    reason = "The twin is off by 232% in the median of what was measured; few were."
    explanation = replace(
        example_facts().explanation, trusted=True, error_median=2.32, trust_reason=reason
    )
    report = make_report(example_facts(explanation=explanation))
    page = render_html(report)
    assert "The twin was trusted" not in page
    assert f"The search followed the twin, though its figures are far off. {reason}" in page
    assert "The twin was trusted. the median error" in render_html(make_report(example_facts()))
    for text in (page, render_markdown(report)):
        assert "for which the twin expects 618" in text, "what the changes are against"
        assert "may be far off still" in text, "beside what it predicts"


def test_a_passed_certificate_that_was_not_upheld_is_not_told_as_open() -> None:
    """The table says PASS; the machine has been worse since."""
    facts = undecided_facts()
    passed = tuple(o for o in OUTCOMES if o.configuration == WINNER)
    text = render_terminal(make_report(replace(facts, outcomes=passed, recommendable=None)))
    assert "did not decide" not in text and "the machine was worse later" in text


def test_requests_at_higher_rates_are_told_apart() -> None:
    winner = of(WINNER)
    assert winner.certificate is not None
    higher = HigherRuns(rate_rps=841.0, requests=2_000, over_budget=0, inflation=60.0)
    certificate = replace(winner.certificate, requests=5_000, higher=(higher,))
    counted = replace(winner, certificate=certificate)
    outcomes = tuple(counted if o.configuration == WINNER else o for o in OUTCOMES)
    report = make_report(example_facts(outcomes=outcomes))
    for text in (render_terminal(report), render_markdown(report), render_html(report)):
        assert "5,000, of them 2,000 at 841" in " ".join(text.split())
    assert ", of them" not in render_terminal(make_report(example_facts()))


def test_how_quiet_the_machine_was_is_told_where_it_was_watched() -> None:
    conditions = Conditions(seconds=62.0, stalls_ms=(180.0, 25.0), work_us=(100.0, 101.0, 180.0))
    winner = of(WINNER)
    assert winner.headline is not None
    seen = replace(winner, load_tests=(replace(winner.headline, conditions=conditions),))
    outcomes = tuple(seen if o.configuration == WINNER else o for o in OUTCOMES)
    report = make_report(example_facts(outcomes=outcomes))
    assert summarize(report).conditions == (
        "2 stalls over 20 ms in 62 s (the longest 180 ms, 0.33 % of the time); the slowest second "
        "ran at 56 % of the median speed"
    )
    for text in (render_markdown(report), render_html(report)):
        assert "2 stalls over 20" in text
    assert "machine" in render_terminal(report)
    assert summarize(make_report(example_facts())).conditions == ""


def test_what_the_model_cannot_do_is_a_note() -> None:
    facts = example_facts(model=replace(MODEL, notes=("Its state has the batch on axis 1.",)))
    report = make_report(facts)
    for text in (render_terminal(report), render_markdown(report), render_html(report)):
        assert "Its state has the batch on axis 1." in text


def test_an_undecided_answer_says_what_to_do() -> None:
    answer = summarize(make_report(undecided_facts()))
    assert answer.misses == ("Its certificate counts 2,400 requests; it needs about 5,100 more.",)
    assert answer.advice[0].startswith("A budget of 175s is expected to prove it")
    assert answer.command == (
        "analyze digits.onnx --latency-budget 50ms --study digits-3 --resume --budget 175s"
    )
    # One line of its own, to be copied as it is.
    assert render_terminal(make_report(undecided_facts())).endswith(f"\n  {answer.command}")
    assert f'<pre class="command">{answer.command}</pre>' in render_html(
        make_report(undecided_facts())
    )


def test_the_next_command_replaces_what_an_estimate_exported() -> None:
    """``--export: … is there already`` was what the printed command came to."""

    def forced(facts: StudyResult, options: str) -> int:
        command = f"analyze digits.onnx --latency-budget 50ms{options}"
        told = replace(facts, provenance={"command": command})
        return str(summarize(make_report(told)).command).count("--force")

    assert forced(undecided_facts(), " --export models") == 0, "nothing was exported"
    assert forced(estimated_facts(), "") == 0
    assert forced(estimated_facts(), " --export models") == 1
    assert forced(estimated_facts(), " --export=models --force") == 1


def test_without_the_command_of_before_the_next_one_is_made_from_the_sla() -> None:
    facts = replace(undecided_facts(), provenance={})
    assert summarize(make_report(facts)).command == (
        "analyze search /models/digits.onnx --latency-budget 50ms --target-rate 2000/s "
        "--objective cost --study digits-3 --resume --budget 175s"
    )


@pytest.mark.parametrize(
    ("needed_s", "budget_s", "told"),
    [(61.0, 60.0, "65s"), (171.0, 60.0, "175s"), (301.0, 60.0, "6m"), (None, 60.0, "2m")],
)
def test_the_next_budget_is_a_round_one(needed_s: float | None, budget_s: float, told: str) -> None:
    facts = undecided_facts()
    search = replace(facts.search, budget_needed_s=needed_s, budget_s=budget_s)
    command = summarize(make_report(replace(facts, search=search))).command
    assert command is not None and command.endswith(f"--budget {told}")


def test_a_note_that_is_cut_short_shows_it() -> None:
    long = example_facts(warnings=(" ".join(f"word{number}" for number in range(60)),))
    lines = render_terminal(make_report(long)).splitlines()
    (line,) = [line for line in lines if line.endswith(" …")]
    assert "word2" in line and "word59" not in line


@ALL
def test_the_terminal_gets_a_short_plain_answer(facts: StudyResult) -> None:
    text = render_terminal(make_report(facts))
    lines = text.splitlines()
    assert len(lines) <= LINES_MAX
    command = f"  {summarize(make_report(facts)).command}"
    assert max(len(line) for line in lines if line != command) <= 96
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


def test_markdown_tells_the_memory_that_the_page_tells() -> None:
    """Of a model on a GPU it told what the server's process took on the host."""
    on_gpu = replace(WINNER, device="gpu").canonical()
    best = measurement(on_gpu, 722.0, 6.4, memory_mib=170, drop=0.004, certified=True)
    use = replace(best.resources, gpu_memory_bytes_peak=3 << 30)
    outcomes = (*OUTCOMES, replace(best, resources=use))
    report = make_report(example_facts(outcomes=outcomes, recommended_id=on_gpu.config_id))
    table = render_markdown(report).partition("## Pareto front")[2]
    [row] = [line for line in table.splitlines() if f"`{on_gpu.config_id}`" in line]
    assert "| 3GiB |" in row and "170MiB" not in row
    assert ">3GiB</td>" in render_html(report)


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


def test_a_study_that_includes_openvino_shows_it_in_every_report() -> None:
    with_it = replace(WINNER, accelerator="openvino").canonical()
    best = measurement(with_it, 722.0, 6.4, memory_mib=170, drop=0.004, certified=True)
    facts = replace(
        example_facts(outcomes=(*OUTCOMES, best)), recommended_id=best.configuration.config_id
    )
    report = make_report(facts)
    assert "in ONNX Runtime with OpenVINO on the CPU" in configuration_sentence(with_it)
    for text in (render_terminal(report), render_markdown(report), render_html(report)):
        assert "with OpenVINO" in text
    rows = list(csv.DictReader(io.StringIO(render_csv(facts))))
    accelerators = {row["config_id"]: row["accelerator"] for row in rows}
    assert accelerators[with_it.config_id] == "openvino"
    assert accelerators[WINNER.config_id] == ""


@ALL
def test_the_page_is_whole_and_self_contained(facts: StudyResult) -> None:
    page = render_html(make_report(facts), config_pbtxt="max_batch_size: 16")
    assert page.startswith("<!DOCTYPE html>")
    assert page.rstrip().endswith("</html>")
    outside = page[: page.index('<script type="application/json"')]
    assert not re.search(r"(?:src|href)=\"(?!data:)", outside)
    assert "max_batch_size: 16" in outside


def test_the_configuration_of_a_model_directory_is_not_called_tritons_default() -> None:
    own = replace(of(BASELINE), configuration=replace(BASELINE, instance_count=3).canonical())
    facts = example_facts(outcomes=(own, *OUTCOMES[1:]), baseline_id=own.configuration.config_id)
    for said, other, study in (
        ("its own config.pbtxt", "Triton's default", facts),
        ("Triton's default", "its own config.pbtxt", example_facts()),
    ):
        report = make_report(study)
        assert summarize(report).figures[2].label == f"Against {said}"
        page = render_html(report).replace("&#39;", "'")
        assert page.count(said) >= 4, "the figure, the table, the charts"
        for text in (page, render_markdown(report), render_terminal(report)):
            assert other not in text


@pytest.mark.parametrize(
    ("changes", "request_size", "name"),
    [
        ({}, 1, "Triton's default"),
        ({"backend": "python"}, 1, "Triton's default"),
        ({"max_batch_size": 16}, 16, "Triton's default"),
        ({"max_batch_size": 16}, 1, "its own config.pbtxt"),
        ({"max_batch_size": 0, "dynamic_batching": False}, 1, "Triton's default"),
        ({"instance_count": 1}, 1, "its own config.pbtxt"),
    ],
)
def test_what_triton_would_do_alone_is_its_default(
    changes: dict[str, Any], request_size: int, name: str
) -> None:
    config = replace(BASELINE, preferred_batch_size=None, **changes).canonical()
    own = replace(of(BASELINE), configuration=config)
    facts = example_facts(outcomes=(own, *OUTCOMES[1:]), baseline_id=config.config_id)
    assert make_report(replace(facts, request_batch_size=request_size)).baseline_name == name


def test_predictions_are_marked_on_the_page() -> None:
    facts = example_facts()
    page = render_html(make_report(facts))
    assert "predicted by the twin" in page
    assert "Hatched steps are predicted" in page


def test_the_page_can_be_read_without_seeing_it() -> None:
    """Charts had neither role nor name, headings left a level out, a column had no head."""
    page = render_html(make_report(example_facts()), config_pbtxt="max_batch_size: 16")
    page = page[: page.index('<script type="application/json"')]
    charts = re.findall(r'<div class="chart"[^>]*>', page)
    assert len(charts) == 5
    for chart in charts:
        assert 'role="img"' in chart and re.search(r'aria-label="[^"]{40,}"', chart)
    assert "recommended: int8 static" in charts[0] and "edge 618" in charts[0]
    assert "&lt;" not in charts[0], "no markup of the hover text"
    levels = [int(level) for level in re.findall(r"<h(\d)", page)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    assert not re.search(r"<th[^>]*></th>", page)
    regions = re.findall(r'<div class="scroll"[^>]*>', page)
    assert regions and all('tabindex="0"' in region for region in regions)


def test_a_thinned_chart_says_so() -> None:
    crowd = tuple(
        measurement(configuration(instance_count=n + 3), 10.0 + n / 10, 9.0, memory_mib=400)
        for n in range(1000)
    )
    for outcomes, said in ((OUTCOMES, False), ((*OUTCOMES, *crowd), True)):
        facts = example_facts(outcomes=outcomes)
        page = render_html(make_report(facts))
        assert ("Shown are 600 of 1,010 configurations" in page) is said


@pytest.mark.parametrize(
    ("interval", "said"),
    [
        ((1.5, None), "≥ 1.5×"),
        ((None, 4.0), "≤ 4×"),
        ((1.5, 4.0), "3.2×"),
        ((None, None), "3.2×"),
    ],
)
def test_a_gain_with_an_open_end_is_told_by_the_end_that_is_known(
    interval: tuple[float | None, float | None], said: str
) -> None:
    assert ratio_text(Gain(ratio=3.2, basis="edges", interval=interval)) == said


@pytest.mark.parametrize(
    ("objective", "ratio", "interval", "said"),
    [
        (
            "cost",
            0.3,
            (0.154, None),
            "as cheap as the baseline (it may be no cheaper)",
        ),
        ("cost", 1.0, (0.9, 1.1), "as cheap as the baseline (it is no cheaper)"),
        ("capacity", 0.3, (0.289, None), "the capacity of the baseline (it may be no higher)"),
        ("capacity", 0.3, (None, 0.4), "the capacity of the baseline (it is no higher)"),
        ("capacity", 0.5, (None, None), "the capacity of the baseline (it may be no higher)"),
        (
            "latency",
            0.5,
            (None, None),
            "as fast as the baseline (it is no faster)",
        ),
        ("memory", 0.5, (None, None), "as small as the baseline (it is no smaller)"),
        ("memory", 1.5, (None, None), "less memory than the baseline"),
        ("cost", 1.5, (0.9, 2.0), "cheaper than the baseline"),
    ],
)
def test_a_ratio_of_at_most_one_is_no_gain(
    objective: Any, ratio: float, interval: tuple[float | None, float | None], said: str
) -> None:
    """``≥ 0.154× cheaper than the baseline`` was said of one that may cost six times as much."""
    sla = replace(SLA, objective=objective)
    note = gain_note(Gain(ratio=ratio, basis="edges", interval=interval), sla, None)
    assert note.startswith((f"{said},", f"{said} at the target rate"))


def test_a_report_that_cannot_be_written_is_no_fault_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a read-only disk nothing can be tidied up either."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "write_text", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(UsageError, match=r"x\.html cannot be written: Read-only"):
        write_report(tmp_path / "x.html", "text")


def test_a_verification_tells_what_it_measured() -> None:
    """At a tenth of the rate, within twice the budget: it was listed as "holds" all the same."""
    facts = example_facts()
    (told,) = facts.verifications
    easier = replace(told.claim.sla, percentile=90.0, latency_budget_ms=133.25)
    claim = replace(told.claim, sla=easier, rate_rps=60.0)
    report = make_report(replace(facts, verifications=(replace(told, claim=claim),)))
    said = f"{claim.configuration.config_id} at 60 /s, 90 % within 133.25 ms"
    for text in (render_markdown(report), render_html(report)):
        assert said in " ".join(text.split())
