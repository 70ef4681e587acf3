"""The rates at which a certificate is tried: shares of an edge, and what was tried before."""

from __future__ import annotations

import math
from collections.abc import Iterable

# Shares of the edge at which a certificate is tried, from close to safe.
_LADDER = (
    *(0.97, 0.94, 0.91, 0.88, 0.85, 0.82, 0.78, 0.74, 0.7, 0.66, 0.62, 0.58, 0.54, 0.5),
    *(0.46, 0.42, 0.38, 0.34, 0.3, 0.25, 0.2),
)
# A ladder's rate this close to one that was tried already is that one.
_SAME_RATE = 0.03
#: Of a rate that was given up: the highest that is tried next, but for what was begun, since each
#: is a claim that the next ones pay for.
LOWER_SHARE = 0.85
#: The same of a first rate that failed.
SAFER = 0.7
# Where nothing tells how high a rate may be carried, the next one is higher by so much.
_STEP_UP = 1.1


def rates_to_try(
    edge_rps: float, *, tried: Iterable[float] = (), enough_rps: float = math.inf
) -> list[float]:
    """The rates that may be tried, the highest first; those tried before among them.

    Args:
        edge_rps: The rungs are shares of it, and lie below ``enough_rps``, the highest of them.
    """
    span_rps = min(enough_rps / _LADDER[0], edge_rps)
    highest = enough_rps if edge_rps >= enough_rps else _LADDER[0] * span_rps
    known = [rate for rate in tried if rate <= min(span_rps, enough_rps)]
    ladder = [
        rate
        for rate in (highest, *(span_rps * share for share in _LADDER[1:]))
        if rate == enough_rps or all(abs(rate / other - 1.0) >= _SAME_RATE for other in known)
    ]
    return sorted({*known, *ladder}, reverse=True)


def a_step_up(rates: list[float], proven_rps: float) -> float:
    """The lowest of ``rates`` that is clearly above ``proven_rps``; the highest where none is."""
    return min((rate for rate in rates if rate >= _STEP_UP * proven_rps), default=max(rates))
