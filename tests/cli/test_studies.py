"""``analyze studies show`` tells what the report of the study tells."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from facts_example import BASELINE, MODEL, OUTCOMES, WINNER, example_facts

from analyzer.cli.studies import studies
from analyzer.domain.measurement import Accuracy, Failure, Measurement, RateEvidence
from analyzer.domain.study import StudyResult, StudyStatus, Verdict
from analyzer.report.document import build_document
from analyzer.report.entries import make_report
from analyzer.report.gain_text import edge_text
from analyzer.report.wording import rate
from analyzer.store.records import StudyRecord
from analyzer.store.results import ResultStore, open_store

CPU = "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz"  # a line of a table has no room for it
LOWERED = "This machine's speed varied: 40% below those that short runs found."


def of(config_id: str) -> Measurement:
    found = next(o for o in OUTCOMES if o.configuration.config_id == config_id)
    assert isinstance(found, Measurement)
    return found


@pytest.fixture
def url(folder: Path) -> Iterator[str]:
    yield f"sqlite:///{folder / 'results.db'}"


def stored(store: ResultStore) -> StudyResult:
    """A study that was resumed: another configuration was recommended last, as its rows say."""
    facts = example_facts()
    store.create_study(StudyRecord(name=facts.name, model=facts.model, sla=facts.sla))
    winner, baseline = of(WINNER.config_id), of(BASELINE.config_id)
    short = replace(winner, capacity_rps=None, certificate=None, headline=None)
    for number, role, outcome in (
        (0, "trial", short), (-1, "baseline", baseline), (-1, "recommendation", winner),
        (-1, "recommendation", baseline),
    ):  # fmt: skip
        store.add_outcome(facts.name, number, {}, outcome, role=role)
    factors = ((WINNER.config_id, 0.6), (BASELINE.config_id, 0.5))
    result = replace(facts, outcomes=(winner, baseline), speed_factors=factors, warnings=(LOWERED,))
    store.save_result(result)
    return store.load_result(facts.name)


def shown(url: str, name: str, *options: str) -> str:
    found = CliRunner().invoke(studies, ["show", name, "--store", url, *options])
    assert found.exit_code == 0, found.output
    return found.output


def test_a_study_shows_the_figures_of_its_report(url: str) -> None:
    with open_store(url) as store:
        report = make_report(stored(store))
    text = shown(url, report.result.name)
    assert report.recommendation is not None and report.baseline is not None
    lines = [line for line in text.splitlines() if WINNER.config_id in line]
    assert len(lines) == 1, "one line for each configuration"
    best = report.recommendation.measurement
    assert (best.edge.rate_rps or 0.0) < (of(WINNER.config_id).edge.rate_rps or 0.0)
    assert edge_text(best.edge) in lines[0] and rate(best.capacity_rps) in lines[0]
    assert "recommended" in lines[0] and lines[0].startswith("0 ")
    (base,) = (line for line in text.splitlines() if BASELINE.config_id in line)
    assert edge_text(report.baseline.measurement.edge) in base and "baseline" in base
    assert f"Note: {LOWERED}" in text


def test_a_reason_that_is_cut_short_shows_it(url: str) -> None:
    """``… nobody know`` was the end of one."""
    reasons = {
        "This machine has no GPU, and what a GPU would make of this model nobody knows here.": " …",
        "x" * 90: "x…",
        "Gone.": "Gone.",
    }
    with open_store(url) as store:
        for number, message in enumerate(reasons):
            facts = example_facts(name=f"digits-{number}")
            store.create_study(StudyRecord(name=facts.name, model=facts.model, sla=facts.sla))
            failed = next(o for o in OUTCOMES if isinstance(o, Failure))
            store.add_outcome(facts.name, 0, {}, replace(failed, message=message))
    for number, end in enumerate(reasons.values()):
        (line,) = [row for row in shown(url, f"digits-{number}").splitlines() if "fp16" in row]
        assert line.endswith(end) and len(line.split("  ")[-1]) <= 60


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        pytest.param(f"2 × {CPU} (AVX2), 24 GiB", f"2 × {CPU} (AVX-512), 24 GiB", True, id="other"),
        pytest.param("2 × CPU (AVX2), 24 GiB", "2 × CPU (AVX2), 12 GiB", False, id="memory"),
    ],
)
def test_a_row_of_another_machine_says_so(url: str, first: str, second: str, told: bool) -> None:
    """A study that went on elsewhere listed both machines' edges as if they were one's."""
    facts = example_facts()
    with open_store(url) as store:
        store.create_study(StudyRecord(name=facts.name, model=facts.model, sla=facts.sla))
        for config, role, hardware in ((WINNER, "trial", first), (BASELINE, "baseline", second)):
            outcome = replace(of(config.config_id), hardware=hardware)
            store.add_outcome(facts.name, 0, {}, outcome, role=role)
    text = shown(url, facts.name)
    for config, hardware in ((WINNER, first), (BASELINE, second)):
        (line,) = (line for line in text.splitlines() if config.config_id in line)
        assert line.endswith(f"measured on {hardware}") == told


def test_a_long_name_does_not_widen_every_row(url: str) -> None:
    """One of 250 characters padded all rows to 500 columns."""
    with open_store(url) as store:
        for name in ("digits", "l" + "o" * 250 + "ng"):
            facts = example_facts(name=name, model=replace(MODEL, name=name))
            store.create_study(StudyRecord(name=name, model=facts.model, sla=facts.sla))
    lines = CliRunner().invoke(studies, ["--store", url]).output.splitlines()
    assert max(len(line) for line in lines if "loo" not in line) < 100
    assert any("ng  l" in line for line in lines), "a name is told whole: commands take it"


def test_its_document_has_every_row_with_the_same_edges(url: str) -> None:
    with open_store(url) as store:
        report = make_report(stored(store))
    document = json.loads(shown(url, report.result.name, "--json"))
    assert document["recommended_id"] == WINNER.config_id and LOWERED in document["warnings"]
    assert [row["stands"] for row in document["trials"]] == [False, False, True, True]
    edges = {m.configuration.config_id: m.edge.rate_rps for m in report.measured}
    for row in document["trials"]:
        if row["stands"]:
            assert row["edge_rps"] == pytest.approx(edges[row["config_id"]])


def test_an_accuracy_on_made_up_inputs_was_not_measured(url: str) -> None:
    facts, winner = example_facts(), of(WINNER.config_id)
    real = Accuracy(metric="top1_agreement", value=0.99, drop=0.01, samples=100)
    with open_store(url) as store:
        store.create_study(StudyRecord(name=facts.name, model=facts.model, sla=facts.sla))
        for accuracy in (real, replace(real, synthetic=True)):
            store.add_outcome(facts.name, 0, {}, replace(winner, accuracy=accuracy))
    document = json.loads(shown(url, facts.name, "--json"))
    assert [row["accuracy_drop"] for row in document["trials"]] == [0.01, None]


def test_an_edge_that_long_runs_broke_is_told_alike_everywhere(url: str) -> None:
    facts, winner = example_facts(), of(WINNER.config_id)
    broken = RateEvidence(
        rate_rps=200.0, requests=2000, over_budget=30, inflation=5.0, claim=1, blocks=2
    )
    unproven = replace(
        winner, capacity_rps=None, certificate=None, headline=None, evidence=(broken,)
    )
    with open_store(url) as store:
        store.create_study(StudyRecord(name=facts.name, model=facts.model, sla=facts.sla))
        store.add_outcome(facts.name, 0, {}, unproven)
        factors = ((WINNER.config_id, 1.0),)
        store.save_result(replace(facts, outcomes=(unproven,), speed_factors=factors))
        (measured,) = make_report(store.load_result(facts.name)).measured
    assert (measured.edge.at_least_rps or 0.0) < 200.0
    document = json.loads(shown(url, facts.name, "--json"))
    assert [row["edge_rps"] for row in document["trials"]] == [measured.edge.rate_rps]


def test_an_interrupted_study_is_shown_as_its_report_tells_it(url: str) -> None:
    with open_store(url) as store:
        facts = example_facts()
        store.create_study(StudyRecord(name=facts.name, model=facts.model, sla=facts.sla))
        store.add_outcome(facts.name, 0, {}, of(WINNER.config_id))
        store.set_status(facts.name, "interrupted")
    text = shown(url, facts.name)
    assert "Interrupted: as int8 static, digits is certified so far for 556 requests/s" in text
    assert text.rstrip().endswith(f"--study {facts.name} --resume")


@pytest.mark.parametrize("before", [None, "found", "estimated", "infeasible", "undecided"])
@pytest.mark.parametrize("status", ["interrupted", "failed", "running", "finished"])
def test_one_verdict_is_told_everywhere(
    url: str, before: Verdict | None, status: StudyStatus
) -> None:
    """Of an interrupted study the list said ``null``, and its report ``undecided``."""
    facts = example_facts()
    with open_store(url) as store:
        store.create_study(StudyRecord(name=facts.name, model=facts.model, sla=facts.sla))
        if before is not None:
            recommended = WINNER.config_id if before in ("found", "estimated") else None
            store.add_outcome(facts.name, 0, {}, of(WINNER.config_id))
            store.save_result(replace(facts, verdict=before, recommended_id=recommended))
        store.set_status(facts.name, status)
        verdict = build_document(make_report(store.load_result(facts.name)))["verdict"]
    listed = CliRunner().invoke(studies, ["--store", url, "--json"])
    assert json.loads(listed.output)["studies"][0]["verdict"] == verdict
    assert json.loads(shown(url, facts.name, "--json"))["verdict"] == verdict
    assert f", {status}, {verdict}\n" in shown(url, facts.name)
    table = CliRunner().invoke(studies, ["--store", url]).output.splitlines()[1]
    assert f" {verdict} " in table
