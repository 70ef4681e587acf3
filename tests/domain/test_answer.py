"""Ranking, front and the closest miss, on small made-up measurements."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from analyzer.domain.answer import (
    Miss,
    best_by_evidence,
    closest_miss,
    misses,
    pareto_front,
    rank,
    representative_test,
)
from analyzer.domain.configuration import Configuration
from analyzer.domain.load_test import (
    LatencySummary,
    LoadTest,
    ResourceUse,
    Validity,
)
from analyzer.domain.measurement import (
    Accuracy,
    Certificate,
    Edge,
    Failure,
    Measurement,
)
from analyzer.domain.sla import Sla
from analyzer.domain.study import Pricing

SLA = Sla(latency_budget_ms=50.0)


def load_test(
    rate: float, p99: float | None, *, over_budget: int = 0, memory: int = 100, **fields: Any
) -> LoadTest:
    latency = LatencySummary(mean=5.0, p50=5.0, p90=8.0, p95=9.0, p99=p99, sla=p99)
    values: dict[str, Any] = {
        "kind": "edge",
        "offered_rps": rate,
        "achieved_rps": rate,
        "throughput_ips": rate,
        "requests": 1000,
        "over_budget": over_budget,
        "errors": 0,
        "duration_s": 10.0,
        "latency_ms": latency,
        "send_lag_ms_p99": 0.1,
        "resources": ResourceUse(memory_bytes_peak=memory),
        "validity": Validity(valid=True),
    }
    return LoadTest(**(values | fields))


def measurement(
    instances: int,
    edge: float | None,
    *,
    capacity: float | None = None,
    p99: float | None = 40.0,
    memory: int = 100,
    drop: tuple[float, float] | None = None,
    certificate: Certificate | None = None,
    **fields: Any,
) -> Measurement:
    test = load_test(capacity or edge or 10.0, p99, memory=memory)
    return Measurement(
        configuration=Configuration(instance_count=instances, **fields),
        edge=Edge(rate_rps=edge, interval_rps=(edge, edge)),
        capacity_rps=capacity,
        certificate=certificate,
        headline=test if capacity else None,
        load_tests=(test,),
        accuracy=Accuracy(metric="top1_agreement", value=0.9, drop=drop[0], interval=drop)
        if drop
        else None,
    )


def ids(measurements: tuple[Measurement, ...]) -> list[int]:
    return [m.configuration.instance_count for m in measurements]


def certificate(verdict: Any, **fields: Any) -> Certificate:
    values: dict[str, Any] = {
        "requests": 1000,
        "over_budget": 5,
        "effective_requests": 100.0,
        "confidence": 0.95,
        "mlperf": "PASS",
    }
    return Certificate(verdict=verdict, **(values | fields))


class TestRank:
    def test_the_highest_edge_wins_and_infeasible_ones_follow_by_closeness(self) -> None:
        outcomes = [
            measurement(1, None, p99=90.0),
            measurement(2, 100.0),
            measurement(3, 300.0),
            measurement(4, None, p99=60.0),
            Failure(configuration=Configuration(), stage="load", reason="crash", message="gone"),
            measurement(5, None, p99=None),
        ]
        assert ids(rank(outcomes, SLA)) == [3, 2, 4, 1, 5]

    def test_an_accuracy_that_may_be_too_low_is_not_feasible(self) -> None:
        # The drop is within the limit, the bad end of its interval is not.
        outcomes = [measurement(1, 300.0, drop=(0.005, 0.02)), measurement(2, 100.0)]
        assert ids(rank(outcomes, SLA)) == [2, 1]

    def test_cost_counts_machines_then_the_edge(self) -> None:
        sla = Sla(latency_budget_ms=50.0, target_rate_rps=500.0, objective="cost")
        outcomes = [measurement(1, 130.0), measurement(2, 240.0), measurement(3, 140.0)]
        # 4, 3 and 4 devices; with four to a machine, all are one machine.
        assert ids(rank(outcomes, sla)) == [2, 3, 1]
        assert ids(rank(outcomes, sla, devices_per_machine=4)) == [2, 3, 1]

    def test_latency_is_judged_at_a_target_rate_that_must_be_reached(self) -> None:
        sla = Sla(latency_budget_ms=50.0, target_rate_rps=100.0, objective="latency")
        outcomes = [
            measurement(1, 300.0, capacity=100.0, p99=30.0),
            measurement(2, 200.0, capacity=100.0, p99=20.0),
            measurement(3, 90.0, p99=5.0),
        ]
        assert ids(rank(outcomes, sla)) == [2, 1, 3]

    def test_memory_wants_the_least(self) -> None:
        sla = Sla(latency_budget_ms=50.0, target_rate_rps=100.0, objective="memory")
        outcomes = [measurement(1, 300.0, memory=200), measurement(2, 200.0, memory=100)]
        assert ids(rank(outcomes, sla)) == [2, 1]

    def test_a_configuration_measured_twice_counts_once_certified_first(self) -> None:
        outcomes = [measurement(1, 100.0, capacity=90.0), measurement(1, 150.0)]
        assert [m.edge.rate_rps for m in rank(outcomes, SLA)] == [100.0]
        assert [m.edge.rate_rps for m in rank(outcomes[::-1], SLA)] == [100.0]


class TestMisses:
    def test_memory_and_accuracy_carry_their_numbers(self) -> None:
        sla = Sla(latency_budget_ms=50.0, max_memory_bytes=150)
        missed = misses(measurement(1, 100.0, memory=200, drop=(0.01, 0.03)), sla)
        assert [(m.limit, m.required, m.observed) for m in missed] == [
            ("max_memory_bytes", 150, 200),
            ("max_accuracy_drop", 0.01, 0.03),
        ]

    def test_what_was_not_measured_is_not_missed(self) -> None:
        sla = Sla(latency_budget_ms=50.0, max_memory_bytes=150)
        config = Configuration(device="gpu")  # no GPU memory was read
        bare = Measurement(configuration=config, edge=Edge(rate_rps=9.0, interval_rps=(8.0, 9.5)))
        assert misses(bare, sla) == ()

    def test_on_a_gpu_the_limit_is_on_its_memory(self) -> None:
        sla = Sla(latency_budget_ms=50.0, max_memory_bytes=150)
        on_gpu = Measurement(
            configuration=Configuration(device="gpu"),
            edge=Edge(rate_rps=9.0, interval_rps=(8.0, 9.5)),
            resources=ResourceUse(memory_bytes_peak=10**9, gpu_memory_bytes_peak=140),
        )
        assert misses(on_gpu, sla) == ()

    def test_a_synthetic_accuracy_is_not_held_against_the_limit(self) -> None:
        one = measurement(1, 100.0)
        made_up = Measurement(
            configuration=one.configuration,
            edge=one.edge,
            accuracy=Accuracy(
                metric="cosine", value=0.5, drop=0.5, interval=(0.4, 0.6), synthetic=True
            ),
        )
        assert misses(made_up, SLA) == ()


class TestClosestMiss:
    def test_without_an_edge_the_latency_is_what_is_missed(self) -> None:
        found = closest_miss([measurement(1, None, p99=90.0), measurement(2, None, p99=60.0)], SLA)
        assert found is not None
        best, missed = found
        assert best.configuration.instance_count == 2
        assert [(m.limit, m.required, m.observed) for m in missed] == [
            ("latency_budget_ms", 50.0, 60.0)
        ]

    def test_an_undecided_certificate_says_how_many_requests_are_missing(self) -> None:
        one = measurement(1, 80.0, certificate=certificate("UNDECIDED", requests_missing=4000))
        found = closest_miss([one], SLA)
        assert found is not None
        assert [(m.limit, m.required, m.observed) for m in found[1]] == [
            ("certified_requests", 5000, 1000)
        ]

    def test_what_is_missing_to_a_fail_is_no_number_of_requests_that_proves(self) -> None:
        late = certificate("UNDECIDED", over_budget=40, requests_missing=4000)
        found = closest_miss([measurement(1, 80.0, certificate=late)], SLA)
        assert found is not None
        assert [(m.limit, m.required, m.observed) for m in found[1]] == [
            ("certified_requests", None, 1000)
        ]

    def test_without_any_certificate_evidence_is_missing(self) -> None:
        found = closest_miss([measurement(1, 80.0)], SLA)
        assert found is not None
        assert found[1] == (Miss(limit="certified_requests", required=None, observed=0),)

    def test_a_failed_certificate_is_a_missed_budget(self) -> None:
        found = closest_miss([measurement(1, 80.0, p99=55.0, certificate=certificate("FAIL"))], SLA)
        assert found is not None
        assert (found[1][0].limit, found[1][0].observed) == ("latency_budget_ms", 55.0)

    def test_where_a_lower_rate_may_be_kept_evidence_is_missing(self) -> None:
        below = replace(measurement(1, None, p99=64.0), edge=Edge(interval_rps=(0.0, 12.0)))
        found = closest_miss([below], SLA)
        assert found is not None
        assert [miss.limit for miss in found[1]] == ["certified_requests"]

    def test_nothing_measured_is_nothing_close(self) -> None:
        failure = Failure(configuration=Configuration(), stage="build", reason="build", message="")
        assert closest_miss([failure], SLA) is None


class TestBestByEvidence:
    def of(self, instances: int, edge: float, requests: int) -> Measurement:
        test = load_test(edge, 40.0, requests=requests)
        return replace(measurement(instances, edge), load_tests=(test,))

    def test_a_handful_of_requests_does_not_beat_evidence(self) -> None:
        few, many = self.of(1, 200.0, 27), self.of(2, 150.0, 900)
        assert best_by_evidence([few, many], SLA) is many

    def test_enough_evidence_on_both_sides_leaves_it_to_the_objective(self) -> None:
        slow, fast = self.of(1, 150.0, 9000), self.of(2, 200.0, 400)
        assert best_by_evidence([slow, fast], SLA) is fast

    def test_only_what_may_be_recommended_comes_closest(self) -> None:
        baseline, candidate = self.of(2, 200.0, 900), self.of(1, 150.0, 500)
        among = {candidate.configuration.config_id}
        assert best_by_evidence([baseline, candidate], SLA, among=among) is candidate
        found = closest_miss([baseline, candidate], SLA, among=among)
        assert found is not None and found[0] is candidate
        found = closest_miss([baseline], SLA, among=among)
        assert found is not None and found[0] is baseline

    def test_a_refuted_candidate_comes_last(self) -> None:
        refuted = replace(self.of(1, 200.0, 900), certificate=certificate("FAIL"))
        other = self.of(2, 150.0, 300)
        assert best_by_evidence([refuted, other], SLA) is other


class TestOpenEdges:
    def test_an_edge_known_to_be_at_least_a_rate_counts_as_that_rate(self) -> None:
        at_least = replace(measurement(1, 120.0), edge=Edge(interval_rps=(120.0, None)))
        assert misses(at_least, SLA) == ()
        assert ids(rank([measurement(2, 100.0), at_least], SLA)) == [1, 2]
        assert ids(pareto_front([measurement(2, 100.0), at_least], SLA)) == [1]

    def test_an_edge_below_a_rate_keeps_nothing_yet(self) -> None:
        below = replace(measurement(1, None), edge=Edge(interval_rps=(0.0, 80.0)))
        assert [miss.limit for miss in misses(below, SLA)] == ["latency_budget_ms"]


class TestFront:
    def test_it_trades_rate_latency_and_memory_and_leaves_out_what_misses(self) -> None:
        outcomes = [
            measurement(1, 300.0, p99=48.0, memory=200),
            measurement(2, 200.0, p99=20.0, memory=200),
            measurement(3, 190.0, p99=30.0, memory=250),  # dominated by 2
            measurement(4, 100.0, p99=45.0, memory=50),
            measurement(5, None, p99=1.0, memory=1),
            measurement(6, 999.0, p99=1.0, memory=1, drop=(0.1, 0.2)),
        ]
        assert ids(pareto_front(outcomes, SLA)) == [1, 2, 4]
        # One price for all: cost falls with the edge, so that it changes nothing.
        priced = Pricing(price_per_hour=0.94)
        assert ids(pareto_front(outcomes, SLA, pricing_of=lambda _: priced)) == [1, 2, 4]

    def test_a_target_rate_does_not_shrink_the_front(self) -> None:
        sla = Sla(latency_budget_ms=50.0, target_rate_rps=250.0, objective="latency")
        outcomes = [measurement(1, 300.0, p99=48.0), measurement(2, 200.0, p99=20.0)]
        assert ids(pareto_front(outcomes, sla)) == [1, 2]


class TestRepresentativeTest:
    def test_the_highest_rate_that_kept_the_budget_stands_in(self) -> None:
        tests = (
            load_test(10.0, 20.0),
            load_test(50.0, 45.0, over_budget=10),
            load_test(90.0, 70.0, over_budget=200),
            load_test(60.0, 30.0, validity=Validity(valid=False, reasons=("late",))),
            load_test(70.0, 30.0, concurrency=8),
        )
        one = Measurement(
            configuration=Configuration(),
            edge=Edge(rate_rps=55.0, interval_rps=(50.0, 90.0)),
            load_tests=tests,
        )
        found = representative_test(one, SLA)
        assert found is not None
        assert found.offered_rps == 50.0

    def test_nothing_valid_is_nothing(self) -> None:
        one = Measurement(
            configuration=Configuration(),
            edge=Edge(rate_rps=None, interval_rps=(None, None)),
            load_tests=(load_test(10.0, 5.0, validity=Validity(valid=False, reasons=("late",))),),
        )
        assert representative_test(one, SLA) is None
