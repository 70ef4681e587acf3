"""Whether the twin's "at no rate" counts for configurations that were not measured."""

from __future__ import annotations

from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import Measurement
from analyzer.domain.refutation import shown
from analyzer.search.context import SearchContext
from analyzer.search.screening import Screening

# A predicted edge below this share of the target rate rules a configuration out.
_PREDICTED_SHARE = 0.8
# It was wrong by far where less than this share of the predicted edge was kept.
_KEPT_SHARE = 0.5


def too_slow(screening: Screening, configuration: Configuration, least_rps: float) -> bool:
    """Whether the twin rules it out; what it does not know, it does not rule out."""
    predicted = screening.twin.edges([configuration])[0]
    if predicted is None:
        return False
    expected = screening.corrected(configuration, predicted) or 0.0
    return expected <= _PREDICTED_SHARE * least_rps


def contradicted(context: SearchContext, screening: Screening) -> float | None:
    """The edge that the twin had expected where nothing like it was kept; None where it holds.

    A twin that is then fitted to this one measurement says of all others what it was told of this
    one. It is a witness again once a configuration of another kind (variant or threads) than where
    it was wrong by most, of which it expected nothing, is shown to keep nothing.
    """
    sla = context.request.sla
    least_rps = _PREDICTED_SHARE * (sla.fixed_rps or 0.0)
    wrong: list[tuple[float, tuple[str, int]]] = []
    right = set()
    for config_id, outcome in context.log.latest.items():
        if config_id not in screening.unrefuted or not isinstance(outcome, Measurement):
            continue
        expected_rps = expected_edge(context, screening, config_id)
        if expected_rps is not None and expected_rps > least_rps:
            if (outcome.edge.at_least_rps or 0.0) < _KEPT_SHARE * expected_rps:
                wrong.append((expected_rps, kind_of(outcome.configuration)))
        elif expected_rps is not None and shown(outcome, sla):
            right.add(kind_of(outcome.configuration))
    if not wrong:
        return None
    wrong_rps, kind = max(wrong)
    return None if right - {kind} else wrong_rps


def expected_edge(context: SearchContext, screening: Screening, config_id: str) -> float | None:
    """The edge that the twin expected of a configuration, requests per second; None if unknown."""
    known = context.log.measurement(config_id)
    # A task tells no prediction where the twin saw no rate.
    predicted_rps = known.predicted.edge_rps if known is not None else None
    return predicted_rps or screening.predicted.get(config_id)


def kind_of(configuration: Configuration) -> tuple[str, int]:
    """What shares its execution times: the variant and its threads."""
    return configuration.variant.label, configuration.intra_op_threads or 0
