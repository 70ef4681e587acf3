"""What load tests tell of execution times: the twin's service times, fitted to each run's own.

A server under load tells how long its executions of each batch size took. Over what the twin
expects at that very rate, neighbours included, that is a ratio. Its logarithm is estimated for
every deployment and batch size as a sum of parts that all configurations, those of one variant,
those of one deployment (instances and threads), and neighbouring batch sizes of it share, each
shrunk to 0 (best linear unbiased prediction; Rasmussen and Williams, chapter 2). So one run
corrects other configurations too, and a rare batch size corrects little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from analyzer.domain.configuration import Configuration, VariantKey
from analyzer.domain.load_test import LoadTest
from analyzer.twin.arrivals import UnitArrivals
from analyzer.twin.curve import non_decreasing
from analyzer.twin.server_model import ServerModel
from analyzer.twin.service import ServiceTime
from analyzer.twin.simulator import OpenWorkload

Floats = NDArray[np.float64]

# Standard deviations of the parts of a log ratio: of the machine, a variant, a deployment, and a
# batch size of it, which are alike within a factor of about two of the size.
_MACHINE, _VARIANT, _DEPLOYMENT, _SIZE = 0.1, 0.12, 0.1, 0.08
_SIZE_LENGTH = 1.0  # of log2
# A run's speed wanders by as much, whatever its length; one execution's time by as much of itself.
_RUN_NOISE = 0.03
_EXECUTION_NOISE = 0.3
# Executions of a batch size in a run that say something, and requests that are simulated for it.
_EXECUTIONS_MIN = 5
_REQUESTS_MAX = 4000
# Up to this share of saturation what a request takes outside queue and model is its own.
_LIGHT_LOAD = 0.7
# Observed batch sizes become points of the curve; of twice as many every second one, and so on.
_POINTS_MAX = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What shares its error: a variant on so many instances with so many threads."""

    variant: VariantKey
    instances: int
    threads: int | None

    @classmethod
    def of(cls, configuration: Configuration) -> Place:
        """Where a configuration runs."""
        return cls(
            variant=configuration.variant,
            instances=configuration.instance_count,
            threads=configuration.intra_op_threads,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Execution times of one batch size in one run, over what the twin expected of them.

    Args:
        log_ratio: log(observed / expected), at the speed that the machine had.
        variance: Of that, by chance.
    """

    place: Place
    batch_size: int
    log_ratio: float
    variance: float


def observe(
    configuration: Configuration,
    model: ServerModel,
    tests: Sequence[LoadTest],
    arrivals: UnitArrivals,
    slowness: Sequence[Floats] | None = None,
) -> list[Observed]:
    """What the runs of one configuration tell beside ``model``, which learned nothing from them.

    Args:
        slowness: Of each run, as :func:`~analyzer.twin.pace.slowness` tells it: times are then
            those at the usual speed. None where nothing is known.
    """
    found = []
    for index, test in enumerate(tests):
        trace = slowness[index] if slowness is not None else np.empty(0)
        pace = float(trace.mean()) if len(trace) else 1.0
        told = [e for e in test.executions if e.count >= _EXECUTIONS_MIN and e.mean_ms > 0]
        # A queue that only grows says nothing of the rate; batches are then as large as they get.
        if not told or test.concurrency is not None or not test.offered_rps:
            continue
        count = int(np.clip(test.requests, 200, _REQUESTS_MAX))
        workload = OpenWorkload(
            arrival_ns=(arrivals.time_s[:count] * (1e9 / test.offered_rps)).astype(np.int64),
            batch_size=arrivals.batch_size[:count],
        )
        expected = {e.batch_size: e.mean_ms for e in model.simulate(workload).execution_times()}
        for execution in told:
            mean_ms = _near(expected, execution.batch_size, model.service)
            if mean_ms > 0:
                found.append(
                    Observed(
                        place=Place.of(configuration),
                        batch_size=execution.batch_size,
                        log_ratio=float(np.log(execution.mean_ms / pace / mean_ms)),
                        variance=_RUN_NOISE**2 + _EXECUTION_NOISE**2 / execution.count,
                    )
                )
    return found


def _near(expected: dict[int, float], batch_size: int, service: ServiceTime) -> float:
    """The expected time of a batch size; from the nearest simulated one where it never formed."""
    if batch_size in expected:
        return expected[batch_size]
    near = min(expected, key=lambda size: abs(np.log(size / batch_size)))
    curve = service.curve_ms(np.array([near, batch_size]))
    return float(expected[near] * curve[1] / curve[0]) if curve[0] > 0 else 0.0


def light_overhead_ms(
    model: ServerModel, tests: Sequence[LoadTest], request_batch_size: NDArray[np.int64]
) -> list[float]:
    """What requests took outside queue and model in the runs at light load, milliseconds.

    Args:
        request_batch_size: Inferences of each request, int64 [n], or [1] if all are equal.
    """
    limit = _LIGHT_LOAD * model.saturation_rps(request_batch_size)
    return [
        test.breakdown_ms.overhead
        for test in tests
        if test.breakdown_ms.overhead is not None and test.offered_rps <= limit
    ]


class ServiceCorrection:
    """Factors on probed service times, learned from what was observed under load.

    Args:
        observed: Of all runs.
    """

    def __init__(self, observed: Sequence[Observed]) -> None:
        self._observed = pooled(observed)
        self._keys = [(o.place, o.batch_size) for o in self._observed]
        values = np.array([o.log_ratio for o in self._observed])
        noise = np.diag([o.variance for o in self._observed])
        table = _covariance(self._keys, self._keys)
        self._solved: Floats = np.linalg.solve(table + noise, values)

    def log_factor(self, place: Place, batch_sizes: Sequence[int]) -> Floats:
        """Expected log(true / probed) time of each batch size there, shape (n,)."""
        wanted = [(place, size) for size in batch_sizes]
        found: Floats = _covariance(wanted, self._keys) @ self._solved
        return found

    def applied(self, place: Place, service: ServiceTime) -> ServiceTime:
        """``service`` with what was learned, and points at the batch sizes that were observed."""
        seen = sorted({o.batch_size for o in self._observed if o.place == place})
        seen = seen[:: max(1, len(seen) // _POINTS_MAX)]
        sizes = sorted({*service.batch_sizes, *seen})
        factors = np.exp(self.log_factor(place, sizes))
        times = non_decreasing(service.curve_ms(np.array(sizes)) * factors, np.ones(len(sizes)))
        steady_ms = service.steadied_ms(np.array(sizes)) * factors
        beyond_ms = service.beyond_ms
        return replace(
            service,
            batch_sizes=tuple(sizes),
            service_ms=tuple(float(ms) for ms in times),
            steady_ms=tuple(float(ms) for ms in steady_ms) if service.steady_ms else (),
            beyond_ms=beyond_ms * float(factors[-1]) if beyond_ms is not None else None,
            change_ms=tuple(service.changes_ms(np.array(sizes))) if service.change_ms else (),
        )


def pooled(observed: Sequence[Observed]) -> tuple[Observed, ...]:
    """One observation of each place and batch size: the mean of several by inverse variance.

    What they observe is one number, so that nothing else of them counts in the estimate.
    """
    by_key: dict[tuple[Place, int], list[Observed]] = {}
    for each in observed:
        by_key.setdefault((each.place, each.batch_size), []).append(each)
    found = []
    for several in by_key.values():
        weight = sum(1.0 / each.variance for each in several)
        log_ratio = sum(each.log_ratio / each.variance for each in several) / weight
        found.append(replace(several[0], log_ratio=log_ratio, variance=1.0 / weight))
    return tuple(found)


def _covariance(left: Sequence[tuple[Place, int]], right: Sequence[tuple[Place, int]]) -> Floats:
    """Of the log ratios at places and batch sizes, shape (len(left), len(right))."""
    places: dict[Place, int] = {}
    variants: dict[VariantKey, int] = {}

    def coded(keys: Sequence[tuple[Place, int]]) -> tuple[Floats, Floats, Floats]:
        """Numbers of the places and their variants, and log2 of the batch sizes."""
        numbers = [places.setdefault(place, len(places)) for place, _ in keys]
        kinds = [variants.setdefault(place.variant, len(variants)) for place, _ in keys]
        return np.array(numbers), np.array(kinds), np.log2([size for _, size in keys])

    (place, variant, size), (other, other_variant, other_size) = coded(left), coded(right)
    distance = (size[:, None] - other_size) / _SIZE_LENGTH
    own = _DEPLOYMENT**2 + _SIZE**2 * np.exp(-0.5 * distance**2)
    table: Floats = _MACHINE**2 + _VARIANT**2 * (variant[:, None] == other_variant)
    table += own * (place[:, None] == other)
    return table
