"""Service-time models from probes: what the twin knows of a variant on this machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analyzer.domain.configuration import Configuration, VariantKey
from analyzer.twin.curve import Curve, Timed, fitted_curve
from analyzer.twin.fitted import (
    HOST_MS_THREADS,
    HOST_SHARE_MAX,
    HOST_SHARE_THREADS,
    PYTHON_BACKEND_ITEM_MS,
    PYTHON_BACKEND_MS,
    THREADS_GAIN,
)
from analyzer.twin.machine_constants import FALLBACK, MachineConstants
from analyzer.twin.probes import MEAN_COUNT_MIN, Probe, ProbeResult, undisturbed_ms
from analyzer.twin.service import ServiceTime

# Enough for the shape of the noise; more only makes the records longer.
_RESIDUALS_MAX = 256
# A slow-down of the machine below this is not told from none, and gives no shape.
_RISE_MIN = 0.02
# By how much the median of a few executions is raised at most to stand for their mean.
_RAISED_MAX = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantCalibration:
    """Everything the probes gave for one variant.

    Args:
        results: The probes that were not skipped.
    """

    variant: VariantKey
    results: tuple[ProbeResult, ...]

    @property
    def failure(self) -> ProbeResult | None:
        """The smallest batch that the model does not run; None where it runs all that was tried."""
        failed = [result for result in self.results if result.failed and not result.samples_ms]
        return min(failed, key=lambda result: result.probe.batch, default=None)

    def service_of(
        self,
        configuration: Configuration,
        *,
        cores: int,
        constants: MachineConstants = FALLBACK,
    ) -> ServiceTime | None:
        """The service times that the twin uses for ``configuration``; None if they are unknown.

        Args:
            cores: That the server, and a load generator beside it, may use.
            constants: Of the machine.
        """
        threads, instances = configuration.intra_op_threads or 0, configuration.instance_count
        service = self.service(threads, instances, cores=cores, constants=constants)
        in_python = configuration.backend == "python" or (
            configuration.backend == "onnxruntime" and constants.server == "triton-python"
        )
        if service is not None:
            service = replace(service, serial=constants.serial)
        if service is not None and in_python:
            service = _slower(
                service, lambda size, mean: PYTHON_BACKEND_MS + PYTHON_BACKEND_ITEM_MS * size
            )
        if service is None or configuration.device != "cpu":
            return service
        # ONNX Runtime's own choice of threads (0) is in no row of the fit: nothing is added to it.
        if threads * instances >= cores:
            share_max = math.inf if in_python else HOST_SHARE_MAX
            service = beside_host(service, threads, constants.host_ms, share_max=share_max)
        if (threads or cores) * instances > cores:
            # Where threads share cores, what the server adds waits for one as well.
            service = replace(service, steady_ms=())
        return service

    def service(
        self,
        threads: int,
        instances: int,
        *,
        cores: int,
        constants: MachineConstants = FALLBACK,
    ) -> ServiceTime | None:
        """Service times with ``threads`` threads and up to ``instances`` busy; None if unknown.

        Of the model alone, without server and generator. The curve comes from one busy instance. A
        thread count that was not probed (the variant was too slow to be worth it) is taken from the
        nearest one that was, with the gain that two of them show, or a usual one.
        """
        curve = self._curve(threads)
        if curve is None:
            return None
        residuals = self._residuals(threads)
        return ServiceTime(
            batch_sizes=curve.sizes,
            service_ms=curve.times_ms,
            beyond_ms=curve.beyond_ms,
            distribution="empirical" if len(residuals) >= 8 else "deterministic",
            residuals=residuals if len(residuals) >= 8 else (),
            noise_ms=self._noise_ms(threads),
            interference_by_size=self._interference(
                threads, instances, curve.sizes, cores, constants
            ),
            change_ms=self._changes(threads, curve),
        )

    def _changes(self, threads: int, curve: Curve) -> tuple[float, ...]:
        """What another batch size than the last costs at each point of ``curve``, milliseconds.

        Of the probes of one busy instance; empty where a change costs less than an execution.
        """
        known = {
            result.probe.batch: max(0.0, float(np.median(result.changed_ms)) - result.mean_ms)
            for result in self.results
            if result.probe.threads == threads
            and result.probe.busy == 1
            and result.changed_ms
            and result.samples_ms
        }
        if not known:
            return ()
        sizes, costs = zip(*sorted(known.items()), strict=True)
        changes = np.interp(curve.sizes, sizes, costs)
        if float(np.median(changes - np.array(curve.times_ms))) < 0.0:
            return ()  # not told from what the first execution of a round costs anyway
        return tuple(float(ms) for ms in changes)

    def _curve(self, threads: int) -> Curve | None:
        """Times by batch size of one busy instance; None if they are unknown.

        Where a single batch size was timed (larger ones were skipped as slow, or the time ran out)
        the shape is that of a thread count with more of them.
        """
        own = self._timed(threads)
        if not own:
            return self._untimed_curve(threads)
        curve = fitted_curve(own)
        if len(own) > 1:
            return curve
        others = [self._timed(other) for other in sorted({r.probe.threads for r in self.results})]
        most = max(others, key=len)
        if len(most) > 1 and (size := curve.sizes[0]) in most:
            shape = fitted_curve(most)
            return shape.scaled(curve.times_ms[0] / shape.times_ms[shape.sizes.index(size)])
        return curve

    def _untimed_curve(self, threads: int) -> Curve | None:
        """The curve of a thread count that was not timed alone; None where nothing tells it.

        That of the nearest one that was, and the gain that it shows beside the next: the power of
        the threads that times fall with. Between two it is taken as measured. Beyond them more
        threads are neither slower than fewer nor faster than in proportion.
        """
        timed = {r.probe.threads for r in self.results if r.probe.busy == 1 and r.samples_ms} - {0}
        if not threads or not timed:
            return None
        near, *others = _nearest(threads, timed)
        across = [other for other in others if (other > threads) != (near > threads)]
        gain = THREADS_GAIN
        if others:
            next_to = (across or others)[0]
            here, there = (fitted_curve(self._timed(count)) for count in (near, next_to))
            shown = here.log_ratio(there)
            if shown is not None:
                gain = shown / math.log(next_to / near)
                gain = gain if across else min(max(gain, 0.0), 1.0)
        curve = self._curve(near)
        return curve.scaled((threads / near) ** -gain) if curve is not None else None

    def _timed(self, threads: int) -> dict[int, Timed]:
        """What was timed of one busy instance, by batch size.

        Of few executions the median counts, and the median of times with rare slow ones lies below
        their mean: it is raised by the ratio that the other sizes have, so that sizes compare.
        """
        found = [
            result
            for result in self.results
            if result.probe.threads == threads and result.probe.busy == 1 and result.samples_ms
        ]
        ratios = [
            (result.count, result.mean_ms / result.median_ms)
            for result in found
            if result.count >= MEAN_COUNT_MIN and result.median_ms > 0
        ]
        raised = 1.0
        if ratios:
            counts, values = zip(*ratios, strict=True)
            raised = float(np.clip(np.average(values, weights=counts), 1.0, _RAISED_MAX))
        return {
            result.probe.batch: Timed(
                mean_ms=result.mean_ms * (raised if result.count < MEAN_COUNT_MIN else 1.0),
                count=result.count,
                cv=result.cv,
            )
            for result in found
        }

    def _means(self, threads: int, busy: int) -> dict[int, float]:
        return {
            result.probe.batch: result.mean_ms
            for result in self.results
            if result.probe.threads == threads and result.probe.busy == busy and result.samples_ms
        }

    def _typical(self, threads: int, busy: int, batch: int, crowded: bool) -> float:
        """What the executions of a probe are compared by, milliseconds; 0 if there are none.

        Their median: what instances cost each other slows every execution, what the machine did
        besides slows some. Where there are more threads than cores (``crowded``) the slow
        executions are the deployment's own, and their mean counts.
        """
        for result in self.results:
            probe = result.probe
            if (probe.threads, probe.busy, probe.batch) != (threads, busy, batch):
                continue
            if not result.samples_ms:
                return 0.0
            return float((np.mean if crowded else np.median)(result.samples_ms))
        return 0.0

    def _interference(
        self,
        threads: int,
        instances: int,
        sizes: Sequence[int],
        cores: int,
        constants: MachineConstants,
    ) -> tuple[tuple[int, tuple[float, ...]], ...]:
        """Slow-down by batch size and busy instances, as ``ServiceTime.interference_by_size``.

        Between probed numbers of instances it grows as what was measured of the machine does, else
        as a straight line; beyond them the last one.
        """
        known = self._side_by_side(threads, sizes, cores)
        if not known and instances > 1:
            known = self._side_by_side_elsewhere(threads, instances, cores)
        most = max([instances, *(k for at in known.values() for k in at)])
        cores_of = threads or cores
        slower: Sequence[float] = [float(k) for k in range(1, most + 1)]
        if constants.interference:
            slower = constants.slower([k * cores_of for k in range(1, most + 1)])
        if not known and instances > 1:
            # Never probed side by side: as measured, or as if the cores were shared in turn.
            shared = max(1.0, instances * cores_of / cores)
            known[1] = {1: 1.0, instances: slower[-1] / slower[0]}
            if not constants.interference:
                known[1][instances] = shared
        return tuple((size, _filled(at, slower)[:instances]) for size, at in sorted(known.items()))

    def _side_by_side(
        self, threads: int, sizes: Iterable[int], cores: int
    ) -> dict[int, dict[int, float]]:
        """Slow-down by batch size and busy instances as probed with ``threads`` threads."""
        known: dict[int, dict[int, float]] = {}
        for busy in {result.probe.busy for result in self.results} - {1}:
            crowded = busy * (threads or cores) > cores
            for size in self._means(threads, busy).keys() & set(sizes):
                beside = self._typical(threads, 1, size, crowded)
                if beside > 0:
                    ratio = self._typical(threads, busy, size, crowded) / beside
                    known.setdefault(size, {1: 1.0})[busy] = max(1.0, ratio)
        return known

    def _side_by_side_elsewhere(
        self, threads: int, instances: int, cores: int
    ) -> dict[int, dict[int, float]]:
        """The same as the nearest thread count showed it for as many busy cores; or empty.

        Nothing is taken over where threads share a core, or shared one there.
        """
        places = {(result.probe.threads, result.probe.busy) for result in self.results}
        others = {other for other, busy in places if other and busy > 1 and other * busy <= cores}
        if not threads or instances * threads > cores:
            return {}
        wanted = threads * np.arange(1, instances + 1)
        for other in _nearest(threads, others):
            found: dict[int, dict[int, float]] = {}
            for size, at in self._side_by_side(other, self._means(other, 1), cores).items():
                busy = sorted(k for k in at if other * k <= cores)
                if len(busy) == 1:
                    continue
                slower = np.interp(wanted, other * np.array(busy), [at[k] for k in busy])
                over = np.maximum(slower / slower[0], 1.0)
                found[size] = {k: float(factor) for k, factor in enumerate(over, start=1)}
            if found:
                return found
        return {}

    def _residuals(self, threads: int) -> tuple[float, ...]:
        """Single executions over their probe's mean, thinned to 256, ascending."""
        found = [
            undisturbed_ms(result.samples_ms) / result.mean_ms
            for result in self.results
            if result.probe.threads == threads and len(result.samples_ms) >= 4
        ]
        ordered = np.sort(np.concatenate([np.empty(0), *found]))
        if len(ordered) > _RESIDUALS_MAX:
            ordered = np.quantile(ordered, (np.arange(_RESIDUALS_MAX) + 0.5) / _RESIDUALS_MAX)
        return tuple(round(float(value), 5) for value in ordered)

    def _noise_ms(self, threads: int) -> float:
        """How much of an execution the noise is a share of (``ServiceTime.noise_ms``).

        The mean of the smallest batch alone, which most of the samples are of, where threads may
        share a core: the one that waits does so for a time slice, whatever the batch.
        """
        timed = {size: mean_ms for size, mean_ms in self._means(threads, 1).items() if mean_ms > 0}
        on_gpu = any(result.probe.on_gpu for result in self.results)
        if threads == 1 or on_gpu or not timed:
            return math.inf
        return timed[min(timed)]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, for the cache."""
        return {
            "results": [
                {
                    "threads": result.probe.threads,
                    "busy": result.probe.busy,
                    "batch": result.probe.batch,
                    "seconds": result.probe.seconds,
                    "on_gpu": result.probe.on_gpu,
                    "samples_ms": list(result.samples_ms),
                    "limit_ms": result.limit_ms,
                    "rounds": [list(pair) for pair in result.rounds],
                    "failed": result.failed,
                    "changed_ms": list(result.changed_ms),
                }
                for result in self.results
            ]
        }

    @classmethod
    def from_dict(cls, variant: VariantKey, values: dict[str, Any]) -> VariantCalibration:
        """What :meth:`to_dict` wrote."""
        results = []
        for record in values["results"]:
            names = ("threads", "busy", "batch", "seconds", "on_gpu")
            probe = Probe(**{name: record[name] for name in names if name in record})
            samples = tuple(record["samples_ms"])
            results.append(
                ProbeResult(
                    probe=probe,
                    samples_ms=samples,
                    limit_ms=record.get("limit_ms"),
                    rounds=tuple((start, mean) for start, mean in record.get("rounds", ())),
                    failed=record.get("failed", ""),
                    changed_ms=tuple(record.get("changed_ms", ())),
                )
            )
        return cls(variant=variant, results=tuple(results))

    def merged(self, more: Iterable[ProbeResult]) -> VariantCalibration:
        """With further probes; a repeated one replaces the earlier."""
        by_place = {_place(result.probe): result for result in (*self.results, *more)}
        return VariantCalibration(variant=self.variant, results=tuple(by_place.values()))

    def lacks(self, probes: Sequence[Probe], *, limit_ms: float = 0.0) -> list[Probe]:
        """Those of ``probes`` that were not run yet.

        Args:
            limit_ms: Batches that were skipped as slower than less than this count as not run.
        """
        have = {
            _place(result.probe)
            for result in self.results
            if result.samples_ms or result.failed or (result.limit_ms or 0.0) >= limit_ms
        }
        return [probe for probe in probes if _place(probe) not in have]


def _filled(at: dict[int, float], slower: Sequence[float]) -> tuple[float, ...]:
    """Factors from 1 on: those known (``at``, by busy instances), and between them as ``slower``.

    Where ``slower`` does not rise between two that are known, a straight line.
    """
    found = []
    numbers = sorted(at)
    for k in range(1, len(slower) + 1):
        low = max((n for n in numbers if n <= k), default=numbers[0])
        high = min((n for n in numbers if n >= k), default=numbers[-1])
        rise = slower[high - 1] - slower[low - 1]
        share = (k - low) / (high - low) if high > low else 0.0
        if rise > _RISE_MIN:
            share = (slower[k - 1] - slower[low - 1]) / rise
        found.append(at[low] + share * (at[high] - at[low]))
    return tuple(found)


def _nearest(threads: int, others: Iterable[int]) -> list[int]:
    """Thread counts by how far they are from ``threads``, as factors."""
    return sorted(others, key=lambda other: (abs(math.log(other / threads)), other))


def _place(probe: Probe) -> tuple[int, int, int]:
    return probe.threads, probe.busy, probe.batch


def beside_host(
    service: ServiceTime, threads: int, host_ms: float, *, share_max: float = HOST_SHARE_MAX
) -> ServiceTime:
    """``service`` where instances times threads leave no core to the server and the generator.

    Args:
        host_ms: CPU time of these per inference.
        share_max: At most this share of the model's own time, with one thread.
    """
    if threads > 1:
        return _slower(
            service, lambda size, mean: max(HOST_SHARE_THREADS * mean, HOST_MS_THREADS * size)
        )
    return _slower(service, lambda size, mean: min(host_ms * size, share_max * mean))


def _slower(service: ServiceTime, more_ms: Callable[[int, float], float]) -> ServiceTime:
    """``service`` with what ``more_ms`` adds at each batch size and its mean, milliseconds.

    What is added is not the model's, and has neither its noise nor its interference.
    """
    points = zip(service.batch_sizes, service.service_ms, strict=True)
    more = np.array([more_ms(size, mean) for size, mean in points])
    times = np.maximum.accumulate(np.array(service.service_ms) + more)
    steady = service.steadied_ms(np.array(service.batch_sizes)) + more
    beyond_ms = service.beyond_ms
    if beyond_ms is not None:
        last = service.batch_sizes[-1]
        far_ms = service.service_ms[-1] + beyond_ms * last
        beyond_ms = (far_ms + more_ms(2 * last, far_ms) - float(times[-1])) / last
        beyond_ms = max(beyond_ms, service.beyond_ms or 0.0)
    return replace(
        service,
        service_ms=tuple(float(ms) for ms in times),
        steady_ms=tuple(float(ms) for ms in steady),
        beyond_ms=beyond_ms,
    )
