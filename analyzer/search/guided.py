"""The guided search: measure where the twin, corrected by what was measured, expects most.

Pure: it knows candidates, their predicted objective and what they turned out to be. Everything is
on a positive scale where larger is better (an edge in requests per second; for latency or memory
its reciprocal).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, inf, isfinite, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.search.residual import ResidualModel

# The twin is distrusted when it is off by more than this (median), and orders wrongly besides.
ERROR_MAX = 0.25
RANK_CORRELATION_MIN = 0.3
MEASUREMENTS_TO_DISTRUST = 3
# Improvements below this share are not worth a measurement; they are within its noise.
GAIN_MIN = 0.01
# Candidates whose draws are taken together for the bound; the others cannot plausibly win.
_RIVALS_MAX = 120
_DRAWS = 2000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Candidate:
    """A configuration that may be measured.

    Args:
        config_id: Its fingerprint.
        features: Shape (d,), the same d for all; what residuals are expected to depend on
            (logarithms of counts and sizes, 0 or 1 for choices).
        predicted: The twin's objective, positive, larger is better; 0 or less (or NaN) if the twin
            expects it never to keep the SLA.
        feasible_prior: Probability (or plain truth) that it keeps the limits on memory and
            accuracy; 0 is never proposed.
        params: The sampler's parameters, absent conditional ones left out.
    """

    config_id: str
    features: NDArray[np.floating]
    predicted: float
    feasible_prior: float = 1.0
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """No unmeasured configuration is better by more than ``fraction``, with ``confidence``.

    ``fraction`` is infinite where nothing can be said.
    """

    fraction: float
    confidence: float

    def __str__(self) -> str:
        if not isfinite(self.fraction):
            return "no bound: nothing feasible was measured, or the twin is not trusted"
        return (
            f"no configuration in the space is better by more than {self.fraction:.1%}"
            f" (confidence {self.confidence:.0%})"
        )


class GuidedSearch:
    """Proposes candidates, learns from their outcomes, and says when to stop. Not thread-safe.

    Args:
        candidates: The space, each configuration once.
        scale_prior: How far the twin is expected to be off before anything was measured.
        refitted: The twin is fitted to what was measured (``predict_anew``), so that its residuals
            flatter it.
        seed: Of the draws behind the bound.
    """

    def __init__(
        self,
        candidates: Sequence[Candidate],
        *,
        scale_prior: float = 0.1,
        refitted: bool = False,
        seed: int = 0,
    ) -> None:
        assert candidates, "an empty space"
        self._candidates = list(candidates)
        self._index = {candidate.config_id: i for i, candidate in enumerate(candidates)}
        assert len(self._index) == len(candidates), "a configuration occurs twice"
        self._features = np.array([c.features for c in candidates], dtype=np.float64)
        self._features = self._features.reshape(len(candidates), -1)
        self._scale_prior = scale_prior
        self._local = (0.4,) if refitted else (0.1, 0.4)
        self._seed = seed
        self._values: dict[int, float | None] = {}
        self._observed: dict[int, float] = {}
        self._chance_given = False
        self._prior = np.array([float(c.feasible_prior) for c in candidates])
        self._set_predicted(np.array([float(c.predicted) for c in candidates]))

    def _set_predicted(self, predicted: NDArray[np.float64]) -> None:
        self._hopeful = np.isfinite(predicted) & (predicted > 0)
        # A candidate without hope gets a value far below the others: it comes last.
        floor = predicted[self._hopeful].min() * 1e-3 if self._hopeful.any() else 1.0
        self._log_predicted = np.log(np.where(self._hopeful, predicted, floor))
        self._model: ResidualModel | None = None

    def predict_anew(self, predicted: Mapping[str, float]) -> None:
        """Replaces predictions, after the twin was calibrated again."""
        current = np.where(self._hopeful, np.exp(self._log_predicted), 0.0)
        for config_id, value in predicted.items():
            if config_id in self._index:
                current[self._index[config_id]] = value
        self._set_predicted(current)

    def believe(self, chances: Mapping[str, float]) -> None:
        """Replaces the probabilities of being feasible by the caller's own model of the limits.

        From then on neighbours' outcomes no longer move them.
        """
        self._chance_given = True
        for config_id, chance in chances.items():
            if config_id in self._index:
                self._prior[self._index[config_id]] = chance

    def tell(self, config_id: str, value: float | None, *, feasible: bool = True) -> None:
        """Records an outcome; telling it again replaces it.

        Args:
            config_id: Of a candidate; any other (the baseline, say) is ignored.
            value: The measured objective, positive; None if there is none.
            feasible: Whether it kept every limit; a value that broke one still teaches how far off
                the twin is.
        """
        index = self._index.get(config_id)
        if index is None:
            return
        usable = value is not None and isfinite(value) and value > 0
        self._values[index] = value if usable and feasible else None
        self._observed.pop(index, None)
        if usable and value is not None:
            self._observed[index] = value
        self._model = None

    @property
    def measured(self) -> frozenset[str]:
        """Ids of the candidates with an outcome."""
        return frozenset(self._candidates[index].config_id for index in self._values)

    @property
    def best(self) -> tuple[str, float] | None:
        """The best feasible measured candidate and its value; None without one."""
        feasible = [(value, index) for index, value in self._values.items() if value is not None]
        if not feasible:
            return None
        value, index = max(feasible)
        return self._candidates[index].config_id, value

    def ask(self, pending: Collection[str] = ()) -> str | None:
        """Returns the candidate to measure next; None if none is left.

        Until something feasible is known, what is most likely feasible counts as much as its
        value; then the expected improvement over the best, as far as it exceeds 1 %. Pending
        candidates are believed to turn out as expected, so that parallel proposals spread.
        """
        taken = {self._index[p] for p in pending if p in self._index}
        free = np.array(
            [
                index
                for index in range(len(self._candidates))
                if index not in self._values and index not in taken and self._prior[index] > 0
            ],
            dtype=np.int64,
        )
        if len(free) == 0:
            return None
        waiting = sorted(taken - self._values.keys())
        model = self._learned(believing=waiting)
        offset, scale = model.predict(free)
        log_value = self._log_predicted[free] + offset
        chance = self._feasible_chance(free)
        best = self.best
        if best is None:
            # Several orders of magnitude for a chance: feasible first.
            score = 3.0 * np.log(chance) + log_value
        else:
            target = log(best[1])
            if waiting:
                at = np.array(waiting, dtype=np.int64)
                target = max(target, float(np.max(self._log_predicted[at] + model.predict(at)[0])))
            score = np.log(chance) + _log_expected_improvement(
                log_value - target - log(1.0 + GAIN_MIN), scale
            )
        score = np.where(self._hopeful[free], score, -1e6 + log_value)
        return self._candidates[int(free[np.argmax(score)])].config_id

    def predicted(self, config_id: str) -> tuple[float, float]:
        """Returns the corrected prediction and its relative standard error."""
        at = np.array([self._index[config_id]], dtype=np.int64)
        mean, scale = self._learned().predict(at)
        return exp(float(self._log_predicted[at[0]] + mean[0])), float(scale[0])

    def bound(self, confidence: float = 0.95) -> Bound:
        """Returns by how much the best unmeasured candidate may plausibly beat the best measured.

        The quantile of that fraction over joint draws of all residuals: the best of many
        uncertain candidates counts, not each by itself.
        """
        best = self.best
        if best is None or not self.trusted:
            return Bound(fraction=inf, confidence=confidence)
        rest = np.array(
            [
                index
                for index in range(len(self._candidates))
                if index not in self._values and self._prior[index] > 0 and self._hopeful[index]
            ],
            dtype=np.int64,
        )
        if len(rest) == 0:
            return Bound(fraction=0.0, confidence=confidence)
        model = self._learned()
        mean, scale = model.predict(rest)
        reach = self._log_predicted[rest] + mean + 4.0 * scale
        rest = rest[np.argsort(-reach, kind="stable")[:_RIVALS_MAX]]
        rng = np.random.default_rng(self._seed)
        drawn = self._log_predicted[rest] + model.draw(rest, _DRAWS, rng)
        usable = rng.random(drawn.shape) < self._feasible_chance(rest)
        top = np.max(np.where(usable, drawn, -inf), axis=1)
        gain = float(np.quantile(top - log(best[1]), confidence, method="higher"))
        fraction = exp(min(gain, 50.0)) - 1.0 if gain > 0 else 0.0
        return Bound(fraction=fraction, confidence=confidence)

    @property
    def error_median(self) -> float | None:
        """Median |measured / predicted - 1| where both are known; None without any."""
        ratios = [abs(exp(ratio) - 1.0) for _, ratio in self._ratios()]
        return float(np.median(ratios)) if ratios else None

    @property
    def trusted(self) -> bool:
        """Whether the twin may lead: a common bias is learned away, a wrong order is not."""
        return not self._distrust()

    @property
    def trust_reason(self) -> str:
        """A sentence for people."""
        reason = self._distrust()
        if reason:
            return reason
        error = self.error_median
        if error is None:
            return "Nothing was measured yet that could contradict the twin."
        return f"The twin is off by {error:.0%} in the median of what was measured."

    def _distrust(self) -> str:
        known = sorted(self._values)
        if len(known) < MEASUREMENTS_TO_DISTRUST:
            return ""
        expected = [index for index in known if self._hopeful[index]]
        if len(expected) >= 6 and sum(self._values[i] is None for i in expected) > 0.8 * len(
            expected
        ):
            return "The twin expected most of what failed to keep the SLA."
        ratios = self._ratios()
        if len(ratios) < MEASUREMENTS_TO_DISTRUST:
            return ""
        error = self.error_median or 0.0
        if error <= ERROR_MAX:
            return ""
        predicted = [self._log_predicted[index] for index, _ in ratios]
        measured = [log(self._observed[index]) for index, _ in ratios]
        order = _rank_correlation(np.array(predicted), np.array(measured))
        if order >= RANK_CORRELATION_MIN:
            return ""
        return (
            f"The twin is off by {error:.0%} in the median of {len(ratios)} measurements,"
            f" and orders them wrongly (rank correlation {order:.2f})."
        )

    def _ratios(self) -> list[tuple[int, float]]:
        """Index and log(measured / predicted) where both are known."""
        return [
            (index, log(value) - float(self._log_predicted[index]))
            for index, value in sorted(self._observed.items())
            if self._hopeful[index]
        ]

    def _learned(self, believing: Sequence[int] = ()) -> ResidualModel:
        if self._model is None:
            self._model = self._new_model()
            self._teach(self._model, self._ratios())
        if not believing:
            return self._model
        at = np.array(believing, dtype=np.int64)
        means = self._model.predict(at)[0]
        believed = self._new_model()
        pairs = zip(believing, (float(mean) for mean in means), strict=True)
        self._teach(believed, [*self._ratios(), *pairs])
        return believed

    def _new_model(self) -> ResidualModel:
        return ResidualModel(self._features, scale_prior=self._scale_prior, local=self._local)

    @staticmethod
    def _teach(model: ResidualModel, ratios: Sequence[tuple[int, float]]) -> None:
        if ratios:
            indices, logs = zip(*ratios, strict=True)
            model.learn(np.array(indices, dtype=np.int64), np.array(logs))

    def _feasible_chance(self, indices: NDArray[np.int64]) -> NDArray[np.float64]:
        """The prior, moved towards what neighbours turned out to be; above 0."""
        prior = np.clip(self._prior[indices], 1e-6, 1.0)
        known = np.array(sorted(self._values), dtype=np.int64)
        if len(known) == 0 or self._chance_given:
            unmoved: NDArray[np.float64] = prior
            return unmoved
        spread = self._features.std(axis=0)
        scaled = self._features / np.where(spread > 1e-12, spread, 1.0)
        distance2 = np.mean((scaled[indices, None, :] - scaled[None, known, :]) ** 2, axis=2)
        weight = np.exp(-2.0 * distance2)
        kept = np.array([float(self._values[int(index)] is not None) for index in known])
        # The prior weighs like one measurement at the very place.
        chance = (prior + weight @ kept) / (1.0 + weight.sum(axis=1))
        clipped: NDArray[np.float64] = np.clip(np.minimum(chance, prior**0.5), 1e-9, 1.0)
        return clipped


def _log_expected_improvement(
    gain: NDArray[np.float64], scale: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Log of the expected improvement of a normal value with mean ``gain`` above the best."""
    from scipy.special import log_ndtr, ndtr

    z = gain / scale
    density = np.exp(-0.5 * z * z) / (2.0 * np.pi) ** 0.5
    improvement = scale * (density + z * ndtr(z))
    # Far below the best the difference cancels; the asymptote is density / z².
    far = z < -5.0
    safe = np.where(far | (improvement <= 0), 1.0, improvement)
    tail = log_ndtr(z) + np.log(scale) - np.log(np.maximum(-z, 1.0))
    found: NDArray[np.float64] = np.where(far | (improvement <= 0), tail, np.log(safe))
    return found


def _rank_correlation(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    """Kendall's tau-a; 0 for fewer than two."""
    above = np.triu_indices(len(left), 1)
    signs = np.sign(left[:, None] - left)[above] * np.sign(right[:, None] - right)[above]
    return float(signs.mean()) if len(signs) else 0.0
