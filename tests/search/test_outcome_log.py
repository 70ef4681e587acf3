"""One record from several measurements of a configuration, and what the machine was like."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
from load_tests import load_test

from analyzer.domain import answer
from analyzer.domain.configuration import Configuration
from analyzer.domain.load_test import Conditions, LatencySummary, LoadTest, Validity
from analyzer.domain.measurement import (
    Certificate,
    CertificateVerdict,
    Edge,
    Failure,
    Measurement,
    Prediction,
    RateEvidence,
)
from analyzer.domain.model import ModelInfo
from analyzer.domain.sla import Sla
from analyzer.domain.space import SearchSpace
from analyzer.domain.workload import Poisson
from analyzer.search.outcome_log import OutcomeLog, merged
from analyzer.search.request import SearchRequest, SilentProgress
from analyzer.search.score import score_of
from analyzer.search.watch import StudyWatch
from analyzer.stats.certificate import passes
from analyzer.store.records import StudyRecord
from analyzer.store.results import ResultStore, open_store


def measurement(
    capacity_rps: float | None, verdict: CertificateVerdict, edge_rps: float | None = None
) -> Measurement:
    return Measurement(
        configuration=Configuration().canonical(),
        edge=Edge(rate_rps=edge_rps, interval_rps=(None, None)),
        capacity_rps=capacity_rps,
        certificate=Certificate(
            verdict=verdict,
            requests=1000,
            over_budget=0,
            effective_requests=400.0,
            confidence=0.95,
            mlperf=verdict,
        ),
        load_test_seconds=2.0,
        predicted=Prediction(edge_rps=edge_rps),
    )


def of_requests(rate_rps: float, requests: int) -> LoadTest:
    return LoadTest(
        kind="certify",
        offered_rps=rate_rps,
        achieved_rps=rate_rps,
        throughput_ips=rate_rps,
        requests=requests,
        over_budget=0,
        errors=0,
        duration_s=requests / rate_rps,
        latency_ms=LatencySummary(mean=1.0),
        send_lag_ms_p99=0.0,
        validity=Validity(valid=True),
    )


def test_what_was_proven_stays_proven_where_later_runs_prove_less() -> None:
    first = measurement(80.0, "PASS", edge_rps=200.0)
    for later in (measurement(None, "UNDECIDED"), measurement(60.0, "PASS")):
        found = merged(first, later)
        assert found.capacity_rps == 80.0 and found.certificate is first.certificate
        assert found.edge.rate_rps == 200.0 and found.predicted.edge_rps == 200.0
        assert found.load_test_seconds == 4.0


def test_a_higher_rate_that_was_proven_later_counts() -> None:
    later = measurement(150.0, "PASS")
    found = merged(measurement(80.0, "PASS", edge_rps=200.0), later)
    assert found.capacity_rps == 150.0 and found.certificate is later.certificate
    undecided = merged(measurement(None, "UNDECIDED", edge_rps=200.0), later)
    assert undecided.capacity_rps == 150.0


def test_the_figures_are_of_the_walk_with_the_most_requests_at_that_rate() -> None:
    few, many, other = (of_requests(80.0, 20), of_requests(80.0, 229), of_requests(90.0, 900))
    proven = replace(measurement(80.0, "PASS"), headline=few)
    undecided = replace(measurement(None, "UNDECIDED", edge_rps=200.0), headline=many)
    assert merged(undecided, proven).headline is many
    assert merged(replace(undecided, headline=other), proven).headline is few


def test_a_walk_that_knew_of_a_proof_may_take_it_back() -> None:
    first = measurement(80.0, "PASS", edge_rps=200.0)
    known = RateEvidence(
        rate_rps=80.0, requests=9000, over_budget=90, inflation=5.0, claim=1, blocks=3
    )
    later = replace(measurement(None, "FAIL"), evidence=(known,))
    found = merged(first, later)
    assert found.capacity_rps is None and found.certificate is later.certificate
    assert found.evidence == (known,)
    assert merged(found, measurement(None, "UNDECIDED")).evidence == (known,)
    stands = replace(measurement(80.0, "PASS"), evidence=(known,))
    assert merged(first, stands).certificate is first.certificate


def test_a_claim_that_went_down_is_kept_and_counts_as_open(
    place: tuple[SearchRequest, ResultStore],
) -> None:
    """It gave nothing of the error back, also where the study is resumed; its source is none."""
    request, store = place
    high = RateEvidence(
        rate_rps=90.0, requests=9000, over_budget=2, inflation=30.0, claim=1, blocks=2
    )
    low = replace(high.below(70.0), requests=500, inflation=2.0, blocks=1)
    own = RateEvidence(
        rate_rps=50.0, requests=5000, over_budget=0, inflation=2.0, claim=2, blocks=1
    )
    config_id = Configuration().canonical().config_id

    def open_of(*evidence: RateEvidence) -> int:
        log = OutcomeLog(request, store, SilentProgress())
        log.record(replace(measurement(70.0, "PASS"), evidence=evidence), role="trial")
        resumed = OutcomeLog(request, store, SilentProgress(), stored=store.outcomes("one"))
        known = resumed.measurement(config_id)
        assert known is not None and known.evidence == evidence
        assert resumed.open_claims([config_id]) == log.open_claims([config_id])
        return log.open_claims([config_id])

    assert passes(low, percentile=99.0, confidence=0.95)
    assert passes(own, percentile=99.0, confidence=0.95)
    assert open_of(high) == 1 and open_of(own) == 0
    assert open_of(own, low, replace(high, claim=0)) == 1
    assert open_of(replace(own, claim=0, given_up=1), low) == 2


# --- what the machine was like --------------------------------------------------------------------


class Scripted:
    """A witness that has seen what it is told."""

    def __init__(self, *seen: Conditions) -> None:
        self.seen = list(seen)

    def since(self, start_ns: int | None = None) -> Conditions | None:
        return self.seen[0] if self.seen else None


def loaded(name: str, *conditions: Conditions | None) -> Measurement:
    tests = tuple(replace(load_test(()), conditions=each) for each in conditions)
    found = measurement(None, "UNDECIDED")
    configuration = replace(found.configuration, instance_count=int(name))
    return replace(found, configuration=configuration, load_tests=tests)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[tuple[SearchRequest, ResultStore]]:
    """A request, and a real store with its study."""
    model = ModelInfo(name="m", path="m.onnx", sha256="0", batchable=True, inputs=(), outputs=())
    sla = Sla(latency_budget_ms=40.0)
    request = SearchRequest(
        study="one", model=model, sla=sla, arrivals=Poisson(), provenance={},
        space=SearchSpace(name="s", device="cpu", parameters=()),
    )  # fmt: skip
    with open_store(f"sqlite:///{tmp_path / 'results.db'}") as store:
        store.create_study(StudyRecord(name="one", model=model, sla=sla))
        yield request, store


def test_outcomes_are_ranked_once_however_often_a_search_asks(
    place: tuple[SearchRequest, ResultStore],
) -> None:
    request, store = place
    log = OutcomeLog(request, store, SilentProgress())
    found = [
        replace(loaded(str(count)), edge=Edge(rate_rps=rate, interval_rps=(rate, rate)))
        for count, rate in ((1, 10.0), (2, 30.0), (3, 20.0))
    ]
    allowed = {m.configuration.config_id: m.configuration for m in found}
    with patch.object(answer, "rank", side_effect=answer.rank) as ranked:
        for measured in found:
            log.record(measured, role="trial")
            for _ in range(5):
                best = log.ranked(allowed)[0]
        assert ranked.call_count == 3
        assert best == log.measurement(found[1].configuration.config_id)
        # A search may leave some out, and the end of a study states all edges anew.
        assert [m.edge.rate_rps for m in log.ranked(dict(list(allowed.items())[::2]))] == [20, 10]
        failure = Failure(
            configuration=Configuration(instance_count=9).canonical(), stage="load",
            reason="crash", message="It crashed.",
        )  # fmt: skip
        log.record(failure, role="trial")
        assert not log.scores[failure.configuration.config_id].feasible
        halved = found[1].configuration.config_id
        assert log.restate({halved: 0.5}, ()) == {halved: 0.5}
        assert {key: score.value for key, score in log.scores.items()} == {
            key: score_of(outcome, request.sla).value for key, outcome in log.latest.items()
        }
        assert log.ranked(allowed) == list(answer.rank(log.outcomes, request.sla))


def test_what_happens_between_load_tests_counts_and_is_stored(
    place: tuple[SearchRequest, ResultStore],
) -> None:
    request, store = place
    stall = Conditions(seconds=10.0, stalls_ms=(500.0,), work_us=(4.0,) * 10)
    quiet = Conditions(seconds=2.0, work_us=(4.0, 4.0))
    witness = Scripted(stall)
    with StudyWatch(lambda: nullcontext(witness)) as watch:
        log = OutcomeLog(request, store, SilentProgress(), watch=watch)
        log.record(loaded("1", quiet), role="trial")
        witness.seen = [quiet]
        all_seen = Conditions(seconds=12.0, stalls_ms=(500.0,), work_us=quiet.work_us)
        assert log.conditions == all_seen, "the speeds of load tests alone"
        assert log.usual_us == 4.0
        witness.seen = []
    # A walk that resumes has what was seen, and where nobody watched the load tests.
    resumed = OutcomeLog(request, store, SilentProgress(), stored=store.outcomes("one"))
    assert resumed.conditions == replace(stall, work_us=quiet.work_us)
    slow = Conditions(seconds=1.0, work_us=(9.0,))
    resumed.record(loaded("2", slow, None), role="trial")
    resumed.record(merged(loaded("2", slow, None), loaded("2", quiet)), role="recommendation")
    assert resumed.conditions == Conditions(
        seconds=13.0, stalls_ms=(500.0,), work_us=(*quiet.work_us, 9.0, *quiet.work_us)
    )


def test_what_slows_the_witness_between_load_tests_is_no_state_of_the_machine(
    place: tuple[SearchRequest, ResultStore],
) -> None:
    """Servers that start and simulations on all cores do; what it meets then tells the usual."""
    request, store = place
    starting = Conditions(seconds=3.0, work_us=(9.0, 8.0, 9.0))
    with StudyWatch(lambda: nullcontext(Scripted(starting))) as watch:
        log = OutcomeLog(request, store, SilentProgress(), watch=watch)
        assert log.conditions == Conditions(seconds=3.0) and log.usual_us == 9.0
        quiet = Conditions(seconds=2.0, work_us=(4.0, 4.0))
        log.record(loaded("1", quiet), role="trial")
        assert log.conditions is not None and log.conditions.work_us == (4.0, 4.0)


def test_a_failure_that_is_stored_already_is_not_stored_again(
    place: tuple[SearchRequest, ResultStore],
) -> None:
    request, store = place
    failure = Failure(
        configuration=Configuration().canonical(), stage="build", reason="build", message="no"
    )
    seen = Conditions(seconds=1.0)
    for _ in range(2):
        with StudyWatch(lambda: nullcontext(Scripted(seen))) as watch:
            stored = store.outcomes("one")
            log = OutcomeLog(request, store, SilentProgress(), stored=stored, watch=watch)
            log.record(failure, role="variant")
    assert len(store.outcomes("one")) == 1


def test_what_was_left_for_want_of_time_is_open_again(
    place: tuple[SearchRequest, ResultStore],
) -> None:
    """It was never measured in a study that went on, and its neighbours seemed to fail."""
    request, store = place
    failure = Failure(
        configuration=Configuration().canonical(), stage="build", reason="budget", message="no"
    )
    seen = Conditions(seconds=1.0)
    with StudyWatch(lambda: nullcontext(Scripted(seen))) as watch:
        log = OutcomeLog(request, store, SilentProgress(), watch=watch)
        log.record(failure, role="variant")
        assert len(log.outcomes) == 1
    resumed = OutcomeLog(request, store, SilentProgress(), stored=store.outcomes("one"))
    assert not resumed.latest and not resumed.first and not resumed.scores
    assert resumed.watched == seen, "the machine was what it was"
    resumed.record(failure, role="variant")
    assert resumed.outcomes == (failure,) and len(store.outcomes("one")) == 1


def test_six_that_crash_say_that_nothing_runs(place: tuple[SearchRequest, ResultStore]) -> None:
    """Not a want of memory or a worker that was lost, nor what failed in an earlier run."""
    request, store = place

    def failed(instances: int, reason: str = "crash") -> Failure:
        configuration = Configuration(instance_count=instances).canonical()
        return Failure(configuration=configuration, stage="load", reason=reason, message="no")

    log = OutcomeLog(request, store, SilentProgress())
    for instances in range(1, 6):
        log.record(failed(instances), role="trial")
    for instances, reason in ((6, "out_of_memory"), (7, "worker_lost"), (8, "invalid")):
        log.record(failed(instances, reason), role="trial")
    assert not log.nothing_runs
    log.record(failed(9, "start"), role="trial")
    assert log.nothing_runs
    assert log.failed(failed(9).configuration.config_id)
    resumed = OutcomeLog(request, store, SilentProgress(), stored=store.outcomes("one"))
    assert not resumed.nothing_runs, "what hindered them may be mended"
    log.record(measurement(80.0, "PASS"), role="baseline")
    assert not log.nothing_runs


def test_a_server_is_expected_to_start_as_the_last_one_did(
    place: tuple[SearchRequest, ResultStore],
) -> None:
    """On a GPU it takes three seconds, on a slow machine two; nothing measured in virtual time."""
    request, store = place
    log = OutcomeLog(request, store, SilentProgress())
    assert log.start_s is None
    log.record(replace(measurement(80.0, "PASS"), start_s=3.5), role="trial")
    log.record(replace(measurement(70.0, "PASS"), start_s=None), role="recommendation")
    assert log.start_s == 3.5
    resumed = OutcomeLog(request, store, SilentProgress(), stored=store.outcomes("one"))
    assert resumed.start_s == 3.5
