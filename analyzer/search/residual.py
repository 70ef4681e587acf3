"""What differs between a prediction and reality, learned from a few measurements.

The residual log(measured / predicted) is a Gaussian process: a common bias, parts that groups of
configurations share (a variant, a deployment, a way of batching), over the features a trend in
each, a smooth remainder and a local one, and noise. A few measurements cannot tell how large each
of these is, so that predictions average over many models, weighted by their evidence and a prior.
No model thinks the remainder negligible: a dozen measurements around one configuration say little
about the others. Source: Rasmussen and Williams, Gaussian Processes for Machine Learning,
sections 2.2, 2.7 and 5.2 (evidence).
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
_LENGTHS = (1.2,)
LOCAL = (0.1, 0.4)
_LOCAL_LENGTH = 0.25
_GROUP = (0.2, 0.7)
_NOISE = (0.01, 0.05)  # of the logarithm itself
# Spread of the logarithm of the remainder's size around 1, as the prior sees it.
_REMAINDER_SPREAD = 0.8
_WEIGHT_MIN = 0.02  # of the largest: lighter points of the grid are left out
# Keeps covariances of nearly equal configurations invertible.
_JITTER = 1e-9


class ResidualModel:
    """Log ratios of measured to predicted values, at measured and unmeasured configurations.

    Args:
        features: Of every configuration in the space, shape (m, d), any units; constant columns
            are ignored.
        groups: Numbers of the groups that each configuration belongs to, one for each kind of
            group, shape (m, kinds); each kind shares a part of the residual.
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
        groups: NDArray[np.int64] | None = None,
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
        self._groups = np.zeros((len(values), 0), dtype=np.int64) if groups is None else groups
        group = _GROUP if self._groups.shape[1] else (0.0,)
        grid = product(_REMAINDER, _BIAS, _TREND, _LENGTHS, local, _NOISE, group)
        models = np.array(list(grid))
        remainder, bias = models[:, 0], models[:, 1]
        self._prior = -0.5 * (np.log(remainder) / _REMAINDER_SPREAD) ** 2 - 0.5 * np.log(bias)
        # Columns: remainder, bias, trend, length, local part, noise, part of each kind of group.
        scales = [scale_prior, scale_prior, scale_prior, 1.0, scale_prior, 1.0, scale_prior]
        self._models: Floats = models * np.array(scales)
        self.learn(np.zeros(0, dtype=np.int64), np.zeros(0))

    def learn(self, indices: NDArray[np.int64], log_ratio: Floats) -> None:
        """Replaces what was learned before.

        Args:
            indices: Rows of ``features`` that were measured, shape (n,); repeats are allowed.
            log_ratio: log(measured / predicted), shape (n,).
        """
        assert len(indices) == len(log_ratio), (len(indices), len(log_ratio))
        values = np.asarray(log_ratio, dtype=np.float64)
        self._known = np.asarray(indices, dtype=np.int64)
        noise = self._models[:, 5, None, None]
        matrix = self._between(self._models, self._known, self._known) + noise**2 * np.eye(
            len(values)
        )
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
        expected, explained = self._posterior(indices)
        remainder, bias, trend, _, local, _, group = self._kept.T[:, :, None]
        variance = bias**2 + remainder**2 + local**2 + trend**2 * np.sum(points**2, axis=1)
        variance = variance + group**2 * self._groups.shape[1]
        variance = np.maximum(variance - np.sum(explained**2, axis=1), 1e-10)
        mean = self._weights @ expected
        square = self._weights @ (variance + expected**2)
        return mean, np.sqrt(np.maximum(square - mean**2, 1e-10))

    def draw(self, indices: NDArray[np.int64], count: int, rng: np.random.Generator) -> Floats:
        """Returns ``count`` draws of the true log ratios together, shape (count, k)."""
        expected, explained = self._posterior(indices)
        drawn = []
        for number, share in enumerate(rng.multinomial(count, self._weights)):
            if share == 0:
                continue
            covariance = self._between(self._kept[number : number + 1], indices, indices)[0]
            covariance -= explained[number].T @ explained[number]
            covariance[np.diag_indices(len(indices))] += _JITTER
            root = np.linalg.cholesky(covariance)
            drawn.append(expected[number] + rng.standard_normal((share, len(indices))) @ root.T)
        return np.concatenate(drawn)

    def _posterior(self, at: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Of each kept model the mean, shape (models, k), and the covariance's explained half."""
        cross = self._between(self._kept, self._known, at)
        explained: Floats = np.linalg.solve(self._cholesky, cross)
        return np.sum(explained * self._half, axis=1), explained

    def _between(self, models: Floats, left: NDArray[np.int64], right: NDArray[np.int64]) -> Floats:
        """Covariances of each model, shape (models, len(left), len(right))."""
        remainder, bias, trend, length, local, _, group = models.T[:, :, None, None]
        points, others = self._points[left], self._points[right]
        inner = points @ others.T
        distance2 = np.sum(points**2, axis=1)[:, None] + np.sum(others**2, axis=1) - 2.0 * inner
        halved = 0.5 * np.maximum(distance2, 0.0)
        smooth = np.zeros((len(models), *halved.shape))
        for each in np.unique(length):
            smooth[length[:, 0, 0] == each] = np.exp(-halved / each**2)
        shared = (self._groups[left][:, None, :] == self._groups[right]).sum(axis=2)
        found: Floats = (
            bias**2
            + trend**2 * inner
            + remainder**2 * smooth
            + local**2 * np.exp(-halved / _LOCAL_LENGTH**2)
            + group**2 * shared
        )
        return found
