"""Quantities as people write them: ``20ms``, ``500/s``, ``8GiB``, ``0.7364/h``.

Each parser returns a float (or int) in the unit that its name ends in. A number without a unit is a
:class:`~analyzer.errors.UsageError` that shows the right spelling.
"""

from __future__ import annotations

import math
import re

from analyzer.errors import UsageError

_NUMBER = r"([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+)"
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


def _split(text: str, separator: str = "") -> tuple[float, str] | None:
    match = re.fullmatch(rf"\s*{_NUMBER}\s*{separator}\s*([A-Za-zµ]*)\s*", text)
    if match is None:
        return None
    value = float(match.group(1))
    return (value, match.group(2)) if math.isfinite(value) else None


def parse_duration_s(text: str) -> float:
    """The duration ``text`` (``250us``, ``20ms``, ``0.5s``, ``5m``, ``1h``) in seconds.

    Raises:
        UsageError: It is no number with a unit of time.
    """
    parts = _split(text)
    if parts is None or parts[1] not in _DURATION_S:
        example = f"{parts[0]:g}ms" if parts and not parts[1] else "20ms"
        raise UsageError(
            f"{text!r} is not a duration: it needs a unit.",
            hint=f"Write it like {example} (units: us, ms, s, m, h).",
        )
    return parts[0] * _DURATION_S[parts[1]]


def parse_duration_ms(text: str) -> float:
    """The duration ``text`` in milliseconds; see :func:`parse_duration_s`."""
    return round(parse_duration_s(text) * 1e3, 9)


def parse_rate_rps(text: str) -> float:
    """The rate ``text`` (``500/s``, ``30000/min``) in requests per second, above 0.

    Raises:
        UsageError: It is no positive number per unit of time.
    """
    parts = _split(text, "/")
    if parts is None or parts[1] not in _RATE_PER_S:
        bare = _split(text)
        example = f"{bare[0]:g}/s" if bare and not bare[1] else "500/s"
        raise UsageError(
            f"{text!r} is not a rate: it needs a unit.",
            hint=f"Write it like {example} (units: /s, /min, /h).",
        )
    rate = parts[0] / _RATE_PER_S[parts[1]]
    if rate <= 0:
        raise UsageError(f"{text!r} is not a rate above 0.", hint="Write it like 500/s.")
    return rate


def parse_price_per_hour(text: str) -> float:
    """The price ``text`` (``0.7364/h``) in US dollars per hour, at least 0.

    Raises:
        UsageError: It is no number per hour.
    """
    parts = _split(text.strip().removeprefix("$"), "/")
    if parts is None or parts[1] not in ("h", "hour"):
        bare = _split(text)
        example = f"{bare[0]:g}/h" if bare and not bare[1] else "0.7364/h"
        raise UsageError(
            f"{text!r} is not a price: it needs a unit.",
            hint=f"Write it like {example} (US dollars per hour).",
        )
    return parts[0]


def parse_size_bytes(text: str) -> int:
    """The size ``text`` (``512MiB``, ``8GiB``) in bytes.

    Raises:
        UsageError: It is no number with a unit of size.
    """
    parts = _split(text)
    if parts is None or parts[1] not in _SIZE_BYTES:
        example = f"{parts[0]:g}MiB" if parts and not parts[1] else "512MiB"
        raise UsageError(
            f"{text!r} is not a size: it needs a unit.",
            hint=f"Write it like {example} (units: B, KiB, MiB, GiB).",
        )
    return round(parts[0] * _SIZE_BYTES[parts[1]])


def format_duration(seconds: float) -> str:
    """``seconds`` as people write it: ``16.2ms``, ``1.5s``, ``5m``."""
    for unit, scale in (("h", 3600.0), ("m", 60.0), ("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale and not (unit in "hm" and seconds % scale):
            return f"{seconds / scale:.4g}{unit}"
    return f"{seconds * 1e6:.4g}us"


def format_size(size_bytes: float) -> str:
    """``size_bytes`` with a binary unit and three significant digits: ``1.5GiB``."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_bytes >= _SIZE_BYTES[unit]:
            return f"{size_bytes / _SIZE_BYTES[unit]:.3g}{unit}"
    return f"{size_bytes:.0f}B"
