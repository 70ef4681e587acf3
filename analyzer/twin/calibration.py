"""Service-time models from probes: what the twin knows of a variant on this machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analyzer.domain.configuration import Configuration, VariantKey
from analyzer.twin.fitted import (
    HOST_MS_THREADS,
    HOST_SHARE_MAX,
    HOST_SHARE_THREADS,
    PYTHON_BACKEND_ITEM_MS,
    PYTHON_BACKEND_MS,
    THREADS_GAIN,
)
from analyzer.twin.machine_constants import FALLBACK, MachineConstants
from analyzer.twin.probes import Probe, ProbeResult
from analyzer.twin.service import ServiceTime

# Enough for the shape of the noise; more only makes the records longer.
_RESIDUALS_MAX = 256
# A slow-down of the machine below this is not told from none, and gives no shape.
_RISE_MIN = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantCalibration:
    """Everything the probes gave for one variant.

    Args:
        results: The probes that were not skipped.
    """

    variant: VariantKey
    results: tuple[ProbeResult, ...]

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
        if service is None or configuration.device != "cpu" or threads * instances < cores:
            return service
        share_max = math.inf if in_python else HOST_SHARE_MAX
        return beside_host(service, threads or 1, constants.host_ms, share_max=share_max)

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
        thread count that was not probed (the variant was too slow to be worth it) is taken from one
        that was, with a usual gain from threads.
        """
        alone = self._means(threads, 1)
        if not alone:
            probed = [r.probe.threads for r in self.results if r.probe.threads and r.samples_ms]
            if not probed or not threads:
                return None
            other = min(probed)
            gain = (threads / other) ** THREADS_GAIN
            alone = {size: mean / gain for size, mean in self._means(other, 1).items()}
            if not alone:
                return None
        sizes = sorted(alone)
        residuals = self._residuals(threads)
        return ServiceTime(
            batch_sizes=tuple(sizes),
            service_ms=tuple(alone[size] for size in sizes),
            distribution="empirical" if len(residuals) >= 8 else "deterministic",
            residuals=residuals if len(residuals) >= 8 else (),
            interference_by_size=self._interference(threads, instances, alone, cores, constants),
        )

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
        alone: dict[int, float],
        cores: int,
        constants: MachineConstants,
    ) -> tuple[tuple[int, tuple[float, ...]], ...]:
        """Slow-down by batch size and busy instances, as ``ServiceTime.interference_by_size``.

        Between probed numbers of instances it grows as what was measured of the machine does, else
        as a straight line; beyond them the last one.
        """
        known: dict[int, dict[int, float]] = {}
        for busy in {result.probe.busy for result in self.results} - {1}:
            crowded = busy * (threads or cores) > cores
            for size in self._means(threads, busy).keys() & alone.keys():
                beside = self._typical(threads, 1, size, crowded)
                if beside > 0:
                    ratio = self._typical(threads, busy, size, crowded) / beside
                    known.setdefault(size, {1: 1.0})[busy] = max(1.0, ratio)
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

    def _residuals(self, threads: int) -> tuple[float, ...]:
        """Single executions over their probe's mean, thinned to 256, ascending."""
        found = [
            np.asarray(result.samples_ms) / result.mean_ms
            for result in self.results
            if result.probe.threads == threads and len(result.samples_ms) >= 4
        ]
        ordered = np.sort(np.concatenate([np.empty(0), *found]))
        if len(ordered) > _RESIDUALS_MAX:
            ordered = np.quantile(ordered, (np.arange(_RESIDUALS_MAX) + 0.5) / _RESIDUALS_MAX)
        return tuple(round(float(value), 5) for value in ordered)

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
            if result.samples_ms or (result.limit_ms or 0.0) >= limit_ms
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
    """``service`` with what ``more_ms`` adds at each batch size and its mean, milliseconds."""
    points = zip(service.batch_sizes, service.service_ms, strict=True)
    return replace(service, service_ms=tuple(mean + more_ms(size, mean) for size, mean in points))
