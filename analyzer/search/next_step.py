"""What a search does next: a pure decision over what is known and what is left of the budget.

First an answer that holds, then a better one: the first candidate is measured and certified at a
safe rate on the same server; from then on there is something to recommend, and the rest of the time
goes where it gains most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from analyzer.domain.gain import SHARES_TOLERANCE

Step = (
    Literal["first", "proof", "baseline", "trial", "edge", "baseline_edge"]
    | Literal["climb", "baseline_proof", "climb_beyond"]
)
"""What may be begun:

- ``first``: a new candidate, its edge and at once a certificate at a safe rate;
- ``proof``: a certificate of the best candidate that kept a rate, while nothing is proven;
- ``baseline``: the baseline's edge;
- ``trial``: a new candidate's edge;
- ``edge``, ``baseline_edge``: the upper end of the best candidate's edge, or of the baseline's,
  where the search for it ended with an open one;
- ``climb``: a certificate of the best candidate at a higher rate;
- ``baseline_proof``: a certificate of the baseline;
- ``climb_beyond``: a climb above what the twin, or a slow state of the machine, lets expect: what
  the time left is for once nothing else is.
"""

#: Steps whose search for an edge goes on with one that ended with an open one.
CLOSING: frozenset[Step] = frozenset({"edge", "baseline_edge"})
#: Those that certify what was measured before, and all that certify.
PROVING: frozenset[Step] = frozenset({"proof", "climb", "climb_beyond", "baseline_proof"})
CERTIFYING: frozenset[Step] = PROVING | {"first"}
#: What an outcome is stored as.
ROLES: dict[Step, str] = {
    "first": "trial",
    "trial": "trial",
    "proof": "recommendation",
    "edge": "recommendation",
    "climb": "recommendation",
    "climb_beyond": "recommendation",
    "baseline": "baseline",
    "baseline_edge": "baseline",
    "baseline_proof": "baseline",
}

# Seconds under load below which a run says too little to be begun.
_LOAD_S_MIN = 1.5
# A certified rate that is this share of the edge is close enough: what is above is dear.
_CLOSE_SHARE = 0.92
#: A baseline that is proven within this factor of the winner's share of the edge is comparable.
COMPARABLE = 1.0 / (1.0 + SHARES_TOLERANCE)
# An open edge is closed where the time left is so many times what that takes.
_CLOSING_FACTOR = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What the decision rests on.

    Args:
        left_s: Seconds until the end must begin.
        start_s: Seconds that a server takes to start and warm up.
        edge_s: Seconds under load of one search for an edge.
        begun: Whether any candidate was measured.
        proven: Whether anything that may be recommended is certified.
        best_share: Certified rate of the best candidate by its edge, as a share of that edge: 0
            without a certificate; None while no candidate kept any rate.
        disappointing: Whether that candidate kept so little of what was expected of it that another
            is more likely to be proven in the time left.
        climbing: Whether another attempt at a higher rate may bring anything.
        risked_share: Certified share of the candidate whose higher rates may be tried though a slow
            state of the machine, or the twin, speaks against them; None without one.
        baseline_share: As ``best_share``, of the baseline; None while its edge is unknown.
        baseline_open: Whether measuring the baseline (again) may bring anything.
        baseline_comparable: Whether a certificate of the baseline is expected to come near the best
            candidate's share of the edge (:data:`COMPARABLE`) in the time left.
        baseline_edge_s: The least that its edge takes, the start of its server included.
        trials_wanted: Whether the sampler has a candidate that is worth a measurement.
        trials_s: Seconds left of what trials may take once there is a proof.
        closing_s: Seconds under load that closing the best candidate's edge takes, and the
            baseline's; None where it is closed, or cannot be.
        pending: Steps that run already on other workers.
    """

    left_s: float
    start_s: float
    edge_s: float
    begun: bool
    proven: bool
    best_share: float | None
    disappointing: bool
    climbing: bool
    risked_share: float | None
    baseline_share: float | None
    baseline_open: bool
    baseline_comparable: bool
    baseline_edge_s: float
    trials_wanted: bool
    trials_s: float
    closing_s: tuple[float | None, float | None] = (None, None)
    pending: frozenset[Step] = frozenset()


def next_step(standing: Standing) -> Step | None:
    """The step to begin now; None to end the search, or to wait for what is pending."""
    s = standing
    trial_s = s.start_s + s.edge_s
    # The least that a certificate takes; a trial leaves room for one of what it finds.
    shortest_s = s.start_s + _LOAD_S_MIN
    busy = bool(s.pending - {"trial"})
    baseline_due = s.baseline_share is None and s.baseline_open and not busy
    # What a proof left to the baseline's edge is too little for another one.
    kept = shortest_s <= s.left_s < s.baseline_edge_s + shortest_s
    if not s.proven and s.begun and kept and baseline_due and not s.pending:
        return "baseline"
    if s.best_share is None:
        if s.left_s < shortest_s:
            return None
        if s.trials_wanted:
            return "trial" if busy else "first"
        # What no candidate keeps the baseline may.
        return "baseline" if baseline_due and not s.pending else None
    if not s.proven:
        if s.disappointing and s.trials_wanted and not busy and s.left_s >= trial_s + shortest_s:
            return "first"
        if not busy and s.left_s >= shortest_s:
            return "proof"
        return "trial" if s.pending and s.trials_wanted and s.left_s >= trial_s else None
    if baseline_due and s.left_s >= shortest_s:
        return "baseline"
    if s.trials_wanted and s.trials_s >= trial_s and s.left_s >= trial_s + shortest_s:
        return "trial"
    if busy or s.left_s < shortest_s:
        return None
    closing: tuple[Step, Step] = ("edge", "baseline_edge")
    for step, seconds in zip(closing, s.closing_s, strict=True):
        if seconds is not None and s.left_s >= _CLOSING_FACTOR * (s.start_s + seconds):
            return step
    if s.best_share < _CLOSE_SHARE and s.climbing:
        return "climb"
    waits = (
        s.baseline_share is not None
        and s.baseline_open
        and s.baseline_share < COMPARABLE * s.best_share
    )
    if waits and s.baseline_comparable:
        return "baseline_proof"
    if s.risked_share is not None and s.risked_share < _CLOSE_SHARE:
        return "climb_beyond"
    if s.trials_wanted and s.left_s >= trial_s + shortest_s:
        return "trial"
    # At a lower share of its edge it tells nothing of the gain: the time has no other use.
    return "baseline_proof" if waits else None
