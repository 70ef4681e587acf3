"""The JSON document: every key of the contract, null where nothing was measured, strict JSON."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from facts_example import (
    BASELINE,
    OUTCOMES,
    WINNER,
    estimated_facts,
    example_facts,
    infeasible_facts,
    load_test,
    undecided_facts,
)

from analyzer.domain.measurement import (
    Accuracy,
    Edge,
    Failure,
    Measurement,
)
from analyzer.domain.study import Pricing, StudyResult
from analyzer.report.csv import render_csv
from analyzer.report.document import (
    FAILURES_MAX,
    build_document,
    build_load_test_entry,
    entry_document,
    evidence_document,
    render_json,
)
from analyzer.report.entries import make_report, study_entry
from analyzer.report.markdown import render_markdown
from analyzer.report.terminal import render_terminal

TOP = {
    "schema", "study", "verdict", "model", "sla", "recommendation", "baseline", "speedup",
    "speedup_basis", "speedup_interval", "pareto", "closest", "search", "provenance",
}  # fmt: skip
ENTRY = {
    "config_id", "config", "capacity_rps", "edge_rps", "edge_interval_rps", "measured_at_rps",
    "throughput_ips", "latency_ms", "breakdown_ms", "errors", "memory_bytes_peak",
    "gpu_memory_bytes_peak", "gpu_memory_source", "gpu_utilization", "power_watts", "accuracy",
    "energy_joules_per_inference", "gpu_clock_mhz", "gpu_clock_limits", "gpu_throttled",
    "certificate", "fleet", "hardware", "instance_type", "predicted",
}  # fmt: skip
CONFIG = {
    "precision", "quantization", "backend", "device", "max_batch_size", "dynamic_batching",
    "preferred_batch_size", "max_queue_delay_us", "instance_count", "intra_op_threads",
}  # fmt: skip


def winner() -> Measurement:
    found = next(o for o in OUTCOMES if o.configuration == WINNER)
    assert isinstance(found, Measurement)
    return found


def check_entry(entry: dict[str, Any]) -> None:
    assert set(entry) >= ENTRY
    assert set(entry["config"]) == CONFIG
    assert set(entry["latency_ms"]) == {"mean", "p50", "p90", "p95", "p99", "sla"}
    assert set(entry["breakdown_ms"]) == {
        "queue", "compute_input", "compute_infer", "compute_output", "overhead",
    }  # fmt: skip
    assert set(entry["predicted"]) == {
        "edge_rps", "latency_ms_p99", "error", "model_error", "drift",
    }  # fmt: skip


@pytest.mark.parametrize(
    "facts", [example_facts(), infeasible_facts(), undecided_facts(), estimated_facts()]
)
def test_every_key_of_the_contract_is_there(facts: StudyResult) -> None:
    document = build_document(make_report(facts))
    assert set(document) >= TOP
    assert document["schema"] == 1
    assert set(document["model"]) == {"name", "sha256", "batchable", "inputs", "outputs"}
    assert document["model"]["inputs"] == [
        {"name": "image", "datatype": "FP32", "shape": [1, 32, 32]}
    ]
    assert set(document["search"]) >= {
        "sampler", "space_size", "evaluated_live", "evaluated_twin", "failed",
        "load_test_seconds", "wall_seconds", "bound",
    }  # fmt: skip
    assert set(document["provenance"]) >= {
        "analyzer", "hardware", "libraries", "seeds", "started_at",
    }  # fmt: skip
    assert set(document["sla"]) >= {
        "latency_budget_ms", "percentile", "confidence", "target_rate_rps", "objective",
        "max_memory_bytes", "max_accuracy_drop", "arrivals", "request_batch_size",
    }  # fmt: skip
    for entry in [document["baseline"], *document["pareto"]]:
        check_entry(entry)
    if document["closest"]:
        check_entry(document["closest"]["entry"])
        assert {"speedup", "speedup_basis", "speedup_interval"} <= set(document["closest"])
        for miss in document["closest"]["misses"]:
            assert set(miss) == {"limit", "required", "observed"}
    assert json.loads(render_json(document)) == document


def test_the_answer_of_a_found_study() -> None:
    document = build_document(make_report(example_facts()))
    best = document["recommendation"]
    check_entry(best)
    assert best["config_id"] == WINNER.config_id
    assert document["closest"] is None
    assert best["capacity_rps"] == best["measured_at_rps"] == pytest.approx(556.2)
    assert best["capacity_rps"] <= best["edge_rps"]
    assert best["certificate"]["verdict"] == best["certificate"]["mlperf"] == "PASS"
    # 2,000/s over 556.2/s is 4 devices; the baseline's 191.2/s takes 11.
    assert best["fleet"]["replicas"] == best["fleet"]["machines"] == 4
    assert best["fleet"]["cost_per_hour"] == pytest.approx(4 * 0.7364)
    assert best["fleet"]["cost_per_million_inferences"] == pytest.approx(
        0.7364 / (556.2 * 3600) * 1e6
    )
    assert (best["fleet"]["currency"], best["instance_type"]) == ("USD", "ml.g4dn.xlarge")
    assert document["baseline"]["config_id"] == BASELINE.config_id
    assert document["speedup"] == pytest.approx(11 / 4)
    assert document["speedup_basis"] == "certified"
    low, high = document["speedup_interval"]
    assert low <= document["speedup"] <= high
    for entry in (best, document["baseline"]):
        assert entry["fleet"]["basis"] == "certified"
        assert entry["fleet"]["rate_rps"] == entry["capacity_rps"]


def test_the_front_is_sorted_by_its_edge_and_holds_no_failure() -> None:
    document = build_document(make_report(example_facts()))
    edges = [entry["edge_rps"] for entry in document["pareto"]]
    assert edges == sorted(edges, reverse=True)
    assert document["pareto"][0]["config_id"] == WINNER.config_id
    assert len(document["failures"]) == 2
    assert document["failures"][1]["reason"] == "out_of_memory"


def test_an_uncertified_entry_says_at_what_rate_it_was_measured() -> None:
    document = build_document(make_report(example_facts()))
    entry = next(e for e in document["pareto"] if e["capacity_rps"] is None)
    assert entry["fleet"] is None
    assert entry["certificate"] is None
    assert entry["measured_at_rps"] < entry["edge_rps"]
    assert entry["throughput_ips"] is not None


def test_without_price_and_target_the_fleet_is_null() -> None:
    facts = example_facts(pricing=Pricing(), sla=infeasible_facts().sla)
    assert build_document(make_report(facts))["recommendation"]["fleet"] is None


def test_without_a_price_the_replicas_stay() -> None:
    fleet = build_document(make_report(example_facts(pricing=Pricing())))["recommendation"]["fleet"]
    assert fleet["replicas"] == 4
    assert fleet["cost_per_hour"] is fleet["currency"] is fleet["price_source"] is None


def test_an_accuracy_that_no_row_tells_is_null_and_said_to_be_unknown() -> None:
    unknown = Accuracy(metric="top1_agreement")
    facts = replace(
        example_facts(),
        outcomes=tuple(
            replace(outcome, accuracy=unknown) if isinstance(outcome, Measurement) else outcome
            for outcome in example_facts().outcomes
        ),
    )
    report = make_report(facts)
    assert build_document(report)["recommendation"]["accuracy"] is None
    assert "unknown (the model answers no row with finite numbers)" in render_terminal(report)
    assert "top1_agreement" not in render_csv(facts)


def test_accuracy_on_made_up_inputs_is_null() -> None:
    made_up = replace(
        winner(),
        accuracy=Accuracy(metric="cosine", value=0.99, drop=0.01, interval=None, synthetic=True),
    )
    facts = example_facts()
    entry = entry_document(study_entry(made_up, facts))
    assert entry["accuracy"] is None


def test_a_baseline_that_failed_is_an_entry_with_nothing_measured() -> None:
    failed = Failure(configuration=BASELINE, stage="start", reason="crash", message="It died.")
    document = build_document(make_report(example_facts(outcomes=(failed, *OUTCOMES[1:]))))
    check_entry(document["baseline"])
    assert document["baseline"]["config_id"] == BASELINE.config_id
    assert document["baseline"]["edge_rps"] is document["baseline"]["edge_interval_rps"] is None
    assert document["baseline"]["latency_ms"]["p99"] is None
    assert document["speedup"] is None
    # Nothing to compare with: the fleet rests on what was certified.
    assert document["recommendation"]["fleet"]["basis"] == "certified"


def test_an_infeasible_study_names_the_closest() -> None:
    document = build_document(make_report(infeasible_facts()))
    assert document["recommendation"] is document["speedup"] is None
    assert document["pareto"] == []
    miss = document["closest"]["misses"][0]
    assert miss["limit"] == "latency_budget_ms"
    assert miss["observed"] > miss["required"] == 4.0


def test_an_undecided_study_says_what_evidence_is_missing() -> None:
    document = build_document(make_report(undecided_facts()))
    assert document["closest"]["misses"] == [
        {"limit": "certified_requests", "required": 7500, "observed": 2400}
    ]
    assert document["closest"]["entry"]["certificate"]["requests_missing"] == 5100

    assert document["speedup"] is document["speedup_basis"] is document["speedup_interval"] is None
    assert document["closest"]["command"].endswith("--study digits-3 --resume --budget 175s")
    assert document["search"]["budget_needed_s"] == 175.0
    assert document["closest"]["entry"]["config_id"] != BASELINE.config_id


def test_an_estimate_has_no_capacity_and_its_fleet_says_what_it_rests_on() -> None:
    facts = estimated_facts()
    document = build_document(make_report(facts))
    best, baseline = document["recommendation"], document["baseline"]
    assert (document["verdict"], document["search"]["accepted"]) == ("estimated", "estimated")
    assert best["capacity_rps"] is best["certificate"] is None
    assert document["speedup_basis"] == "edges"
    assert document["speedup"] == pytest.approx(10 / 4)
    for entry in (best, baseline):
        assert entry["fleet"]["basis"] == "edges"
        assert entry["fleet"]["rate_rps"] == entry["edge_rps"]
    winner_measured = next(o for o in facts.outcomes if o.configuration == WINNER)
    assert isinstance(winner_measured, Measurement)
    evidence = evidence_document(facts, winner_measured)
    assert evidence["statement"].startswith("Nothing was proven")
    assert evidence["entry"]["fleet"]["basis"] == "edges"
    assert evidence_document(example_facts(), winner())["statement"].startswith("Certified")


@pytest.mark.parametrize(
    ("interval", "told"),
    [((120.0, None), [120.0, None]), ((0.0, 80.0), [None, 80.0]), ((None, None), None)],
)
def test_an_edge_that_was_not_bracketed_has_an_open_interval(
    interval: tuple[float | None, float | None], told: list[float | None] | None
) -> None:
    open_edge = replace(winner(), edge=Edge(interval_rps=interval))
    entry = entry_document(study_entry(open_edge, example_facts()))
    assert entry["edge_rps"] is None
    assert entry["edge_interval_rps"] == told


def test_nothing_measured_at_all_still_makes_a_document() -> None:
    facts = replace(undecided_facts(), outcomes=())
    document = build_document(make_report(facts))
    assert document["baseline"] is document["closest"] is document["recommendation"] is None


def test_infinities_and_numpy_numbers_become_plain_json() -> None:
    facts = example_facts(
        provenance={"seeds": {"study": np.int64(5)}, "hardware": {"x": float("nan")}},
        search=replace(example_facts().search, wall_seconds=math.inf),
    )
    document = json.loads(render_json(build_document(make_report(facts))))
    assert document["provenance"]["seeds"]["study"] == 5
    assert document["provenance"]["hardware"]["x"] is None
    assert document["search"]["wall_seconds"] is None


def test_predictions_never_stand_under_a_measured_key() -> None:
    steps = build_document(make_report(example_facts()))["explanation"]["contributions"]
    assert all((s["edge_rps"] is None) != (s["predicted_edge_rps"] is None) for s in steps)


def test_very_many_failures_are_listed_in_part() -> None:
    failure = next(o for o in OUTCOMES if isinstance(o, Failure))
    document = build_document(make_report(example_facts(outcomes=(*OUTCOMES, *[failure] * 500))))
    assert len(document["failures"]) == FAILURES_MAX


def test_a_single_load_test_has_the_keys_of_measure() -> None:
    test = load_test(rate_rps=100.0, edge_rps=200.0, service_ms=5.0, kind="measure")
    entry = build_load_test_entry(test, hardware="a machine")
    assert set(entry) >= (ENTRY - {"config_id", "config"}) | {
        "requests", "offered_rps", "achieved_rps", "send_lag_ms_p99", "validity",
    }  # fmt: skip
    assert entry["validity"] == {"valid": True, "reasons": []}
    assert entry["edge_rps"] is None
    json.loads(render_json(entry))


def test_what_came_closest_tells_its_gain() -> None:
    report = make_report(undecided_facts())
    document = build_document(report)
    assert document["speedup"] is None and report.closest_gain is not None
    assert document["closest"]["speedup"] == pytest.approx(report.closest_gain.ratio)
    assert document["closest"]["speedup_basis"] == "edges"
    assert document["closest"]["speedup_interval"][0] is not None


def test_a_baseline_that_had_no_turn_is_an_entry_of_nulls() -> None:
    facts = undecided_facts()
    unmeasured = Failure(
        configuration=BASELINE, stage="search", reason="budget", message="The budget ended."
    )
    others = [o for o in facts.outcomes if o.configuration != BASELINE]
    report = make_report(replace(facts, outcomes=(*others, unmeasured)))
    document = build_document(report)
    check_entry(document["baseline"])
    assert document["baseline"]["config_id"] == BASELINE.config_id
    assert document["baseline"]["edge_rps"] is None is document["baseline"]["edge_interval_rps"]
    assert document["closest"]["speedup"] is None
    assert [f["reason"] for f in document["failures"]][-1] == "budget"
    for text in (render_terminal(report), render_markdown(report)):
        assert "the budget ended before the baseline was measured" in " ".join(text.split())
        assert "no rate" not in text
