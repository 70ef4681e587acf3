"""Evidence that a share of requests is below or above a limit, valid however often it is computed.

For independent requests the likelihood ratio of any fixed share below the limit against the limit
is a supermartingale under every share at or above it, and so is a mixture of such ratios. By
Ville's inequality it ever exceeds 1/alpha with probability at most alpha. Sources: Ville 1939;
Robbins 1970 (mixtures); Ramdas et al. 2023, "Game-theoretic statistics and safe anytime-valid
inference". Correlated requests enter as effective numbers, counts over the variance inflation,
for which there is no theorem: ``bench/certificate.py`` shows by simulation that it holds.
"""

from __future__ import annotations

from math import exp, log, log1p

# Shares as a fraction of the limit with their weights. Much weight near zero, since at a certified
# rate hardly a request is over budget: 348 independent requests without a miss pass p99 at 95 %,
# against 299 for one look. None at zero: a miss, or a part of an effective one, would refute that
# share, and leave the evidence to the others (docs/decisions/021).
_BELOW = ((0.05, 0.55), (0.2, 0.14), (0.3, 0.16), (0.5, 0.09), (0.75, 0.06))
_ABOVE = ((1.25, 0.1), (1.6, 0.2), (2.5, 0.25), (5.0, 0.2), (12.0, 0.15), (40.0, 0.1))
_LOG_MAX = 700.0


def evidence_below(requests: float, over_budget: float, share: float) -> float:
    """Returns the evidence (1 is none, 20 decides at 95 %) that fewer than ``share`` are over.

    Args:
        requests: Requests, or their effective number.
        over_budget: Of these over budget, deflated alike.
        share: The limit, between 0 and 1.
    """
    return _mixture(requests, over_budget, share, _BELOW)


def evidence_above(requests: float, over_budget: float, share: float) -> float:
    """Returns the evidence that more than ``share`` are over budget; see ``evidence_below``."""
    return _mixture(requests, over_budget, share, _ABOVE)


def _mixture(
    requests: float, over_budget: float, share: float, prior: tuple[tuple[float, float], ...]
) -> float:
    total = 0.0
    for ratio, weight in prior:
        # An alternative above the limit stays a share: half way between limit and 1 at most.
        alternative = min(ratio * share, (1.0 + share) / 2.0)
        exponent = (requests - over_budget) * (log1p(-alternative) - log1p(-share))
        exponent += over_budget * log(alternative / share)
        total += weight * exp(min(exponent, _LOG_MAX))
    return total
