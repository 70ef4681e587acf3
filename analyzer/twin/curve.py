"""The curve of execution times over the batch size that probes with noise carry.

A larger batch never takes less time, and beyond the largest one that was timed it takes more by
what the probes cannot rule out: an optimistic slope there would make every batch that was skipped
as too slow look like the best one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

Floats = NDArray[np.float64]

# Where no probe has two executions: the coefficient of variation that is assumed, and how many
# executions the usual one of a variant weighs against a probe's own.
_CV_GUESS = 0.2
_CV_WEIGHT = 10.0
# No mean is known better than to this share: samples that are all equal have no infinite weight.
_ERROR_MIN = 1e-3
# Two sizes this far apart are clearly different; a slope over this factor is the curve's own.
_CLEAR_FACTOR = 1.5
_CHORD_FACTOR = 4.0
# Standard errors that are added to the slope beyond the largest size.
_CAUTION_ERRORS = 1.0
_MS_MIN = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """What was timed of one batch size.

    Args:
        mean_ms: Mean time of its executions, milliseconds.
        count: Of them, at least 1.
        cv: Their coefficient of variation; unused of a single one.
    """

    mean_ms: float
    count: int
    cv: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Times that do not decrease with the batch size.

    Args:
        sizes: Batch sizes, ascending.
        times_ms: Time of each, milliseconds.
        beyond_ms: Milliseconds for each further inference beyond the last size.
    """

    sizes: tuple[int, ...]
    times_ms: tuple[float, ...]
    beyond_ms: float

    def scaled(self, factor: float) -> Curve:
        """The same shape, so many times as long."""
        times = tuple(factor * ms for ms in self.times_ms)
        return Curve(sizes=self.sizes, times_ms=times, beyond_ms=factor * self.beyond_ms)

    def log_ratio(self, other: Curve) -> float | None:
        """The mean logarithm of its times over those of ``other``; None without a size of both."""
        theirs = dict(zip(other.sizes, other.times_ms, strict=True))
        both = zip(self.sizes, self.times_ms, strict=True)
        ratios = [math.log(ms / theirs[size]) for size, ms in both if size in theirs]
        return math.fsum(ratios) / len(ratios) if ratios else None


def fitted_curve(timed: Mapping[int, Timed]) -> Curve:
    """The curve of ``timed``, by batch size: at least one.

    Isotonic regression of the logarithms, weighted by their standard errors.
    """
    sizes = sorted(timed)
    errors = _relative_errors([timed[size] for size in sizes])
    times = non_decreasing([timed[size].mean_ms for size in sizes], 1.0 / errors**2)
    return Curve(
        sizes=tuple(sizes),
        times_ms=tuple(float(ms) for ms in times),
        beyond_ms=_slope_beyond(np.array(sizes, dtype=np.float64), times, errors),
    )


def non_decreasing(times_ms: NDArray[np.float64] | list[float], weights: Floats) -> Floats:
    """The closest times that do not decrease; their logarithms are compared."""
    times: Floats = np.maximum(np.asarray(times_ms, dtype=np.float64), _MS_MIN)
    logs = np.log(times)
    if not np.any(np.diff(logs) < 0.0):
        return times
    result: Floats = np.exp(isotonic_regression(logs, weights=weights).x)
    # Equal logarithms may differ in the last digit.
    rising: Floats = np.maximum.accumulate(result)
    return rising


def _relative_errors(timed: list[Timed]) -> Floats:
    """Standard error of each mean over that mean.

    A few executions tell little of their spread, so each one's variance is drawn to that of all.
    """
    freedom = np.array([each.count - 1 for each in timed], dtype=np.float64)
    own = np.array([each.cv**2 if each.count > 1 else 0.0 for each in timed])
    usual = _CV_GUESS**2
    if freedom.sum() > 0:
        usual = float((freedom * own).sum() / freedom.sum())
    variance = (_CV_WEIGHT * usual + freedom * own) / (_CV_WEIGHT + freedom)
    counts = freedom + 1.0
    errors: Floats = np.maximum(np.sqrt(variance / counts), _ERROR_MIN)
    return errors


def _slope_beyond(sizes: Floats, times: Floats, errors: Floats) -> float:
    """Milliseconds per inference beyond the last of ``sizes``.

    The larger one of the slopes over the last clear step and over the last factor of four, and a
    standard error of the latter. Batches always save something, so that the last size's own time
    per inference is enough, unless the curve itself is steeper at its end. Where one size alone
    was timed, nothing says that a batch saves anything.
    """
    size, time = sizes[-1], times[-1]
    each_ms = float(time / size)
    if len(sizes) == 1:
        return each_ms
    step = _last_up_to(sizes, size / _CLEAR_FACTOR)
    chord = _last_up_to(sizes, size / _CHORD_FACTOR)
    last_ms = float((time - times[step]) / (size - sizes[step]))
    chord_ms = float((time - times[chord]) / (size - sizes[chord]))
    doubt_ms = math.hypot(time * errors[-1], times[chord] * errors[chord]) / (size - sizes[chord])
    cautious_ms = max(last_ms, chord_ms) + _CAUTION_ERRORS * doubt_ms
    return float(max(last_ms, min(cautious_ms, each_ms)))


def _last_up_to(sizes: Floats, most: float) -> int:
    """Index of the largest of ``sizes`` that is at most ``most``; 0 if none is."""
    return max(int(np.searchsorted(sizes, most, side="right")) - 1, 0)
