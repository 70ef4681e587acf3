"""What a search ends with, from facts that were made up; model and export are real."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from facts_example import BASELINE, example_facts

from analyzer.cli.answer import deliver
from analyzer.cli.export import export_with_evidence
from analyzer.cli.options import command_line
from analyzer.cli.search import EXIT_CODES
from analyzer.cli.search_run import save_at_end
from analyzer.domain.measurement import Measurement
from analyzer.domain.study import StudyResult
from analyzer.errors import AnalyzerError, RepositoryError, UsageError
from analyzer.export.claims import claim_of_repository, served_model
from analyzer.export.manifest import read_manifest
from analyzer.report.entries import make_report
from analyzer.report.terminal import render_terminal
from analyzer.search.time_plan import TimePlan
from analyzer.variants.inspect import inspect_model

ReaderGone = Callable[[], AbstractContextManager[None]]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def facts() -> StudyResult:
    """A study that recommends its baseline, an fp32 configuration of the example model."""
    return example_facts(
        model=inspect_model(ROOT / "examples" / "digits.onnx"),
        recommended_id=BASELINE.config_id,
        provenance={},
    )


def options(folder: Path, *, force: bool, quiet: bool = False) -> Any:
    return SimpleNamespace(
        as_json=False, quiet=quiet, report_file=None, export_dir=folder / "models", force=force
    )


def test_the_export_replaces_another_configuration_only_with_force(
    facts: StudyResult, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = folder / "models" / "digits"
    (there / "1").mkdir(parents=True)
    (there / "config.pbtxt").write_text('name: "digits"')
    with pytest.raises(RepositoryError) as caught:
        deliver(options(folder, force=False), facts)
    assert "--force" in caught.value.hint and "is stored" in caught.value.hint
    assert not (there / "2").exists()
    capsys.readouterr()
    assert deliver(options(folder, force=True), facts) == "found"
    assert (there / "2" / "model.onnx").is_file() and (there / "1").is_dir()
    out, err = capsys.readouterr()
    assert "repository" in out and "was replaced" not in out
    assert "was replaced; older versions are still there" in err
    (there / "config.pbtxt").write_text('name: "digits"')
    deliver(options(folder, force=True, quiet=True), facts)
    assert capsys.readouterr().err == ""


def test_an_estimate_is_exported_and_its_manifest_says_that_nothing_was_proven(
    facts: StudyResult, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = tuple(
        replace(outcome, capacity_rps=None, certificate=None, headline=None)
        if isinstance(outcome, Measurement) and outcome.configuration.config_id == facts.baseline_id
        else outcome
        for outcome in facts.outcomes
    )
    estimate = replace(facts, verdict="estimated", accepted="estimated", outcomes=bare)
    assert EXIT_CODES[deliver(options(folder, force=False), estimate)] == 0
    assert "Nothing was proven" in capsys.readouterr().out
    evidence = read_manifest(folder / "models", "digits").evidence
    assert evidence["statement"].startswith("Nothing was proven")
    assert evidence["entry"]["capacity_rps"] is None
    # An estimate claims no rate; a rate that is given can be verified.
    with pytest.raises(UsageError) as caught:
        claim_of_repository(folder / "models", "digits")
    assert "--target-rate (its edge was estimated at 212.4/s)" in caught.value.hint
    subject = claim_of_repository(folder / "models", "digits", rate_rps=100.0)
    assert subject.claim.rate_rps == 100.0 and subject.claim.sla == facts.sla
    assert not subject.claimed


def test_a_configuration_that_was_edited_since_is_the_one_that_is_verified(
    facts: StudyResult, folder: Path
) -> None:
    deliver(options(folder, force=False), facts)
    config = folder / "models" / "digits" / "config.pbtxt"
    claimed = claim_of_repository(folder / "models", "digits")
    assert claimed.claimed and not claimed.notes
    count = claimed.claim.configuration.instance_count
    text = config.read_text()
    config.write_text(text.replace(f"count: {count}", f"count: {count + 3}"))
    edited = claim_of_repository(folder / "models", "digits")
    assert edited.notes == ("changed since the export: config.pbtxt. What is there is measured.",)
    assert edited.claim.configuration == replace(
        claimed.claim.configuration, instance_count=count + 3
    )
    for broken in ("garbage", 'name: "digits" backend: "nonsense"'):
        config.write_text(broken)
        with pytest.raises(RepositoryError):
            claim_of_repository(folder / "models", "digits")
    config.unlink()
    with pytest.raises(RepositoryError, match="cannot be read"):
        claim_of_repository(folder / "models", "digits")


def test_notes_of_a_claim_are_not_for_the_quiet(
    facts: StudyResult, folder: Path, call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(*args: object, **options: object) -> None:
        raise UsageError("Enough.")

    monkeypatch.setattr("analyzer.cli.verify._measure", measure)
    deliver(options(folder, force=False), facts)
    with (folder / "models" / "digits" / "config.pbtxt").open("a") as config:
        config.write("# by hand\n")
    words = ("verify", "--repository", "models", "--model", "digits")
    assert "Note: changed since the export: config.pbtxt" in call(*words).stderr
    assert "Note" not in call(*words, "--quiet").stderr


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (("entry", "capacity_rps"), "lots"),
        (("entry", "capacity_rps"), -3),
        (("sla", "latency_budget_ms"), "50ms"),
        (("sla", "percentile"), "p99"),
        (("sla", "request_batch_size"), [1]),
        (("sla",), 5),
    ],
)
def test_a_manifest_with_a_value_that_is_none_is_told_with_its_place(
    facts: StudyResult, folder: Path, key: tuple[str, ...], value: object
) -> None:
    deliver(options(folder, force=False), facts)
    file = folder / "models" / "digits" / "tritune.json"
    document = json.loads(file.read_text())
    place = document["versions"]["1"]["evidence"]
    for part in key[:-1]:
        place = place[part]
    place[key[-1]] = value
    file.write_text(json.dumps(document))
    with pytest.raises(AnalyzerError) as refused:
        claim_of_repository(folder / "models", "digits")
    assert refused.value.exit_code == 2
    if value != 5:
        assert f"{file}, versions.1.evidence" in refused.value.message


def test_a_repository_without_a_manifest_can_be_claimed_by_options(folder: Path) -> None:
    model = folder / "models" / "digits"
    (model / "1").mkdir(parents=True)
    shutil.copy(Path(__file__).parents[2] / "examples" / "digits.onnx", model / "1" / "model.onnx")
    (model / "config.pbtxt").write_text('max_batch_size: 16 metric_tags { key: "a" value: "b" }')
    with pytest.raises(UsageError, match="claims nothing") as refused:
        claim_of_repository(folder / "models", "digits", rate_rps=20.0)
    assert "--latency-budget and --target-rate" in refused.value.hint
    claimed = claim_of_repository(
        folder / "models", "digits", rate_rps=20.0, latency_budget_ms=50.0
    )
    claim = claimed.claim
    assert not claimed.claimed
    assert (claim.rate_rps, claim.sla.latency_budget_ms, claim.model) == (20.0, 50.0, "digits")
    assert claim.configuration.max_batch_size == 16 and claim.configuration.dynamic_batching
    assert claimed.model_path == model / "1" / "model.onnx"
    assert "metric_tags" in claimed.notes[0]


def test_a_password_is_not_kept_with_the_command() -> None:
    kept = command_line(["m.onnx", "--store", "postgresql://me:secret@host/db", "--study", "a b"])
    assert kept == "analyze m.onnx --store 'postgresql://me:***@host/db' --study 'a b'"
    kept = command_line(["m.onnx", "--store=postgresql://host/db?password=secret&user=me"])
    assert kept == "analyze m.onnx '--store=postgresql://host/db?password=***&user=me'"


def test_bytes_that_are_no_text_are_told_as_escapes() -> None:
    assert command_line([os.fsdecode(b"r\xe9.onnx")]) == r"analyze 'r\udce9.onnx'"


def test_a_claim_knows_the_shapes_that_its_graph_leaves_open(
    facts: StudyResult, folder: Path, save_open_model: Callable[[Path], None]
) -> None:
    """verify --repository refused what had been searched with --input-shape."""
    deliver(options(folder, force=False), facts)
    manifest = read_manifest(folder / "models", "digits")
    save_open_model(folder / "open.onnx")
    tokens = {"name": "tokens", "datatype": "INT64", "shape": [24], "value_range": None}
    manifest = replace(manifest, evidence={"model": {"inputs": [tokens], "outputs": []}})
    assert served_model(manifest, folder / "open.onnx").inputs[0].shape == (24,)


def test_the_end_of_the_workers_counts_in_the_seconds_that_are_told() -> None:
    now, saved = [20.0], []

    def end() -> None:
        assert [round(result.search.wall_seconds) for result in saved] == [19]
        now[0] += 5.4

    facts = example_facts()
    search = replace(facts.search, wall_seconds=19.4, budget_s=20.0)
    store: Any = SimpleNamespace(save_result=saved.append)
    plan = TimePlan(budget_s=20.0, started=0.0, clock=lambda: now[0])
    workers = ExitStack()
    workers.callback(end)
    result = replace(facts, search=search)
    store.save_result(result)
    with ExitStack() as ending:
        result = save_at_end(store, result, workers, plan, ending)
    assert saved[-1] is result
    assert "25.4 s of 20 s" in " ".join(render_terminal(make_report(result)).split())


@pytest.mark.parametrize("as_json", [False, True])
def test_an_answer_that_nobody_reads_is_delivered_all_the_same(
    facts: StudyResult, folder: Path, reader_gone: ReaderGone, as_json: bool
) -> None:
    """``analyze … --export models | less``, left early, exported nothing and ended with 0."""
    chosen = options(folder, force=True)
    chosen.as_json, chosen.report_file = as_json, folder / "report.csv"
    (folder / "models" / "digits" / "1").mkdir(parents=True)  # so that the export has a note
    (folder / "models" / "digits" / "config.pbtxt").write_text('name: "digits"')
    with reader_gone():
        verdict = deliver(chosen, replace(facts, verdict="undecided"))
    assert EXIT_CODES[verdict] == 4
    assert (folder / "report.csv").is_file()
    assert (folder / "models" / "digits" / "2" / "model.onnx").is_file()


@pytest.mark.parametrize("more", [(), ("--json",)], ids=["text", "json"])
@pytest.mark.parametrize(("verdict", "code"), [("PASS", 0), ("FAIL", 3), ("UNDECIDED", 4)])
def test_a_claim_is_refuted_whoever_reads_it(
    facts: StudyResult,
    folder: Path,
    call: Callable[..., Any],
    reader_gone: ReaderGone,
    monkeypatch: pytest.MonkeyPatch,
    verdict: Any,
    code: int,
    more: tuple[str, ...],
) -> None:
    """``analyze verify | head -1`` could end with 0, and with ``2>&1`` before it had measured."""
    (measured,) = (
        outcome
        for outcome in facts.outcomes
        if isinstance(outcome, Measurement)
        and outcome.configuration.config_id == facts.recommended_id
    )
    assert measured.certificate is not None
    measured = replace(measured, certificate=replace(measured.certificate, verdict=verdict))
    monkeypatch.setattr("analyzer.cli.verify._measure", lambda *_, **__: measured)
    deliver(options(folder, force=False), facts)
    with reader_gone():
        answer = call("verify", "--repository", "models", "--model", "digits", *more)
    assert answer.code == code


def test_an_engine_replaces_nothing(facts: StudyResult, folder: Path) -> None:
    """``--force`` was dropped: each engine of TensorRT for RTX becomes a version of its own."""
    with pytest.raises(UsageError, match="--force has nothing to replace") as refused:
        export_with_evidence(
            facts,
            folder / "rtx",
            backend="tensorrt-rtx",
            compute_capabilities="8.6",
            force=True,
        )
    assert refused.value.hint == "Leave --force out." and not (folder / "rtx").exists()
