"""The rates at which a certificate is tried."""

from __future__ import annotations

import pytest

from analyzer.measure.ladder import a_step_up, rates_to_try


def test_rates_are_shares_of_the_edge_and_what_was_tried() -> None:
    rates = rates_to_try(100.0, tried=[61.0, 300.0])
    assert rates == sorted(rates, reverse=True) and rates[0] == pytest.approx(97.0)
    assert 61.0 in rates and 62.0 not in rates, "close to one that was tried"
    assert 300.0 not in rates, "above the edge"
    enough = rates_to_try(100.0, enough_rps=50.0)
    assert enough[0] == 50.0 and len(enough) == len(rates_to_try(100.0))


def test_a_step_up_is_a_tenth_or_what_is_left() -> None:
    rates = rates_to_try(100.0)
    assert a_step_up(rates, 50.0) == pytest.approx(58.0)
    assert a_step_up([56.0, 54.0], 53.0) == 56.0


def test_a_rate_that_is_enough_is_tried_as_soon_as_the_edge_carries_it() -> None:
    """An edge of 2 % more left 485/s as the highest rung, and two machines where one suffices."""
    assert rates_to_try(102.0, enough_rps=100.0)[0] == 100.0
    assert rates_to_try(100.0, enough_rps=100.0)[:2] == pytest.approx([100.0, 94.0])
    assert rates_to_try(99.0, enough_rps=100.0)[0] == pytest.approx(0.97 * 99.0)
