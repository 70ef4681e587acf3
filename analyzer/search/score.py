"""What an outcome is worth: one scale for Optuna's study and for the designer."""

from __future__ import annotations

from dataclasses import dataclass

from analyzer.domain import answer
from analyzer.domain.measurement import Failure, Measurement
from analyzer.domain.sla import Sla

# What cannot be measured, or failed.
_UNUSABLE = {"works": 1.0, "sla": 0.0, "memory": 0.0, "accuracy": 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """An outcome on a positive scale, with the limits that it keeps or breaks.

    Args:
        value: The objective, larger is better: the edge in requests per second (capacity, cost),
            or :func:`reciprocal` of the latency or the memory at the target rate. None where
            nothing was measured, or the SLA is kept at no rate.
        constraints: Optuna's constraints by name; at most 0 is kept. Every score has the same
            names (Optuna's GP asks for that): what has no limit, or was not measured, is 0.
        exact: Whether the value is no mere bound from below (an edge that is open above).
    """

    value: float | None
    constraints: dict[str, float]
    exact: bool = True

    @property
    def feasible(self) -> bool:
        """Whether every limit is kept, as far as it was measured."""
        return all(violation <= 0 for violation in self.constraints.values())


UNUSABLE = Score(value=None, constraints=_UNUSABLE)


def score_of(outcome: Measurement | Failure, sla: Sla) -> Score:
    """The score of an outcome; a value that breaks a limit is still told."""
    if isinstance(outcome, Failure):
        return UNUSABLE
    edge = outcome.edge
    edge_rps, exact = edge.at_least_rps, edge.rate_rps is not None
    constraints = dict.fromkeys(_UNUSABLE, 0.0) | {"sla": -1.0 if edge_rps else 1.0}
    value = edge_rps
    if not sla.at_any_rate:
        amount = answer.objective_value(outcome, sla)
        value, exact = reciprocal(amount, sla) if amount else None, True
        constraints["sla"] = _miss_rate_excess(outcome, sla)
    memory_bytes = answer.memory_bytes(outcome)
    if sla.max_memory_bytes is not None and memory_bytes is not None:
        constraints["memory"] = memory_bytes / sla.max_memory_bytes - 1.0
    drop = answer.accuracy_drop_worst(outcome)
    if drop is not None:
        constraints["accuracy"] = drop - sla.max_accuracy_drop
    return Score(value=value, constraints=constraints, exact=exact)


def reciprocal(amount: float, sla: Sla) -> float:
    """A latency (milliseconds) or a memory (bytes, by the gigabyte) where larger is better."""
    return (1e9 if sla.objective == "memory" else 1.0) / amount


def _miss_rate_excess(outcome: Measurement, sla: Sla) -> float:
    """By how much the miss rate at the target rate exceeds the SLA's; 1 where it is unknown."""
    test = outcome.headline
    if test is None or test.over_budget is None or not test.requests:
        return 1.0
    return test.over_budget / test.requests - sla.miss_rate_max
