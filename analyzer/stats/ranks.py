"""Statistics of orders."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def rank_correlation(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """Kendall's tau-a of two samples of shape (n,); 0 for fewer than two."""
    above = np.triu_indices(len(left), 1)
    signs = np.sign(left[:, None] - left)[above] * np.sign(right[:, None] - right)[above]
    return float(signs.mean()) if len(signs) else 0.0
