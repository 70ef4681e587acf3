"""What is left of a claim that was taken back: what was proven on the way to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from load_tests import load_test

from analyzer.domain.configuration import Configuration
from analyzer.domain.load_test import Conditions
from analyzer.domain.measurement import Edge, Measurement, RateEvidence
from analyzer.domain.sla import Sla
from analyzer.search.claims import standing

SLA = Sla(latency_budget_ms=40.0)


def evidence(rate_rps: float, requests: int, over_budget: int = 0) -> RateEvidence:
    return RateEvidence(
        rate_rps=rate_rps,
        requests=requests,
        over_budget=over_budget,
        inflation=5.0,
        claim=1,
        blocks=1,
        conditions=Conditions(seconds=9.0, work_us=(100.0,)),
    )


PROVEN = Measurement(
    configuration=Configuration().canonical(),
    edge=Edge(rate_rps=900.0, interval_rps=(880.0, 920.0)),
    capacity_rps=600.0,
    load_tests=(
        replace(load_test([]), offered_rps=400.0, requests=900),
        replace(load_test([]), offered_rps=400.0, requests=1800),
    ),
    evidence=(
        evidence(300.0, 4000),
        evidence(400.0, 2700),
        evidence(500.0, 1000),
        evidence(600.0, 4000),
    ),
)


def up_to(rate_rps: float) -> Callable[[Measurement], bool]:
    return lambda measurement: (measurement.capacity_rps or 0.0) <= rate_rps


def test_a_claim_that_stands_is_left_as_it_is() -> None:
    assert standing(PROVEN, SLA, up_to(600.0)) is PROVEN


def test_the_highest_lower_rate_that_is_proven_counts() -> None:
    """500/s has too few requests."""
    found = standing(PROVEN, SLA, up_to(550.0))
    assert found is not None and found.capacity_rps == 400.0
    assert found.certificate is not None and found.certificate.verdict == "PASS"
    assert found.certificate.requests == 2700 and found.certificate.inflation == 5.0
    assert found.certificate.conditions == PROVEN.evidence[1].conditions
    assert found.headline is not None and found.headline.requests == 1800
    assert found.edge == PROVEN.edge and found.evidence == PROVEN.evidence


@pytest.mark.parametrize(("rate_rps", "capacity_rps"), [(350.0, 300.0), (200.0, None)])
def test_what_the_machine_speaks_against_is_passed_over(
    rate_rps: float, capacity_rps: float | None
) -> None:
    found = standing(PROVEN, SLA, up_to(rate_rps))
    assert (found.capacity_rps if found is not None else None) == capacity_rps


def test_what_was_never_certified_has_nothing_left() -> None:
    open_ = replace(PROVEN, capacity_rps=None)
    assert standing(open_, SLA, lambda measurement: bool(measurement.capacity_rps)) is None
