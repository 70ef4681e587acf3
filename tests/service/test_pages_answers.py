"""What the pages say of an answer: its figures, its trials, a claim, why there is none."""

from __future__ import annotations

import copy
import html
import re
from typing import Any

import httpx
import pytest
from facts_example import example_facts, infeasible_facts
from page_example import Example, trial

from analyzer.report.document import build_document
from analyzer.report.entries import make_report
from analyzer.report.wording import dollars
from analyzer.service.content import ContentStore
from analyzer.service.verdicts import why_not_held

FOUND = build_document(make_report(example_facts()))
UNDECIDED = build_document(make_report(infeasible_facts())) | {"verdict": "undecided"}
VERIFIED: dict[str, Any] = {
    "schema": 1,
    "verdict": "undecided",
    "claim": {
        "source": "repository", "rate_rps": 25.0, "latency_budget_ms": 2000.0, "percentile": 90.0,
    },
    "measured": FOUND["recommendation"] | {
        "capacity_rps": None, "edge_rps": None, "edge_interval_rps": None,
        "measured_at_rps": 25.0, "latency_ms": {"sla": 990.3},
        "certificate": {
            "verdict": "UNDECIDED", "requests": 1159, "over_budget": 76,
            "effective_requests": 13.2, "requests_missing": 5000,
        },
    },
    "conditions_differ": ["stalls are 3 times as many"],
}  # fmt: skip

pytestmark = pytest.mark.sqlite_alone


@pytest.fixture
def example(service: Any) -> Example:
    return Example(service.context)


def text_of(client: httpx.Client, address: str) -> str:
    """A page's words, without its markup."""
    shown = client.get(address)
    assert shown.status_code == 200
    words = re.sub(r"<[^>]*>", " ", shown.text.partition("<main")[2])
    return " ".join(html.unescape(words).split())


def changed(document: dict[str, Any], part: str, **fields: Any) -> dict[str, Any]:
    """A copy in which a part has other fields."""
    found = copy.deepcopy(document)
    found[part] |= fields
    return found


def test_a_fleet_that_rests_on_an_edge_says_so(client: httpx.Client, example: Example) -> None:
    fleet = FOUND["recommendation"]["fleet"]
    certified = text_of(client, f"/jobs/{example.ended(result=FOUND)}")
    assert "4 machines for 2,000 /s" in certified and "not on a proof" not in certified
    by_edge = fleet | {"basis": "edges", "rate_rps": 1112.4, "machines": 1}
    found = changed(
        FOUND, "recommendation", fleet=by_edge, edge_rps=None, edge_interval_rps=[1112.4, None]
    )
    shown = text_of(client, f"/jobs/{example.ended(result=found)}")
    assert "edge at least 1,112 /s; " in shown
    million = fleet["cost_per_million_inferences"]
    assert (
        f"1 machine for 2,000 /s, {dollars(million)} a million inferences; this rests on its edge "
        f"(at least 1,112 /s), not on a proof: at the certified rate a million is "
        f"{dollars(2 * million)}" in shown
    )
    found = changed(found, "recommendation", fleet=by_edge | {"cost_per_hour": None})
    shown = text_of(client, f"/jobs/{example.ended(result=found)}")
    assert "every device at its edge; this rests on" in shown


def test_figures_that_are_missing_say_why(client: httpx.Client, example: Example) -> None:
    asked = {"price_per_hour": 0.7364, "target_rate_rps": 50.0}
    reason = "None of 1 load tests was valid: the generator sent late."
    baseline = UNDECIDED["baseline"] | {"edge_rps": None, "edge_interval_rps": None}
    found = changed(UNDECIDED, "sla", **asked) | {
        "baseline": baseline,
        "failures": [{"config_id": baseline["config_id"], "message": reason}],
    }
    shown = text_of(client, f"/jobs/{example.ended(result=found)}")
    assert "give a price" not in shown and "no rate is known to reckon it from" in shown
    assert f"its edge is not known; {reason.rstrip('.')}" in shown
    gained = changed(found, "closest", speedup=1.5, speedup_basis="edges")
    shown = text_of(client, f"/jobs/{example.ended(result=gained)}")
    assert "Against Triton's default 1.5× by estimated edges" in shown
    itself = found | {"baseline": found["closest"]["entry"]}
    assert "it is the baseline itself" in text_of(client, f"/jobs/{example.ended(result=itself)}")
    assert "give a price (and a target rate)" in text_of(
        client, f"/jobs/{example.ended(result=UNDECIDED)}"
    )


