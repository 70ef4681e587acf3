"""Service-time models from probes: what the twin knows of a variant on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analyzer.domain.configuration import Configuration, VariantKey
from analyzer.twin.probes import Probe, ProbeResult
from analyzer.twin.service import ServiceTime

# Enough for the shape of the noise; more only makes the records longer.
_RESIDUALS_MAX = 256
# What a request costs outside the queue and the model until live runs have told: the socket, the
# scheduler, two thread switches.
OVERHEAD_MS_GUESS = 0.3
# What a request costs the machine's cores besides the model: the server's socket and scheduler, and
# a load generator on the same machine. While no core is left over, executions pay for it: with one
# thread per instance at most a share of the model's own time, since quick models are served in
# larger gulps; with several threads at least a share, since all wait for the one that was
# interrupted, and for each other after every pause.
# Fitted to bench/twin_live.py's runs on two cores (docs/twin.md).
_HOST_MS = 0.12
_HOST_SHARE_MAX = 0.12
_HOST_MS_THREADS = 0.08
_HOST_SHARE_THREADS = 0.14
# What Triton's python backend adds to each execution, and for each inference in it: shared memory,
# its stub process, the server's own threads, gRPC. An instance is occupied. Fitted like the above.
_PYTHON_BACKEND_MS = 0.5
_PYTHON_BACKEND_ITEM_MS = 0.1
# Time falls with this power of the threads, where nobody probed.
_THREADS_GAIN = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantCalibration:
    """Everything the probes gave for one variant.

    Args:
        results: The probes that were not skipped.
    """

    variant: VariantKey
    results: tuple[ProbeResult, ...]

    def service(self, threads: int, instances: int) -> ServiceTime | None:
        """Service times with ``threads`` threads and up to ``instances`` busy; None if unknown.

        The curve comes from one busy instance. A thread count that was not probed (the variant was
        too slow to be worth it) is taken from one that was, with a usual gain from threads.
        """
        alone = self._means(threads, 1)
        if not alone:
            probed = [r.probe.threads for r in self.results if r.probe.threads and r.samples_ms]
            if not probed or not threads:
                return None
            other = min(probed)
            gain = (threads / other) ** _THREADS_GAIN
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
            interference_by_size=self._interference(threads, instances, alone),
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
        self, threads: int, instances: int, alone: dict[int, float]
    ) -> tuple[tuple[int, tuple[float, ...]], ...]:
        """Slow-down by batch size and busy instances, as ``ServiceTime.interference_by_size``.

        Between probed numbers of instances a straight line, beyond them the last one.
        """
        cores = os.cpu_count() or 1
        known: dict[int, dict[int, float]] = {}
        for busy in {result.probe.busy for result in self.results} - {1}:
            crowded = busy * (threads or cores) > cores
            for size in self._means(threads, busy).keys() & alone.keys():
                beside = self._typical(threads, 1, size, crowded)
                if beside > 0:
                    ratio = self._typical(threads, busy, size, crowded) / beside
                    known.setdefault(size, {1: 1.0})[busy] = max(1.0, ratio)
        if not known and instances > 1:
            # Never probed side by side: as if the cores were shared in turn.
            known[1] = {1: 1.0, instances: float(max(1, instances * max(threads, 1) / 2))}
        busy_instances = np.arange(1, instances + 1)
        return tuple(
            (size, tuple(np.interp(busy_instances, sorted(at), [at[k] for k in sorted(at)])))
            for size, at in sorted(known.items())
        )

    def _residuals(self, threads: int) -> tuple[float, ...]:
        """Single executions over their probe's mean, thinned to 256, ascending."""
        found: list[float] = []
        for result in self.results:
            if result.probe.threads == threads and len(result.samples_ms) >= 4:
                found += [sample / result.mean_ms for sample in result.samples_ms]
        ordered = np.sort(np.asarray(found))
        if len(ordered) > _RESIDUALS_MAX:
            ordered = np.quantile(ordered, (np.arange(_RESIDUALS_MAX) + 0.5) / _RESIDUALS_MAX)
        return tuple(round(float(value), 5) for value in ordered)

    def cost_ms(self) -> float | None:
        """Milliseconds of one core per inference at its best; None without a probe."""
        costs = [
            result.mean_ms * max(result.probe.threads, 1) / result.probe.batch
            for result in self.results
            if result.samples_ms and result.probe.busy == 1 and result.probe.threads > 0
        ]
        return min(costs) if costs else None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, for the cache."""
        return {
            "results": [
                {
                    "threads": result.probe.threads,
                    "busy": result.probe.busy,
                    "batch": result.probe.batch,
                    "seconds": result.probe.seconds,
                    "samples_ms": list(result.samples_ms),
                }
                for result in self.results
            ]
        }

    @classmethod
    def from_dict(cls, variant: VariantKey, values: dict[str, Any]) -> VariantCalibration:
        """What :meth:`to_dict` wrote."""
        results = []
        for record in values["results"]:
            samples = tuple(record.pop("samples_ms"))
            results.append(ProbeResult(probe=Probe(**record), samples_ms=samples))
        return cls(variant=variant, results=tuple(results))

    def merged(self, more: Iterable[ProbeResult]) -> VariantCalibration:
        """With further probes; a repeated one replaces the earlier."""
        by_place = {_place(result.probe): result for result in (*self.results, *more)}
        return VariantCalibration(variant=self.variant, results=tuple(by_place.values()))

    def lacks(self, probes: Sequence[Probe]) -> list[Probe]:
        """Those of ``probes`` that were not run yet."""
        have = {_place(result.probe) for result in self.results}
        return [probe for probe in probes if _place(probe) not in have]


def _place(probe: Probe) -> tuple[int, int, int]:
    return probe.threads, probe.busy, probe.batch


def service_of(
    calibrations: dict[VariantKey, VariantCalibration], configuration: Configuration
) -> ServiceTime | None:
    """The service times that the twin uses for ``configuration``; None if they are unknown."""
    calibration = calibrations.get(configuration.variant)
    if calibration is None:
        return None
    threads = configuration.intra_op_threads
    service = calibration.service(
        threads if threads is not None else 0, configuration.instance_count
    )
    taken = (threads or 0) * configuration.instance_count
    if service is not None and configuration.backend == "python":
        service = _slower(
            service, lambda size, mean: _PYTHON_BACKEND_MS + _PYTHON_BACKEND_ITEM_MS * size
        )
    if service is None or configuration.device != "cpu" or taken < (os.cpu_count() or 1):
        return service
    return beside_host(service, threads or 1)


def beside_host(service: ServiceTime, threads: int) -> ServiceTime:
    """``service`` where instances times threads leave no core to the server and the generator."""
    if threads > 1:
        return _slower(
            service, lambda size, mean: max(_HOST_SHARE_THREADS * mean, _HOST_MS_THREADS * size)
        )
    return _slower(service, lambda size, mean: min(_HOST_MS * size, _HOST_SHARE_MAX * mean))


def _slower(service: ServiceTime, more_ms: Callable[[int, float], float]) -> ServiceTime:
    """``service`` with what ``more_ms`` adds at each batch size and its mean, milliseconds."""
    points = zip(service.batch_sizes, service.service_ms, strict=True)
    return replace(service, service_ms=tuple(mean + more_ms(size, mean) for size, mean in points))
