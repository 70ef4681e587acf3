"""One plan for the budget's seconds: what a first proof will take, and deadlines for what precedes.

Pure: it takes a clock, and seconds pass only there. The budget is the wall time of the whole
command. No step may run into the time of the first proof, and the proof not into that of the end;
where the machine turns out slower than expected, what shrinks is the search. A step that the time
does not suffice for is not begun, and what still runs when the end must begin is cut off.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from analyzer.errors import BudgetEndedError

Stage = Literal["workers", "probes", "measurement"]
"""What precedes a first answer, in this order; builds run beside the start of the workers."""

# The least that each takes, in starts of the command: all of them load libraries and the model.
# Estimates on the low side, so that nothing is refused that might fit: Ray and its worker took 2 to
# 3 starts on two cores, the process of the probes 1 to 1.5, a server with its shortest load test
# 1.5 to 2.
_LEAST_STARTS: dict[Stage, float] = {"workers": 1.5, "probes": 0.8, "measurement": 1.2}
# How much more than the least the stages are expected to take where nothing is cached: builds and
# the compilation of the simulator come on top (22 s before the first load test where the least was
# 5).
_EXPECTED_FACTOR = 4.0
# The end (what the last step overran, explaining, storing, reports, the workers' exit) takes so
# many seconds and as long as the start, since both load libraries, but at most these times what the
# start spent on that: on two cores 2 to 3 s beside loads of a second.
_END_S = 1.0
_END_LOADS = 2.0
# What the command may take beyond the budget: this share of it, and so many seconds in any case.
_SLACK_SHARE = 0.05
_SLACK_S = 1.0
# The part of it after which a step is cut off; the rest is for ending it.
_CUT_SHARE = 0.5
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
        start_s: What its start took: the libraries loaded, the model read.
        start_cpu_s: The processor time of that.
        end_s: What the end is expected to take.
        starts_workers: Whether workers are started; False where this process is the one worker.
    """

    budget_s: float
    started: float
    clock: Callable[[], float]
    start_s: float = 0.0
    start_cpu_s: float = math.inf
    end_s: float = _END_S
    starts_workers: bool = True
    _proof_s: float | None = None
    _granted_s: float = 0.0

    @classmethod
    def begun(
        cls,
        *,
        budget_s: float,
        started: float,
        clock: Callable[[], float],
        start_cpu_s: float = math.inf,
        loaded_s: float = math.inf,
        starts_workers: bool = True,
    ) -> TimePlan:
        """The plan of a command whose start is over now.

        Args:
            loaded_s: What of the start loaded libraries; the rest fetched and read the model, of
                which the end has nothing. Unknown by default.
        """
        start_s = max(clock() - started, 0.0)
        return cls(
            budget_s=budget_s,
            started=started,
            clock=clock,
            start_s=start_s,
            start_cpu_s=start_cpu_s,
            end_s=_END_S + min(_END_LOADS * loaded_s, start_s),
            starts_workers=starts_workers,
        )

    @property
    def spent_s(self) -> float:
        """Wall time so far."""
        return self.clock() - self.started

    @property
    def left_s(self) -> float:
        """Seconds until the end must begin; negative once it is late."""
        return self.budget_s + self._granted_s - self.end_s - self.spent_s

    @property
    def cut_in_s(self) -> float:
        """Seconds until what still runs is cut off."""
        return self.left_s + _CUT_SHARE * max(_SLACK_S, _SLACK_SHARE * self.budget_s)

    @property
    def first_proof_s(self) -> float | None:
        """What was said of a first proof, seconds with its server's start; None if nothing was."""
        return self._proof_s

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
    def beyond_s(self) -> float:
        """Seconds that may be spent beyond the budget for a first proof, and a late one's gain."""
        return OVERRUN_SHARE * self.budget_s

    @property
    def overrun_s(self) -> float:
        """What a completion may take in all: what is left, and what may be spent beyond."""
        return max(0.0, self.left_s) + self.beyond_s

    def least_s(self, stage: Stage) -> float:
        """The least that ``stage`` and all after it take, seconds; an estimate."""
        return min(self.start_s, self.start_cpu_s) * self._least_starts(stage)

    def _least_starts(self, stage: Stage) -> float:
        stages = list(_LEAST_STARTS)[list(_LEAST_STARTS).index(stage) :]
        if not self.starts_workers:
            stages = [one for one in stages if one != "workers"]
        return sum(_LEAST_STARTS[one] for one in stages)

    def suffices(self, stage: Stage) -> bool:
        """Whether ``stage`` and all after it may fit into what is left."""
        return self.left_s > max(self.least_s(stage), 0.0)

    def left_before_s(self, stage: Stage) -> float:
        """Seconds until ``stage`` must begin, if the budget is to hold.

        Raises:
            BudgetEndedError: It had to begin already.
        """
        left_s = self.left_s - self.least_s(stage)
        if left_s <= 0.0:
            raise self.ended()
        return left_s

    def ended(self) -> BudgetEndedError:
        """What to raise where the budget does not suffice for what comes next."""
        return BudgetEndedError("The budget ended.", hint="Give it more time with --budget.")

    def grant(self, seconds: float) -> None:
        """Adds what is spent beyond the budget to complete a first proof."""
        self._granted_s += max(seconds, 0.0)

    def revoke(self) -> None:
        """Takes back what was granted and not spent."""
        self._granted_s = 0.0

    def expect_proof(self, seconds: float) -> None:
        """Replaces the share that is kept for the first proof by what it is expected to take."""
        self._proof_s = seconds

    def expect_proof_of_at_least(self, seconds: float) -> None:
        """Keeps more than its share for the first proof where it is expected to take longer."""
        if _PROOF_CAUTION * seconds > self.proof_s:
            self._proof_s = seconds

    def budget_that_suffices_s(self, proof_s: float, *, stage: Stage | None = None) -> float:
        """The budget with which a proof of ``proof_s`` seconds fits, from what was spent so far.

        Args:
            stage: What comes next; None where everything is prepared.
        """
        ahead_s = 0.0
        if stage is not None:
            ahead_s = _EXPECTED_FACTOR * self.start_s * self._least_starts(stage)
        other_s = self.spent_s + ahead_s + self.end_s
        unknown = stage is not None and self._proof_s is None
        kept_s = _PROOF_SHARE / (1.0 - _PROOF_SHARE) * other_s if unknown else 0.0
        return other_s + max(_PROOF_CAUTION * proof_s, kept_s)
