"""One plan for the budget's seconds: what a first proof will take, and deadlines for what precedes.

Pure: it takes a clock, and seconds pass only there. The budget is the wall time of the whole
command. No step may run into the time of the first proof, and the proof not into that of the end;
where the machine turns out slower than expected, what shrinks is the search.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# The end (explaining, storing, reports, the workers' exit) takes so many seconds, and this share of
# what the start took: both load libraries and start or end Ray's processes, on this machine.
_END_S = 1.0
_END_SHARE = 0.2
# Share of the budget that is kept for a first proof until its cost is known.
_PROOF_SHARE = 0.4
# Once it is known: how much longer than expected it may take, since the run's own correlation
# counts where it is larger than the twin's.
_PROOF_CAUTION = 1.5
# The part of the budget that may be spent beyond it, where that completes a first proof.
OVERRUN_SHARE = 0.25
# A worker is held to hang after so many seconds, and these times the seconds under load.
_TIMEOUT_S = 120.0
_TIMEOUT_FACTOR = 4.0


def hangs_after_s(load_s: float) -> float:
    """Seconds after which a job with ``load_s`` seconds under load is given up."""
    return _TIMEOUT_S + _TIMEOUT_FACTOR * load_s


@dataclass(slots=True, kw_only=True)
class TimePlan:
    """What is left of the budget, and for what.

    Args:
        budget_s: Wall time of the command, exit included, seconds.
        started: When it began to run, on ``clock``.
        clock: Seconds, monotonic.
        end_s: What the end is expected to take.
    """

    budget_s: float
    started: float
    clock: Callable[[], float]
    end_s: float = _END_S
    _proof_s: float | None = None

    @classmethod
    def begun(cls, *, budget_s: float, started: float, clock: Callable[[], float]) -> TimePlan:
        """The plan of a command whose start is over now."""
        start_s = max(clock() - started, 0.0)
        return cls(
            budget_s=budget_s,
            started=started,
            clock=clock,
            end_s=_END_S + _END_SHARE * start_s,
        )

    @property
    def spent_s(self) -> float:
        """Wall time so far."""
        return self.clock() - self.started

    @property
    def left_s(self) -> float:
        """Seconds until the end must begin; negative once it is late."""
        return self.budget_s - self.end_s - self.spent_s

    @property
    def proof_s(self) -> float:
        """Seconds that a first proof is expected to take, start of the server included."""
        known = self._proof_s
        return _PROOF_SHARE * self.budget_s if known is None else _PROOF_CAUTION * known

    @property
    def preparation_left_s(self) -> float:
        """Seconds until the first proof must begin; at most the rest of the budget's share."""
        return self.left_s - min(self.proof_s, (1.0 - _PROOF_SHARE) * self.budget_s)

    @property
    def overrun_s(self) -> float:
        """Seconds that may be spent beyond the budget to complete a first proof."""
        return max(0.0, self.left_s) + OVERRUN_SHARE * self.budget_s

    def expect_proof(self, seconds: float) -> None:
        """Replaces the share that is kept for the first proof by what it is expected to take."""
        self._proof_s = seconds

    def budget_that_suffices_s(self, proof_s: float) -> float:
        """The budget with which a proof of ``proof_s`` seconds fits, from what was spent so far."""
        return self.spent_s + _PROOF_CAUTION * proof_s + self.end_s
