"""One record from several measurements of a configuration."""

from __future__ import annotations

from dataclasses import replace

from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import (
    Certificate,
    CertificateVerdict,
    Edge,
    Measurement,
    Prediction,
    RateEvidence,
)
from analyzer.search.outcome_log import merged


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
            mlperf=None,
        ),
        load_test_seconds=2.0,
        predicted=Prediction(edge_rps=edge_rps),
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
