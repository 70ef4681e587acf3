"""What differs between a prediction and reality, learned from a few measurements.

The residual log(measured / predicted) is a Gaussian process over a configuration's features: a
common bias, a trend in each feature, and a smooth remainder. Its scale is learned too, from an
inverse-gamma prior, so that predictions follow Student's t: with three measurements nobody knows
how far the twin may be off. Source: Rasmussen and Williams, Gaussian Processes for Machine
Learning, sections 2.2, 2.7 and 9.9 (Student's t).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import lgamma, log

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# What a calibrated twin is expected to be off by, and how many measurements that belief weighs.
SCALE_PRIOR = 0.1
_PRIOR_WEIGHT = 4.0
# Variances relative to the smooth remainder: the common bias, a feature's trend, the noise.
_BIAS = (0.3, 3.0)
_TREND = (0.0, 0.5)
_NOISE = (0.01, 0.1, 0.6)
_LENGTHS = (0.7, 1.5, 4.0)
_NOISE_MIN = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kernel:
    bias: float
    trend: float
    noise: float
    length: float

    def between(self, left: Floats, right: Floats) -> Floats:
        distance2 = np.sum((left[:, None, :] - right[None, :, :]) ** 2, axis=2)
        smooth = np.exp(-0.5 * distance2 / self.length**2)
        found: Floats = self.bias + self.trend * (left @ right.T) + smooth
        return found

    def variance(self, at: Floats) -> Floats:
        found: Floats = self.bias + self.trend * np.sum(at**2, axis=1) + 1.0
        return found


class ResidualModel:
    """Log ratios of measured to predicted values, at measured and unmeasured configurations.

    Args:
        features: Of every configuration in the space, shape (m, d), any units; constant columns
            are ignored.
        scale_prior: How far predictions are expected to be off before anything was measured.
    """

    def __init__(self, features: NDArray[np.floating], *, scale_prior: float = SCALE_PRIOR) -> None:
        values = np.asarray(features, dtype=np.float64)
        assert values.ndim == 2, values.shape
        spread = values.std(axis=0)
        kept = values[:, spread > 1e-12]
        spread = spread[spread > 1e-12]
        # Distances in units of the spread, so that d features are no farther apart than one.
        self._points: Floats = (kept - kept.mean(axis=0)) / spread / max(len(spread), 1) ** 0.5
        self._scale_prior = scale_prior
        self._at: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._fit(np.zeros(0))

    def learn(self, indices: NDArray[np.int64], log_ratio: Floats) -> None:
        """Replaces what was learned before.

        Args:
            indices: Rows of ``features`` that were measured, shape (n,); repeats are allowed.
            log_ratio: log(measured / predicted), shape (n,).
        """
        assert len(indices) == len(log_ratio), (len(indices), len(log_ratio))
        self._at = np.asarray(indices, dtype=np.int64)
        self._fit(np.asarray(log_ratio, dtype=np.float64))

    @property
    def degrees_of_freedom(self) -> float:
        """Of Student's t, in which every prediction is distributed."""
        return _PRIOR_WEIGHT + len(self._at)

    def predict(self, indices: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Returns mean and scale (of Student's t) of the true log ratio, each of shape (k,)."""
        points = self._points[indices]
        if len(self._at) == 0:
            return np.zeros(len(points)), self._scale * np.sqrt(self._kernel.variance(points))
        cross = self._kernel.between(points, self._points[self._at])
        half = np.linalg.solve(self._cholesky, cross.T)
        variance = np.maximum(self._kernel.variance(points) - np.sum(half**2, axis=0), 1e-12)
        return cross @ self._weights, self._scale * np.sqrt(variance)

    def draw(self, indices: NDArray[np.int64], count: int, rng: np.random.Generator) -> Floats:
        """Returns ``count`` draws of the true log ratios together, shape (count, k)."""
        points = self._points[indices]
        covariance = self._kernel.between(points, points)
        mean = np.zeros(len(points))
        if len(self._at):
            cross = self._kernel.between(points, self._points[self._at])
            half = np.linalg.solve(self._cholesky, cross.T)
            covariance -= half.T @ half
            mean = cross @ self._weights
        values, vectors = np.linalg.eigh(covariance)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        normal = rng.standard_normal((count, len(points))) @ root.T
        freedom = self.degrees_of_freedom
        chi = np.sqrt(freedom / rng.chisquare(freedom, size=(count, 1)))
        drawn: Floats = mean + self._scale * normal * chi
        return drawn

    def _fit(self, log_ratio: Floats) -> None:
        """Takes the kernel of the largest evidence among a few, which few measurements can tell."""
        best = -np.inf
        points = self._points[self._at]
        count = len(log_ratio)
        a0 = _PRIOR_WEIGHT / 2.0
        if count == 0:
            self._kernel = _Kernel(bias=1.0, trend=0.25, noise=0.1, length=1.5)
            self._scale = self._scale_prior
            return
        for bias, trend, noise, length in product(_BIAS, _TREND, _NOISE, _LENGTHS):
            kernel = _Kernel(bias=bias, trend=trend, noise=noise, length=length)
            # The prior is about the size of a residual as a whole.
            b0 = a0 * self._scale_prior**2 / (1.0 + bias + trend)
            floor = max(noise, _NOISE_MIN)
            matrix = kernel.between(points, points) + floor * np.eye(count)
            cholesky = np.linalg.cholesky(matrix)
            half = np.linalg.solve(cholesky, log_ratio)
            fit = float(half @ half)
            evidence = (
                a0 * log(b0)
                - (a0 + count / 2.0) * log(b0 + fit / 2.0)
                + lgamma(a0 + count / 2.0)
                - float(np.sum(np.log(np.diag(cholesky))))
            )
            if evidence > best:
                best = evidence
                self._kernel, self._cholesky = kernel, cholesky
                self._weights: Floats = np.linalg.solve(cholesky.T, half)
                self._scale = ((b0 + fit / 2.0) / (a0 + count / 2.0)) ** 0.5
