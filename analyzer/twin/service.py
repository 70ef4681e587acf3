"""How long an execution takes: by batch size, by busy instances, and at random."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from analyzer.engine.policy import BatchingPolicy

Distribution = Literal["deterministic", "exponential", "lognormal", "empirical"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SerialCost:
    """What a server does one at a time, however many instances run: it bounds the rates.

    Args:
        execution_ms: For each execution, milliseconds.
        request_ms: For each request in it, milliseconds.
    """

    execution_ms: float
    request_ms: float

    def rate_max_rps(self, requests: NDArray[np.integer | np.floating]) -> NDArray[np.float64]:
        """The highest rate in executions of so many requests each, 1/s."""
        each_ms = self.execution_ms + self.request_ms * requests
        rates: NDArray[np.float64] = requests * 1e3 / np.maximum(each_ms, 1e-9)
        return rates


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceTime:
    """The time of one execution = curve(batch size) × interference(busy instances) × noise.

    Neither interference nor noise applies to ``steady_ms`` of the curve, and beyond ``noise_ms`` of
    the rest the noise adds what it adds to as many.

    An instance whose batch size differs from its last one takes ``change_ms`` more: ONNX Runtime's
    CUDA provider plans each convolution anew then (``docs/gpu.md``).

    The curve is linear between its points; one point is a constant, unless ``beyond_ms`` is given.
    Below the first point the nearest slope goes on, but no inference takes less than it does in
    the first batch; beyond the last ``beyond_ms``, or the nearest slope where it rises.

    Args:
        batch_sizes: Inferences of the points, strictly ascending, at least 1.
        service_ms: Mean time at each point, milliseconds, at least 0.
        beyond_ms: Milliseconds for each inference beyond the last point, at least 0; None for the
            nearest slope.
        distribution: Law of the noise, whose mean is 1: none, exponential, lognormal with ``cv``,
            or drawn from ``residuals``.
        cv: Coefficient of variation of the lognormal law.
        residuals: Observed factors of the empirical law (scaled to the mean 1 when used).
        noise_ms: The noise is a share of an execution's first so many milliseconds: a thread that
            waits for a core waits no longer in a large batch than in a small one.
        steady_ms: What of the mean time at each point is the server's, and not the model's, whose
            interference and noise these are, milliseconds, at least 0; empty for nothing.
        interference: Factor by the number of busy instances, itself included: ``interference[0]``
            for one. The last one goes on. It applies to all of an execution but ``steady_ms``, as
            of its start.
        interference_by_size: The same where it depends on the batch size (small batches wait for
            the memory, large ones compute): (size, factors) with ascending sizes, linear in the
            logarithm of the size between them and constant outside; it takes the place of
            ``interference`` where it is given.
        serial: What bounds the rates besides; None for nothing.
        change_ms: What another batch size than the instance's last one costs, milliseconds at each
            point of the curve, at least 0; empty for nothing.
    """

    batch_sizes: tuple[int, ...]
    service_ms: tuple[float, ...]
    distribution: Distribution = "deterministic"
    cv: float = 0.0
    residuals: tuple[float, ...] = ()
    noise_ms: float = math.inf
    steady_ms: tuple[float, ...] = ()
    interference: tuple[float, ...] = (1.0,)
    interference_by_size: tuple[tuple[int, tuple[float, ...]], ...] = ()
    serial: SerialCost | None = None
    beyond_ms: float | None = None
    change_ms: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        sizes = self.batch_sizes
        assert sizes and len(sizes) == len(self.service_ms), (sizes, self.service_ms)
        assert sizes[0] >= 1 and all(a < b for a, b in pairwise(sizes)), sizes
        assert all(np.isfinite(ms) and ms >= 0 for ms in self.service_ms), self.service_ms
        assert self.beyond_ms is None or self.beyond_ms >= 0, self.beyond_ms
        assert self.cv >= 0, self.cv
        assert self.noise_ms > 0, self.noise_ms
        assert not self.steady_ms or len(self.steady_ms) == len(sizes), self.steady_ms
        assert not self.change_ms or len(self.change_ms) == len(sizes), self.change_ms
        assert all(ms >= 0 for ms in self.change_ms), self.change_ms
        assert self.interference and all(f > 0 for f in self.interference), self.interference
        assert self.distribution != "empirical" or sum(self.residuals) > 0, self.residuals

    @classmethod
    def constant(cls, service_ms: float) -> ServiceTime:
        """The same time for every batch size."""
        return cls(batch_sizes=(1,), service_ms=(service_ms,))

    def curve_ms(self, batch_size: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.float64]:
        """The mean time alone on the device at each batch size, milliseconds, float64."""
        sizes = np.asarray(self.batch_sizes, dtype=np.float64)
        times = np.asarray(self.service_ms, dtype=np.float64)
        at = np.asarray(batch_size, dtype=np.float64)
        low_ms = times[0] * np.minimum(at / sizes[0], 1.0)
        rise_ms, step = self.beyond_ms or 0.0, 1.0
        if len(sizes) == 1:
            inside = low_ms if self.beyond_ms is not None else np.full(at.shape, times[0])
        else:
            segment = np.clip(np.searchsorted(sizes, at, side="right") - 1, 0, len(sizes) - 2)
            width = sizes[segment + 1] - sizes[segment]
            rise = times[segment + 1] - times[segment]
            # Multiplied before it is divided: exact where the inputs are small whole numbers.
            linear = times[segment] + rise * (np.minimum(at, sizes[-1]) - sizes[segment]) / width
            inside = np.where(at < sizes[0], np.clip(linear, low_ms, times[0]), linear)
            if self.beyond_ms is None:
                rise_ms, step = max(times[-1] - times[-2], 0.0), sizes[-1] - sizes[-2]
        result: NDArray[np.float64] = inside + rise_ms * np.maximum(at - sizes[-1], 0.0) / step
        return result

    def changes_ms(
        self, batch_size: NDArray[np.int64] | NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """What a change to each batch size costs, milliseconds, float64."""
        if not self.change_ms:
            return np.zeros(np.shape(batch_size))
        changes: NDArray[np.float64] = np.interp(batch_size, self.batch_sizes, self.change_ms)
        return changes

    def table_ns(self, instances: int, limit: int) -> NDArray[np.float64]:
        """Mean time with k busy instances of a batch of b, nanoseconds, [instances + 1, limit + 1].

        Row and column 0 are unused.
        """
        sizes = np.arange(limit + 1)
        table = np.tile(self.curve_ms(sizes) * 1e6, (instances + 1, 1))
        table[1:] = self.busy_ms(instances, sizes) * 1e6
        return table

    def busy_ms(self, instances: int, batch_size: NDArray[np.int64]) -> NDArray[np.float64]:
        """Mean time with k busy instances (k from 1 on) at each batch size, float64 [instances, n].

        Milliseconds.
        """
        steady_ms = self.steadied_ms(batch_size)
        slower = self.interference_at(instances, batch_size)
        found: NDArray[np.float64] = steady_ms + (self.curve_ms(batch_size) - steady_ms) * slower
        return found

    def interference_at(self, instances: int, batch_size: NDArray[np.int64]) -> NDArray[np.float64]:
        """Factor with k busy instances (k from 1 on) at each batch size, float64 [instances, n]."""
        by_size = self.interference_by_size or ((1, self.interference),)
        number = np.arange(instances)
        known = np.array([np.take(factors, number, mode="clip") for _, factors in by_size])
        at = np.log([size for size, _ in by_size])
        wanted = np.log(np.maximum(batch_size, 1))
        return np.array([np.interp(wanted, at, column) for column in known.T])

    def steadied_ms(self, batch_size: NDArray[np.int64]) -> NDArray[np.float64]:
        """``steady_ms`` at each batch size, milliseconds, float64; constant beyond the points."""
        if not self.steady_ms:
            return np.zeros(np.shape(batch_size))
        steady = np.interp(batch_size, self.batch_sizes, self.steady_ms)
        return np.minimum(steady, self.curve_ms(batch_size))

    def noisy_ms(
        self,
        mean_ms: NDArray[np.float64],
        batch_size: NDArray[np.int64],
        noise: NDArray[np.float64] | float,
    ) -> NDArray[np.float64]:
        """Executions of these mean times, batch sizes and factors of the noise, milliseconds."""
        part_ms = np.minimum(mean_ms - self.steadied_ms(batch_size), self.noise_ms)
        found: NDArray[np.float64] = mean_ms + (noise - 1.0) * part_ms
        return found

    def scv_at(
        self, mean_ms: NDArray[np.float64], batch_size: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Squared coefficient of variation of executions of these mean times and batch sizes."""
        part_ms = np.minimum(mean_ms - self.steadied_ms(batch_size), self.noise_ms)
        found: NDArray[np.float64] = self.scv * (part_ms / np.maximum(mean_ms, 1e-9)) ** 2
        return found

    @property
    def scv(self) -> float:
        """Squared coefficient of variation of the noise."""
        if self.distribution == "exponential":
            return 1.0
        if self.distribution == "lognormal":
            return self.cv**2
        if self.distribution == "empirical":
            factors = np.asarray(self.residuals, dtype=np.float64)
            return float(factors.var() / factors.mean() ** 2)
        return 0.0

    def draw_noise(self, count: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """Factors for ``count`` executions in the order of their starts; [1] if there is none."""
        if self.distribution == "exponential":
            return rng.exponential(1.0, count)
        if self.distribution == "lognormal" and self.cv > 0:
            variance = float(np.log1p(self.cv**2))
            return rng.lognormal(-variance / 2, np.sqrt(variance), count)
        if self.distribution == "empirical":
            pool = np.asarray(self.residuals, dtype=np.float64)
            return rng.choice(pool / pool.mean(), count)
        return np.ones(1)

    def noise_at(self, quantile: NDArray[np.float64]) -> NDArray[np.float64]:
        """The noise at each quantile in (0, 1), float64 [n]; [1] if there is none.

        With evenly spread quantiles in random order, a small pool has exactly the law's tails.
        """
        if self.distribution == "exponential":
            return -np.log1p(-quantile)
        if self.distribution == "lognormal" and self.cv > 0:
            from scipy.special import ndtri

            variance = float(np.log1p(self.cv**2))
            law: NDArray[np.float64] = np.exp(np.sqrt(variance) * ndtri(quantile) - variance / 2)
            return law
        if self.distribution == "empirical":
            ranked = np.sort(np.asarray(self.residuals, dtype=np.float64))
            factors: NDArray[np.float64] = ranked / ranked.mean()
            return factors[(quantile * len(ranked)).astype(np.int64)]
        return np.ones(1)

    def saturation_rps(
        self, policy: BatchingPolicy, request_batch_size: int | NDArray[np.int64] = 1
    ) -> float:
        """The request rate that no schedule of the policy exceeds, 1/s.

        The largest of k · b / time(b, k busy) over the instances k and the batches b that requests
        can form, each at most what ``serial`` lets through. Infinite if a batch takes no time.

        Args:
            request_batch_size: Inferences of each request. Where they differ (int64 [n]) batches
                may have any size from the smallest request on, and without batching each request
                takes its own time.
        """
        smallest, largest = int(np.min(request_batch_size)), int(np.max(request_batch_size))
        if smallest < largest and not policy.dynamic_batching:
            return self._unbatched_rps(policy.instance_count, np.asarray(request_batch_size))
        per_request = float(np.mean(request_batch_size))
        step = smallest if smallest == largest else 1
        sizes = np.array([smallest])
        if policy.dynamic_batching:
            most = policy.batch_limit
            if not policy.max_queue_delay_us:
                # A batch is sent with the first preferred size that is full, or one request later.
                most = min(most, max(policy.preferred) + largest - 1)
            sizes = np.arange(smallest, max(most, smallest) + 1, step)
        requests = sizes / per_request
        busy = np.arange(1, policy.instance_count + 1)[:, None]
        with np.errstate(divide="ignore"):
            each = busy * requests / self.busy_ms(policy.instance_count, sizes)
        rates = np.max(each, axis=0) * 1e3
        if self.serial is not None:
            rates = np.minimum(rates, self.serial.rate_max_rps(requests))
        return float(np.max(rates))

    def _unbatched_rps(self, instances: int, request_batch_size: NDArray[np.int64]) -> float:
        """The same of requests of several sizes, int64 [n], each of which is an execution."""
        sizes, counts = _counted(request_batch_size)
        mean_ms = np.average(self.busy_ms(instances, sizes), axis=1, weights=counts)
        with np.errstate(divide="ignore"):
            rate_rps = float(np.max(np.arange(1, instances + 1) / mean_ms)) * 1e3
        if self.serial is None:
            return rate_rps
        return min(rate_rps, float(self.serial.rate_max_rps(np.ones(1))[0]))


def _counted(sizes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The different ones of ``sizes``, ascending, and how often each is there."""
    smallest = int(np.min(sizes))
    if int(np.max(sizes)) - smallest > len(sizes):
        return np.unique(sizes, return_counts=True)
    counts = np.bincount(sizes - smallest)  # without sorting them
    (there,) = np.nonzero(counts)
    return there + smallest, counts[there]
