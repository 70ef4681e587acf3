"""How likely a configuration keeps the limits on memory and accuracy, by its neighbours."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def feasible_chance(
    features: Floats, prior: Floats, known: Mapping[int, bool], indices: NDArray[np.int64]
) -> Floats:
    """The prior, moved towards what neighbours turned out to be; above 0.

    Args:
        features: Of every configuration, shape (m, d), any units.
        prior: Probability of each, shape (m,); it weighs like one measurement at the very place.
        known: By row of ``features``, whether it kept every limit.
        indices: Rows to answer for, shape (k,), as the result.
    """
    expected: Floats = np.clip(prior[indices], 1e-6, 1.0)
    if not known:
        return expected
    rows = np.array(sorted(known), dtype=np.int64)
    spread = features.std(axis=0)
    scaled = features / np.where(spread > 1e-12, spread, 1.0)
    distance2 = np.mean((scaled[indices, None, :] - scaled[None, rows, :]) ** 2, axis=2)
    weight = np.exp(-2.0 * distance2)
    kept = np.array([float(known[int(row)]) for row in rows])
    chance = (expected + weight @ kept) / (1.0 + weight.sum(axis=1))
    clipped: Floats = np.clip(np.minimum(chance, expected**0.5), 1e-9, 1.0)
    return clipped
