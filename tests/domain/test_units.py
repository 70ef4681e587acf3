"""Quantities with a unit: what is read, and how each mistake is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.cli.options import BUDGET_S
from analyzer.domain import units
from analyzer.errors import UsageError


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (units.parse_duration_s, "250us", 250e-6),
        (units.parse_duration_s, "250µs", 250e-6),
        (units.parse_duration_s, " 0.5 s ", 0.5),
        (units.parse_duration_s, "5m", 300.0),
        (units.parse_duration_s, "1h", 3600.0),
        (units.parse_duration_ms, "0ms", 0.0),
        (units.parse_duration_ms, "1e3ms", 1000.0),
        (units.parse_rate_rps, "500/s", 500.0),
        (units.parse_rate_rps, "30000/min", 500.0),
        (units.parse_price_per_hour, "0.7364/h", 0.7364),
        (units.parse_price_per_hour, "0/h", 0.0),
        (units.parse_size_bytes, "512MiB", 2**29),
        (units.parse_size_bytes, ".5kB", 500),
    ],
)
def test_what_is_read(parse: Callable[[str], float], text: str, value: float) -> None:
    assert parse(text) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("parse", "most", "more"),
    [
        (units.parse_duration_s, "336h", "336.001h"),
        (units.parse_duration_s, "336h", "1e99s"),
        (units.parse_duration_ms, "24h", "25h"),
        (units.parse_kept_s, "87600h", "99999999999999999999h"),
    ],
)
def test_what_is_too_long_names_the_most(
    parse: Callable[[str], float], most: str, more: str
) -> None:
    parse(most)
    with pytest.raises(UsageError, match=f"at most {most}") as refusal:
        parse(more)
    assert repr(more) in refusal.value.message and most in refusal.value.hint


@pytest.mark.parametrize(
    ("parse", "text", "why", "hint"),
    [
        (units.parse_duration_s, "5", "needs a unit", "5ms"),
        (units.parse_duration_s, "-5ms", "must not be negative", "5ms"),
        (units.parse_duration_s, "-5", "must not be negative", "5ms"),
        (units.parse_duration_s, "nanms", "not a number", "20ms"),
        (units.parse_duration_s, "NaN", "not a number", "20ms"),
        (units.parse_duration_s, "infms", "must be finite", "20ms"),
        (units.parse_duration_s, "1e999s", "must be finite", "20ms"),
        (units.parse_duration_s, "1e308h", "must be finite", "20ms"),
        (units.parse_duration_s, "5sec", "'sec' is none of its units", "5s "),
        (units.parse_duration_s, "-5h", "must not be negative", "5h "),
        (units.parse_duration_s, "5 minutes", "'minutes' is none of its units", "5m "),
        (units.parse_duration_s, "-5parsecs", "must not be negative", "5ms "),
        (units.parse_duration_s, "5/s", "'/s' is none of its units", "5s "),
        (units.parse_duration_s, "soon", "no number with a unit", "20ms"),
        (units.parse_duration_s, "+5ms", "no number with a unit", "20ms"),
        (units.parse_duration_s, "", "no number with a unit", "20ms"),
        (units.parse_rate_rps, "500", "needs a unit", "500/s"),
        (units.parse_rate_rps, "-5/s", "must not be negative", "5/s"),
        (units.parse_rate_rps, "0/s", "above 0", "500/s"),
        (units.parse_rate_rps, "nan/s", "not a number", "500/s"),
        (units.parse_rate_rps, "5s", "'s' is none of its units", "5/s"),
        (units.parse_price_per_hour, "1", "needs a unit", "1/h"),
        (units.parse_price_per_hour, "-1/h", "must not be negative", "1/h"),
        (units.parse_price_per_hour, "$1/h", "without a currency", "1/h"),
        (units.parse_price_per_hour, "$1", "without a currency", "1/h"),
        (units.parse_price_per_hour, "0.9$/h", "without a currency", "0.9/h"),
        (units.parse_price_per_hour, "$x/h", "without a currency", "0.7364/h"),
        (units.parse_size_bytes, "8", "needs a unit", "8MiB"),
        (units.parse_size_bytes, "-8GiB", "must not be negative", "8GiB"),
        (units.parse_size_bytes, "8gb", "'gb' is none of its units", "8GB"),
        (units.parse_size_bytes, "1e308TB", "must be finite", "512MiB"),
    ],
)
def test_each_mistake_has_its_own_message(
    parse: Callable[[str], float], text: str, why: str, hint: str
) -> None:
    with pytest.raises(UsageError) as refusal:
        parse(text)
    message = refusal.value.message
    assert repr(text) in message and why in message
    assert ("needs a unit" in message) == (why == "needs a unit")
    assert f"Write it like {hint}" in refusal.value.hint


@pytest.mark.parametrize(
    ("text", "hint"), [("1e10", "20ms"), ("-1e5h", "20h"), ("1e308TiBs", "512TiB")]
)
def test_a_hint_shows_no_number_that_is_refused_again(text: str, hint: str) -> None:
    parse = units.parse_size_bytes if "iB" in text else units.parse_duration_s
    with pytest.raises(UsageError) as refusal:
        parse(text)
    assert refusal.value.hint.startswith(f"Write it like {hint} ")
    assert parse(hint) > 0


PARSERS = [
    units.parse_duration_s,
    units.parse_rate_rps,
    units.parse_price_per_hour,
    units.parse_size_bytes,
]


@given(
    text=st.from_regex(r"\A[-$ ]{0,2}[0-9nainf.e]{0,6}[/ ]?[a-zA-Zµ]{0,4}\Z"),
    parse=st.sampled_from(PARSERS),
)
def test_anything_else_is_refused_in_words(text: str, parse: Callable[[str], float]) -> None:
    try:
        assert parse(text) >= 0
    except UsageError as refusal:
        assert refusal.hint.startswith("Write it like ")
        spelled = refusal.hint.removeprefix("Write it like ").split(" ")[0].rstrip(".")
        assert parse(spelled) >= 0  # what the hint shows is right


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0us"),
        (250e-6, "250us"),
        (0.0162, "16.2ms"),
        (0.012345, "12.345ms"),  # 12.35ms
        (1.0 / 3.0, "333.3ms"),
        (1.5, "1.5s"),
        (60.0, "1m"),
        (90.0, "90s"),
        (5400.0, "90m"),
        (1234.5678, "1235s"),
        (10_005.0, "10005s"),  # 1e+04s
        (1_209_540.0, "20159m"),  # 2.016e+04m
        (units.DURATION_S_MAX, "336h"),
        (1e6 / 3.0, "333333s"),
    ],
)
def test_durations_lose_no_digit_that_they_have(seconds: float, text: str) -> None:
    assert units.format_duration(seconds) == text


@given(seconds=st.integers(min_value=1, max_value=round(units.DURATION_S_MAX)))
def test_whole_seconds_are_read_as_they_were_written(seconds: int) -> None:
    assert units.parse_duration_s(units.format_duration(seconds)) == seconds


@given(microseconds=st.integers(min_value=1, max_value=999_999))
def test_whole_microseconds_are_written_exactly(microseconds: int) -> None:
    text = units.format_duration(microseconds / 1e6)
    assert units.parse_duration_s(text) == pytest.approx(microseconds / 1e6, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("8G", "8GiB"),
        ("8Gi", "8GiB"),
        ("8g", "8GiB"),
        ("8M", "8MiB"),
        ("8k", "8KiB"),
        ("8T", "8TiB"),
        ("8b", "8B"),
        ("8GiBs", "8GiB"),
        ("8x", "8MiB"),
    ],
)
def test_the_beginning_of_a_unit_of_size_is_understood(text: str, meant: str) -> None:
    """8G was told to be written 8MiB."""
    with pytest.raises(UsageError) as refusal:
        units.parse_size_bytes(text)
    assert refusal.value.hint.startswith(f"Write it like {meant} ")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("60", "60s"),
        ("1.5", "1.5s"),  # 1.5ms
        ("60.0", "60.0s"),
        (".5", ".5s"),
        ("-3.5", "3.5s"),
        ("0.0", "60s"),
        ("1e999", "60s"),
        ("²", "60s"),  # a traceback
        ("٣", "60s"),
    ],
)
def test_a_budget_without_a_unit_is_one_of_seconds(text: str, meant: str) -> None:
    with pytest.raises(UsageError) as refusal:
        BUDGET_S.convert(text, None, None)
    assert refusal.value.hint == f"Write it like {BUDGET_S.name} {meant}."
    assert units.parse_duration_s(meant) > 0.0
