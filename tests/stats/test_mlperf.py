from __future__ import annotations

import pytest

from analyzer.stats import mlperf

# The least requests that pass, by the number over budget, from LoadGen's tables.
AT_99 = {
    99: {0: 459, 1: 662, 2: 838, 3: 1001, 5: 1307, 10: 2010, 20: 3304, 50: 6898, 100: 12571},
    95: {0: 90, 1: 130, 2: 165, 3: 198, 5: 259, 10: 398, 20: 656, 50: 1372, 100: 2504},
    90: {0: 44, 1: 64, 2: 81, 3: 97, 5: 127, 10: 197, 20: 325, 50: 681, 100: 1246},
    99.9: {0: 4603, 1: 6636},
}
AT_95 = {99: {0: 299, 1: 473, 2: 628, 3: 773, 5: 1049}}


@pytest.mark.parametrize(
    ("percentile", "confidence", "over", "least"),
    [
        (percentile, confidence, over, least)
        for confidence, tables in ((0.99, AT_99), (0.95, AT_95))
        for percentile, row in tables.items()
        for over, least in row.items()
    ],
)
def test_early_stopping_passes_from_the_published_number_on(
    percentile: float, confidence: float, over: int, least: int
) -> None:
    verdicts = [
        mlperf.verdict(requests, over, percentile=percentile, confidence=confidence)
        for requests in (least - 1, least)
    ]
    assert verdicts == ["UNDECIDED", "PASS"]


def test_verdict_at_its_boundaries() -> None:
    def verdict(requests: int, over: int) -> str:
        return mlperf.verdict(requests, over, percentile=99, confidence=0.99)

    assert verdict(459, 20) == "FAIL"
    assert verdict(5, 5) == "FAIL"
    assert verdict(0, 0) == "UNDECIDED"
