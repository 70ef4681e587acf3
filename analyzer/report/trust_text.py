"""How far the twin may be believed, in words."""

from __future__ import annotations

from analyzer.domain.study import Explanation
from analyzer.domain.twin_error import FAR_OFF
from analyzer.report.wording import rate


def trust_sentence(explanation: Explanation) -> str:
    """Whether the search followed the twin, and how far off that was; empty if unknown."""
    if explanation.trusted is None:
        return ""
    lead = "The twin was not trusted"
    if explanation.trusted:
        lead = "The twin was trusted"
        if _far_off(explanation):
            lead = "The search followed the twin, though its figures are far off"
    reason = explanation.trust_reason.rstrip(".")
    return f"{lead}. {reason}." if reason else f"{lead}."


def caution(explanation: Explanation) -> str:
    """What to hold of the edges that the twin predicts; empty where nothing speaks against them."""
    if explanation.trusted is False:
        return "The twin was not trusted in this search: these edges may be far off."
    if _far_off(explanation):
        return (
            "The twin's own figures were far off in this search; these edges are corrected by "
            "what was measured, and may be far off still."
        )
    return ""


def what_if_base(explanation: Explanation) -> str:
    """What the changed edges are compared with: the twin's figure, not the measured one."""
    for item in explanation.what_if:
        if item.predicted_edge_rps is not None and item.change_fraction is not None:
            base_rps = item.predicted_edge_rps / (1 + item.change_fraction)
            return f", for which the twin expects {rate(base_rps)}, corrected by what was measured"
    return ""


def _far_off(explanation: Explanation) -> bool:
    return (explanation.error_median or 0.0) > FAR_OFF
