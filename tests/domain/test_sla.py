"""What a promise allows."""

from __future__ import annotations

import pytest

from analyzer.domain.sla import Sla, tail_share


@pytest.mark.parametrize(
    ("percentile", "share"),
    [(50.0, 0.5), (90.0, 0.1), (99.0, 0.01), (99.9, 0.001), (99.99, 1e-4), (99.9999, 1e-6)],
)
def test_the_share_that_may_be_late_has_no_rounding_errors(percentile: float, share: float) -> None:
    assert tail_share(percentile) == share
    assert Sla(latency_budget_ms=50.0, percentile=percentile).miss_rate_max == share
