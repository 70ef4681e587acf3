"""The promise: a latency budget at a percentile, and the limits beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Objective = Literal["capacity", "cost", "latency", "memory"]

PERCENTILE_MAX = 99.9999
"""The highest that may be promised: it takes three million requests without one late, a choice."""


def tail_share(percentile: float) -> float:
    """The share of requests that may be over budget: 0.01 for 99."""
    return round((100.0 - percentile) / 100.0, 12)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sla:
    """What a deployment must keep.

    Args:
        latency_budget_ms: A request that takes longer is over budget.
        percentile: The share of requests within the budget, in percent (99 or 99.9).
        confidence: Confidence of every claim, 0 to 1.
        target_rate_rps: The rate the deployment must carry; None if as much as possible.
        objective: What is optimised among the configurations that keep the limits.
        max_memory_bytes: Limit on the peak memory; None if there is none.
        max_accuracy_drop: Limit on the absolute loss of accuracy, held against the bad end of its
            interval.
    """

    latency_budget_ms: float
    percentile: float = 99.0
    confidence: float = 0.95
    target_rate_rps: float | None = None
    objective: Objective = "capacity"
    max_memory_bytes: int | None = None
    max_accuracy_drop: float = 0.01

    def __post_init__(self) -> None:
        assert self.latency_budget_ms > 0, self.latency_budget_ms
        assert 0 < self.percentile < 100, self.percentile
        assert 0 < self.confidence < 1, self.confidence
        assert self.target_rate_rps is None or self.target_rate_rps > 0
        assert self.objective == "capacity" or self.target_rate_rps is not None, self.objective

    @property
    def miss_rate_max(self) -> float:
        """The largest allowed fraction of requests over budget, 0 to 1."""
        return tail_share(self.percentile)

    @property
    def at_any_rate(self) -> bool:
        """Whether it is about the highest rate that keeps it; else it is judged at one rate."""
        return self.objective in ("capacity", "cost")

    @property
    def fixed_rps(self) -> float | None:
        """The one rate that it is about, requests per second; None where it is about any."""
        return None if self.at_any_rate else self.target_rate_rps

    @property
    def enough_rps(self) -> float | None:
        """The rate beyond which a machine that carries it is no cheaper; None without one."""
        return self.target_rate_rps if self.objective == "cost" else None
