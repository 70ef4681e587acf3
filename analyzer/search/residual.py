"""What differs between a prediction and reality, learned from a few measurements.

The residual log(measured / predicted) is a Gaussian process over a configuration's features: a
common bias, a trend in each feature, a smooth remainder, a local one, and noise. A few
measurements cannot tell how large each of these is, so that predictions average over many models,
weighted by their evidence and a prior. No model thinks the remainder negligible: a dozen
measurements around one configuration say little about the others. Source: Rasmussen
and Williams, Gaussian Processes for Machine Learning, sections 2.2, 2.7 and 5.2 (evidence).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# How far a calibrated twin is expected to be off.
SCALE_PRIOR = 0.1
# Standard deviations in units of that expectation; lengths in units of the features' spread.
_REMAINDER = (0.5, 1.5)
_BIAS = (1.0, 6.0)
_TREND = (0.0, 1.0)
_LENGTHS = (0.7, 1.8)
LOCAL = (0.1, 0.4)
_LOCAL_LENGTH = 0.25
_NOISE = (0.01, 0.05)  # of the logarithm itself
# Spread of the logarithm of the remainder's size around 1, as the prior sees it.
_REMAINDER_SPREAD = 0.8
_WEIGHT_MIN = 0.02
# Keeps covariances of nearly equal configurations invertible.
_JITTER = 1e-9


class ResidualModel:
    """Log ratios of measured to predicted values, at measured and unmeasured configurations.

    Args:
        features: Of every configuration in the space, shape (m, d), any units; constant columns
            are ignored.
        scale_prior: How far predictions are expected to be off, as a standard deviation of the
            logarithm.
        local: Sizes of the local part to choose among, in units of ``scale_prior``. Where the
            predictions were fitted to the same measurements these seem better than they are, and
            only a large one is honest.
    """

    def __init__(
        self,
        features: NDArray[np.floating],
        *,
        scale_prior: float = SCALE_PRIOR,
        local: Sequence[float] = LOCAL,
    ) -> None:
        values = np.asarray(features, dtype=np.float64)
        assert values.ndim == 2, values.shape
        spread = values.std(axis=0)
        kept = values[:, spread > 1e-12]
        spread = spread[spread > 1e-12]
        # Distances in units of the spread, so that d features are no farther apart than one.
        self._points: Floats = (kept - kept.mean(axis=0)) / spread / max(len(spread), 1) ** 0.5
        models = np.array(list(product(_REMAINDER, _BIAS, _TREND, _LENGTHS, local, _NOISE)))
        remainder, bias = models[:, 0], models[:, 1]
        self._prior = -0.5 * (np.log(remainder) / _REMAINDER_SPREAD) ** 2 - 0.5 * np.log(bias)
        # Columns: remainder, bias, trend and local part in units of the logarithm; length; noise.
        self._models: Floats = models * np.array([scale_prior] * 3 + [1.0, scale_prior, 1.0])
        self.learn(np.zeros(0, dtype=np.int64), np.zeros(0))

    def learn(self, indices: NDArray[np.int64], log_ratio: Floats) -> None:
        """Replaces what was learned before.

        Args:
            indices: Rows of ``features`` that were measured, shape (n,); repeats are allowed.
            log_ratio: log(measured / predicted), shape (n,).
        """
        assert len(indices) == len(log_ratio), (len(indices), len(log_ratio))
        values = np.asarray(log_ratio, dtype=np.float64)
        self._known = self._points[np.asarray(indices, dtype=np.int64)]
        noise = self._models[:, 5, None, None]
        matrix = _between(self._models, self._known, self._known) + noise**2 * np.eye(len(values))
        cholesky = np.linalg.cholesky(matrix)
        half = np.linalg.solve(cholesky, np.broadcast_to(values[:, None], (*matrix.shape[:2], 1)))
        diagonal = np.diagonal(cholesky, axis1=1, axis2=2)
        evidence = -0.5 * np.sum(half[:, :, 0] ** 2, axis=1) - np.log(diagonal).sum(axis=1)
        scores = self._prior + evidence
        weights = np.exp(scores - scores.max())
        kept = weights >= _WEIGHT_MIN * weights.max()
        self._weights: Floats = weights[kept] / weights[kept].sum()
        self._kept: Floats = self._models[kept]
        self._cholesky, self._half = cholesky[kept], half[kept]

    def predict(self, indices: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Returns mean and standard deviation of the true log ratio, each of shape (k,)."""
        points = self._points[indices]
        expected, explained = self._posterior(points)
        remainder, bias, trend, _, local, _ = self._kept.T[:, :, None]
        variance = bias**2 + remainder**2 + local**2 + trend**2 * np.sum(points**2, axis=1)
        variance = np.maximum(variance - np.sum(explained**2, axis=1), 1e-10)
        mean = self._weights @ expected
        square = self._weights @ (variance + expected**2)
        return mean, np.sqrt(np.maximum(square - mean**2, 1e-10))

    def draw(self, indices: NDArray[np.int64], count: int, rng: np.random.Generator) -> Floats:
        """Returns ``count`` draws of the true log ratios together, shape (count, k)."""
        points = self._points[indices]
        expected, explained = self._posterior(points)
        drawn = []
        for number, share in enumerate(rng.multinomial(count, self._weights)):
            if share == 0:
                continue
            covariance = _between(self._kept[number : number + 1], points, points)[0]
            covariance -= explained[number].T @ explained[number]
            covariance[np.diag_indices(len(points))] += _JITTER
            root = np.linalg.cholesky(covariance)
            drawn.append(expected[number] + rng.standard_normal((share, len(points))) @ root.T)
        return np.concatenate(drawn)

    def _posterior(self, at: Floats) -> tuple[Floats, Floats]:
        """Of each kept model the mean, shape (models, k), and the covariance's explained half."""
        cross = _between(self._kept, self._known, at)
        explained: Floats = np.linalg.solve(self._cholesky, cross)
        return np.sum(explained * self._half, axis=1), explained


def _between(models: Floats, left: Floats, right: Floats) -> Floats:
    """Covariances of each model between points, shape (models, len(left), len(right))."""
    remainder, bias, trend, length, local, _ = models.T[:, :, None, None]
    product_ = left @ right.T
    distance2 = np.sum(left**2, axis=1)[:, None] + np.sum(right**2, axis=1) - 2.0 * product_
    halved = 0.5 * np.maximum(distance2, 0.0)
    smooth = np.zeros((len(models), *halved.shape))
    for each in np.unique(length):
        smooth[length[:, 0, 0] == each] = np.exp(-halved / each**2)
    found: Floats = (
        bias**2
        + trend**2 * product_
        + remainder**2 * smooth
        + local**2 * np.exp(-halved / _LOCAL_LENGTH**2)
    )
    return found
