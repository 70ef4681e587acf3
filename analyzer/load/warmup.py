"""Where a run's warm-up ends: MSER-5, kept only where the difference is real."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_BATCH = 5  # the five of MSER-5
_REQUESTS_MIN = 50  # ten means: fewer say nothing of a drift
# Of the test for a real difference: enough blocks for a variance, each long enough to hold the
# correlation of a queue; three deviations leave 0.3 % to chance.
_BLOCKS = 20
_DEVIATIONS = 3.0


def detect_warmup(latency_s: NDArray[np.float64]) -> int:
    """How many leading requests have latencies that differ from the rest; at most half of all.

    MSER-5 (White, Cobb and Spratt, 2000): of all truncations of the series of means of five, the
    one that minimises the squared standard error of what is left. Since chance alone often moves
    that minimum, the truncation counts only if the mean of what it cuts off differs from the rest
    by more than three standard deviations, which come from the means of 20 blocks and so know
    that requests in a queue are correlated. Where even the second half drifts (a queue that grows,
    or a longer warm-up), it is half of the run.

    Args:
        latency_s: Shape (n,), in the order of the intended send times; inf for a failed request,
            which counts as the longest latency seen.
    """
    count = len(latency_s)
    finite = latency_s[np.isfinite(latency_s)]
    if count < _REQUESTS_MIN or len(finite) == 0:
        return 0
    series = np.where(np.isfinite(latency_s), latency_s, finite.max())
    means = series[: count // _BATCH * _BATCH].reshape(-1, _BATCH).mean(axis=1)
    cut = _mser(means)
    at_limit = cut >= len(means) // 2 - 1
    if at_limit:
        # The minimum lies at (or beyond) the limit. Does the second half itself still drift?
        middle = len(means) // 2
        quarter = middle + (len(means) - middle) // 2
        if _differ(means[middle:quarter], means[quarter:], means[middle:]):
            return middle * _BATCH
    if cut == 0 or not _differ(means[:cut], means[cut:], means[cut:]):
        return 0
    return cut * _BATCH


def _mser(means: NDArray[np.float64]) -> int:
    """The truncation, at most half of the series, with the smallest squared standard error."""
    # Sums of the tails from each position on, about the overall mean so that nothing cancels.
    centred = means - means.mean()
    left = np.arange(len(means), 0, -1, dtype=np.float64)
    total = np.cumsum(centred[::-1])[::-1]
    squares = np.cumsum((centred**2)[::-1])[::-1]
    error = (squares - total**2 / left) / left**2
    return int(np.argmin(error[: len(means) // 2]))


def _differ(
    first: NDArray[np.float64], second: NDArray[np.float64], reference: NDArray[np.float64]
) -> bool:
    """Whether two stretches have different means, given the correlation within ``reference``."""
    size = max(len(reference) // _BLOCKS, 1)
    blocks = reference[: len(reference) // size * size].reshape(-1, size).mean(axis=1)
    variance = size * float(np.var(blocks, ddof=1)) if len(blocks) > 1 else 0.0
    error = np.sqrt(variance * (1.0 / len(first) + 1.0 / len(second)))
    return bool(abs(first.mean() - second.mean()) > _DEVIATIONS * error)
