"""The designer: proposes configurations, and learns how far the twin's predictions are off.

Pure: it knows candidates, their predicted objective and what they turned out to be. Everything is
on one positive scale where larger is better (:class:`~analyzer.search.score.Score`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import exp, isfinite, log

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.twin_error import FAR_OFF
from analyzer.search.bound import Bound, plausible_gain
from analyzer.search.feasibility import feasible_chance
from analyzer.search.residual import LOCAL, SCALE_PRIOR, ResidualModel
from analyzer.search.wording import why_followed
from analyzer.stats.ranks import rank_correlation

# The twin is distrusted when it is far off (median), by a common factor and beside one, and orders
# wrongly besides.
_RANK_CORRELATION_MIN = 0.3
_MEASUREMENTS_TO_DISTRUST = 3  # the fewest that have a median besides its extremes
# As many promising candidates must have been measured before nearly all of them, this share,
# having no value speaks against the twin.
_PROMISING_MIN = 6
_WITHOUT_VALUE_MAX = 0.8
# So many candidates are measured in the order of the predictions before residuals may change it.
_AS_PREDICTED = 3
# With predictions for a smaller share of the space the designer does not lead.
_PREDICTED_SHARE_MIN = 0.5
# Standard deviations that an uncertain expectation is raised by. More explores too much where a
# dozen measurements is all there is; so does the expected improvement (docs/twin.md).
_OPTIMISM = 0.25
# Two searches for one edge differ by so much.
_GAIN_MIN = 0.01
# The search is over when nothing is plausibly better by more than this.
_MARGIN = 0.02
_MEASUREMENTS_TO_FINISH = 3  # as above
# A variant that was never measured is tried where the twin expects at least this share of the most
# that it expects of what was (docs/decisions/034-the-first-of-a-variant.md).
_FIRST_OF_VARIANT_SHARE = 0.25
# Sizes of the residual's local part where predictions were fitted to what was measured.
_LOCAL_REFITTED = (0.4,)
# Until something feasible is known, a chance of keeping the limits weighs as its cube.
_FEASIBLE_FIRST = 3.0

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """A configuration that may be measured.

    Args:
        config_id: Its fingerprint.
        features: Shape (d,), the same d for all; what residuals are expected to depend on
            (logarithms of counts and sizes, 0 or 1 for choices).
        predicted: The twin's objective, positive, larger is better; 0 or less if the twin expects
            it never to keep the SLA, None (or NaN) if it cannot say.
        groups: Which variant (the first one), deployment and so on it belongs to: each shares a
            part of the residual. As many for all.
        feasible_prior: Probability (or plain truth) that it keeps the limits on memory and
            accuracy; 0 is never proposed.
        preference: Logarithm of a factor on the prediction, where it is a matter of order alone.
    """

    config_id: str
    features: NDArray[np.floating]
    predicted: float | None
    groups: tuple[str, ...] = ()
    feasible_prior: float = 1.0
    preference: float = 0.0


class Designer:
    """Suggests candidates, is updated with their outcomes, and says when to stop. Not thread-safe.

    It suggests what the twin, corrected by what was measured, expects most of; named as in Vizier.

    Args:
        candidates: The space, each configuration once.
        scale_prior: How far the twin is expected to be off before anything was measured; what was
            seen since takes its place where it is more.
        refitted: The predictions were fitted to the same measurements, so that their residuals
            flatter them.
        learn_limits: Whether neighbours' outcomes move the probabilities of being feasible; False
            where the caller has a model of the limits.
        seed: Of the draws behind the bound.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        *,
        scale_prior: float = SCALE_PRIOR,
        refitted: bool = False,
        learn_limits: bool = True,
        seed: int = 0,
    ) -> None:
        self._ids = [candidate.config_id for candidate in candidates]
        self._index = {config_id: i for i, config_id in enumerate(self._ids)}
        assert len(self._index) == len(candidates), "a configuration occurs twice"
        self._features = np.array([c.features for c in candidates], dtype=np.float64)
        self._features = self._features.reshape(len(candidates), -1 if candidates else 0)
        self._groups = (
            np.array(
                [
                    np.unique(kind, return_inverse=True)[1]
                    for kind in zip(*(c.groups for c in candidates), strict=True)
                ]
            )
            .T.reshape(len(candidates), -1 if candidates else 0)
            .astype(np.int64)
        )
        self._scale_prior = scale_prior
        self._refitted = refitted
        self._learn_limits = learn_limits
        self._seed = seed
        self._preference = np.array([c.preference for c in candidates])
        self._prior = np.array([float(c.feasible_prior) for c in candidates])
        # By index: the measured objective, and whether every limit was kept.
        self._values: dict[int, float] = {}
        # Those whose value is only a bound from below, and was expected to be higher.
        self._bounds: set[int] = set()
        self._feasible: dict[int, bool] = {}
        # By index, in the order of measuring: log(measured / predicted) as both were then, and the
        # same with what had been learned by then.
        self._errors: dict[int, tuple[float, float]] = {}
        # Values of configurations outside the space (the baseline).
        self._outside: dict[str, float] = {}
        self._predict([c.predicted for c in candidates])

    def _predict(self, predictions: Sequence[float | None]) -> None:
        predicted = np.array([np.nan if p is None else float(p) for p in predictions])
        self._predicted = np.isfinite(predicted)
        self._promising = self._predicted & (predicted > 0)
        # A candidate without promise gets a value far below the others: it comes last.
        floor = predicted[self._promising].min() * 1e-3 if self._promising.any() else 1.0
        predicted[~self._promising] = floor * np.where(self._predicted[~self._promising], 1e-3, 1.0)
        self._log_predicted = np.log(predicted)
        self._model: ResidualModel | None = None

    def repredict(self, predicted: Mapping[str, float | None]) -> None:
        """Replaces the predictions by those of a twin that was fitted to the measurements.

        How far off predictions are is still judged by those that were made before measuring.

        Args:
            predicted: By the id of every candidate, as :attr:`Candidate.predicted`.
        """
        self._refitted = True
        self._predict([predicted[config_id] for config_id in self._ids])

    def update(
        self, config_id: str, value: float | None, *, feasible: bool = True, exact: bool = True
    ) -> None:
        """Takes in an outcome; a second one of the same candidate replaces the first.

        Args:
            config_id: Of a candidate; any other (the baseline, say) counts in the bound only.
            value: The measured objective, positive; None if there is none.
            feasible: Whether it kept every limit; a value that broke one still teaches how far off
                the twin is.
            exact: Whether it is the value, and not only a bound from below.
        """
        usable = value is not None and isfinite(value) and value > 0
        index = self._index.get(config_id)
        if index is None:
            if value is not None and usable and feasible:
                self._outside[config_id] = value
            return
        self._values.pop(index, None)
        self._bounds.discard(index)
        if value is not None and usable:
            if not exact and log(value) < self._log_predicted[index]:
                # A bound from below says nothing where more was expected.
                self._bounds.add(index)
            elif self._promising[index] and index not in self._errors:
                error = log(value) - float(self._log_predicted[index])
                learned = self._learned().predict(np.array([index], dtype=np.int64))[0]
                self._errors[index] = error, error - float(learned[0])
            self._values[index] = value
        self._feasible[index] = feasible and usable
        self._model = None

    def suggest(self, pending: Collection[str] = ()) -> str | None:
        """Returns the candidate to measure next; None if none is left.

        The first three come as predicted and preferred, the others by what is expected of them
        after learning, with a little for what is uncertain. Where nothing is expected to be better
        than the best, a variant that was never measured comes first: others say nothing of it.
        Until something feasible is known, what is most likely feasible counts more.
        """
        taken = {self._index[p] for p in pending if p in self._index}
        free = self._unmeasured(self._prior > 0, without=taken)
        if len(free) == 0:
            return None
        begun = len(self._values) + len(taken - self._feasible.keys())
        value, preference = self._log_predicted[free], self._preference[free]
        chance = np.log(self._feasible_chance(free))
        if begun >= _AS_PREDICTED:
            offset, scale = self._learned().predict(free)
            value = value + offset + _OPTIMISM * scale
            first = self._firsts(free, chance, [*self._feasible, *taken])
            expected = float(value[self._promising[free]].max(initial=-np.inf))
            if first.any() and self.best and expected <= log((1.0 + _MARGIN) * self.best[1]):
                return self._ids[int(free[first][np.argmax((value + preference)[first])])]
        weight = 1.0 if begun >= _AS_PREDICTED and self.best is not None else _FEASIBLE_FIRST
        score = weight * chance + value + preference
        # Whatever has no promise comes after all that has.
        score = np.where(self._promising[free], score, -1e6 + value)
        return self._ids[int(free[np.argmax(score)])]

    def _firsts(
        self, free: NDArray[np.int64], chance: Floats, tried: Sequence[int]
    ) -> NDArray[np.bool_]:
        """Which of ``free`` are of variants that none of ``tried`` is of, and not hopeless.

        ``chance`` is the logarithm of each one's chance of keeping the limits.
        """
        variants = self._groups[:, :1]
        known = np.isin(variants[free], variants[tried]).all(axis=1)
        hoped = self._log_predicted[free] + chance
        least = self._log_predicted[tried].max() + log(_FIRST_OF_VARIANT_SHARE)
        found: NDArray[np.bool_] = ~known & self._promising[free] & (hoped >= least)
        return found

    def finished(self, confidence: float) -> bool:
        """Whether nothing unmeasured is plausibly better than the best by more than 2 %."""
        if self.suggest() is None:
            return True
        if self.compared < _MEASUREMENTS_TO_FINISH:
            return False
        best = self.best
        if best is None or not self.leads:
            return False
        space = self._prior > 0
        missing = self._unmeasured(space & ~self._predicted)
        rest = self._unmeasured(space & self._promising)
        own = self._index[best[0]]
        gain = self._plausible_gain(rest, own, log(best[1]), confidence) if len(rest) else 0.0
        return len(missing) == 0 and gain <= log(1.0 + _MARGIN)

    @property
    def best(self) -> tuple[str, float] | None:
        """The best feasible measured candidate and its value; None without one."""
        kept = [(value, index) for index, value in self._values.items() if self._feasible[index]]
        if not kept:
            return None
        value, index = max(kept)
        return self._ids[index], value

    def corrected(self, config_id: str) -> float | None:
        """The prediction with what was learned; None where the twin gave none."""
        index = self._index.get(config_id)
        if index is None or not self._promising[index]:
            return None
        mean, _ = self._learned().predict(np.array([index], dtype=np.int64))
        return exp(float(self._log_predicted[index] + mean[0]))

    def bound(self, confidence: float = 0.95, *, recommended: str | None = None) -> Bound | None:
        """By how much another configuration may plausibly beat the recommended one.

        The quantile of that fraction over joint draws of all residuals: the best of many
        uncertain candidates counts, not each by itself. None where nothing can be said: the
        recommended one was not measured, or the twin is not trusted.

        Args:
            recommended: A measured candidate, whose value is the one last told; None for the best.
                Of one outside the space (the baseline) what the best candidate's bound leaves.
        """
        best = self.best
        outside = self._outside.get(recommended) if recommended is not None else None
        if recommended is not None and outside is None:
            index = self._index.get(recommended)
            known = index is not None and index in self._values
            best = (recommended, self._values[self._index[recommended]]) if known else None
        if best is None or not self.trusted:
            return None
        own, own_log = self._index[best[0]], log(best[1])
        usable = [self._values[index] for index, kept in self._feasible.items() if kept]
        # What was measured and is better, the baseline too, is better by what was measured.
        least = log(max(*usable, *self._outside.values(), best[1])) - own_log
        space = self._prior > 0
        measured = np.zeros(len(space), dtype=bool)
        measured[[*self._feasible]] = True
        # Where a prediction of "at no rate" was wrong, the others of the kind say nothing either.
        blind = any(not self._promising[index] for index in self._values)
        covered = measured | (self._promising if blind else self._predicted)
        # Of what was measured too the truth is known no better than the noise.
        rest = np.flatnonzero(space & self._promising)
        rest = rest[[int(i) != own and self._feasible.get(int(i), True) for i in rest]]
        gain = least
        if len(rest):
            # Of a candidate that the twin gave no value nothing but its measurement is known.
            known_log = None if self._promising[own] else own_log
            plausible = self._plausible_gain(rest, own, known_log, confidence)
            gain = max(least, plausible, log(1.0 + _GAIN_MIN))
        if outside is not None:
            # What no candidate exceeds, over the recommended one's own value.
            gain = max(gain + own_log - log(outside), log(1.0 + _GAIN_MIN))
        return Bound(
            fraction=exp(min(gain, 50.0)) - 1.0,
            confidence=confidence,
            covered=int(np.count_nonzero(covered & space)),
            space=int(np.count_nonzero(space)),
        )

    def _plausible_gain(
        self, rest: NDArray[np.int64], own: int, own_log: float | None, confidence: float
    ) -> float:
        """Of candidates ``rest`` over ``own``, whose value is ``own_log`` if that is given."""
        measured = np.array([int(index) in self._feasible for index in rest])
        return plausible_gain(
            self._learned(),
            self._log_predicted,
            rest=rest,
            chance=np.where(measured, 1.0, self._feasible_chance(rest)),
            own=own,
            own_log=own_log,
            measurements=len(self._errors),
            confidence=confidence,
            rng=np.random.default_rng(self._seed),
        )

    @property
    def compared(self) -> int:
        """Candidates whose predicted and measured value are both known."""
        return len(self._ratios())

    @property
    def error_median(self) -> float | None:
        """Median of |predicted / measured - 1|, as predicted before measuring; None without any."""
        errors = [abs(exp(-ratio) - 1.0) for ratio, _ in self._errors.values()]
        return float(np.median(errors)) if errors else None

    @property
    def _error_beside_bias(self) -> float:
        """The same without the predictions' common factor, its median; 0 without any."""
        ratios = np.array([ratio for ratio, _ in self._errors.values()])
        return float(np.median(np.expm1(abs(ratios - np.median(ratios))))) if len(ratios) else 0.0

    @property
    def scale(self) -> float:
        """How far predictions are off after learning, as a standard deviation of the logarithm.

        At least what is expected of a calibrated twin, and at least what was seen: each error as
        it was before the candidate itself had been learned. The first one, which is mostly a common
        bias, counts while it is the only one.
        """
        seen = [learned for _, learned in self._errors.values()]
        counted = seen[1:] or seen
        rms = float(np.sqrt(np.mean(np.square(counted)))) if counted else 0.0
        return max(self._scale_prior, rms)

    @property
    def leads(self) -> bool:
        """Whether its suggestions are worth following: predictions for most, and trusted."""
        return self.trusted and not self._predictions_missing

    @property
    def _predictions_missing(self) -> bool:
        space = self._prior > 0
        known = np.count_nonzero(self._predicted & space)
        return bool(known < _PREDICTED_SHARE_MIN * np.count_nonzero(space))

    @property
    def trusted(self) -> bool:
        """Whether the twin may lead: a common bias is learned away, a wrong order is not."""
        return not self._reason_to_distrust()

    @property
    def trust_reason(self) -> str:
        """A sentence for people."""
        error = self.error_median
        if reason := self._reason_to_distrust():
            return reason
        if self._predictions_missing:
            known = np.count_nonzero(self._predicted & (self._prior > 0))
            return (
                f"The twin predicted {known} of {np.count_nonzero(self._prior > 0)} configurations;"
                " the search does without it."
            )
        if error is None:
            return "Nothing was measured yet that could contradict the twin."
        few = self.compared < _MEASUREMENTS_TO_DISTRUST
        why = why_followed(error, few=few, beside_bias=self._error_beside_bias)
        return f"The twin is off by {error:.0%} in the median of what was measured{why}."

    def _reason_to_distrust(self) -> str:
        if len(self._feasible) < _MEASUREMENTS_TO_DISTRUST:
            return ""
        expected = [index for index in self._feasible if self._promising[index]]
        without = sum(index not in self._values for index in expected)
        if len(expected) >= _PROMISING_MIN and without > _WITHOUT_VALUE_MAX * len(expected):
            return "The twin expected most of what failed to keep the SLA."
        ratios = self._ratios()
        if len(ratios) < _MEASUREMENTS_TO_DISTRUST:
            return ""
        error = self.error_median or 0.0
        if min(error, self._error_beside_bias) <= FAR_OFF:
            return ""
        indices = [index for index, _ in ratios]
        measured = np.log([self._values[index] for index in indices])
        order = rank_correlation(self._log_predicted[indices], measured)
        if order >= _RANK_CORRELATION_MIN:
            return ""
        return (
            f"The twin is off by {error:.0%} in the median of {len(ratios)} measurements,"
            f" and orders them wrongly (rank correlation {order:.2f})."
        )

    def _unmeasured(
        self, wanted: NDArray[np.bool_], *, without: Collection[int] = ()
    ) -> NDArray[np.int64]:
        """Indices of the ``wanted`` candidates that have no outcome, ascending."""
        free = wanted.copy()
        free[[*self._feasible, *without]] = False
        return np.flatnonzero(free)

    def _ratios(self) -> list[tuple[int, float]]:
        """Index and log(measured / predicted) where both are known."""
        return [
            (index, log(value) - float(self._log_predicted[index]))
            for index, value in sorted(self._values.items())
            if index not in self._bounds and self._promising[index]
        ]

    def _learned(self) -> ResidualModel:
        """The model of the residuals."""
        if self._model is not None:
            return self._model
        ratios = self._ratios()
        local = _LOCAL_REFITTED if self._refitted else LOCAL
        model = ResidualModel(
            self._features, groups=self._groups, scale_prior=self.scale, local=local
        )
        if ratios:
            indices, logs = zip(*ratios, strict=True)
            model.learn(np.array(indices, dtype=np.int64), np.array(logs))
        self._model = model
        return model

    def _feasible_chance(self, indices: NDArray[np.int64]) -> Floats:
        known = self._feasible if self._learn_limits else {}
        return feasible_chance(self._features, self._prior, known, indices)
