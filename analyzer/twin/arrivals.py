"""Arrivals that simulations at different rates, and of different configurations, have in common."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.workload import ArrivalProcess, request_batch_sizes

#: Requests of the longest run: a fraction of a second of computation.
COUNT_MAX = 2_048_000
# Quantiles of the noise: enough for the tail beyond 99.99 %.
_NOISE_POOL = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class UnitArrivals:
    """Arrivals at one request per second, to be scaled: the same for whatever is compared.

    Args:
        time_s: Arrival times, float64 [n].
        batch_size: Inferences of each request, int64 [n], or [1] if all are equal.
        quantile: Quantiles of the service times' noise, taken in turn by the executions: evenly
            spread over (0, 1) and shuffled, float64 [k].
    """

    time_s: NDArray[np.float64]
    batch_size: NDArray[np.int64]
    quantile: NDArray[np.float64]

    @classmethod
    def draw(
        cls,
        process: ArrivalProcess,
        *,
        request_batch_size: int = 1,
        seed: int = 0,
        count: int = COUNT_MAX,
    ) -> UnitArrivals:
        """``count`` arrivals of ``process``; a trace brings its own batch sizes if it has any.

        Raises:
            DataError: A trace without two arrivals at different times.
        """
        rng = np.random.default_rng(seed)
        gaps = process.interarrival_s(count, 1.0, rng)
        sizes = request_batch_sizes(process, request_batch_size, count)
        # Slow executions that follow each other in the pool do so in every turn of it: a run that
        # is longer than screens need, for the sake of a rare overload, has a larger one.
        pool = _NOISE_POOL if count <= COUNT_MAX else 1 << (count // 4).bit_length()
        quantile = (rng.permutation(pool) + 0.5) / pool
        return cls(time_s=np.cumsum(gaps), batch_size=sizes, quantile=quantile)