def test_the_baseline_of_a_model_directory_is_its_own(
    client: httpx.Client, example: Example, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = example.ended(result=FOUND)
    assert text_of(client, f"/jobs/{job}").count("Triton's default") == 4
    monkeypatch.setattr(ContentStore, "is_archive", lambda *_: True)
    shown = text_of(client, f"/jobs/{job}")
    assert "Triton" not in shown.replace("Triton repository", "")
    assert "Against its own config.pbtxt" in shown and "fp32 (its own config.pbtxt)" in shown
    assert "Its own config.pbtxt name:" in shown.replace("# Written", "name:")


def test_no_configuration_is_compared_where_there_is_none(
    client: httpx.Client, example: Example
) -> None:
    nothing = UNDECIDED | {"closest": None}
    jobs = [example.ended(result=document) for document in (nothing, VERIFIED)]
    shown = text_of(client, f"/compare?job={jobs[0]}&job={jobs[1]}")
    row = shown.partition(" configuration ")[2].partition(" measured configurations ")[0]
    assert row.startswith("– int8 static in ONNX Runtime"), row
    assert "fp32" not in row


def test_a_claim_is_shown_with_what_was_measured_of_it(
    client: httpx.Client, example: Example
) -> None:
    message, hint = why_not_held(VERIFIED)
    assert message.splitlines() == [
        "Undecided: 76 of 1,159 requests at 25 /s failed or took longer than 2,000 ms; 10 % may.",
        "Different from when it was certified: stalls are 3 times as many.",
    ]
    assert "About 5,000 more requests would decide, 200s at that rate" in hint
    search = example.ended(result=FOUND)
    told = {"message": message, "hint": hint}
    job = example.ended(result=VERIFIED, ending=told, kind="verify", source_job=search)
    shown = text_of(client, f"/jobs/{job}")
    for part in (
        "It is not decided whether digits keeps what was claimed: 25 /s, 90 % of requests within",
        "Claimed rate 25 /s", "Latency, p90 990 ms at 25 /s; the budget is 2,000 ms",
        "Over budget 6.56 % 76 of 1,159 requests; 10 % may be", "Effective requests 13.2",
        "Different from when", f"measures again what search {search[:8]} certified",
    ):  # fmt: skip
        assert part in shown, part
    assert f'href="/jobs/{search}"' in client.get(f"/jobs/{job}").text
    refuted = text_of(client, f"/jobs/{example.ended(result=VERIFIED | {'verdict': 'refuted'})}")
    assert "digits does not keep what was claimed: 25 /s" in refuted


@pytest.mark.parametrize(
    "answer",
    [
        {"verdict": "undecided"},
        VERIFIED | {"claim": {"rate_rps": "fast"}},
        changed(VERIFIED, "claim", rate_rps=1e-306),
        VERIFIED | {"measured": {"certificate": {"requests": 10**400, "over_budget": -1}}},
    ],
)
def test_a_claims_document_of_another_shape_ends_no_worker(answer: Any) -> None:
    assert why_not_held(answer) == ("", "")


def test_trials_and_chart_tell_the_same(client: httpx.Client, example: Example) -> None:
    best, baseline = (FOUND[name]["config_id"] for name in ("recommendation", "baseline"))
    nothing = {"edge_rps": None, "latency_ms_sla": None}
    trials = [
        trial(0, role="baseline", config_id=baseline, **nothing),
        trial(1, config_id=best, certificate="PASS", edge_interval_rps=[46.76, None], **nothing),
        trial(2, **nothing, memory_bytes_peak=None),
    ]
    found = changed(FOUND, "recommendation", edge_rps=None, edge_interval_rps=[40.0, None])
    shown = text_of(client, f"/jobs/{example.ended(result=found, trials=trials)}")
    table = shown.partition(" id ")[2]
    assert "212 /s (204 to 219) – 33.2 ms" in table  # as the answer tells the baseline's
    assert "PASS at least 46.8 /s – 30 ms" in table  # as that trial was measured
    assert "no load test ended – – – –" in table
    assert "3 trials, the newest first" in shown and "so far" not in shown
    running = text_of(client, f"/jobs/{example.running(trials=trials[1:2]).id}")
    assert "1 trial so far" in running
    assert "1 configuration; the highest edge so far is at least 46.8 /s" in running


def test_what_a_job_says_is_a_line_each_and_its_command_stands_alone(
    client: httpx.Client, example: Example
) -> None:
    command = "analyze search digits.onnx --store=sqlite:///study.db --study s --resume"
    told = {"message": "Undecided.\nClosest: fp32.", "hint": f"More time:\n{command}\nOr less."}
    shown = client.get(f"/jobs/{example.ended(result=UNDECIDED, ending=told)}").text
    for part in ("<p>Undecided.</p>", "<p>Closest: fp32.</p>", "<p>More time:</p>"):
        assert part in shown, part
    assert f'<pre class="command">{command}</pre>' in shown


def test_limits_are_told_as_they_were_given(client: httpx.Client, example: Example) -> None:
    """A budget of ``33.25ms`` was told as 33.2 ms, as if somebody had measured it."""
    found = changed(FOUND, "sla", latency_budget_ms=33.25, target_rate_rps=1234.5)
    shown = text_of(client, f"/jobs/{example.ended(result=found)}")
    for part in (
        "99 % of requests within 33.25 ms", "the budget is 33.25 ms", "machines for 1,234.5 /s",
        " budget 33.25 ms ", " target 1,234.5 /s ",
    ):  # fmt: skip
        assert part in shown, part
    claimed = changed(VERIFIED, "claim", latency_budget_ms=33.25)
    assert "failed or took longer than 33.25 ms; " in why_not_held(claimed)[0]
    shown = text_of(client, f"/jobs/{example.ended(result=claimed, kind='verify')}")
    assert shown.count("90 % of requests within 33.25 ms") == 2, "the title, and a figure"


def test_memory_on_a_gpu_is_the_gpus(client: httpx.Client, example: Example) -> None:
    """What ``max_memory`` limits there; the pages told what the process took on the host."""
    on_gpu = {"gpu_memory_bytes_peak": 3 << 30}
    trials = [trial(1, **on_gpu)]
    found = changed(FOUND, "recommendation", **on_gpu) | {"pareto": []}
    answered = text_of(client, f"/jobs/{example.ended(result=found, trials=trials)}")
    best = FOUND["recommendation"]["config_id"]
    assert re.search(rf"3GiB \({best}\)", answered)
    compared = text_of(client, f"/compare?job={example.ended(result=found, trials=trials)}")
    assert " memory 3GiB " in compared
    running = text_of(client, f"/jobs/{example.running(trials=trials).id}")
    assert running.count("3GiB") == 2 and "71.5MiB" not in running, "the chart, and the trials"
