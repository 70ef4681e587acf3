from __future__ import annotations

import pytest

from analyzer.stats import mlperf

MISSES = (0, 1, 2, 3, 5, 10, 20, 50, 100)
LEAST = {
    99: (459, 662, 838, 1001, 1307, 2010, 3304, 6898, 12571),
    95: (90, 130, 165, 198, 259, 398, 656, 1372, 2504),
    90: (44, 64, 81, 97, 127, 197, 325, 681, 1246),
}


@pytest.mark.parametrize("percentile", LEAST)
def test_early_stopping_table(percentile: int) -> None:
    found = [mlperf.least_requests(t, percentile=percentile, confidence=0.99) for t in MISSES]
    assert tuple(found) == LEAST[percentile]


def test_early_stopping_p999_and_95_percent_confidence() -> None:
    assert [mlperf.least_requests(t, percentile=99.9, confidence=0.99) for t in (0, 1)] == [
        4603,
        6636,
    ]
    assert [mlperf.least_requests(t, percentile=99, confidence=0.95) for t in (0, 1, 2, 3, 5)] == [
        299,
        473,
        628,
        773,
        1049,
    ]


@pytest.mark.parametrize(
    ("percentile", "queries"), [(90, 23_886), (95, 50_425), (97, 85_811), (99, 262_742)]
)
def test_fixed_size_table(percentile: int, queries: int) -> None:
    assert mlperf.fixed_size(percentile) == queries


def test_verdict_at_its_boundaries() -> None:
    def verdict(requests: int, over: int) -> str:
        return mlperf.verdict(requests, over, percentile=99, confidence=0.99)

    assert verdict(458, 0) == "UNDECIDED"
    assert verdict(459, 0) == "PASS"
    assert verdict(459, 1) == "UNDECIDED"
    assert verdict(459, 20) == "FAIL"
    assert verdict(5, 5) == "FAIL"
    assert verdict(0, 0) == "UNDECIDED"
