"""What is recommended of several instance types, without a cluster: each in a virtual machine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from analyzer.domain.answer import measured
from analyzer.domain.measurement import Failure, without_claims
from analyzer.domain.sla import Sla
from analyzer.domain.space import Parameter, SearchSpace
from analyzer.domain.study import Pricing, StudyResult, Verdict
from analyzer.domain.workload import Poisson
from analyzer.errors import AnalyzerError, BuildError
from analyzer.measure.virtual import VirtualExecutor, VirtualWorld
from analyzer.report.document import build_document
from analyzer.report.entries import make_report
from analyzer.report.summary import summarize
from analyzer.search.context import make_context
from analyzer.search.instance_types import PartExecutor, TypePart, compared, search_types
from analyzer.search.optuna_trials import open_trials
from analyzer.search.outcome_log import OutcomeLog
from analyzer.search.request import SearchRequest, SilentProgress
from analyzer.search.study import MakeTrials
from analyzer.search.time_plan import TimePlan
from analyzer.search.virtual import VIRTUAL_MODEL, MemoryStore
from analyzer.twin.service import ServiceTime

SLA = Sla(latency_budget_ms=50.0, percentile=95.0)


def part(name: str, price: float, speed: float, stop: threading.Event) -> TypePart:
    """An instance type whose executions take ``speed`` times as long."""
    pricing = Pricing(instance_type=name, price_per_hour=price)
    space = SearchSpace(
        name="small",
        device="cpu",
        instance_type=name,
        parameters=(Parameter(name="instance_count", choices=(1, 2)),),
    )

    def service(key: object, threads: int, instances: int) -> ServiceTime:
        times = (2.0 * speed, 7.0 * speed)
        return ServiceTime(batch_sizes=(1, 4), service_ms=times, distribution="deterministic")

    inner = VirtualExecutor(VirtualWorld(service=service))  # type: ignore[arg-type]
    request = SearchRequest(
        study="types", model=VIRTUAL_MODEL, sla=SLA, space=space, arrivals=Poisson(),
        budget_s=600.0, pricing=pricing, seed=1, provenance={},
    )  # fmt: skip
    context = make_context(
        request, executor=PartExecutor(inner, stop), store=MemoryStore(), cores=2,
        progress=SilentProgress(), hardware=f"machine of {name}",
        plan=TimePlan.begun(budget_s=600.0, started=0.0, clock=inner.now),
    )  # fmt: skip
    make: MakeTrials = lambda allowed, designer: open_trials(request, allowed, designer)  # noqa: E731
    return TypePart(
        pricing=pricing, context=context, make_trials=make, hardware="", workers=1
    )  # fmt: skip


def searched(*types: tuple[str, float, float]) -> tuple[list[TypePart], StudyResult]:
    stop = threading.Event()
    parts = [part(*own, stop) for own in types]
    return parts, search_types(parts, stop)


def test_the_cheaper_machine_wins_though_the_dearer_is_faster() -> None:
    _, result = searched(("slow", 1.0, 1.0), ("fast", 3.0, 0.5))
    assert result.verdict == "found" and result.pricing.instance_type == "slow"
    document = build_document(make_report(result))
    best, kinds = document["recommendation"], document["instance_types"]
    assert best["config"]["instance_type"] == best["instance_type"] == "slow"
    assert best["hardware"] == "machine of slow"
    assert document["baseline"]["instance_type"] == "slow"
    slow, fast = (kind["entry"] for kind in kinds)
    assert [kind["recommended"] for kind in kinds] == [True, False]
    assert fast["edge_rps"] > 1.5 * slow["edge_rps"]
    # The same settings on two machines are two configurations.
    ids = [outcome.configuration.config_id for outcome in result.outcomes]
    assert len(ids) == len(set(ids))
    assert {outcome.configuration.instance_type for outcome in result.outcomes} == {"slow", "fast"}


def test_a_dearer_machine_wins_where_its_speed_is_worth_it() -> None:
    _, result = searched(("slow", 1.0, 1.0), ("fast", 1.2, 0.5))
    assert result.pricing.instance_type == "fast"


def test_a_type_that_cannot_be_searched_is_told_and_the_other_answers() -> None:
    parts, result = searched(("slow", 1.0, 1.0))
    gone = replace(parts[0], pricing=Pricing(instance_type="gone", price_per_hour=0.1))
    error = BuildError("Nothing could be built.", hint="Look there.")
    both = compared([gone, *parts], {"gone": error, "slow": result})
    assert both.recommended_id == result.recommended_id
    assert any("gone could not be searched" in text for text in both.warnings)
    told = build_document(make_report(both))["instance_types"][0]
    assert (told["verdict"], told["entry"]) == (None, None)
    assert told["reason"] == "Nothing could be built. Look there."
    with pytest.raises(AnalyzerError, match="Nothing could be built"):
        compared([gone], {"gone": error})


def test_a_machine_that_was_lost_is_told() -> None:
    parts, result = searched(("slow", 1.0, 1.0), ("fast", 3.0, 0.5))
    configuration = replace(result.outcomes[0].configuration, instance_count=9)
    message = "The machine of worker cpu-0 has left the cluster."
    lost = Failure(
        configuration=configuration, stage="worker", reason="worker_lost", message=message
    )
    found = {
        "slow": replace(result, outcomes=(*result.outcomes, lost), instance_types=()),
        "fast": replace(result, instance_types=()),
    }
    slow, fast = compared(parts, found).instance_types
    assert slow.reason == f"Configurations that lost their worker: 1. {message}"
    assert fast.reason == ""


def without_its_claims(result: StudyResult, verdict: Verdict) -> StudyResult:
    """``result`` had the machine been worse after all that it certified."""
    ids = tuple(m.configuration.config_id for m in measured(result.outcomes) if m.capacity_rps)
    return replace(
        result,
        verdict=verdict,
        recommended_id=result.recommended_id if verdict == "estimated" else None,
        outcomes=without_claims(result.outcomes, ids),
        taken_back=ids,
    )


def test_a_claim_that_was_taken_back_is_no_certified_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The type's row told it as certified, and the reason that it is not upheld beside it."""
    parts, result = searched(("slow", 1.0, 1.0))
    log = parts[0].context.log
    assert result.instance_types[0].reason == "" and not log.taken_back
    monkeypatch.setattr(OutcomeLog, "stands", lambda self, measurement: False)
    assert result.recommended_id in log.taken_back
    report = make_report(compared(parts, {"slow": without_its_claims(result, "undecided")}))
    document = build_document(report)
    (told,) = document["instance_types"]
    assert told["entry"]["certificate"]["verdict"] == "PASS"
    assert told["entry"]["capacity_rps"] is None
    assert document["closest"]["entry"]["capacity_rps"] is None
    summary = summarize(report)
    ((_, row),) = summary.types
    assert "nothing certified" in row and "is not upheld" in row
    assert "the machine was worse later" in summary.misses[0]


def test_an_estimate_whose_claim_was_taken_back_is_told_as_an_estimate() -> None:
    """It was said to carry the rate that its certificate had."""
    _, result = searched(("slow", 1.0, 1.0))
    report = make_report(without_its_claims(result, "estimated"))
    assert build_document(report)["recommendation"]["capacity_rps"] is None
    summary = summarize(report)
    assert "is estimated to carry" in summary.title
    assert "the machine was worse later" in summary.misses[0]


def test_an_interruption_ends_every_part() -> None:
    stop = threading.Event()
    inner = VirtualExecutor(VirtualWorld(service=lambda *given: None))
    executor = PartExecutor(inner, stop)
    wait: Callable[[float], object] = executor.next_result
    assert wait(0.0) is None
    stop.set()
    with pytest.raises(KeyboardInterrupt):
        wait(0.0)
