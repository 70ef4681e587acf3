"""The guided search on configurations: predictions in, outcomes in, corrected expectations out."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

import numpy as np

from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import Failure, Measurement
from analyzer.domain.space import Params
from analyzer.search.guided import Candidate, GuidedSearch

# The search ends when nothing is plausibly better by more than this.
MARGIN = 0.02


class Guide:
    """What the twin expects of each configuration, corrected by what was measured.

    Args:
        configurations: The candidates by id, with the parameters that give them.
        predictions: The twin's edges by id, requests per second; None where it knows none.
        values: The predicted objective by id on a positive scale, larger is better; None if that
            is the edge itself.
        measured_value: The objective of an outcome on the same scale; None if it breaks a limit.
    """

    def __init__(
        self,
        configurations: Mapping[str, tuple[Configuration, Params]],
        predictions: Mapping[str, float | None],
        *,
        measured_value: Callable[[Measurement | Failure], float | None],
        values: Mapping[str, float | None] | None = None,
        seed: int,
    ) -> None:
        self._measured_value = measured_value
        self._by_edge = values is None
        self._predictions = dict(predictions)
        self._edges: dict[str, float] = {}
        self._candidate_ids = frozenset(configurations)
        candidates = [
            Candidate(
                config_id=config_id,
                features=features(configuration),
                predicted=(values or self._predictions).get(config_id) or 0.0,
                params=params,
            )
            for config_id, (configuration, params) in configurations.items()
        ]
        self.search = GuidedSearch(candidates, seed=seed % 2**32) if candidates else None

    @property
    def candidates(self) -> int:
        """Configurations whose edge the twin could predict."""
        return sum(1 for edge in self._predictions.values() if edge)

    @property
    def measured(self) -> int:
        """Configurations whose predicted and measured edge are both known."""
        return len(self._residuals())

    @property
    def trusted(self) -> bool:
        """Whether the twin may lead."""
        return self.search is None or self.search.trusted

    @property
    def reason(self) -> str:
        """Why it may, or may not."""
        return self.search.trust_reason if self.search is not None else ""

    def tell(self, config_id: str, outcome: Measurement | Failure) -> None:
        """Takes in what a configuration turned out to be."""
        edge = outcome.edge.rate_rps if isinstance(outcome, Measurement) else None
        if edge:
            self._edges[config_id] = edge
        if self.search is not None:
            self.search.tell(config_id, self._measured_value(outcome))

    def ask(self, pending: Collection[str]) -> str | None:
        """The configuration to measure next; None if none is left."""
        return self.search.ask(pending) if self.search is not None else None

    def finished(self, confidence: float) -> bool:
        """Whether nothing is plausibly better than the best by more than the margin."""
        if self.search is None or self.search.ask() is None:
            return True
        return self.measured >= 3 and self.search.bound(confidence).fraction <= MARGIN

    def predicted(self, config_id: str) -> float | None:
        """The twin's own prediction."""
        return self._predictions.get(config_id)

    def corrected(self, config_id: str, predicted: float | None) -> float | None:
        """The prediction with what was learned; the common correction outside the candidates."""
        if not predicted:
            return None
        if config_id in self._edges:
            return self._edges[config_id]
        # One that was left out as hopeless has a prediction only now.
        known = config_id in self._candidate_ids and self._predictions.get(config_id)
        if self._by_edge and self.search is not None and known:
            return self.search.predicted(config_id)[0]
        residuals = self._residuals()
        return predicted * math.exp(float(np.median(residuals))) if residuals else predicted

    def expected(self, config_id: str) -> float | None:
        """The corrected prediction of a candidate."""
        return self.corrected(config_id, self._predictions.get(config_id))

    def error_median(self) -> float | None:
        """Median of |predicted / measured − 1|; None before the first measurement."""
        residuals = self._residuals()
        return float(np.median([abs(math.expm1(-r)) for r in residuals])) if residuals else None

    def bound_sentence(self, confidence: float) -> str | None:
        """How much better an unmeasured configuration may be; None if nothing can be said."""
        if self.search is None:
            return None
        bound = self.search.bound(confidence)
        return str(bound) if math.isfinite(bound.fraction) else None

    def _residuals(self) -> list[float]:
        return [
            math.log(edge / predicted)
            for config_id, edge in self._edges.items()
            if (predicted := self._predictions.get(config_id))
        ]


def features(configuration: Configuration) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """What residuals are expected to depend on, float64 [9]."""
    variant = configuration.variant
    return np.array(
        [
            math.log2(configuration.instance_count),
            math.log2(max(configuration.intra_op_threads or 1, 1)),
            float(configuration.dynamic_batching),
            math.log2(max(configuration.max_batch_size, 1)) / 3.0,
            math.log1p((configuration.max_queue_delay_us or 0) / 1000.0) / 2.0,
            float(variant.precision == "fp16"),
            float(variant.quantization == "static"),
            float(variant.quantization == "dynamic"),
            float(variant.backend == "tensorrt"),
        ]
    )
