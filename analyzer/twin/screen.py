"""A prediction for every configuration of a space, in a bounded time.

The approximation by the queue's decay rate comes first and covers all; simulation follows from the
most promising on, as far as it can change the order and the time allows. So a slow simulation makes
predictions coarser, and never makes them vanish.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzer.twin.arrivals import UnitArrivals
from analyzer.twin.heavy_traffic import heavy_traffic_edges
from analyzer.twin.server_model import ServerModel, edges

# An edge that is approximated below this share of the best simulated one is not simulated: the
# approximation errs upwards where it errs by much (docs/twin.md), so the order cannot change.
_HOPELESS_SHARE = 0.7
# The shortest simulated run sees no queue this close to saturation; the approximation does.
_NEAR_SATURATION = 0.995
# Relative accuracy of simulated edges: well below the twin's own error.
_ACCURACY = 0.02
# Time units, each one mean interarrival time, over which arrivals are counted for their dispersion.
_DISPERSION_UNITS = 64.0
# Configurations per core between two looks at the clock.
_CHUNK_PER_CORE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenedEdge:
    """What the twin expects of one configuration.

    Args:
        rate_rps: Its edge; 0 where it keeps the SLA at no rate.
        simulated: Whether it was simulated; else it is the approximation.
    """

    rate_rps: float
    simulated: bool


def screen(
    models: Sequence[ServerModel],
    arrivals: UnitArrivals,
    *,
    budget_ms: float,
    percentile: float,
    cores: int,
    clock: Callable[[], float],
    seconds_max: float,
) -> list[ScreenedEdge]:
    """The expected edge of each model, in order; none is left out.

    Args:
        seconds_max: Of ``clock``, for the simulations; the approximation takes some 0.1 ms each.
            They end where another step as long as the longest would not end in time.
    """
    started = clock()
    approximate = _approximate(models, arrivals, budget_ms, percentile)
    found = [ScreenedEdge(rate_rps=float(rate), simulated=False) for rate in approximate]
    order = [int(index) for index in np.argsort(-approximate, kind="stable")]
    best = longest_s = 0.0
    chunk_size = _CHUNK_PER_CORE * cores
    while order and (begun := clock()) - started + longest_s < seconds_max:
        chunk, order = order[:chunk_size], order[chunk_size:]
        chunk = [index for index in chunk if approximate[index] >= _HOPELESS_SHARE * best]
        if not chunk or approximate[chunk[0]] <= 0:
            break
        rates = edges(
            [models[index] for index in chunk],
            arrivals,
            budget_ms=budget_ms,
            percentile=percentile,
            cores=cores,
            accuracy=_ACCURACY,
        )
        for index, simulated in zip(chunk, rates, strict=True):
            rate = simulated or 0.0
            if rate >= _NEAR_SATURATION * models[index].saturation_rps(arrivals.batch_size):
                rate = min(rate, float(approximate[index]))
            found[index] = ScreenedEdge(rate_rps=rate, simulated=True)
            best = max(best, rate)
        longest_s = max(longest_s, clock() - begun)
    return found


def _approximate(
    models: Sequence[ServerModel], arrivals: UnitArrivals, budget_ms: float, percentile: float
) -> NDArray[np.float64]:
    rates = heavy_traffic_edges(
        [(model.policy, model.service, model.overhead_ms) for model in models],
        budget_ms=budget_ms,
        percentile=percentile,
        request_batch_size=max(1, round(float(arrivals.batch_size.mean()))),
        arrival_scv=dispersion(arrivals.time_s),
    )
    scaled: NDArray[np.float64] = rates / np.array([model.rate_scale for model in models])
    return scaled


def dispersion(time_s: NDArray[np.float64]) -> float:
    """Index of dispersion of counts: variance over mean of the arrivals in a window.

    For renewal processes it tends to the squared coefficient of variation of the interarrival
    times; a trace's bursts show in it too.

    Args:
        time_s: Arrival times at a mean rate of one per second, ascending, shape (n,).
    """
    windows = int(time_s[-1] // _DISPERSION_UNITS)
    if windows < 2:
        return 1.0
    edges_s = np.arange(windows + 1) * _DISPERSION_UNITS
    counts = np.diff(np.searchsorted(time_s, edges_s))
    return float(counts.var() / max(counts.mean(), 1e-9))
