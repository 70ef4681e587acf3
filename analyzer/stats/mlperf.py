"""MLPerf Inference's rule for a percentile's limit, which takes requests for independent.

Source: MLPerf Inference rules and LoadGen's ``early_stopping.cc``.
"""

from __future__ import annotations

from typing import Literal

from analyzer.domain.sla import tail_share as tail_share

MlperfVerdict = Literal["PASS", "FAIL", "UNDECIDED"]


def pass_probability(requests: float, over_budget: float, share: float) -> float:
    """Returns P(at most ``over_budget`` misses) if each of ``requests`` misses by chance ``share``.

    The binomial distribution function through the incomplete beta function, so that effective
    numbers need not be whole.
    """
    from scipy.special import betainc

    if over_budget >= requests:
        return 1.0
    return float(betainc(requests - over_budget, over_budget + 1.0, 1.0 - share))


def fail_probability(requests: float, over_budget: float, share: float) -> float:
    """Returns P(at least ``over_budget`` misses); the mirror image of ``pass_probability``."""
    from scipy.special import betainc

    if over_budget <= 0:
        return 1.0
    return float(betainc(over_budget, max(requests - over_budget, 0.0) + 1.0, share))


def verdict(
    requests: int, over_budget: int, *, percentile: float, confidence: float
) -> MlperfVerdict:
    """Returns PASS or FAIL once a one-sided Clopper-Pearson bound decides, else UNDECIDED.

    PASS is early stopping's rule, ``binom.cdf(t, n, 1-p) <= 1-c``; FAIL is its mirror image.

    Args:
        requests: Requests counted.
        over_budget: Of these, over budget.
        percentile: The SLA's, 0 to 100, both exclusive.
        confidence: One-sided, between 0 and 1.
    """
    share = tail_share(percentile)
    if requests <= 0:
        return "UNDECIDED"
    if pass_probability(requests, over_budget, share) <= 1.0 - confidence:
        return "PASS"
    if fail_probability(requests, over_budget, share) <= 1.0 - confidence:
        return "FAIL"
    return "UNDECIDED"
