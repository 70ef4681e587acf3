"""Reports of studies whose search did not end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from facts_example import OUTCOMES, WINNER, example_facts, undecided_facts

from analyzer.domain.measurement import Edge, Measurement
from analyzer.domain.study import Explanation, StudyResult
from analyzer.report.document import build_document
from analyzer.report.entries import make_report
from analyzer.report.html import render_html
from analyzer.report.markdown import render_markdown
from analyzer.report.summary import summarize
from analyzer.report.terminal import render_terminal

BARE = "analyze digits.onnx --latency-budget 50ms"
COMMAND = f"{BARE} --budget=60s"


def interrupted(facts: StudyResult) -> StudyResult:
    return replace(
        facts,
        status="interrupted",
        verdict="undecided",
        recommended_id=None,
        recommendable=None,
        explanation=Explanation(),
        search=replace(facts.search, evaluated_twin=None, wall_seconds=None, bound=None),
        provenance={**facts.provenance, "command": COMMAND},
        verifications=(),
    )


def test_what_an_interrupted_search_has_certified_is_certified() -> None:
    """``no configuration was proven`` and ``that did not decide`` stood above a PASS."""
    report = make_report(interrupted(example_facts()))
    answer = summarize(report)
    assert answer.title == (
        "Interrupted: as int8 static, digits is certified so far for 556 requests/s, "
        "99 % of them within 50 ms"
    )
    assert answer.subtitle.startswith("Certified so far: int8 static") and not answer.misses
    assert answer.heading == "The configuration certified so far"
    assert ("certificate", "PASS at 0.95 confidence") in answer.certificate
    assert answer.command == f"{BARE} --study digits-1 --resume --budget 60s"
    assert f"--config {WINNER.config_id}" in answer.advice[1]
    document = build_document(report)
    assert (document["status"], document["verdict"]) == ("interrupted", "undecided")
    assert document["closest"]["misses"] == [] and document["recommendation"] is None
    assert document["search"]["wall_seconds"] is None
    for text in (render_markdown(report), render_html(report), render_terminal(report)):
        for wrong in ("Undecided", "did not decide", "was proven", "expected to prove", "0 s "):
            assert wrong not in text


@pytest.mark.parametrize(
    ("resumed", "budget"),
    [("--budget 5m", " --budget 5m"), ("--budget=5m", " --budget 5m"), ("", "")],
)
def test_a_resumed_search_goes_on_with_the_budget_of_its_last_command(
    resumed: str, budget: str
) -> None:
    """It was that of the first, which had not sufficed."""
    facts = interrupted(example_facts())
    resumes = [{"command": f"{COMMAND} --resume"}, {"command": f"{BARE} {resumed} --resume"}]
    facts = replace(facts, provenance={**facts.provenance, "resumes": resumes})
    answer = summarize(make_report(facts))
    assert answer.command == f"{BARE} --study digits-1 --resume{budget}"


def test_the_highest_certified_rate_comes_before_a_better_estimate() -> None:
    faster = replace(
        next(o for o in OUTCOMES if o.configuration == WINNER),
        configuration=replace(WINNER, instance_count=2).canonical(),
        capacity_rps=None,
        certificate=None,
        headline=None,
    )
    facts = interrupted(example_facts(outcomes=(*OUTCOMES, faster)))
    closest = make_report(facts).closest
    assert closest is not None and closest.entry.configuration == WINNER


@pytest.mark.parametrize("status", ["interrupted", "failed", "running"])
def test_without_a_certificate_nothing_is_called_proven(status: str) -> None:
    facts = replace(interrupted(undecided_facts()), status=status)  # type: ignore[arg-type]
    answer = summarize(make_report(facts))
    assert "no configuration was proven yet" in answer.title and answer.misses
    assert len(answer.advice) == 1 and answer.command is not None
    nothing = summarize(make_report(replace(facts, outcomes=())))
    assert nothing.title.endswith("nothing of digits was measured yet")


def test_a_search_that_ended_is_told_as_before() -> None:
    document = build_document(make_report(example_facts()))
    assert (document["status"], document["verdict"]) == ("finished", "found")


def test_what_no_load_test_was_made_of_misses_no_limit_that_is_told() -> None:
    """It was told to miss the latency budget, with a share of failed requests that nobody saw."""
    facts = undecided_facts()
    untested = tuple(
        replace(
            outcome,
            load_tests=(),
            edge=Edge(rate_rps=None, interval_rps=(None, None)),
            certificate=None,
            headline=None,
        )
        if isinstance(outcome, Measurement)
        else outcome
        for outcome in facts.outcomes
    )
    answer = summarize(make_report(replace(facts, outcomes=untested)))
    assert answer.misses == ("None of its load tests fitted into the time that was left.",)
