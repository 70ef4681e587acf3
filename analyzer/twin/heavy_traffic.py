"""The edge of a configuration in microseconds: the decay rate of a bulk-service queue.

Where the budget is long against a batch, the edge lies close to saturation, and a simulation needs
many requests before the queue shows itself. There the tail of the waiting time is exponential, and
its rate follows from the arrivals' and the services' moment generating functions alone.

Source: effective bandwidths (Kelly 1996, "Notes on effective bandwidths"; Asmussen 2003, "Applied
Probability and Queues", chapter XIII), written for batches; ``docs/sources.md``, section 4,
compares it with simulations.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.sla import tail_share
from analyzer.engine.policy import BatchingPolicy
from analyzer.twin.service import ServiceTime

Floats = NDArray[np.float64]

# Bisection of the decay exponent: its range covers loads from 1e-6 below saturation down to a
# millionth of it, and each step halves the logarithm's interval.
_EXPONENT_RANGE = (1e-7, 60.0)
_STEPS = 60


def heavy_traffic_rate(
    batch_s: Floats,
    *,
    batch: Floats,
    instances: Floats,
    budget_s: Floats,
    miss_rate_max: float,
    service_scv: Floats,
    arrival_scv: float = 1.0,
) -> Floats:
    """The highest arrival rate at which a queue keeps the budget, requests per second, shape (m,).

    Each of ``n`` instances takes ``b`` requests at once for a time ``S`` with the mean ``τ``. With
    the exponent ``θ > 0`` that solves ``a(θ) = n φ(θ)`` the waiting time decays like
    ``ρ e^(−n φ(θ) t)``; the edge is where that tail leaves ``miss_rate_max`` at the budget less a
    batch. ``φ`` solves ``E[e^(φ S)] = e^(θ b)``; arrivals with gamma distributed gaps have
    ``a(θ) = λ (e^(θ c) − 1) / c`` with the squared coefficient of variation ``c``.

    Args:
        batch_s: Mean time of a full batch with every instance busy, seconds, shape (m,).
        batch: Requests in a full batch, shape (m,).
        instances: Shape (m,).
        budget_s: Latency budget less everything outside queue and execution, seconds, shape (m,).
        miss_rate_max: Allowed fraction over budget, 0 to 1 exclusive.
        service_scv: Squared coefficient of variation of the batch's time, shape (m,).
        arrival_scv: That of the interarrival times: 1 for Poisson, 0 for constant ones.

    Returns:
        0 where a batch alone takes longer than the budget.
    """
    slack_s = budget_s - batch_s
    usable = slack_s > 0
    safe_s = np.where(usable, slack_s, 1.0)

    def at(exponent: Floats) -> tuple[Floats, Floats]:
        """Arrival rate and decay rate, both 1/s, that belong to the exponent."""
        work = exponent * batch
        noisy = -np.expm1(-work * service_scv) / np.where(service_scv > 0, service_scv, 1.0)
        decay = instances * np.where(service_scv > 1e-9, noisy, work) / batch_s
        growth = np.expm1(np.minimum(exponent * arrival_scv, 500.0))
        return decay / (growth / arrival_scv if arrival_scv > 1e-9 else exponent), decay

    low = np.full(len(batch_s), np.log(_EXPONENT_RANGE[0]))
    high = np.full(len(batch_s), np.log(_EXPONENT_RANGE[1]))
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        rate, decay = at(np.exp(middle))
        load = np.maximum(rate * batch_s / (instances * batch), 1e-12)
        kept = decay * safe_s >= np.log(load / miss_rate_max)
        low, high = np.where(kept, low, middle), np.where(kept, middle, high)
    found: Floats = np.where(usable, at(np.exp(high))[0], 0.0)
    return found


def heavy_traffic_edges(
    servers: Sequence[tuple[BatchingPolicy, ServiceTime, float]],
    *,
    budget_ms: float,
    percentile: float,
    request_batch_size: int = 1,
    arrival_scv: float = 1.0,
) -> Floats:
    """The approximate edge of each (policy, service times, overhead in ms), 1/s, shape (m,).

    Batches form by themselves under load, so each batch size up to the policy's is taken in turn
    as the one that works, and the best counts; 0 where an execution alone is too often too late.
    Where the budget is at least twice a full batch, the result lies within some percent of a long
    simulation; below, up to half above it, and it orders only. Queue delays are left out: at the
    edge batches are full before they end. What the server does one at a time bounds each rate.

    Args:
        arrival_scv: As in :func:`heavy_traffic_rate`.
    """
    owners, columns = [], []
    for owner, (policy, service, overhead_ms) in enumerate(servers):
        limit = policy.batch_limit if policy.dynamic_batching else request_batch_size
        batches = _batches(max(limit // request_batch_size, 1))
        sizes = np.array(batches, dtype=np.int64) * request_batch_size
        n = policy.instance_count
        # What an execution alone takes at the percentile: beyond the budget no rate is low enough.
        alone = float(service.noise_at(np.array([percentile / 100.0]))[0])
        budget = max(budget_ms - overhead_ms, 0.0)
        batch_ms = service.busy_ms(n, sizes)[-1]
        if service.change_ms and len(sizes) > 1:
            batch_ms = _with_changes(batch_ms, service.changes_ms(sizes), budget / alone)
        longest_ms, scv = service.noisy_ms(batch_ms, sizes, alone), service.scv_at(batch_ms, sizes)
        bounds = np.full(len(batches), np.inf)
        if service.serial is not None:
            bounds = service.serial.rate_max_rps(np.array(batches))
        each = zip(batches, batch_ms, longest_ms, scv, bounds, strict=True)
        for batch, mean_ms, long_ms, spread, bound in each:
            if long_ms < budget:
                owners.append(owner)
                columns.append((max(float(mean_ms), 1e-6), batch, n, budget, spread, bound))
    edges = np.zeros(len(servers))
    if not columns:
        return edges
    means_ms, batch, instances, budgets, scvs, bound = np.array(columns, dtype=np.float64).T
    rates = heavy_traffic_rate(
        means_ms / 1e3,
        batch=batch,
        instances=instances,
        budget_s=budgets / 1e3,
        miss_rate_max=max(tail_share(percentile), 1e-6),
        service_scv=scvs,
        arrival_scv=arrival_scv,
    )
    np.maximum.at(edges, owners, np.minimum(rates, bound))
    return edges


def _with_changes(batch_ms: Floats, change_ms: Floats, budget_ms: float) -> Floats:
    """Times of batches where one of another size than the last takes ``change_ms`` more.

    At saturation all batches are full and none changes. On the way there each differs from the
    last, and a request waits for one execution and takes part in the next. Where two such keep no
    budget, rates fail below those of full batches, and the edge is that of batches that change.
    """
    changing_ms = batch_ms + change_ms
    if 2.0 * float(changing_ms.max()) > budget_ms:
        return changing_ms
    return np.append(changing_ms[:-1], batch_ms[-1])


def _batches(limit: int) -> list[int]:
    """The powers of two up to ``limit``, and ``limit``."""
    return sorted({1 << power for power in range(limit.bit_length())} | {limit})
