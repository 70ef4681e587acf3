"""What the twin expects of each configuration, corrected by what was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import Failure, Measurement


class Guide:
    """Predictions, residuals, and how far the twin may be trusted.

    Args:
        configurations: The candidates by id.
        predictions: The twin's edges by id; None where it knows none.
    """

    def __init__(
        self,
        configurations: Mapping[str, Configuration],
        predictions: Mapping[str, float | None],
        *,
        seed: int,
    ) -> None:
        self._configurations = dict(configurations)
        self._predictions = dict(predictions)
        self._measured: dict[str, float] = {}
        self._residuals: dict[str, float] = {}
        self.reason = ""

    @property
    def candidates(self) -> int:
        return sum(1 for edge in self._predictions.values() if edge)

    @property
    def measured(self) -> int:
        return len(self._residuals)

    @property
    def trusted(self) -> bool:
        error = self.error_median()
        return error is None or error < 0.25

    def tell(self, config_id: str, outcome: Measurement | Failure, feasible: bool) -> None:
        edge = outcome.edge.rate_rps if isinstance(outcome, Measurement) else None
        self._measured[config_id] = edge if edge and feasible else 0.0
        predicted = self._predictions.get(config_id)
        if edge and predicted:
            self._residuals[config_id] = math.log(edge / predicted)

    def ask(self, pending: frozenset[str]) -> str | None:
        left = [
            (self.corrected(i, p) or 0.0, i)
            for i, p in self._predictions.items()
            if i in self._configurations and i not in self._measured and i not in pending
        ]
        return max(left)[1] if left else None

    def finished(self) -> bool:
        return self.ask(frozenset()) is None or self._gap() < 0.02

    def _gap(self) -> float:
        best = max(self._measured.values(), default=0.0)
        nxt = self.ask(frozenset())
        if not best or nxt is None or len(self._measured) < 3:
            return 1.0
        value = self.corrected(nxt, self._predictions[nxt]) or 0.0
        spread = (
            max(0.05, float(np.std(list(self._residuals.values())))) if self._residuals else 0.2
        )
        return value * math.exp(spread) / best - 1.0

    def predicted(self, config_id: str) -> float | None:
        return self._predictions.get(config_id)

    def expected(self, config_id: str) -> float | None:
        return self.corrected(config_id, self._predictions.get(config_id))

    def corrected(self, config_id: str, predicted: float | None) -> float | None:
        if predicted is None:
            return None
        if config_id in self._residuals:
            return predicted * math.exp(self._residuals[config_id])
        if self._residuals:
            return predicted * math.exp(float(np.median(list(self._residuals.values()))))
        return predicted

    def error_median(self) -> float | None:
        if len(self._residuals) < 2:
            return None
        return float(np.median([abs(math.expm1(-r)) for r in self._residuals.values()]))

    def bound_sentence(self, confidence: float) -> str | None:
        gap = self._gap()
        if gap >= 1.0:
            return None
        return (
            f"no configuration in the space is better by more than {max(gap, 0):.1%} "
            f"(confidence {confidence:g})"
        )
