"""Which of the measured configurations a search goes on with: the best, the nearest to a proof."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter

from analyzer.domain.configuration import Configuration
from analyzer.domain.measurement import Measurement
from analyzer.search.context import SearchContext
from analyzer.search.score import score_of
from analyzer.search.step_tasks import WORTH_A_CHANGE, StepTasks


class Candidates:
    """What may be recommended, as far as it was measured, and what brought nothing.

    Args:
        allowed: What may be recommended, by id.
    """

    def __init__(
        self, context: SearchContext, allowed: Mapping[str, Configuration], tasks: StepTasks
    ) -> None:
        self._context = context
        self._allowed = allowed
        self._tasks = tasks
        #: Whose steps brought nothing: no higher certified rate, or for the baseline no edge.
        self.stuck: set[str] = set()
        # Whose climbs above what is expected to be carried did not either.
        self._stuck_beyond: set[str] = set()

    def brought_nothing(self, config_id: str, *, beyond: bool) -> None:
        """No further step of the kind is worth its time.

        Args:
            beyond: Of a climb above what is expected to be carried.
        """
        (self._stuck_beyond if beyond else self.stuck).add(config_id)

    @property
    def winner(self) -> Measurement | None:
        """The answer so far: certified, and nothing speaks against it."""
        return self._context.log.certified(self._allowed)

    @property
    def best(self) -> Measurement | None:
        """What has the best edge (or objective) and keeps every limit."""
        ranked = self._context.log.ranked(self._allowed)
        best = next((m for m in ranked if m.capacity_rps or _id(m) not in self.stuck), None)
        winner = self.winner
        if winner is None and (held := [m for m in ranked if m.capacity_rps]):
            # A lower rate of what was proven, and is held back, takes the least.
            return max(held, key=lambda m: m.capacity_rps or 0.0) if self._by_edge else held[0]
        if best is None or winner is None or not self._by_edge or _id(winner) in self.stuck:
            return best
        # What another candidate would have to prove first is worth more than its little gain.
        return best if self._is_worth_a_change(best, winner) else winner

    @property
    def risked(self) -> Measurement | None:
        """What may carry more than is expected: by their edges the best, the winner included.

        None where nothing is proven, and where edges are not what candidates are ranked by.
        """
        winner = self.winner
        if winner is None or not self._by_edge:
            return None
        for known in self._context.log.ranked(self._allowed):
            worth = _id(known) == _id(winner) or self._is_worth_a_change(known, winner)
            if worth and _id(known) not in self._stuck_beyond:
                return known
        return None

    @property
    def nearest(self) -> Measurement | None:
        """What lacks the least to a proof, or is held back; None where none is begun."""
        begun = [
            (missing_s, _id(candidate), candidate)
            for candidate in self._context.log.ranked(self._allowed)
            if candidate.certificate is not None
            and (candidate.certificate.requests_missing or candidate.capacity_rps)
            and (missing_s := self._tasks.missing_s(candidate)) is not None
        ]
        return min(begun)[2] if begun else None

    @property
    def open_one(self) -> Measurement | None:
        """Of those whose certificate is open, though its runs broke the SLA: the nearest to it.

        Short runs in a slow moment are no proof.
        """
        sla, found = self._context.request.sla, []
        for config_id in self._allowed:
            known = self._context.log.measurement(config_id)
            if known is None or known.certificate is None or config_id in self.stuck:
                continue
            limits = score_of(known, sla).constraints
            excess = limits.pop("sla")
            if known.certificate.verdict == "UNDECIDED" and max(limits.values()) <= 0:
                found.append((excess, known))
        return min(found, key=itemgetter(0), default=(0.0, None))[1]

    @property
    def _by_edge(self) -> bool:
        return self._context.request.sla.at_any_rate

    def _is_worth_a_change(self, other: Measurement, winner: Measurement) -> bool:
        edge_rps, proven_rps = other.edge.at_least_rps or 0.0, winner.edge.at_least_rps or 0.0
        return edge_rps >= WORTH_A_CHANGE * proven_rps


def _id(measurement: Measurement) -> str:
    return measurement.configuration.config_id
