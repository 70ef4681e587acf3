"""A server whose speed changes: stalls, a neighbour that comes and goes, slow drift.

Executions that all run at the speed v(t) take their usual time on a clock that runs at v(t). So a
simulation in that work time, with the arrivals moved onto it, is exact; its ends are moved back.
Queue delays are timers on the real clock and are only nearly right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# In a stall the work clock nearly stands still, so that it can still be read backwards.
_STALLED = 1e-7
# Moments of a period whose speeds are looked at: with two minutes the pieces of a tenth of a second
# are four of them.
_MOMENTS = 4800
# Of a period that is too long for a simulation: enough that a state's share of the time is met, and
# long enough each that most of its requests meet the queue of that state.
_STRETCHES = 16
_MOMENT_S = 1e-9  # shorter pieces of a stretch are left out


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpeedPath:
    """A piecewise constant speed over real time.

    Args:
        start_s: Where each piece begins, seconds, ascending from 0, shape (k,).
        speed: Relative speed of each piece, 1 for the usual one, at least 0, shape (k,).
        period_s: After so long it begins again; infinite where the last piece goes on for ever.
    """

    start_s: Floats
    speed: Floats
    period_s: float = math.inf
    _work_s: Floats = field(init=False, repr=False)
    _work_period_s: float = field(init=False, repr=False)

    def __post_init__(self) -> None:
        assert len(self.start_s) == len(self.speed) >= 1 and self.start_s[0] == 0.0
        assert (np.diff(self.start_s) > 0).all() and (self.speed >= 0).all()
        used = np.maximum(self.speed, _STALLED)
        work_s = np.concatenate([[0.0], np.cumsum(np.diff(self.start_s) * used[:-1])])
        object.__setattr__(self, "speed", used)
        object.__setattr__(self, "_work_s", work_s)
        last_s = (self.period_s - self.start_s[-1]) * used[-1]
        object.__setattr__(self, "_work_period_s", float(work_s[-1] + last_s))

    @property
    def mean_speed(self) -> float:
        """Work done per second in the long run."""
        if math.isinf(self.period_s):
            return float(self.speed[-1])
        return self._work_period_s / self.period_s

    def undercut_for(self, share: float, *, span_s: float = 0.0) -> float:
        """The speed over ``span_s`` seconds that is undercut for ``share`` of the time.

        Args:
            share: Of the time in the long run, 0 to 1.
            span_s: Spells that are shorter count by their part of it; 0 for the speed at a moment.
        """
        if math.isinf(self.period_s):
            return float(self.speed[-1])
        begins_s: Floats = np.linspace(0.0, self.period_s, _MOMENTS, endpoint=False)
        if span_s > 0.0:
            speeds = (self.work_s(begins_s + span_s) - self.work_s(begins_s)) / span_s
        else:
            speeds = self.speed[np.searchsorted(self.start_s, begins_s, side="right") - 1]
        return float(np.quantile(speeds, share, method="higher"))

    def sampled(self, seconds: float) -> SpeedPath:
        """So many seconds of the period, in stretches spread evenly over it.

        What is simulated for a shorter time than a period meets all of it so, each state for about
        its share of the time. Itself where it is no longer than that, or never begins again.
        """
        if not seconds < self.period_s < math.inf:
            return self
        numbers: Floats = np.arange(_STRETCHES, dtype=np.float64)
        gap_s, span_s = self.period_s / _STRETCHES, seconds / _STRETCHES
        first = np.searchsorted(self.start_s, numbers * gap_s, side="right") - 1
        stretch = np.minimum(self.start_s // gap_s, _STRETCHES - 1)
        since_s = self.start_s - stretch * gap_s
        inner = (since_s > _MOMENT_S) & (since_s < span_s - _MOMENT_S)
        start_s = np.concatenate([numbers * span_s, (stretch * span_s + since_s)[inner]])
        speed = np.concatenate([self.speed[first], self.speed[inner]])
        order = np.argsort(start_s)
        return SpeedPath(start_s=start_s[order], speed=speed[order], period_s=seconds)

    def work_s(self, real_s: Floats) -> Floats:
        """The work clock at each real time, seconds, shape (n,)."""
        if not math.isinf(self.period_s):
            periods = np.floor(real_s / self.period_s)
            return self._work_in_period(real_s - periods * self.period_s) + (
                periods * self._work_period_s
            )
        return self._work_in_period(real_s)

    def _work_in_period(self, real_s: Floats) -> Floats:
        piece = np.clip(np.searchsorted(self.start_s, real_s, side="right") - 1, 0, None)
        found: Floats = self._work_s[piece] + (real_s - self.start_s[piece]) * self.speed[piece]
        return found

    def real_s(self, work_s: Floats) -> Floats:
        """The real time at each reading of the work clock, seconds, shape (n,)."""
        if not math.isinf(self.period_s):
            periods = np.floor(work_s / self._work_period_s)
            return self._real_in_period(work_s - periods * self._work_period_s) + (
                periods * self.period_s
            )
        return self._real_in_period(work_s)

    def _real_in_period(self, work_s: Floats) -> Floats:
        piece = np.clip(np.searchsorted(self._work_s, work_s, side="right") - 1, 0, None)
        found: Floats = self.start_s[piece] + (work_s - self._work_s[piece]) / self.speed[piece]
        return found

    def work_ns(self, real_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """:meth:`work_s` in nanoseconds."""
        return (self.work_s(real_ns.astype(np.float64) * 1e-9) * 1e9).astype(np.int64)

    def real_ns(self, work_ns: NDArray[np.int64]) -> NDArray[np.int64]:
        """:meth:`real_s` in nanoseconds."""
        return (self.real_s(work_ns.astype(np.float64) * 1e-9) * 1e9).astype(np.int64)

    @classmethod
    def constant(cls, speed: float = 1.0) -> SpeedPath:
        """Always the same."""
        return cls(start_s=np.zeros(1), speed=np.array([speed]))

    @classmethod
    def stalls(cls, *, every_s: float, length_s: float, until_s: float) -> SpeedPath:
        """Stands still for ``length_s`` in the middle of every period."""
        begins = np.arange(0.5 * every_s, until_s, every_s)
        start_s = np.concatenate([[0.0], np.stack([begins, begins + length_s], axis=1).ravel()])
        speed = np.concatenate([[1.0], np.tile([0.0, 1.0], len(begins))])
        return cls(start_s=start_s, speed=speed)

    @classmethod
    def two_speeds(
        cls,
        *,
        slow: float,
        dwell_s: tuple[float, float],
        until_s: float,
        rng: np.random.Generator,
    ) -> SpeedPath:
        """Alternates between 1 and ``slow``; how long it stays is drawn, log-uniformly."""
        low, high = np.log(dwell_s[0]), np.log(dwell_s[1])
        dwells = np.exp(rng.uniform(low, high, int(until_s / dwell_s[0]) + 2))
        start_s = np.concatenate([[0.0], np.cumsum(dwells)])
        start_s = start_s[start_s < until_s]
        first = int(rng.integers(2))
        speed = np.where((np.arange(len(start_s)) + first) % 2 == 0, 1.0, slow)
        return cls(start_s=start_s, speed=speed)

    @classmethod
    def drift(cls, *, to: float, every_s: float, until_s: float, phase: float = 0.0) -> SpeedPath:
        """Swings slowly between 1 and ``to`` and back, once in ``every_s``, in 64 steps."""
        start_s = np.arange(0.0, until_s, every_s / 64)
        swing = 0.5 - 0.5 * np.cos(2 * np.pi * (start_s / every_s + phase))
        return cls(start_s=start_s, speed=1.0 + (to - 1.0) * swing)
