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
from dataclasses import dataclass, field
from itertools import product
from math import log

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


@dataclass(slots=True, kw_only=True, eq=False)
class _Model:
    """One Gaussian process with fixed variances."""

    remainder: float
    bias: float
    trend: float
    length: float
    local: float
    noise: float
    weight: float = 0.0
    cholesky: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    solved: Floats = field(default_factory=lambda: np.zeros(0))

    def between(self, left: Floats, right: Floats) -> Floats:
        distance2 = (
            np.sum(left**2, axis=1)[:, None] + np.sum(right**2, axis=1) - 2.0 * (left @ right.T)
        )
        halved = 0.5 * np.maximum(distance2, 0.0)
        found: Floats = (
            self.bias**2
            + self.trend**2 * (left @ right.T)
            + self.remainder**2 * np.exp(-halved / self.length**2)
            + self.local**2 * np.exp(-halved / _LOCAL_LENGTH**2)
        )
        return found

    def variance(self, at: Floats) -> Floats:
        constant = self.bias**2 + self.remainder**2 + self.local**2
        found: Floats = constant + self.trend**2 * np.sum(at**2, axis=1)
        return found

    def learn(self, points: Floats, values: Floats) -> float:
        """Fits the values at the points; returns the log evidence."""
        matrix = self.between(points, points) + self.noise**2 * np.eye(len(points))
        self.cholesky = np.asarray(np.linalg.cholesky(matrix), dtype=np.float64)
        half = np.asarray(np.linalg.solve(self.cholesky, values), dtype=np.float64)
        self.solved = np.asarray(np.linalg.solve(self.cholesky.T, half), dtype=np.float64)
        return -0.5 * float(half @ half) - float(np.sum(np.log(np.diag(self.cholesky))))

    def posterior(self, known: Floats, at: Floats) -> tuple[Floats, Floats]:
        """Mean at ``at``, and the part of the known points' covariance that explains it."""
        cross = self.between(at, known)
        explained = np.asarray(np.linalg.solve(self.cholesky, cross.T), dtype=np.float64)
        return cross @ self.solved, explained


class ResidualModel:
    """Log ratios of measured to predicted values, at measured and unmeasured configurations.

    Args:
        features: Of every configuration in the space, shape (m, d), any units; constant columns
            are ignored.
        scale_prior: How far predictions are expected to be off before anything was measured.
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
        self._scale, self._local = scale_prior, tuple(local)
        self.learn(np.zeros(0, dtype=np.int64), np.zeros(0))

    def learn(self, indices: NDArray[np.int64], log_ratio: Floats) -> None:
        """Replaces what was learned before.

        Args:
            indices: Rows of ``features`` that were measured, shape (n,); repeats are allowed.
            log_ratio: log(measured / predicted), shape (n,).
        """
        assert len(indices) == len(log_ratio), (len(indices), len(log_ratio))
        self._known = self._points[np.asarray(indices, dtype=np.int64)]
        models, scores = [], []
        for remainder, bias, trend, length, local, noise in product(
            _REMAINDER, _BIAS, _TREND, _LENGTHS, self._local, _NOISE
        ):
            model = _Model(
                remainder=remainder * self._scale,
                bias=bias * self._scale,
                trend=trend * self._scale,
                length=length,
                local=local * self._scale,
                noise=noise,
            )
            prior = -0.5 * (log(remainder) / _REMAINDER_SPREAD) ** 2 - 0.5 * log(bias)
            scores.append(prior + model.learn(self._known, np.asarray(log_ratio, dtype=float)))
            models.append(model)
        weights = np.exp(np.array(scores) - max(scores))
        weights = np.where(weights >= _WEIGHT_MIN * weights.max(), weights, 0.0)
        weights /= weights.sum()
        self._models = []
        for model, weight in zip(models, weights, strict=True):
            if weight > 0:
                model.weight = float(weight)
                self._models.append(model)

    def predict(self, indices: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Returns mean and standard deviation of the true log ratio, each of shape (k,)."""
        points = self._points[indices]
        mean, square = np.zeros(len(points)), np.zeros(len(points))
        for model in self._models:
            expected, half = model.posterior(self._known, points)
            variance = np.maximum(model.variance(points) - np.sum(half**2, axis=0), 1e-10)
            mean += model.weight * expected
            square += model.weight * (variance + expected**2)
        return mean, np.sqrt(np.maximum(square - mean**2, 1e-10))

    def draw(self, indices: NDArray[np.int64], count: int, rng: np.random.Generator) -> Floats:
        """Returns ``count`` draws of the true log ratios together, shape (count, k)."""
        points = self._points[indices]
        shares = rng.multinomial(count, [model.weight for model in self._models])
        drawn = []
        for model, share in zip(self._models, shares, strict=True):
            expected, half = model.posterior(self._known, points)
            covariance = model.between(points, points) - half.T @ half
            values, vectors = np.linalg.eigh(covariance)
            root = vectors * np.sqrt(np.maximum(values, 0.0))
            drawn.append(expected + rng.standard_normal((share, len(points))) @ root.T)
        return np.concatenate(drawn)
