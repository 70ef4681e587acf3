"""How the speed of a machine varies, before any load test: estimated from series of work's times.

A machine that is shared changes between a usual and a slow state: a neighbour on the other half of
a core, a host that runs something else, a clock that is lowered. The time in each state is taken
as exponential (a Markov chain with two states), whose moments follow from the autocovariance. Once
load tests tell, their own series are replayed instead (:mod:`analyzer.twin.pace`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzer.twin.speed import SpeedPath

Floats = NDArray[np.float64]

#: Length of a window, seconds: half of the shortest episode that matters (0.1 s), so that two
#: neighbours see it.
WINDOW_S = 0.05
# A slower window is a stall, which the witness counts; it would hide everything else.
_SLOWNESS_MAX = 4.0
# Pairs of neighbouring windows below which nothing is said, and standard errors (of white noise)
# that their correlation must exceed: 3 are exceeded by chance once in 700.
_PAIRS_MIN = 60
_STANDARD_ERRORS = 3.0
# Ten seconds of lags: longer states are the witness's matter.
_LAGS = 200
# Below this between the states the twin replays no path either (``pace``): it is in the noise of
# execution times.
_SLOW_FACTOR_MIN = 1.12
# Where few windows saw the slow state, its moments say little of it: bounds of what is believed.
_SLOW_FACTOR_MAX = 4.0
_SHARE_RANGE = (0.01, 0.9)
# A time constant outside is not told by windows of this length, or by stretches of some seconds.
_RHO_RANGE = (0.05, 0.999)
# Below this correlation of neighbours the first covariance is taken for the variance: dividing by
# so small a number would only magnify its noise.
_RHO_TRUSTED = 0.3
# Cycles of a path, and its seconds at most, as long as what ``pace`` replays; but some cycles.
_CYCLES = 64
_PATH_S = 120.0
_CYCLES_MIN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoSpeeds:
    """A machine that is slow for a share of the time.

    Args:
        slow_factor: What work takes in the slow state over what it takes in the usual one, above 1.
        share: Of the time, 0 to 1.
        dwell_s: Mean time that a slow state lasts, seconds.
    """

    slow_factor: float
    share: float
    dwell_s: float

    @property
    def cycle_s(self) -> float:
        """Mean time from one slow state to the next, seconds."""
        return self.dwell_s / self.share

    def path(self, *, seed: int = 0) -> SpeedPath:
        """A path of 8 to 64 cycles, which begins again and again.

        Dwells are drawn from evenly spread quantiles, so that it has the right share of slow time.
        The mean of the slowness (1 / speed) over time is 1: probed times, which are means, stay.
        """
        count = int(np.clip(_PATH_S / self.cycle_s, _CYCLES_MIN, _CYCLES))
        usual = 1.0 / (1.0 + self.share * (self.slow_factor - 1.0))
        rng = np.random.default_rng(seed)
        means = (self.cycle_s - self.dwell_s, self.dwell_s)
        dwells = np.stack([_exponential(mean, count, rng) for mean in means], axis=1)
        ends_s = np.cumsum(dwells.ravel())
        return SpeedPath(
            start_s=np.concatenate([[0.0], ends_s[:-1]]),
            speed=np.tile([1.0 / usual, 1.0 / (usual * self.slow_factor)], count),
            period_s=float(ends_s[-1]),
        )

    def __str__(self) -> str:
        """``1.45 times as slow for 30 % of the time, 0.25 s at once``."""
        return (
            f"{self.slow_factor:.2f} times as slow for {self.share:.0%} of the time, "
            f"{self.dwell_s:.2g} s at once"
        )


def _exponential(mean: float, count: int, rng: np.random.Generator) -> Floats:
    """``count`` evenly spread quantiles of an exponential law with this mean, in random order."""
    drawn = -np.log1p(-(rng.permutation(count) + 0.5) / count)
    found: Floats = drawn * (mean / drawn.mean())
    return found


def windows(start_s: Floats, slowness: Floats) -> Floats:
    """Mean slowness of what began in each window, shape (k,); NaN where nothing did.

    Args:
        start_s: Starts, seconds, shape (n,), in any order; not empty.
        slowness: Times over the usual one, shape (n,); counted up to 4.
    """
    index = ((start_s - start_s.min()) / WINDOW_S).astype(np.int64)
    count = np.bincount(index)
    total = np.bincount(index, weights=np.minimum(slowness, _SLOWNESS_MAX))
    with np.errstate(invalid="ignore"):
        found: Floats = np.where(count > 0, total / count, np.nan)
    return found


def estimate(series: Sequence[Floats]) -> TwoSpeeds | None:
    """The two speeds that ``series`` show; None where they show none beyond chance.

    Noise that is independent from window to window has no part in the autocovariance. For a Markov
    chain with two states the covariance at lag k is σ² ρᵏ and E[x_t² x_{t+1}] = ρ E[x³], so that
    variance, skewness and the time constant follow, and from them share, factor and dwell. The sum
    of the covariances ends where one of them is no longer positive (Geyer 1992, "Practical Markov
    chain Monte Carlo").

    Args:
        series: Slowness by window of ``WINDOW_S``, each one stretch of time, held against its own
            mean; NaN where nothing ran.
    """
    found = _Moments.of(series)
    if found.pairs < _PAIRS_MIN or found.variance <= 0:
        return None
    covariance, first = found.covariance, float(found.covariance[0])
    if first < _STANDARD_ERRORS * found.variance / np.sqrt(found.pairs):
        return None
    ended = covariance <= 0
    end = int(np.argmax(ended)) if ended.any() else len(covariance)
    # The sum over all lags from 1 on is σ² ρ / (1 - ρ), and the first covariance is σ² ρ.
    rho = float(np.clip(1.0 - first / float(covariance[:end].sum()), *_RHO_RANGE))
    scale = rho if rho > _RHO_TRUSTED else 1.0
    variance = first / scale
    skewness = found.third / scale / variance**1.5
    share = float(np.clip(0.5 * (1.0 - skewness / np.sqrt(4.0 + skewness**2)), *_SHARE_RANGE))
    apart = float(np.sqrt(variance / (share * (1.0 - share))))
    usual = 1.0 - share * apart
    factor = min((usual + apart) / usual, _SLOW_FACTOR_MAX) if usual > 0 else _SLOW_FACTOR_MAX
    if factor < _SLOW_FACTOR_MIN:
        return None
    constant_s = -WINDOW_S / np.log(rho)
    return TwoSpeeds(slow_factor=factor, share=share, dwell_s=float(constant_s / (1.0 - share)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moments:
    """Central moments of windows over their series' mean, pooled over the series.

    Args:
        covariance: At lags 1, 2, …, shape (m,).
        third: E[x_t² x_{t+1}], both ways round.
        pairs: Pairs of neighbours behind them.
    """

    variance: float
    covariance: Floats
    third: float
    pairs: int

    @classmethod
    def of(cls, series: Sequence[Floats]) -> _Moments:
        sums, counts = np.zeros(_LAGS), np.zeros(_LAGS)
        square = third = 0.0
        number = 0
        for values in series:
            known = np.isfinite(values)
            if known.sum() < 2:
                continue
            x = np.where(known, values / values[known].mean() - 1.0, 0.0)
            square += float(x @ x)
            number += int(known.sum())
            third += 0.5 * float((x[1:] + x[:-1]) @ (x[1:] * x[:-1]))
            for lag in range(1, min(_LAGS, len(x) - 1) + 1):
                sums[lag - 1] += float(x[lag:] @ x[:-lag])
                counts[lag - 1] += int((known[lag:] & known[:-lag]).sum())
        pairs = int(counts[0])
        # Lags that few pairs show are left out.
        used = counts >= max(_PAIRS_MIN / 2, 0.2 * pairs)
        return cls(
            variance=square / max(number, 1),
            covariance=np.where(used, sums / np.maximum(counts, 1.0), 0.0),
            third=third / max(pairs, 1),
            pairs=pairs,
        )
