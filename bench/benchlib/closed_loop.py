"""A closed-loop twin of a recorded landscape: throughput by instances, clients and batching.

Model Analyzer's tables hold no traces, only throughput and latency of N clients that each keep one
request in flight. For those a closed network says enough. With c instances, ``b = min(N, c)`` of
them busy and e requests in a batch an execution takes

    S = s · (1 + σ (b-1) + κ b (b-1)) · (1 + δ min(1, (c-b) / b)²) · (1 + β (e q - 1))

where σ and κ are the contention and coherence of Gunther's universal scalability law (A General
Theory of Computational Scalability, 2008), δ what idle instances cost (requests wander over cold
ones), β the marginal cost of an item and q the client's batch. With Z for all that happens outside
the model, the asymptotic bounds of operational analysis (Denning and Buzen, 1978) give

    X = q · min(N / (S + Z), b e / S),    mean latency = N q / X.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Prior means and spreads of the logarithms of σ, κ, δ, Z/s and of the logit of β.
_PRIOR_MEAN = np.array([np.log(0.3), np.log(0.02), np.log(0.3), np.log(0.05), -1.0])
_PRIOR_SPREAD = np.array([1.0, 1.0, 1.5, 1.0, 1.0])
_ERROR = 0.03  # of one row's throughput, and of the model itself


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPoint:
    """One configuration under one closed-loop load.

    Args:
        group: What has a service time of its own (the model's variant).
        instances: Instances of the model.
        concurrency: Requests that the clients keep in flight.
        max_batch_size: Largest batch, inferences.
        dynamic_batching: Whether requests are joined.
        request_batch_size: Inferences in each request.
    """

    group: str
    instances: int
    concurrency: int
    max_batch_size: int = 1
    dynamic_batching: bool = False
    request_batch_size: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoopTwin:
    """The fitted model.

    Args:
        service_s: Seconds of one single-item execution alone, by group.
        contention, coherence, idling: σ, κ, δ.
        marginal: β, the cost of one more item over that of the first.
        overhead_share: Z over the service time.
    """

    service_s: dict[str, float]
    contention: float
    coherence: float
    idling: float
    marginal: float
    overhead_share: float

    def throughput_ips(self, points: Sequence[LoadPoint]) -> Floats:
        """Predicted inferences per second, shape (len(points),)."""
        typical = float(np.exp(np.mean(np.log(list(self.service_s.values())))))
        service = np.array([self.service_s.get(point.group, typical) for point in points])
        shape = np.array(
            [
                self.contention,
                self.coherence,
                self.idling,
                self.overhead_share,
                self.marginal,
            ]
        )
        return _throughput(_columns(points), service, shape)

    def latency_s_mean(self, points: Sequence[LoadPoint]) -> Floats:
        """Predicted mean latency by Little's law, seconds, shape (len(points),)."""
        in_flight = np.array([p.concurrency * p.request_batch_size for p in points], dtype=float)
        found: Floats = in_flight / self.throughput_ips(points)
        return found


def features(points: Sequence[LoadPoint]) -> Floats:
    """What the throughput depends on, and what residuals may, shape (n, d).

    Beyond two clients per instance the clients only wait, so that their number says little more.
    """
    groups = sorted({point.group for point in points})
    rows = [
        [
            np.log2(p.instances),
            np.log2(min(p.concurrency / p.instances, 2.0)),
            0.25 * np.log2(p.concurrency),
            # A larger maximum matters where batches are made, and as far as clients fill them.
            np.log2(1.0 + min(p.max_batch_size, p.concurrency)) if p.dynamic_batching else 0.0,
            float(p.dynamic_batching),
            *(float(p.group == group) for group in groups[1:]),
        ]
        for p in points
    ]
    return np.array(rows, dtype=float).reshape(len(points), -1)


def informative(points: Sequence[LoadPoint], count: int, rng: np.random.Generator) -> list[int]:
    """Returns the ``count`` rows that tell most about all others, the most telling first.

    Each next row takes the most off the summed posterior variance of a Gaussian process over the
    features (a greedy I-optimal design); ``rng`` breaks ties between replicates.
    """
    at = features(points)
    # One common unit: the features are comparable logarithms.
    at = (at - at.mean(axis=0)) / max(float(at.std(axis=0).max()), 1e-9)
    length2, noise = 0.5, 0.02
    covariance = np.exp(-0.5 * np.sum((at[:, None] - at[None]) ** 2, axis=2) / length2)
    free = np.ones(len(points), dtype=bool)
    chosen: list[int] = []
    for _ in range(min(count, len(points))):
        gain = np.sum(covariance**2, axis=0) / (np.diag(covariance) + noise)
        gain = np.where(free, gain * (1.0 + 1e-9 * rng.random(len(points))), -1.0)
        best = int(np.argmax(gain))
        free[best] = False
        chosen.append(best)
        column = covariance[:, best]
        covariance = covariance - np.outer(column, column) / (column[best] + noise)
    return chosen


def _columns(points: Sequence[LoadPoint]) -> tuple[Floats, Floats, Floats, Floats]:
    """Instances, clients, client batch and requests per execution, each of shape (n,)."""
    instances = np.array([p.instances for p in points], dtype=float)
    clients = np.array([p.concurrency for p in points], dtype=float)
    client_batch = np.array([p.request_batch_size for p in points], dtype=float)
    limit = np.array(
        [max(p.max_batch_size // p.request_batch_size, 1) for p in points], dtype=float
    )
    dynamic = np.array([p.dynamic_batching for p in points])
    # While c executions run, what waits is the (c+1)-th batch of equal size.
    joined = np.clip(clients / (instances + 1.0), 1.0, limit)
    return instances, clients, client_batch, np.where(dynamic, joined, 1.0)


def _throughput(
    columns: tuple[Floats, Floats, Floats, Floats], service: Floats, shape: Floats
) -> Floats:
    instances, clients, client_batch, joined = columns
    contention, coherence, idling, overhead_share, marginal = shape
    busy = np.minimum(instances, clients)
    time = (
        service
        * (1.0 + contention * (busy - 1.0) + coherence * busy * (busy - 1.0))
        * (1.0 + idling * np.minimum(1.0, (instances - busy) / busy) ** 2)
        * (1.0 + marginal * (joined * client_batch - 1.0))
    )
    outside = overhead_share * service
    found: Floats = client_batch * np.minimum(clients / (time + outside), busy * joined / time)
    return found


def _guesses(start: ClosedLoopTwin) -> list[Floats]:
    odds = start.marginal / (1.0 - start.marginal)
    shape = [start.contention, start.coherence, start.idling, start.overhead_share, odds]
    return [np.log(np.maximum(shape, 1e-5))]


def fit(
    points: Sequence[LoadPoint],
    throughput_ips: NDArray[np.floating],
    *,
    start: ClosedLoopTwin | None = None,
) -> ClosedLoopTwin:
    """Returns the twin that explains the rows best, given what servers are usually like.

    A maximum a posteriori fit on logarithms: with one row only the service time is learned, and
    each further kind of row teaches what it can.

    Args:
        points: At least one.
        throughput_ips: Measured, above 0, shape (len(points),).
        start: A fit to fewer rows to start from; None tries several starts, which takes longer.
    """
    from scipy.optimize import least_squares

    assert len(points) == len(throughput_ips) >= 1, len(points)
    groups = sorted({point.group for point in points})
    member = np.array([groups.index(point.group) for point in points])
    columns = _columns(points)
    measured = np.log(np.asarray(throughput_ips, dtype=float))

    def unpack(vector: Floats) -> tuple[Floats, Floats]:
        values = np.exp(np.clip(vector[len(groups) :], -12.0, 6.0))
        values[-1] = values[-1] / (1.0 + values[-1])
        return np.exp(vector[: len(groups)]), values

    def misfit(vector: Floats) -> Floats:
        service, shape = unpack(vector)
        errors = (np.log(_throughput(columns, service[member], shape)) - measured) / _ERROR
        prior = (vector[len(groups) :] - _PRIOR_MEAN) / _PRIOR_SPREAD
        # Variants of one model are alike: within a factor of four.
        logs = vector[: len(groups)]
        found: Floats = np.concatenate((errors, prior, (logs - logs.mean()) / 1.4))
        return found

    guesses = _guesses(start) if start is not None else [_PRIOR_MEAN + d for d in (0.0, -1.5, 1.5)]
    best: Any = None
    for guess in guesses:
        # At the guessed shape, the service times that fit.
        _, shape = unpack(np.concatenate((np.zeros(len(groups)), guess)))
        rough = np.log(_throughput(columns, np.ones(len(points)), shape)) - measured
        service = np.array([np.median(rough[member == g]) for g in range(len(groups))])
        found = least_squares(
            misfit, np.concatenate((service, guess)), loss="soft_l1", ftol=1e-4, max_nfev=60
        )
        if best is None or found.cost < best.cost:
            best = found
    service, shape = unpack(best.x)
    return ClosedLoopTwin(
        service_s={group: float(service[i]) for i, group in enumerate(groups)},
        contention=float(shape[0]),
        coherence=float(shape[1]),
        idling=float(shape[2]),
        overhead_share=float(shape[3]),
        marginal=float(shape[4]),
    )
