"""Quantities as people write them: ``20ms``, ``500/s``, ``8GiB``, ``0.7364/h``.

Each parser returns a float (or int) in the unit that its name ends in. A number without a unit is a
:class:`~analyzer.errors.UsageError` that shows the right spelling.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from analyzer.errors import UsageError

NUMBER = r"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+"
# What each unit is in the one that its parser returns; binary prefixes as in IEC 80000-13.
_DURATION_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE_BYTES = {
    "B": 1,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "TiB": 1 << 40,
    "KB": 10**3,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_RATE_PER_S = {"s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}
_HOURS = {"h": 1.0, "hour": 1.0}
# Thousandths that differ from whole ones by less do so by the rounding of the computation.
_EXACT = 1e-5
# Two weeks: the operating system waits for 24 days at most (2³¹ ms), and a wait may be a budget and
# a quarter. A day for a latency, of which some waits are a multiple. Ten years for what is kept.
DURATION_S_MAX = 14 * 86_400.0
LATENCY_S_MAX = 86_400.0
KEPT_S_MAX = 3650 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Quantity:
    """One kind of quantity: how its number and its unit are written.

    Args:
        name: What messages call it.
        units: The value of each unit in the unit that the parser returns.
        separator: What stands between number and unit.
        number: A number for the example where the text has none.
        unit: The unit of the example.
        known: What the hint says about the units.
        most: The largest that the example shows, in the unit that the parser returns.
    """

    name: str
    units: Mapping[str, float]
    separator: str = ""
    number: str
    unit: str
    known: str
    most: float = sys.float_info.max

    def read(self, text: str) -> tuple[float, float]:
        """The number in ``text``, at least 0, and the value of its unit.

        Raises:
            UsageError: It is none; the message says which of the possible faults it has.
        """
        match = re.fullmatch(
            rf"\s*(-?)({NUMBER}|nan|inf(?:inity)?)\s*(/?)\s*([A-Za-zµ\u03bc]*)\s*", text, re.I
        )
        if match is None:
            raise self._wrong(text, "it is no number with a unit")
        sign, number, slash, unit = match.groups()
        unit = unit.replace("\u03bc", "\u00b5")  # the Greek letter for the micro sign
        value = float(number)
        if math.isnan(value):
            raise self._wrong(text, "nan is not a number")
        if sign:
            raise self._wrong(text, "it must not be negative", number, unit)
        if not math.isfinite(value):
            raise self._wrong(text, "it must be finite")
        if not unit:
            raise self._wrong(text, "it needs a unit", number)
        if unit not in self.units or slash != self.separator:
            raise self._wrong(text, f"{slash + unit!r} is none of its units", number, unit)
        if not math.isfinite(value * self.units[unit]):
            raise self._wrong(text, "it must be finite")
        return value, self.units[unit]

    def _wrong(self, text: str, why: str, number: str = "", unit: str = "") -> UsageError:
        try:
            shown = f"{float(number):g}"
        except ValueError:
            shown = ""
        meant = [known for known in self.units if unit.lower().startswith(known.lower())]
        # Nothing but the beginning of a unit: the first one that has it (8G: 8GiB).
        begun = (known for known in self.units if unit and known.lower().startswith(unit.lower()))
        shown_unit = max(meant, key=len, default=next(begun, self.unit))
        if not shown or shown == "0" or float(shown) * self.units[shown_unit] > self.most:
            shown = self.number
        return UsageError(
            f"{text!r} is not a {self.name}: {why}.",
            hint=f"Write it like {shown}{self.separator}{shown_unit} ({self.known}).",
        )


_DURATION = _Quantity(
    name="duration",
    units=_DURATION_S,
    number="20",
    unit="ms",
    known="units: us, ms, s, m, h",
    most=LATENCY_S_MAX,
)
_RATE = _Quantity(
    name="rate",
    units=_RATE_PER_S,
    separator="/",
    number="500",
    unit="s",
    known="units: /s, /min, /h",
)
_PRICE = _Quantity(
    name="price",
    units=_HOURS,
    separator="/",
    number="0.7364",
    unit="h",
    known="US dollars per hour",
)
_SIZE = _Quantity(
    name="size", units=_SIZE_BYTES, number="512", unit="MiB", known="units: B, KiB, MiB, GiB"
)


def parse_duration_s(text: str, *, most_s: float = DURATION_S_MAX) -> float:
    """The duration ``text`` (``250us``, ``20ms``, ``0.5s``, ``5m``, ``1h``) in seconds, at least 0.

    Args:
        text: As people write it.
        most_s: The longest that is accepted, seconds.

    Raises:
        UsageError: It is no number with a unit of time, or longer than that.
    """
    number, unit_s = _DURATION.read(text)
    if number * unit_s > most_s:
        most = f"{most_s / 3600.0:g}h"
        raise UsageError(
            f"{text!r} is too long: at most {most} are accepted.", hint=f"Write {most} or less."
        )
    return number * unit_s


def parse_kept_s(text: str) -> float:
    """As :func:`parse_duration_s`, of what is kept for up to ten years."""
    return parse_duration_s(text, most_s=KEPT_S_MAX)


def parse_duration_ms(text: str) -> float:
    """The duration ``text``, at most a day, in milliseconds; see :func:`parse_duration_s`."""
    return round(parse_duration_s(text, most_s=LATENCY_S_MAX) * 1e3, 9)


def parse_rate_rps(text: str) -> float:
    """The rate ``text`` (``500/s``, ``30000/min``) in requests per second, above 0.

    Raises:
        UsageError: It is no positive number per unit of time.
    """
    number, seconds = _RATE.read(text)
    if number <= 0:
        raise UsageError(f"{text!r} is not a rate above 0.", hint="Write it like 500/s.")
    return number / seconds


def parse_price_per_hour(text: str) -> float:
    """The price ``text`` (``0.7364/h``) in US dollars per hour, at least 0.

    Raises:
        UsageError: It is no number per hour.
    """
    bare = text.replace("$", "").strip()
    if bare != text.strip():
        raise UsageError(
            f"{text!r} is not a price: it is written without a currency.",
            hint=f"Write it like {_example_price(bare)} (US dollars per hour).",
        )
    return _PRICE.read(text)[0]


def _example_price(text: str) -> str:
    """``text`` if it is a price that could be meant, else an example."""
    for candidate in (text, f"{text}/h"):
        try:
            _PRICE.read(candidate)
        except UsageError:
            continue
        return candidate
    return "0.7364/h"


def parse_size_bytes(text: str) -> int:
    """The size ``text`` (``512MiB``, ``8GiB``) in bytes.

    Raises:
        UsageError: It is no number with a unit of size.
    """
    number, size_bytes = _SIZE.read(text)
    return round(number * size_bytes)


def format_duration(seconds: float) -> str:
    """``seconds`` as people write it: ``16.2ms``, ``1.5s``, ``5m``.

    Exact where it is in thousandths of its unit, as all whole seconds are; else to four digits.
    """
    scales = (("h", 3600.0), ("m", 60.0), ("s", 1.0), ("ms", 1e-3))
    fitting = ((u, s) for u, s in scales if seconds >= s and not (u in "hm" and seconds % s))
    unit, scale = next(fitting, ("us", 1e-6))
    value = seconds / scale
    rest = 1e3 * value % 1.0
    if min(rest, 1.0 - rest) < _EXACT:
        return f"{value:.3f}".rstrip("0").rstrip(".") + unit
    return f"{value:.4g}{unit}" if value < 1e3 else f"{value:.0f}{unit}"


def counted(count: int, noun: str) -> str:
    """``1 job``, ``2,000 jobs``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def format_size(size_bytes: float) -> str:
    """``size_bytes`` with a binary unit and three significant digits: ``1.5GiB``."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_bytes >= _SIZE_BYTES[unit]:
            return f"{size_bytes / _SIZE_BYTES[unit]:.3g}{unit}"
    return f"{size_bytes:.0f}B"
