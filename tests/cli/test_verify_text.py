"""What ``analyze verify`` says of a claim that it could not decide."""

from __future__ import annotations

import pytest

from analyzer.cli.verify import missing_text


@pytest.mark.parametrize(
    ("requests", "rate_rps", "said"),
    [
        (3112, 200.0, "about 3112 requests: give it more time (--budget 80s)"),
        (400_000, 1000.0, "about 400000 requests: give it more time (--budget 8m)"),
        # A budget of 19452s was told, and of years.
        (10**9, 100.0, "more requests than a day holds: this rate is too near to the edge"),
    ],
)
def test_the_budget_that_decides_is_one_to_write(requests: int, rate_rps: float, said: str) -> None:
    assert missing_text(requests, rate_rps).startswith(said)
